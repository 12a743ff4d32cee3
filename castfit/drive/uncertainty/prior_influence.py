"""Influence of priors on a fit: estimates with priors compared with estimates from the data alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from castfit._support.arguments import describe_rejected
from castfit._support.public_names import public
from castfit._support.status import raise_if_mistakes
from castfit._support.text_tables import align_columns, format_to_error
from castfit._support.time_limit import interruptible
from castfit.drive.uncertainty.inputs import UNKNOWN_MODEL
from castfit.fit.fit import plain_fit as fit
from castfit.fit.methods import Solver, Transcription
from castfit.result.identifiability import AT_BOUND, AT_KINK, NOT_IDENTIFIABLE
from castfit.result.result import Result

NEGLIGIBLE_SHIFT_SE = 0.5  # standard errors: a smaller shift is not reported
CONFLICT_SHIFT_SE = 2.0  # standard errors: from this shift on, prior and data are in conflict
PRIOR_DOMINANCE_FRACTION = 0.5  # of the information: above it, most of the information comes from the prior


@public("castfit")
@dataclass(frozen=True, repr=False)
class PriorInfluence:
    """Estimates with and without priors; ``print`` shows both in one table.

    Attributes
    ----------
    posterior : Result
        With priors: the most probable values.
    likelihood : Result
        Of the data alone: the maximum of the likelihood within the bounds.
    shifts : dict
        By name, the shift of the estimate by the priors, in search scale and in standard errors of the fit without
        priors; NaN if that fit has no standard error.
    shares : dict
        By name, the fraction of the information that comes from priors, 1 - (error with / error without)^2; 1 if the
        data alone do not determine the quantity, NaN if it is at a bound.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k = cf.symbols("x k")
    >>> model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    >>> experiment = cf.Experiment({"x": [1.2, 0.8, 0.4]}, time=[1, 2, 3], sigma=0.1)
    >>> problem = cf.Problem(model, experiment, parameters={"k": 1.0}, priors={"k": cf.Normal(0.7, 0.1)})
    >>> influence = cf.prior_influence(cf.fit(problem))
    >>> round(influence.shares["k"], 2)
    0.05
    >>> print(influence)
       with priors  std. error  without  std. error  moved by  what priors do
    -------------------------------------------------------------------------------------------
    k       0.5308       0.042   0.4969       0.043     +0.79  shifted by +0.79 standard errors
    <BLANKLINE>
    sum of squared data residuals: 1.23152 with priors, 0.638627 without priors
    """

    posterior: Result
    likelihood: Result
    shifts: dict[str, float]
    shares: dict[str, float]

    def remark(self, name: str) -> str:
        """Return a phrase that describes the influence of the priors on an estimate."""
        shift, share = self.shifts[name], self.shares[name]
        if not self.likelihood.success:
            return "not available: the fit without priors failed"
        kind = self.likelihood.identifiability[name].kind
        if kind == NOT_IDENTIFIABLE:
            has_error = np.isfinite(self.posterior.standard_errors[name])
            return "determined by priors only" if has_error else "determined neither by data nor by priors"
        if kind == AT_BOUND or not np.isfinite(shift):
            return f"without priors {self.likelihood.identifiability[name].sentence}"
        shift_text = f"shifted by {shift:+.2g} standard errors"
        message = "no relevant shift" if abs(shift) < NEGLIGIBLE_SHIFT_SE else shift_text
        if self.posterior.identifiability[name].kind == AT_KINK:
            return f"fixed at the kink of its prior; {message}"
        if abs(shift) >= CONFLICT_SHIFT_SE:
            message = f"{shift_text}: prior and data are in conflict"
        return f"{message}; most of the information comes from priors" if share > PRIOR_DOMINANCE_FRACTION else message

    def summary(self) -> str:
        """Return the table that `print` shows."""
        rows = [("", "with priors", "std. error", "without", "std. error", "moved by", "what priors do")]
        for name in self.posterior.names:
            cells = [_cells(result, name) for result in (self.posterior, self.likelihood)]
            shift = self.shifts[name]
            shift_text = f"{shift:+.2f}" if np.isfinite(shift) else "-"
            rows.append((name, *cells[0], *cells[1], shift_text, self.remark(name)))
        fits = [float(r.residuals @ r.residuals) for r in (self.posterior, self.likelihood)]
        lines = [
            *align_columns(rows, "<>>>>><"),
            "",
            f"sum of squared data residuals: {fits[0]:.6g} with priors, {fits[1]:.6g} without priors",
        ]
        if not self.likelihood.success:
            lines.append(f"The fit without priors failed: {self.likelihood.message}")
        return "\n".join(lines)

    __str__ = summary

    def __repr__(self) -> str:
        listed = ", ".join(f"{n}: {s:+.2g}" for n, s in self.shifts.items())
        return f"PriorInfluence(moved by standard errors: {listed})"


def _cells(result: Result, name: str) -> tuple[str, str]:
    value, error = result.values[name], result.standard_errors[name]
    placeholder = "inf" if error > 0 else "-"
    return format_to_error(value, error), f"{error:.2g}" if np.isfinite(error) else placeholder


@interruptible
def prior_influence(
    result: Result, transcription: Transcription | str | None = None, solver: Solver | str | None = None, **options: Any
) -> PriorInfluence:
    """Fit once more without priors, starting from a result, and compare.

    Parameters
    ----------
    result : Result
        Of a problem with priors, with its problem.
    transcription, solver, options
        As in `fit`.

    Returns
    -------
    PriorInfluence
        Also if the data alone determine no quantity; the table then shows this.

    Raises
    ------
    InputError
        If there are no priors, or the result was loaded without its problem.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k = cf.symbols("x k")
    >>> model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    >>> experiment = cf.Experiment({"x": [1.2, 0.8, 0.4]}, time=[1, 2, 3], sigma=0.1)
    >>> problem = cf.Problem(model, experiment, parameters={"k": 1.0}, priors={"k": cf.Normal(0.7, 0.1)})
    >>> influence = cf.prior_influence(cf.fit(problem))
    >>> round(influence.shares["k"], 2)
    0.05
    """
    argument: Any = result
    if not isinstance(argument, Result):
        raise_if_mistakes(
            "prior_influence", [f"result is {describe_rejected(argument, 'expected the result of a fit')}"]
        )
    problem = result.problem
    if problem is None:
        raise_if_mistakes("prior_influence", [UNKNOWN_MODEL])
    assert problem is not None
    if len(problem.posed.every_prior) == len(problem.posed.smoothness_penalties):
        smoothness_note = (
            " (the smoothness of an estimated input is not removed)" if problem.posed.smoothness_penalties else ""
        )
        raise_if_mistakes(
            "prior_influence", [f"the problem has no priors{smoothness_note}, so there is nothing to compare"]
        )
    compiled_problem = problem.posed.with_absolute_sigma(absolute_sigma=result.absolute_sigma).smoothed(
        result.smoothness
    )
    likelihood_fit = fit(compiled_problem.without_priors(), transcription, solver, start=result, **options)
    errors = {n: _search_error(likelihood_fit, j) for j, n in enumerate(likelihood_fit.names)}
    differences = dict(zip(result.names, (result.theta - likelihood_fit.theta).tolist(), strict=True))
    is_comparable = likelihood_fit.success and result.success
    shifts = {
        n: differences[n] / e if is_comparable and np.isfinite(e) and e > 0.0 else np.nan for n, e in errors.items()
    }
    shares = {n: _share(result.standard_errors[n], e) for n, e in likelihood_fit.standard_errors.items()}
    return PriorInfluence(result, likelihood_fit, shifts, shares)


def _search_error(result: Result, j: int) -> float:
    """Return the standard error of an estimate in search scale."""
    name = result.names[j]
    value, error = result.values[name], result.standard_errors[name]
    return error / value if result.log[j] and value > 0.0 else error


def _share(with_priors: float, without: float) -> float:
    if np.isinf(without):
        return 1.0 if np.isfinite(with_priors) else np.nan
    return float(np.clip(1.0 - (with_priors / without) ** 2, 0.0, 1.0)) if without > 0.0 else np.nan
