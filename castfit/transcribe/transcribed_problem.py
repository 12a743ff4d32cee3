"""Common base of the staged problems of transcriptions: sigma, priors, relations, and eliminated quantities.

Rows of known sigma are what `castfit.transcribe.observation` makes of them.  An unknown sigma, common to a group of n
rows, is eliminated:

    S = SSE / n of the group,    sigma^ = sqrt S between the floor and the ceiling
    rows r / sigma^,  Jacobian R / sigma^,  cost  1/2 |r|^2 / sigma^2 + n (log sigma^ - 1/2)

which is 1/2 n log S between them, and beyond the parabola in r that touches there with the same value and slope: the
cost of a sigma that is known.  The rows' products are the gradient exactly and Fisher's information, in which sigma and
theta do not mix.  The floor is what rounding leaves, or a bound; a ceiling is always a bound.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import isfinite, log, sqrt
from typing import TYPE_CHECKING

import numpy as np

from castfit._support.records import dataclass
from castfit.solve.staged import (
    ChainValues,
    Evaluation,
    Failure,
    HessianBlocks,
    Jacobians,
    Layout,
    Linearization,
    Relations,
    StagedProblem,
    read_only_copy,
)
from castfit.transcribe.variable_projection import NOTHING, Projection, projection_of

if TYPE_CHECKING:
    from typing_extensions import Self

    from castfit._support.arrays import Array, Index
    from castfit.problem.compiled_problem import CompiledProblem
    from castfit.problem.parameter_map import NaturalValues
    from castfit.transcribe.observation import MeasurementRows


_TINY = float(np.finfo(float).tiny)

# Smallest sigma relative to the data: smaller residuals are integration and rounding errors.
MIN_RELATIVE_SIGMA = 1e-10


class TranscribedProblem(StagedProblem):
    """A staged problem of a compiled problem."""

    problem: CompiledProblem
    _projection: Projection
    _max_sigma: Array

    def _set_problem(self, problem: CompiledProblem, layout: Layout, signal: tuple[Array, ...], theta: Array) -> None:
        """Set the attributes that follow from the problem; eliminated quantities without data stay at theta."""
        layout = _with_whitening(problem, layout)
        if layout.has_correlated_errors:  # second derivatives across stages are missing
            self.capabilities = tuple(kind for kind in self.capabilities if kind is not HessianBlocks)
        self.problem, self.layout, self.signal = problem, layout, signal
        self.least_sigma, self._max_sigma = sigma_limits(problem, layout, signal)
        self.least_squares, self.tolerates_outliers = problem.least_squares, problem.tolerates_outliers
        self.logarithmic = problem.log
        self._projection = projection_of(problem, theta)
        self.eliminated = self._projection.entries

    def _start_eliminated(self) -> None:
        """Start the eliminated quantities at their optimum for the start of the states."""
        if not self.eliminated.size:
            return
        with np.errstate(all="ignore"):
            self._projection = self._projection.with_output_effects(self._iterate_scaled_slopes(self.start))
            self._clear_cache()
            start_point = self.evaluate(self.start).v
        scale = self.scale.copy()
        scale[: self.layout.n_theta] = parameter_scale(self.problem, self.layout.theta(start_point))
        self.start, self.scale = read_only_copy(start_point), read_only_copy(scale)

    def explicit(self) -> Self:
        """Return the problem in which nothing is eliminated."""
        return self.with_projection(NOTHING) if self.eliminated.size else self

    @property
    def projection(self) -> Projection:
        """Return the projection that eliminates quantities."""
        return self._projection

    def with_projection(self, projection: Projection) -> Self:
        """Return the problem with another projection."""
        other = self._copy_without_cache()
        other._projection, other.eliminated = projection, projection.entries
        return other

    @abstractmethod
    def _copy_without_cache(self) -> Self:
        """Return a copy with a memory of its own."""

    @abstractmethod
    def _clear_cache(self) -> None:
        """Clear the results cached at any point."""

    @abstractmethod
    def _iterate_scaled_slopes(self, v: Array) -> Iterator[tuple[MeasurementRows, Array]]:
        """Yield the derivatives of observed expressions at v by states, times their magnitudes, per experiment."""

    @abstractmethod
    def _iterate_observables(self, v: Array) -> Iterator[tuple[MeasurementRows, Array]]:
        """Yield the observed expressions at v, (K, M, n_g) per experiment."""

    def standardised(self, v: Array) -> tuple[tuple[Array, ...], ...]:
        """Return per chain predictions, spreads and normalised residuals of the measured values."""
        return tuple(tuple(part[m.values_mask] for part in m.standardised(g)) for m, g in self._iterate_observables(v))

    def _evaluation(self, v: Array, values: Iterable[ChainValues], failures: Sequence[Failure]) -> Evaluation:
        """Assemble the evaluation from the chains' values, priors and relations; unknown sigmas are eliminated."""
        layout = self.layout
        with np.errstate(all="ignore"):
            prior = self.problem.priors(layout.theta(v))
            related, related_slopes = self.problem.evaluate_relations(layout.theta(v))
        bad = [name for name, value in zip(layout.relations.names, related, strict=True) if not np.isfinite(value)]
        failures = [
            *failures,
            *(Failure("constraint", 0, "not_finite", f"'{name}' cannot be computed") for name in bad),
            *([Failure("prior", 0, "not_finite", prior.failure)] if prior.failure else []),
        ]
        if layout.has_correlated_errors:
            values = [
                replace(chain_values, r=c.whitened(chain_values.r))
                for c, chain_values in zip(layout.chains, values, strict=True)
            ]
        rows = profile_sigma(layout, tuple(values), self.least_sigma, self._max_sigma)
        return Evaluation(
            v.copy(),
            rows.values,
            prior.rows,
            prior.jacobian,
            tuple(failures),
            sigma=rows.sigma,
            excess=rows.excess + prior.excess,
            surplus=rows.surplus,
            prior_excess=prior.excess,
            related=related,
            related_jacobian=related_slopes,
            prior_curved=prior.curved,
        )

    def _linearization(
        self,
        evaluation: Evaluation,
        jacobians: Iterable[Jacobians],
        failures: Sequence[Failure],
        measured: Iterable[MeasurementRows],
        observe: Callable[[], Iterable[tuple[MeasurementRows, Array]]],
    ) -> Linearization:
        """Add derivatives of rows that are weighted only; `observe` observes the point once more, for statistics."""
        return evaluation.extended(
            Linearization,
            failures=(*evaluation.failures, *failures),
            jacobians=standardize_derivatives(
                self.layout, self._projection.without_zero_scales(self.layout, tuple(jacobians)), evaluation.sigma
            ),
            information=self._information_function(measured, observe),
        )

    @staticmethod
    def _information_function(
        measured: Iterable[MeasurementRows], observe: Callable[[], Iterable[tuple[MeasurementRows, Array]]]
    ) -> Callable[[], tuple[Array, ...]] | None:
        """Return the function for `Linearization.information`; None if no rows are reweighted for statistics."""
        if not any([m.is_reweighted for m in measured]):
            return None
        return lambda: tuple(m.information(g) for m, g in observe())

    def _report_link_failures(
        self, v: Array, naturals: Sequence[NaturalValues], *, slopes: bool = False
    ) -> list[Failure]:
        """Report parameters and initial states that cannot be computed from theta, or whose derivatives cannot."""
        reasons = [
            (c.name, c.failure(v[c.theta], natural, slopes=slopes))
            for c, natural in zip(self.problem.conditions, naturals, strict=True)
        ]
        return [Failure(name, 0, "not_finite", reason) for name, reason in reasons if reason]

    def _relations_hessian(self, v: Array, multipliers: Array | None) -> Array:
        """Return the Hessian of relations, see `HessianBlocks`."""
        if multipliers is None or not multipliers.size:
            return np.zeros((self.layout.n_theta, self.layout.n_theta))
        return self.problem.relations_hessian(self.layout.theta(v), multipliers)


def _with_whitening(problem: CompiledProblem, layout: Layout) -> Layout:
    """Return the layout with the correlations of errors across stages."""
    chains = list(layout.chains)
    for i, condition in enumerate(problem.conditions):
        whitening = condition.whitening(problem.outputs)
        if whitening is not None:
            from castfit.densities.noise.correlation import embed_rows

            chains[i] = replace(chains[i], whitening=embed_rows(whitening.W, chains[i].datum_mask.ravel()))
    return replace(layout, chains=tuple(chains)) if any(c.whitening is not None for c in chains) else layout


def parameter_scale(problem: CompiledProblem, theta: Array) -> Array:
    """Return typical magnitudes of theta: the starting value of a linear parameter, 1 for a logarithm or a zero."""
    magnitude = np.abs(theta)
    return np.where(problem.log | (magnitude == 0.0), 1.0, magnitude)


def variable_bounds(problem: CompiledProblem, layout: Layout) -> tuple[Array, Array]:
    """Return the bounds of theta and of the states at nodes, (n_v,) each; nothing else has bounds."""
    lower, upper = np.full(layout.n_v, -np.inf), np.full(layout.n_v, np.inf)
    lower[: layout.n_theta], upper[: layout.n_theta] = problem.bounds
    for chain, condition in zip(layout.chains, problem.conditions, strict=True):
        for name, (low, high) in problem.state_bounds.items() if chain.n_s else ():
            j = problem.model.states.index(name)
            # A given initial state is no unknown; a bound at its value would only leave the bounds no interior.
            nodes = chain.nodes[int(condition.link.is_initial_fixed[j]) :, j]
            lower[nodes], upper[nodes] = low, high
    return lower, upper


def relations_of(problem: CompiledProblem) -> Relations:
    """Return the bounds of a problem's relations of quantities."""
    relations = problem.relations
    return Relations(
        tuple(r.name for r in relations),
        np.array([r.lower for r in relations]),
        np.array([r.upper for r in relations]),
        np.ones(len(relations)),
    )


@dataclass(frozen=True)
class ProfiledSigma:
    """Values with standardised rows; sigma (n_groups,); what the cost has beyond half the squares of the rows.

    excess : cost in excess of half the squares;  surplus : the part that is not of the unknown sigmas
    """

    values: tuple[ChainValues, ...]
    sigma: Array
    excess: float
    surplus: float


def resolution(layout: Layout, signal: Sequence[Array]) -> Array:
    """Return the least sigma of each group, (n_groups,), from the typical magnitudes (K, n_r) of its rows."""
    squares = np.zeros(layout.n_groups)
    for chain, of_chain in zip(layout.chains, signal, strict=True):
        measured = chain.group >= 0
        np.add.at(squares, chain.group[measured], of_chain[measured] ** 2)
    magnitude = np.sqrt(squares / np.maximum(layout.group_sizes, 1))
    return MIN_RELATIVE_SIGMA * np.where(magnitude > 0.0, magnitude, 1.0)


def sigma_limits(problem: CompiledProblem, layout: Layout, signal: Sequence[Array]) -> tuple[Array, Array]:
    """Return the least and the largest sigma of each group, (n_groups,) each."""
    min_sigma = resolution(layout, signal)
    if not problem.group_bounds:
        return min_sigma, np.full(min_sigma.size, np.inf)
    lower, upper = np.array(problem.group_bounds, dtype=float).reshape(-1, 2).T
    return np.maximum(min_sigma, lower), np.maximum(upper, np.maximum(min_sigma, lower))


def profile_sigma(layout: Layout, values: tuple[ChainValues, ...], floor: Array, ceiling: Array) -> ProfiledSigma:
    """Divide weighted residuals by the most likely sigma of their group, between floor and ceiling (n_groups,)."""
    surplus = sum(chain_values.excess for chain_values in values)
    if layout.n_groups == 0:
        return ProfiledSigma(values, np.empty(0), surplus, surplus)
    group, places = layout.group_rows
    r = np.concatenate([chain_values.r[positions] for chain_values, positions in zip(values, places, strict=True)])
    with np.errstate(all="ignore"):  # wild trial points overflow
        sigma, excess = likeliest_sigma(r, group, layout, floor, ceiling)
        standard = tuple(
            replace(chain_values, r=chain_values.r * inverse)
            for chain_values, inverse in zip(values, layout.expand_to_rows(1.0 / sigma), strict=True)
        )
    return ProfiledSigma(standard, sigma, excess + surplus, surplus)


def likeliest_sigma(r: Array, group: Index, layout: Layout, floor: Array, ceiling: Array) -> tuple[Array, float]:
    """Return the most likely sigma of each group (n_groups,) of rows r (n,), and what these cost."""
    if layout.n_groups == 1:
        n = int(layout.group_sizes[0])
        max_abs = float(np.maximum.reduce(np.abs(r), initial=_TINY))
        estimate = max_abs * sqrt(float(np.add.reduce((r / max_abs) ** 2)) / max(n, 1)) if isfinite(max_abs) else np.nan
        single_sigma = min(max(estimate, float(floor[0])), float(ceiling[0])) if isfinite(estimate) else 1.0
        return np.array([single_sigma]), n * (log(single_sigma) - 0.5)
    largest = np.full(layout.n_groups, _TINY)
    np.maximum.at(largest, group, np.abs(r))
    squares = np.bincount(group, (r / largest[group]) ** 2, minlength=layout.n_groups)
    sigma = np.clip(largest * np.sqrt(squares / np.maximum(layout.group_sizes, 1)), floor, ceiling)
    sigma = np.where(np.isfinite(sigma), sigma, 1.0)  # where a stage failed
    return sigma, float(np.sum(layout.group_sizes * (np.log(sigma) - 0.5)))


def standardize_derivatives(layout: Layout, jacobians: tuple[Jacobians, ...], sigma: Array) -> tuple[Jacobians, ...]:
    """Divide the derivatives of weighted residuals by the sigma (n_groups,) of their group."""
    if layout.n_groups == 0:
        return jacobians
    with np.errstate(all="ignore"):
        inverse = [
            factor if np.ndim(factor) == 0 else factor[..., None] for factor in layout.expand_to_rows(1.0 / sigma)
        ]
        return tuple(
            replace(j, R_s=j.R_s * scale, R_w=j.R_w * scale, R_q=j.R_q * scale)
            for j, scale in zip(jacobians, inverse, strict=True)
        )
