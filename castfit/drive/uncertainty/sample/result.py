"""Result of a sampler: draws of the posterior, convergence diagnostics, and conversion to ArviZ."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from castfit._support.arguments import read_level
from castfit._support.arrays import Array
from castfit._support.public_names import public
from castfit._support.renamed import accept_old_names, with_old_names
from castfit._support.status import Status
from castfit._support.text_tables import align_columns, format_interval, format_to_error
from castfit._support.ties import first_argmax, first_argmin
from castfit.drive.run.run_result import STOPS
from castfit.drive.uncertainty.draws import DrawsResult
from castfit.result.residuals import groups
from castfit.result.result import Result, select_table_names

_MAX_R_HAT = 1.01  # R-hat up to which chains agree [Vehtari et al. 2021]
# R-hat of walkers up to which each has left its starting point: sqrt(1 + 1/5), with ten independent draws each.
_MAX_WALKER_R_HAT = 1.1
_MIN_EFFECTIVE_DRAWS = 400  # effective draws, below which means and limits are not reliable
_TAILS = 0.05, 0.95  # probabilities that bound the tails; ArviZ 1 has no default
_LONGER = "increase draws or max_time"
_MIN_STEPS_FOR_R_HAT = 4  # steps, below which R-hat is undefined


@with_old_names(effective="ess")
@public("castfit")
@dataclass(frozen=True, eq=False, repr=False)
class SampleResult(DrawsResult):
    """Draws from the posterior of the estimates of a fit.

    Attributes
    ----------
    result : Result
        The fit.
    chain : (walkers, steps, n_theta) array
        Draws in search scale; each walker of each chain is a row.
    log_density : (walkers, steps) array
        The logarithm of the posterior of theta, up to a constant.
    sigma_draws : dict
        Eliminated unknown standard deviations, (walkers, steps) each.
    chains : int
        Number of independent ensembles of walkers, with equal numbers of rows of `chain`.
    accepted : float
        Share of the proposals that were accepted.
    evaluations : int
        Number of simulations of the model.
    message : str
        Summary of how the run ended.
    time : float
        Seconds.

    Examples
    --------
    >>> import castfit as cf
    >>> result = cf.fit(cf.problems.load("bellman").problem)
    >>> drawn = cf.sample(result, draws=80, chains=2, tune=5)
    >>> drawn.converged
    False
    >>> lower, upper = drawn.confidence_intervals(0.9)["k1"]
    """

    result: Result
    chain: Array
    log_density: Array
    sigma_draws: Mapping[str, Array]
    chains: int
    accepted: float
    evaluations: int
    message: str
    time: float

    @classmethod
    def from_ensembles(
        cls,
        result: Result,
        ensembles: Sequence[Any],
        chains: int,
        tune: int,
        stop_status: Status | None,
        trouble: Sequence[str],
        seconds: float,
    ) -> SampleResult:
        """Build the result from the chains, cut to their common length and without the first `tune` steps."""
        n, labels = len(result.names), list(result.sigmas)
        n_steps = min((len(e.thetas) for e in ensembles), default=0)
        step_range = slice(tune, n_steps)
        parts = [e.thetas[step_range].transpose(1, 0, 2) for e in ensembles]
        chain = np.concatenate(parts) if parts else np.empty((0, 0, n))
        heights = np.concatenate([e.logs[step_range].T for e in ensembles]) if parts else np.empty((0, 0))
        sigma_parts = [e.sigmas[step_range].transpose(1, 0, 2) for e in ensembles]
        sigma = np.concatenate(sigma_parts) if parts else np.empty((0, 0, len(labels)))
        sizes = _group_sizes(result)
        rng = np.random.default_rng(0)  # for numbers that depend on the draws alone
        sigma_draws = {
            name: sigma[:, :, g] * np.sqrt(sizes[g] / rng.chisquare(sizes[g], sigma.shape[:2]))
            for g, name in enumerate(labels)
        }
        walkers = parts[0].shape[0] if parts else 0
        chain_text = f"{chains} chains of {walkers} walkers, {n_steps - tune} steps each after {tune} warm-up steps."
        missing_text = f" Only {len(ensembles)} of them reached this length." if len(ensembles) < chains else ""
        messages = [STOPS[stop_status]] if stop_status else []
        accepted = float(np.mean([e.is_accepted[step_range].mean() for e in ensembles])) if n_steps > tune else np.nan
        evaluations = sum(e.evaluations for e in ensembles)
        message = " ".join([*messages, chain_text + missing_text, *trouble])
        return cls(result, chain, heights, sigma_draws, len(ensembles), accepted, evaluations, message, seconds)

    @property
    def thetas(self) -> Array:
        """All draws, search scale, (n, n_theta)."""
        return self.chain.reshape(-1, len(self.names))

    @property
    def sigmas(self) -> dict[str, Array]:
        """Draws of the standard deviations that were eliminated, (n,) each."""
        return {name: draws.ravel() for name, draws in self.sigma_draws.items()}

    @cached_property
    def inference_data(self) -> Any:
        """ArviZ's InferenceData (a DataTree from its version 1 on), with the groups posterior and sample_stats.

        Each walker is a chain there; natural values by name, with the eliminated sigmas.  ArviZ's own R-hat compares
        these short chains instead of the ensembles, and is therefore larger.
        """
        arviz = _arviz()
        shape = self.chain.shape[:2]
        posterior = {n: v.reshape(shape) for n, v in self.values.items()} | dict(self.sigma_draws)
        groups = {"posterior": posterior, "sample_stats": {"lp": self.log_density}}
        if int(arviz.__version__.split(".")[0]) >= 1:
            return arviz.from_dict(groups)
        return arviz.from_dict(**groups)

    @cached_property
    def r_hat(self) -> dict[str, float]:
        """Rank-normalised R-hat of each quantity, between and within chains: 1 if the chains agree.

        All walkers of an ensemble count as one chain, step by step [Margossian et al. 2024], because single walkers are
        too short to compare their means.
        """
        each = len(self.chain) // max(self.chains, 1)
        ensembles = (self.chain[i * each : (i + 1) * each].swapaxes(0, 1) for i in range(self.chains))
        return self._diagnosed([e.reshape(-1, len(self.names)) for e in ensembles], "rhat")

    @cached_property
    def r_hat_of_walkers(self) -> dict[str, float]:
        """R-hat of each quantity among single walkers: sqrt(1 + 1/N) if each has made 2 N independent draws."""
        return self._diagnosed(self.chain, "rhat")

    @cached_property
    def ess(self) -> dict[str, float]:
        """Effective sample size of each quantity: the smaller of bulk and tail, at most the number of draws.

        With few steps, ArviZ's number may exceed the number of draws; this one is limited to it.
        """
        bulk = self._diagnosed(self.chain, "ess", method="bulk")
        tail = self._diagnosed(self.chain, "ess", method="tail", prob=_TAILS)
        return {name: min(bulk[name], tail[name], float(len(self.thetas))) for name in self.names}

    def _diagnosed(self, chains: Sequence[Array] | Array, statistic: str, **options: Any) -> dict[str, float]:
        """Return a statistic of ArviZ for each quantity, of chains (chains, steps, n)."""
        if self.chain.shape[1] < _MIN_STEPS_FOR_R_HAT or (statistic == "rhat" and len(chains) < 2):
            return dict.fromkeys(self.names, np.nan)
        function = getattr(_arviz(), statistic)
        return {n: float(function(np.stack([c[:, j] for c in chains]), **options)) for j, n in enumerate(self.names)}

    @property
    def converged(self) -> bool:
        """Whether ensembles agree, walkers have left their starting points, and the effective draws suffice."""
        is_consistent = all(r <= _MAX_R_HAT for r in self.r_hat.values())
        has_moved = all(r <= _MAX_WALKER_R_HAT for r in self.r_hat_of_walkers.values())
        return is_consistent and has_moved and all(e >= _MIN_EFFECTIVE_DRAWS for e in self.ess.values())

    @property
    def sentence(self) -> str:
        """Message about the convergence of the draws."""
        if self.chains == 1:
            return "Convergence cannot be assessed with a single chain; run at least two chains."
        if not np.isfinite(list(self.r_hat.values())).all():
            return f"Too few steps to assess convergence; {_LONGER}."
        worst_name, slowest_name = ([*r][first_argmax([*r.values()])] for r in (self.r_hat, self.r_hat_of_walkers))
        least_effective = [*self.ess][first_argmin([*self.ess.values()])]
        r_hat_text = f"largest R-hat {self.r_hat[worst_name]:.3f}"
        draws_text = f"smallest effective sample size {self.ess[least_effective]:.0f}"
        if self.converged:
            return f"Converged: {r_hat_text} ({worst_name}), {draws_text} ({least_effective})."
        if self.r_hat[worst_name] > _MAX_R_HAT:
            finding = f"NOT converged: R-hat of {worst_name} is {self.r_hat[worst_name]:.3f}, above {_MAX_R_HAT}"
            return f"{finding}. Do not use these samples; {_LONGER}."
        if self.r_hat_of_walkers[slowest_name] > _MAX_WALKER_R_HAT:
            return (
                f"NOT converged: R-hat of single walkers is {self.r_hat_of_walkers[slowest_name]:.2f} for "
                f"{slowest_name}, above {_MAX_WALKER_R_HAT}: walkers may still depend on their starting points; "
                f"{_LONGER}."
            )
        return (
            f"NOT converged: the chains agree, but the effective sample size of {least_effective} is only "
            f"{self.ess[least_effective]:.0f}, below {_MIN_EFFECTIVE_DRAWS}; {_LONGER}."
        )

    @accept_old_names(level="confidence_level")
    def confidence_intervals(self, confidence_level: float | None = None) -> dict[str, tuple[float, float]]:
        """Return credible intervals: between two quantiles of the draws, with equal probability on either side.

        Parameters
        ----------
        confidence_level : float, optional
            By default the result's `confidence_level`.
        """
        chosen = read_level("confidence_intervals", confidence_level, self.result.confidence_level)
        if not self.thetas.size:
            return dict.fromkeys(self.names, (np.nan, np.nan))
        ends = [0.5 - chosen / 2, 0.5 + chosen / 2]
        return {n: tuple(np.quantile(v, ends).tolist()) for n, v in self.values.items()}

    @property
    def limits(self) -> dict[str, dict[str, tuple[float, float]]]:
        """Intervals by the name of the method."""
        return {"posterior": self.confidence_intervals()}

    def summary(self) -> str:
        """Return the text that `print` shows."""
        level = f"{100 * self.result.confidence_level:g} %"
        lines = [f"posterior: {len(self.thetas)} draws, {100 * self.accepted:.0f} % accepted, {self.time:.1f} s"]
        lines += [self.message, self.sentence, ""]
        headers = ("", "estimate", "mean", "std. dev.", f"{level} posterior", f"{level} linear", "R-hat", "effective")
        rows: list[tuple[str, ...]] = [headers]
        intervals, linear = self.confidence_intervals(), self.result.confidence_intervals()
        shown_names, hint_lines = select_table_names(self.names, "confidence_intervals(), r_hat and effective")
        for name in shown_names:
            draws = self.values[name]
            spread = float(np.std(draws)) if draws.size else np.nan
            mean = float(np.mean(draws)) if draws.size else np.nan
            cells = [
                "-" if not np.isfinite(p).all() else format_interval(p, mean) for p in (intervals[name], linear[name])
            ]
            value = format_to_error(self.result.values[name], spread)
            figures = (f"{self.r_hat[name]:.3f}", f"{self.ess[name]:.0f}")
            rows.append((name, value, format_to_error(mean, spread), f"{spread:.3g}", *cells, *figures))
        return "\n".join([*lines, *align_columns(rows, "<>>><<>>"), *hint_lines])

    def __repr__(self) -> str:
        return f"SampleResult({len(self.thetas)} draws of {len(self.names)} quantities; {self.sentence})"


def _group_sizes(result: Result) -> list[int]:
    """Return the number of data of each unknown sigma."""
    assert result.problem is not None
    compiled_problem = result.problem.posed.with_absolute_sigma(absolute_sigma=result.absolute_sigma)
    return np.bincount(groups(compiled_problem) + 1, minlength=len(compiled_problem.groups) + 1)[1:].tolist()


def _arviz() -> Any:
    """Import ArviZ without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import arviz

        return arviz
