"""PEtab's objective: the negative log likelihood of the data, with all its constants and without priors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.arguments import text
from castfit._support.blas_threads import one_blas_thread
from castfit._support.status import check
from castfit.integrate import IntegratorOptions
from castfit.integrate.esdirk_binding import obstacle
from castfit.problem.compiled_problem import Posed
from castfit.problem.problem import Problem, kind_mistakes
from castfit.result.covariance import neg2loglik
from castfit.result.residuals import Seen, residual_table
from castfit.result.result import Result
from castfit.simulate.simulate import SimulationError
from castfit.solve.assembly import cost_gradient
from castfit.transcribe.observation import constant
from castfit.transcribe.single_shooting import SingleShooting

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit._support.arrays import Array
    from castfit.formats.petab.loading import LoadedProblem
    from castfit.problem.problem import Posable
    from castfit.solve.staged import Evaluation, StagedProblem


_STEPS = (1e-4, 1e-5, 1e-6, 1e-7, 1e-8)  # of differences, in units of theta where that is not a logarithm near 0


def accurate(tolerance: float = 1e-9) -> IntegratorOptions:
    """Return options for values that are reported, of the most robust method that there is."""
    method = "rosenbrock" if obstacle() else "esdirk"
    return IntegratorOptions(method=method, relative_tolerance=tolerance, absolute_tolerance=0.01 * tolerance)


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


class Objective:
    """The negative log likelihood of a problem as a function of theta, (n_theta,), in search scale.

    problem : its priors are left out
    theta (n_theta,) : where magnitudes of states are taken
    integrator : by default one that is accurate
    """

    def __init__(self, problem: Posable, theta: Array, integrator: IntegratorOptions | None = None) -> None:
        self.posed = problem.without_priors()
        self.staged = SingleShooting(integrator=integrator or accurate()).transcribe(self.posed, theta)

    @one_blas_thread
    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def evaluate(self, theta: Array) -> Evaluated:
        """Integrate the model at theta.

        Raises SimulationError: if that fails.
        """
        at = self.staged.evaluate(self._v(theta))
        if not at.ok:
            failure = at.failures[0]
            raise SimulationError(failure.chain, float("nan"), failure.detail)
        return Evaluated(self.posed, self.staged, at)

    def value(self, theta: Array) -> float:
        """Return the negative log likelihood; infinite where the model cannot be integrated."""
        try:
            return self.evaluate(theta).negative_log_likelihood
        except SimulationError:
            return float("inf")

    @one_blas_thread
    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def gradient(self, theta: Array) -> Array:
        """Return its derivatives by theta, (n_theta,), from sensitivities; NaN where they cannot be integrated."""
        linear = self.staged.linearize(self._v(theta))
        if not linear.ok:
            return np.full(theta.size, np.nan)
        layout = self.staged.layout
        return layout.theta(cost_gradient(layout, linear, np.ones(layout.n_groups + 1)))

    def differences(self, theta: Array) -> tuple[Array, Array]:
        """Return the same by central differences of fourth order of the value, and their uncertainty, (n_theta,) each.

        Of several steps the one is taken from which the next differs least: longer ones meet curvature, shorter ones
        rounding.  By how much it differs is the uncertainty.
        """
        both = np.array([self._difference(theta, j) for j in range(theta.size)]).reshape(-1, 2)
        return both[:, 0], both[:, 1]

    def _difference(self, theta: Array, j: int) -> tuple[float, float]:
        found: list[float] = []
        for step in _STEPS:
            size = step * max(1.0, abs(float(theta[j])))
            unit = np.where(np.arange(theta.size) == j, size, 0.0)
            near, far = (self.value(theta + k * unit) - self.value(theta - k * unit) for k in (1, 2))
            found.append((8 * near - far) / (12 * size))
        with np.errstate(invalid="ignore"):
            change = np.abs(np.diff(found))
        change = np.where(np.isfinite(change), change, np.inf)
        best = int(np.argmin(change))
        return found[1 + best], float(change[best])

    def _v(self, theta: Array) -> Array:
        return self.staged.layout.pack(theta, *_nothing(self.posed))


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
        For a problem; by default an accurate one.

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
    return Objective(given, theta, integrator).evaluate(theta).negative_log_likelihood


def simulated(
    loaded: LoadedProblem, parameters: Mapping[str, float] | None = None, integrator: IntegratorOptions | None = None
) -> Array:
    """Return the prediction of each measured value (n,), in the order of the measurements table.

    parameters : natural values; those that are left out stand at their guess
    """
    problem = loaded.problem
    theta = problem.posed.theta_from(parameters or {})
    table = Objective(problem, theta, integrator).evaluate(theta).table
    keys = zip(table["experiment"], table["output"], table["time"].tolist(), strict=True)
    found = dict(zip(keys, table["prediction"].tolist(), strict=True))
    rest = {c.name for c in problem.conditions if c.settled}
    out: list[float] = []
    for datum in loaded.observing.data:
        name = datum.row.experiment
        label = f"{name} at rest" if np.isinf(datum.row.time) and f"{name} at rest" in rest else name
        out.append(found[label, datum.output, datum.row.time])
    return np.array(out)
