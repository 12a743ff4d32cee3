"""PEtab's objective: the negative log likelihood of the data, with all its constants and without priors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.arguments import option_mistakes, shorten_repr
from castfit._support.blas_threads import one_blas_thread
from castfit._support.status import collect_mistakes, raise_if_mistakes
from castfit.integrate import IntegratorOptions
from castfit.integrate.esdirk_binding import missing_integrator_reason
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problem.problem import Posable, Problem, kind_mistakes
from castfit.result.covariance import neg2loglik
from castfit.result.residuals import ResidualTable, residual_table
from castfit.result.result import Result
from castfit.simulate.simulate import SimulationError
from castfit.transcribe.observation import constant
from castfit.transcribe.single_shooting import SingleShooting

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit._support.arrays import Array
    from castfit.formats.petab.loading import LoadedProblem
    from castfit.solve.staged import Evaluation, StagedProblem


def accurate(tolerance: float = 1e-9) -> IntegratorOptions:
    """Return options for values that are reported, of the most robust method that there is."""
    method = "rosenbrock" if missing_integrator_reason() else "explicit"
    return IntegratorOptions(method=method, relative_tolerance=tolerance, absolute_tolerance=0.01 * tolerance)


@dataclass(frozen=True)
class EvaluatedProblem:
    """A problem without priors at one point: the staged problem, and its evaluation."""

    compiled_problem: CompiledProblem
    staged: StagedProblem
    evaluation: Evaluation

    @property
    def negative_log_likelihood(self) -> float:
        """Negative log-likelihood of the data with all constants.

        Sigmas without a given value are at their estimates.
        """
        unknown = int(self.staged.layout.group_sizes.sum())
        return 0.5 * float(neg2loglik(self.evaluation.cost, constant(self.compiled_problem), n_unknown=unknown))

    @property
    def table(self) -> Mapping[str, NDArray[Any]]:
        """One row per measured value: experiment, output, time, replicate, value, prediction, sigma."""
        return residual_table(
            self.compiled_problem,
            ResidualTable.from_evaluation(self.compiled_problem, self.staged, self.evaluation, None),
        )


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
    def evaluate(self, theta: Array) -> EvaluatedProblem:
        """Integrate the model at theta.

        Raises SimulationError: if that fails.
        """
        evaluation = self.staged.evaluate(self.packed(theta))
        if not evaluation.ok:
            failure = evaluation.failures[0]
            raise SimulationError(failure.chain, float("nan"), failure.detail)
        return EvaluatedProblem(self.posed, self.staged, evaluation)

    def packed(self, theta: Array) -> Array:
        """Return the variables of single shooting, which has neither nodes nor inner ones."""
        empty = tuple(np.empty((1, 0)) for _ in self.posed.conditions)
        return self.staged.layout.pack(theta, empty, empty)


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
    source: Any = of
    options: Any = integrator or IntegratorOptions()
    where = "petab.negative_log_likelihood"
    if isinstance(source, Result):
        only = {"parameters": parameters, "integrator": integrator}
        raise_if_mistakes(
            where, [f"{n} is for a problem; a result has its own" for n, v in only.items() if v is not None]
        )
        return 0.5 * (source.neg2loglik - source.neg2logprior)
    is_integrator_valid = isinstance(options, IntegratorOptions)
    mistakes = option_mistakes(("integrator", integrator, is_integrator_valid, "give IntegratorOptions(...)"))
    if isinstance(source, (Problem, CompiledProblem)):
        mistakes += kind_mistakes(source, may_be_fixed=True)
        mistakes += collect_mistakes(lambda: source.posed.theta_from(parameters or {}, "parameters"))
    else:
        mistakes.append(f"of is {shorten_repr(of)}; give a Result or a Problem")
    raise_if_mistakes(where, mistakes)
    theta = source.posed.theta_from(parameters or {})
    return Objective(source, theta, integrator).evaluate(theta).negative_log_likelihood


def simulated(
    loaded: LoadedProblem, parameters: Mapping[str, float] | None = None, integrator: IntegratorOptions | None = None
) -> Array:
    """Return the prediction of each measured value (n,), in the order of the measurements table.

    parameters : natural values; those that are left out stand at their guess
    """
    problem = loaded.problem
    theta = problem.posed.theta_from(parameters or {}, "parameters")
    table = Objective(problem, theta, integrator).evaluate(theta).table
    keys = zip(table["experiment"], table["output"], table["time"].tolist(), strict=True)
    predictions = dict(zip(keys, table["prediction"].tolist(), strict=True))
    steady_names = {c.name for c in problem.conditions if c.is_steady_state}
    values: list[float] = []
    for datum in loaded.observing.data:
        name = datum.row.experiment
        label = f"{name} at rest" if np.isinf(datum.row.time) and f"{name} at rest" in steady_names else name
        values.append(predictions[label, datum.output, datum.row.time])
    return np.array(values)
