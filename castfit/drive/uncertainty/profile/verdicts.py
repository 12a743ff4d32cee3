"""What a profile says about one side of a quantity, in a word and in a sentence."""

from __future__ import annotations

from dataclasses import dataclass

from castfit.drive.uncertainty.profile.limits import LIMIT
from castfit.drive.uncertainty.profile.spots import BOUND, CROSSED, CUT, FAR, INTERRUPTED, JUMP, ZERO

BOUNDED = "bounded"
OPEN = "open"
FLAT = "flat"
AT_BOUND = "at a bound"
UNFINISHED = "unfinished"
NOT_REPRODUCED = "not reproduced"

_FLAT = 1e-3  # of the threshold: an objective that rises by less does not rise


@dataclass(frozen=True)
class Side:
    """One side of a profile at one level.

    Attributes
    ----------
    kind : {"bounded", "open", "flat", "at a bound", "unfinished", "not reproduced"}
        "flat" is open where the objective does not rise at all: nothing in data and model tells values apart.  "not
        reproduced" is a limit, or a bound, where the model integrated with error control has another objective.
    limit : float
        The confidence limit; infinite where it is open or flat, the bound where that holds, NaN where it is unknown.
    followed : float
        How far values were followed.
    sentence : str
    """

    kind: str
    limit: float
    followed: float
    sentence: str


def judge(
    name: str,
    *,
    below: bool,
    log: bool,
    end: str,
    value: float,
    risen: float,
    top: float,
    level: float,
    reproduced: bool = True,
) -> Side:
    """Put into words how a region below a threshold ends.

    Parameters
    ----------
    name : str
    below : bool
        Whether this is the lower side.
    log : bool
        Whether nothing but positive values is possible.
    end : str
        Why the region ends there: "limit", or why the branch does.
    value : float
        Where, in natural scale.
    risen : float
        By how much the objective has risen at the most on this side.
    top, level : float
        The threshold, and its confidence level.
    reproduced : bool
        Whether the model, integrated with error control, has this objective there.
    """
    percent, infinity = f"{100 * level:g} %", (0.0 if log else float("-inf")) if below else float("inf")
    side, least = ("below", "at least") if below else ("above", "at most")
    if not reproduced and end in (LIMIT, JUMP, CROSSED, BOUND):
        sentence = (
            f"{name} is not known {side}: integrated with error control the model has another objective at "
            f"{value:.5g}; choose finer elements or a tighter integrator."
        )
        return Side(NOT_REPRODUCED, float("nan"), value, sentence)
    if end in (LIMIT, JUMP, CROSSED):
        how = " (where another optimum takes over)" if end == JUMP else ""
        return Side(BOUNDED, value, value, f"{name} is {least} {value:.5g} ({percent}){how}.")
    if end == BOUND:
        told = "" if risen >= _FLAT * top else ", and say nothing about it on the way"
        sentence = f"{name}: the data do not exclude values down to its bound {value:.5g}{told}."
        return Side(AT_BOUND, value, value, sentence if below else sentence.replace("down to", "up to"))
    infinity = 0.0 if end == ZERO else infinity
    if end in (FAR, ZERO) and risen < _FLAT * top:
        sentence = f"{name} is open {side}: the objective does not rise, as far as it was followed ({value:.3g})."
        return Side(FLAT, infinity, value, sentence)
    if end in (FAR, ZERO):
        part = f"{risen:.2g} of the {top:.3g} that would exclude a value"
        sentence = f"{name} is open {side}: followed to {value:.3g}, the objective has risen by {part}."
        return Side(OPEN, infinity, value, sentence)
    why = {
        CUT: "the time was over",
        INTERRUPTED: "it was interrupted",
    }.get(end, "no fit with the value held succeeded beyond")
    sentence = f"{name} is not known {side} {value:.5g}: {why}; the objective has risen by {risen:.2g} of {top:.3g}."
    return Side(UNFINISHED, float("nan"), value, sentence)
