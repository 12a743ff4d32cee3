"""A run that tests kill: multistart of a cheap problem with a checkpoint, a line on standard output per start."""

from __future__ import annotations

import sys

import castfit as cf
from tests.drive.chores import QUICK, STRAIGHT, pole


def run(path, workers=1, starts=40, callback=None):
    """Run, or go on where an earlier run was killed."""
    return cf.multistart(
        pole(),
        QUICK,
        STRAIGHT,
        starts=starts,
        rng=4,
        sampling="uniform",
        max_draws=2,
        workers=workers,
        checkpoint=path,
        resume=path is not None,
        callback=callback,
    )


if __name__ == "__main__":
    run(sys.argv[1], *map(int, sys.argv[2:]), callback=lambda progress: print(progress.finished, flush=True))  # noqa: T201
