"""Declarations of unknown standard deviations."""

from __future__ import annotations

from typing import Any

import numpy as np

from castfit._support.arguments import plain_numbers, read_real, shorten_repr
from castfit._support.bounds import both_bounds
from castfit._support.records import dataclass
from castfit._support.reprs import add_brief_repr
from castfit.densities.priors import prior_mistakes


@add_brief_repr
@dataclass(frozen=True)
class UnknownSigma:
    """A standard deviation, or another spread, to be estimated; create it with `unknown`."""

    name: str = ""
    guess: float | None = None
    lower: float = 0.0
    upper: float = np.inf
    prior: Any = None

    def __post_init__(self) -> None:
        plain_numbers(self)

    @property
    def is_unspecified(self) -> bool:
        """Whether the standard deviation has no guess, bound or prior, so that it may be eliminated."""
        return self.guess is None and self.lower == 0.0 and self.upper == np.inf and self.prior is None

    def mistakes(self, label: str) -> list[str]:
        """Check the name, bounds, guess and prior, and return the error messages; `label` is their subject."""
        mistakes: list[str] = []
        name: Any = self.name
        if not isinstance(name, str):
            mistakes.append(f"{label}: unknown() is named {shorten_repr(name)}; give text")
        mistakes += prior_mistakes(f"{label}: unknown()", self.prior)
        lower, upper = read_real(self.lower), read_real(self.upper)
        if lower is None or upper is None or not 0.0 <= lower < upper:
            bounds_text = f"{shorten_repr(self.lower)} and {shorten_repr(self.upper)}"
            mistakes.append(f"{label}: unknown() has the bounds {bounds_text}; give 0 <= lower < upper")
            return mistakes
        guess = None if self.guess is None else read_real(self.guess)
        if self.guess is not None and (
            guess is None or not (np.isfinite(guess) and lower <= guess <= upper and guess > 0)
        ):
            mistakes.append(
                f"{label}: unknown() has the guess {shorten_repr(self.guess)}; "
                "give a positive number between its bounds"
            )
        return mistakes


def unknown(
    name: str = "",
    *,
    guess: float | None = None,
    lower: float = 0.0,
    upper: float = np.inf,
    bounds: tuple[float, float] | None = None,
    prior: Any = None,
) -> UnknownSigma:
    """Declare an unknown standard deviation, one for all values of an output, or one for all that share its name.

    With nothing else said it is eliminated, sigma^2 = SSE / n at every point of the search: it costs no iterations and
    needs no guess.  With a bound or a prior it is estimated like a parameter.

    Parameters
    ----------
    name : str, optional
        Outputs and experiments with the same name share it; by default each output has its own, in all experiments.
    guess : float, optional
        Where an estimated one begins; by default what the residuals of a first fit say.
    lower, upper : float
        Bounds, in the unit of the data (of the logarithm for `LogNormal`).
    bounds : (lower, upper), optional
        The same in one argument.
    prior : optional
        Prior knowledge of it, as of a `Parameter`.

    Raises
    ------
    InputError
        If `bounds` is no pair, or given beside `lower` or `upper`.  What else is wrong is found by `Experiment`.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k = cf.symbols("x k")
    >>> model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    >>> data = {"x": [1.5, 1.0, 0.75, 0.5, 0.42, 0.24]}
    >>> experiment = cf.Experiment(data, time=[0.5, 1, 1.5, 2, 2.5, 3], sigma=cf.unknown())
    >>> result = cf.fit(cf.Problem(model, experiment, parameters={"k": 1.0}))
    >>> round(result["sigma(x)"].value, 3)
    0.038
    """
    if bounds is not None:
        lower, upper = both_bounds("unknown", -np.inf if lower == 0.0 else lower, upper, bounds)
    return UnknownSigma(name, guess, lower, upper, prior)
