"""PEtab's objective: the negative log likelihood of the data, with all its constants and without priors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._blas import one_blas_thread
from castfit._reading import text
from castfit.integrate import IntegratorOptions
from castfit.posed import Posed
from castfit.problem import Problem, kind_mistakes
from castfit.residuals import Seen, residual_table
from castfit.result import Result
from castfit.simulate import SimulationError
from castfit.solve.assembly import cost_gradient
from castfit.statistics import neg2loglik
from castfit.status import check
from castfit.transcribe.measured import constant
from castfit.transcribe.single_shooting import SingleShooting

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.problem import Posable
    from castfit.staged import Evaluation, StagedProblem

    Array = NDArray[np.float64]

ACCURATE = IntegratorOptions(method="rosenbrock", relative_tolerance=1e-9, absolute_tolerance=1e-11)


@dataclass(frozen=True)
class Evaluated:
    """A problem without priors at one point: the staged problem, and its evaluation."""

    posed: Posed
    staged: StagedProblem
    at: Evaluation

    @property
    def negative_log_likelihood(self) -> float:
        """Of the data, with all constants; sigmas of which nothing is said are the most likely ones."""
        unknown = int(self.staged.layout.group_sizes.sum())
        return 0.5 * float(neg2loglik(self.at.cost, constant(self.posed), n_unknown=unknown))

    @property
    def table(self) -> Mapping[str, NDArray[Any]]:
        """One row per measured value: experiment, output, time, replicate, value, prediction, sigma."""
        return residual_table(self.posed, Seen.of(self.posed, self.staged, self.at, None))


@one_blas_thread
@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def evaluate(problem: Posable, theta: Array, integrator: IntegratorOptions | None) -> Evaluated:
    """Integrate a problem at theta, (n_theta,), without its priors.

    Raises
    ------
    SimulationError
        If that fails.
    """
    posed = problem.without_priors()
    staged = SingleShooting(integrator=integrator or ACCURATE).transcribe(posed, theta)
    at = staged.evaluate(staged.layout.pack(theta, *_nothing(posed)))
    if not at.ok:
        failure = at.failures[0]
        raise SimulationError(failure.chain, float("nan"), failure.detail)
    return Evaluated(posed, staged, at)


@one_blas_thread
@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def gradient(problem: Posable, theta: Array, integrator: IntegratorOptions | None = None) -> Array:
    """Return the derivatives of the negative log likelihood by theta, in search scale, (n_theta,); NaN on failure."""
    posed = problem.without_priors()
    staged = SingleShooting(integrator=integrator or ACCURATE).transcribe(posed, theta)
    linear = staged.linearize(staged.layout.pack(theta, *_nothing(posed)))
    if not linear.ok:
        return np.full(theta.size, np.nan)
    return staged.layout.theta(cost_gradient(staged.layout, linear, np.ones(staged.layout.n_groups + 1)))


def _nothing(posed: Posed) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Return the nodes and inner variables that single shooting has not."""
    empty = tuple(np.empty((1, 0)) for _ in posed.conditions)
    return empty, empty


def negative_log_likelihood(
    of: Result | Posable,
    parameters: Mapping[str, float] | None = None,
    *,
    integrator: IntegratorOptions | None = None,
) -> float:
    """Return the negative log likelihood as PEtab defines it: with all constants, without priors.

    Parameters
    ----------
    of : Result or Problem
        A result has its own, of the accuracy of its fit; a problem is integrated.
    parameters : mapping from str to float, optional
        For a problem: estimated quantities, natural values; those that are left out stand at their guess, which is the
        nominal value of a problem that was loaded.
    integrator : IntegratorOptions, optional
        For a problem; by default the Rosenbrock method at a relative tolerance of 1e-9.

    Raises
    ------
    InputError
        For what is neither a result nor a problem, and for unknown names or values outside their bounds.
    SimulationError
        If the model cannot be integrated there.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k = cf.symbols("x k")
    >>> model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    >>> experiment = cf.Experiment({"x": [1.2, 0.8, 0.4]}, time=[1, 2, 3], sigma=0.1)
    >>> problem = cf.Problem(model, experiment, parameters={"k": cf.Parameter(0.5, lower=0)})
    >>> round(cf.petab.negative_log_likelihood(problem), 4)
    -3.8291
    >>> round(cf.petab.negative_log_likelihood(problem, {"k": 0.6}), 4)
    -1.4335
    >>> round(cf.petab.negative_log_likelihood(cf.fit(problem)), 4)
    -3.8316
    """
    given: Any = of
    if isinstance(given, Result):
        only = {"parameters": parameters, "integrator": integrator}
        check(
            "negative_log_likelihood",
            [f"{n} is for a problem; a result has its own" for n, v in only.items() if v is not None],
        )
        return 0.5 * (given.neg2loglik - given.neg2logprior)
    if not isinstance(given, (Problem, Posed)):
        check("negative_log_likelihood", [f"it is given {text(of)}; give a Result or a Problem"])
    check("negative_log_likelihood", [] if given.names else kind_mistakes(given))
    theta = given.posed.theta_from(parameters or {})
    return evaluate(given, theta, integrator).negative_log_likelihood
