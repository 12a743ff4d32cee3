"""Simulated trials of a population, which compare the scatter of estimates with the prediction of a design.

A trial draws the individual parameters of every subject from the assumed distribution, and values around the
predictions.  `castfit.mixed_effects` fits the trial without linearisation about typical values, unlike the information
of the design.  This tests the linearisation, and whether the number of subjects is large enough for it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import chdtri

from castfit._support.arrays import Array
from castfit._support.public_names import public
from castfit._support.renamed import with_old_names
from castfit._support.status import Status, raise_if_mistakes
from castfit._support.text_tables import TextTable, format_to_error
from castfit.drive.design.populations import PopulationDesignInformation
from castfit.drive.design.proposal import Design
from castfit.drive.population.compiled import CompiledPopulation, compile_population
from castfit.drive.population.distributed import build_cohort, default_integrator
from castfit.drive.population.mixed_effects import mixed_effects
from castfit.drive.run.jobs import task, unpickle_job
from castfit.drive.run.options import RunOptions
from castfit.drive.run.run_result import CUT_OFF
from castfit.drive.uncertainty.refits.run import Refit, RefitsResult, carry_out_refits
from castfit.integrate import IntegratorOptions
from castfit.problem.problem import Problem
from castfit.result.residuals import output_places

OPTIONS = ("workers", "max_time", "fit_max_time", "callback", "verbose")
_RATIO_COVERAGE = 0.99  # probability of the range of scatter / promised
_MAX_RANGE_RATIO = 1.5  # upper over lower end of that range, beyond which there are too few trials


@with_old_names(promised="predicted_sd", held="fraction_at_bound")
@dataclass(frozen=True)
class EstimateScatter:
    """Statistics of the estimates of one quantity in simulated trials, natural scale.

    truth; predicted_sd : standard deviation predicted by the design; scatter : standard deviation of the estimates
    ratio : scatter / predicted_sd; low, high : its 99 % interval for normal estimates
    bias, bias_error : mean estimate minus truth, with its standard error
    fraction_at_bound : fraction of trials with the estimate at a bound, such as an omega of zero
    """

    truth: float
    predicted_sd: float
    scatter: float
    ratio: float
    low: float
    high: float
    bias: float
    bias_error: float
    fraction_at_bound: float

    @property
    def verdict(self) -> str:
        """Comparison of scatter and predicted standard deviation, in words."""
        if not np.isfinite(self.ratio):
            return "not known"
        if self.low <= 1.0 <= self.high:
            return "as promised" if self.high <= _MAX_RANGE_RATIO * self.low else "too few trials"
        return "more than promised" if self.ratio > 1.0 else "less than promised"


@public("castfit")
@dataclass(frozen=True, eq=False, repr=False)
class VerifiedPopulation(RefitsResult):
    """Scatter of the estimates in simulated trials of a population design.

    Attributes
    ----------
    truth, promised : dict
        Values by name, and the standard deviations predicted by the design, natural scale.
    subjects : int
        Number of subjects of each trial.
    rows : tuple of Refit
        One for each trial; `theta` are its estimates, natural scale, in the order of `truth`.
    message : str
        Message about the end of the run.
    time : float
        Seconds.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k = cf.symbols("x k")
    >>> model = cf.Model({x: -k * x}, parameters=[k], initial={x: 10.0})
    >>> pilot = cf.Experiment({"x": [7.0, 3.0]}, [1, 4], sigma=0.3)
    >>> problem = cf.Problem(model, pilot, parameters={"k": cf.Parameter(0.3, local=True)})
    >>> population = cf.Population({"k": cf.Individual(omega=0.3)})
    >>> design = cf.design(problem, cf.Candidate([1, 2, 4, 8]), budget=20, population=population)
    >>> verified = design.verify(8)  # 200 tell something
    >>> verified.fitted, list(verified.quantities)
    (8, ['k', 'omega(k)'])
    """

    truth: Mapping[str, float]
    promised: Mapping[str, float]
    subjects: int
    rows: tuple[Refit, ...]
    message: str
    time: float

    @cached_property
    def quantities(self) -> dict[str, EstimateScatter]:
        """Statistics of the estimates of each quantity, by name."""
        solved = [row for row in self.rows if row.success]
        n = len(solved)
        all_estimates = np.array([row.theta for row in solved]).reshape(n, len(self.truth))
        quantities: dict[str, EstimateScatter] = {}
        for (name, true_value), estimates in zip(self.truth.items(), all_estimates.T, strict=True):
            predicted_sd = self.promised[name]
            scatter = float(np.std(estimates, ddof=1)) if n > 1 else np.nan
            ratio = scatter / predicted_sd if np.isfinite(predicted_sd) else np.nan
            tails = (
                chdtri(n - 1, [0.5 - 0.5 * _RATIO_COVERAGE, 0.5 + 0.5 * _RATIO_COVERAGE])
                if n > 1
                else np.full(2, np.nan)
            )
            low, high = (float(end) for end in ratio * np.sqrt((n - 1) / tails))
            bias, error = float(np.sum(estimates - true_value)) / max(n, 1), scatter / np.sqrt(max(n, 1))
            bound_share = sum(name in row.requested_pairs for row in solved) / max(n, 1)
            quantities[name] = EstimateScatter(
                true_value, predicted_sd, scatter, ratio, low, high, bias, float(error), bound_share
            )
        return quantities

    def summary(self) -> str:
        """Return the text that `print` shows."""
        heading = (
            f"{self.fitted} simulated trials with {self.subjects} subjects, fitted with mixed effects: "
            f"{self.time:.1f} s"
        )
        lines = [heading, self.message, *(["", *self._scatter.lines] if self.fitted > 1 else [])]
        bound_texts = [
            f"{n} in {100 * q.fraction_at_bound:.0f} %" for n, q in self.quantities.items() if q.fraction_at_bound > 0.0
        ]
        if bound_texts:
            lines += [
                "",
                "At a bound in some trials, so the predicted standard deviations are unreliable: "
                f"{', '.join(bound_texts)}.",
            ]
        return "\n".join([*lines, "", *self._failure_sheet().lines] if self._failed else lines)

    @property
    def _scatter(self) -> TextTable:
        return TextTable.from_items(
            self.quantities.items(),
            ("", lambda pair: pair[0]),
            (">truth", lambda pair: format_to_error(pair[1].truth, pair[1].predicted_sd)),
            (">promised", lambda pair: f"{pair[1].predicted_sd:.3g}"),
            (">scatter", lambda pair: f"{pair[1].scatter:.3g}"),
            (">scatter / promised", lambda pair: f"{pair[1].ratio:.2f} ({pair[1].low:.2f} to {pair[1].high:.2f})"),
            (">bias", lambda pair: f"{pair[1].bias:.2g} ± {pair[1].bias_error:.1g}"),
            ("", lambda pair: pair[1].verdict),
        )

    def __repr__(self) -> str:
        return f"VerifiedPopulation({self.fitted} of {len(self.rows)} trials of {self.subjects} subjects)"


def verify_population_design(design: Design, samples: int, seed: int, options: Mapping[str, Any]) -> VerifiedPopulation:
    """Simulate and fit trials of a population design."""
    run = RunOptions(**options)
    raise_if_mistakes("Design.verify", run.mistakes())
    run, information = run.with_plain_numbers(), design.information
    assert isinstance(information, PopulationDesignInformation)
    problem, population = design.problem, design.population
    question = compile_population(problem, population)
    natural = dict(zip(information.names, information.question.natural(information.estimate).tolist(), strict=True))
    y = information.estimate[[information.names.index(n) for n in question.names]]
    true_values = {n: natural[n] for n in question.names}
    predicted_sd = {
        n: design.after[n] * (1.0 if n in information.absolute_names else abs(v)) for n, v in true_values.items()
    }
    parts = problem, population, question, y, information.integrator or default_integrator(), seed
    job = run.pickle_job("Design.verify", "the problem with its population", parts)
    rows, message = carry_out_refits(
        run, _run_trial, job, {i: Refit(index=i) for i in range(samples)}, "trials", verb="simulated and fitted",
        describe_row=lambda row: f"trial {row.index}: {row.status}, {row.time:.2f} s",
    )  # fmt: skip
    return VerifiedPopulation(true_values, predicted_sd, question.n, rows, message, run.seconds)


@task
def _run_trial(job: Any, index: int, limit: float, deadline: float) -> Refit | None:
    """Simulate and fit the trial of an index, in any process. Return None if no time is left."""
    problem, population, question, y, integrator, seed = unpickle_job(job)
    seconds_left, start_time = min(deadline - time.time(), limit), time.perf_counter()
    if seconds_left <= 0.0:
        return None
    trial = simulate_trial(problem, question, y, integrator, np.random.default_rng([seed, index]))
    start = dict(zip(question.names, question.natural(y).tolist(), strict=True))
    free_names = question.names[: len(question.upper) + question.m]
    fit = mixed_effects(
        trial, population, start={n: start[n] for n in free_names}, integrator=integrator, standard_errors=False,
        max_time=seconds_left, verbose=0,
    )  # fmt: skip
    status = Status.EVALUATION_FAILED.value if fit.status.success and not fit.success else fit.status.value
    row = Refit(
        index=index,
        status=status,
        message=fit.message,
        theta=question.natural(fit.y),
        iterations=fit.iterations,
        requested_pairs=dict.fromkeys(fit.at_bounds, (0.0, 0.0)),
        time=time.perf_counter() - start_time,
    )
    cut = fit.status is Status.MAX_TIME and deadline <= time.time() + 1e-3
    return replace(row, status=CUT_OFF, message="The time of the whole run ended.") if cut else row


def simulate_trial(
    problem: Problem, question: CompiledPopulation, y: Array, integrator: IntegratorOptions, rng: np.random.Generator
) -> Problem:
    """Return the problem with simulated values of subjects drawn at y (n_y,)."""
    mu, compiled = question.means(y)[0], question.problem
    phi = mu + rng.multivariate_normal(np.zeros(question.m), question.omega_at(y), question.n, method="eigh")
    predictions, spreads, _ = build_cohort(question, integrator).evaluate_data(phi, y[question.of_shared])
    if not np.isfinite(predictions).all():
        raise FloatingPointError("a subject cannot be simulated at the parameters that were drawn for it")
    values = [np.full(c.points.values.shape, np.nan) for c in compiled.conditions]
    for place in output_places(compiled):
        values[place.condition][place.points, place.output] = place.noise.sample(
            rng, predictions[place.rows], spreads[place.rows]
        )
    pairs = zip(problem.experiments, values, strict=True)
    return problem.replace(experiments=[e.with_points(compiled.outputs, points) for e, points in pairs])
