"""A fit to other data, as a row of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from castfit.drive.run.found import UNFINISHED, Ended

Array = NDArray[np.float64]

LOWER = 1e-6  # of the cost, by which another start must be better to count as another optimum


@dataclass(frozen=True, eq=False, kw_only=True)
class Refit(Ended):
    """A fit to other data.

    Attributes
    ----------
    index : int
        Which data, from 0.
    name : str
        What they are, where they have a name, such as an experiment that was left out.
    status, message : str
        How the fit ended: a value of `castfit.Status`; or "worker_died", "worker_hung", "cut_off", "error", "not_run".
    theta : (n_theta,) array
        The estimates, search scale; of a fit that failed its best point, empty if there was none.
    cost, chi2 : float
    sigmas : mapping
        Unknown standard deviations that were eliminated: the most likely values.
    found : mapping
        Pairs of numbers that were asked for beside: per quantity the ends of an interval, say.
    start : int
        Which start led there: 0 is the estimate, others those that were asked for beside.
    elsewhere : bool
        Whether another start found a better optimum than the estimate did.
    iterations : int
    time : float
        Seconds.
    """

    index: int
    name: str = ""
    status: str = "not_run"
    message: str = "It was not run."
    theta: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    cost: float = np.nan
    chi2: float = np.nan
    sigmas: Mapping[str, float] = field(default_factory=dict[str, float])
    found: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    start: int = 0
    elsewhere: bool = False
    iterations: int = 0
    time: float = np.nan

    @property
    def finished(self) -> bool:
        """Whether it came to an end of its own, successful or not."""
        return self.status not in UNFINISHED


def failures(rows: Sequence[Refit]) -> dict[str, int]:
    """Count the fits that ended without a solution, by cause, the most frequent first."""
    return dict(Counter(row.status for row in rows if row.finished and not row.success).most_common())


def failure_table(rows: Sequence[Refit]) -> list[tuple[str, int, str]]:
    """Return cause, count and the message of one such fit, the most frequent first."""
    first: dict[str, str] = {}
    for row in rows:
        if row.finished and not row.success:
            first.setdefault(row.status, row.message)
    return [(cause, count, first[cause]) for cause, count in failures(rows).items()]
