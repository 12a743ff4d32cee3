"""A bootstrap that tests kill: a cheap problem with a checkpoint, a line on standard output per fit."""

from __future__ import annotations

import sys

import castfit as cf
from tests.builders import decay_problem


def run(path, workers=1, samples=40, callback=None):
    """Run, or go on where an earlier run was killed."""
    result = cf.fit(decay_problem(), cf.SingleShooting())
    return cf.bootstrap(
        result,
        "residual",
        samples=samples,
        rng=3,
        transcription="single",
        workers=workers,
        checkpoint=path,
        resume=path is not None,
        callback=callback,
    )


if __name__ == "__main__":
    run(sys.argv[1], *map(int, sys.argv[2:]), callback=lambda progress: print(progress.finished, flush=True))  # noqa: T201
