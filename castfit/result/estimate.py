"""One estimate with all that is known about it, as ``result["k1"]`` returns it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np

from castfit._support.public_names import public
from castfit._support.renamed import with_old_names
from castfit._support.reprs import one_line
from castfit._support.status import InputError
from castfit._support.text_tables import format_interval, format_to_error

if TYPE_CHECKING:
    from typing import Any


@with_old_names(level="confidence_level")
@public("castfit")
class Estimate(float):
    """An estimated value: a number like any other, which also knows how well it is known.

    It is the same number as ``result.parameters[name]``, and computes, compares and is written as one.

    Attributes
    ----------
    name : str
    standard_error : float
        NaN where there is none, as at a bound; infinite where the data do not determine the value.
    interval : (lower, upper)
        Confidence interval at `confidence_level`; see `Result.confidence_intervals`.
    confidence_level : float
    verdict : str
        What the data say about it, in words; on a condition where residuals show that the model is wrong.
    unit : str
        Empty if the problem names none.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> result = cf.fit(problem)
    >>> estimate = result["k1"]
    >>> estimate
    k1 = 4.577e-06 ± 1.6e-07, 95 % interval [4.235e-06, 4.919e-06] (assuming that the model is correct: well determined)
    """

    name: str
    standard_error: float
    interval: tuple[float, float]
    confidence_level: float
    verdict: str
    unit: str

    def __new__(
        cls,
        value: float,
        *,
        name: str,
        standard_error: float,
        interval: tuple[float, float],
        confidence_level: float,
        verdict: str,
        unit: str = "",
    ) -> Estimate:
        """Create an estimate from a value, its uncertainty and its verdict."""
        estimate = super().__new__(cls, value)
        estimate.name, estimate.standard_error, estimate.interval = name, standard_error, interval
        estimate.confidence_level, estimate.verdict, estimate.unit = confidence_level, verdict, unit
        return estimate

    @property
    def value(self) -> float:
        """The number alone."""
        return float(self)

    def __repr__(self) -> str:
        value, error = float(self), self.standard_error
        unit = f" {self.unit}" if self.unit else ""
        if not np.isfinite(error):
            return one_line(f"{self.name} = {value:.6g}{unit} ({self.verdict})")
        level = f"{100 * self.confidence_level:g} %"
        interval_text = f"{level} interval {format_interval(self.interval, value)}"
        return one_line(
            f"{self.name} = {format_to_error(value, error)} ± {error:.2g}{unit}, {interval_text} ({self.verdict})"
        )

    __str__ = float.__repr__  # as a number, where it is put into text

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling and copying, with all attributes."""
        return _build_estimate, (float(self), vars(self))


def frame_of(estimates: Sequence[Estimate]) -> Any:
    """Return a DataFrame with a row for each estimate, by name."""
    try:
        pandas: Any = import_module("pandas")  # which is not needed otherwise
    except ImportError:
        raise InputError("to_frame", ["a DataFrame needs pandas: pip install pandas"]) from None
    rows = [(float(e), e.standard_error, *e.interval, e.verdict, e.unit) for e in estimates]
    heads = ["estimate", "standard_error", "lower", "upper", "verdict", "unit"]
    return pandas.DataFrame(rows, pandas.Index([e.name for e in estimates], name="name"), heads)


def _build_estimate(value: float, attributes: dict[str, Any]) -> Estimate:
    return Estimate(value, **attributes)
