"""The likelihood of quantities in a model with process noise: Laplace's approximation over the path.

With everything that is free, u = (u_0, c_0, ..., c_{K-1}): how initial states deviate and the modes of the noise (see
`castfit.transcribe.noisy_stages`), all standard normal before anything is measured,

    F(u, q) = 1/2 |u|^2 + cost of the data along the path,       -log p(data | q)  ~  L(q) = F(u^) + 1/2 log |F_uu|

at the most probable path u^, exact where the model is linear and errors are normal (Tierney and Kadane 1986).  The
omitted modes of the noise add a term in closed form, `omitted` of `castfit.transcribe.noisy_stages`.  L then converges
at second order in the stages' length, or faster.  The path is searched with its nodes as variables of their own (Bock's
multiple shooting) by Newton's method on the Lagrangian

    F + sum_k lam_{k+1} . (f_k - x_{k+1}) + lam_0 . (a + S u_0 - x_0)

whose steps, determinant and covariances come from one Riccati factor, linear in K.  Let T = 1/2 log |F_uu| + omitted
in which the inverse is held,  z  the nodes and modes.  As z and lam move with q so that the gradient of the Lagrangian
stays zero,

    dL/dq = (Lagrangian + T)_q - (Lagrangian_z)_q mu_z - (Lagrangian_lam)_q mu_lam,
    KKT matrix (mu_z, mu_lam) = T_(z, lam)

one more substitution with the same factor, whatever the number of quantities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from castfit.densities.priors import Normal
from castfit.experiment.experiment import Free
from castfit.solve.riccati import ChainStep, RiccatiFactor, riccati
from castfit.transcribe.noisy_stages import NOISE_MODES, ChainBlocks, ChainPoint, NoisyChain

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index
    from castfit.problem.compiled_problem import CompiledProblem

_MAX_NEWTON_ITERATIONS, _MAX_STEP_HALVINGS = 60, 12
# Largest change of a mode or, relatively, of a state: below the first it is solved; below the second, rounding errors
# may end the iteration.
_MODE_TOLERANCE, _ROUNDING_TOLERANCE = 1e-8, 1e-4
_MAX_ONLY_STEP = 1e3  # size of the only step to the path of a linear model, for a precision of 1
_MULTIPLIER_RTOL = 1e-2  # accuracy of the multipliers: they change second derivatives only
_ARMIJO_FACTOR, _MIN_DIVISOR = 1e-4, 1e-300


@dataclass(frozen=True)
class PathStart:
    """Start of the search for a path, with the fields of `ChainPoint`, and the multipliers lam (K + 1, n)."""

    x: Array
    c: Array
    initial_deviations: Array
    z: Array
    lam: Array


@dataclass(frozen=True)
class PathMode:
    """The most probable path of one experiment.

    value : F + 1/2 log |F_uu| + omitted;  cost : F
    """

    point: ChainPoint
    lam: Array
    blocks: ChainBlocks
    factor: RiccatiFactor
    value: float
    cost: float
    iterations: int

    @property
    def start(self) -> PathStart:
        """Return the start of a search at this path."""
        return PathStart(self.point.x, self.point.c, self.point.initial_deviations, self.point.z, self.lam)


class ChainLikelihood:
    """The likelihood of one experiment, in which initial states of deviations S (n, r) are random."""

    def __init__(self, chain: NoisyChain, S: Array) -> None:
        self.chain, self.S = chain, S

    def find_mode(self, q: Array, sigma: Array, start: PathStart) -> PathMode | None:
        """Search for the most probable path; None where none is found."""
        chain = self.chain
        path, lam = (start.x, start.c, start.initial_deviations, start.z), start.lam
        took_full_step, previous_size = False, np.inf
        point, exact_factor = chain.point(q, sigma, path), None
        if not np.isfinite(point.natural.a).all():
            return None
        for iteration in range(_MAX_NEWTON_ITERATIONS):
            point = replace(point, x=path[0], c=path[1], initial_deviations=path[2])
            point = replace(point, z=chain.algebraic(point))
            blocks = chain.blocks(point, lam[1:])
            if not (np.isfinite(blocks.f).all() and np.isfinite(blocks.F).all() and np.isfinite(blocks.cost)):
                return None
            if not (chain.quadratic and exact_factor):  # else the second derivatives are the same everywhere
                exact_factor = self._factorize(blocks, exact=True) if took_full_step or iteration == 0 else None
            factor = exact_factor or self._factorize(blocks, exact=False)
            if factor is None:
                return None
            gaps = self._matching_defects(point, blocks.f)
            h = np.concatenate([blocks.gradient[:-1], point.c], axis=1)
            step = factor.solve(h, blocks.gradient[-1], gaps, point.initial_deviations)
            size = max(
                float(np.abs(step.u).max(initial=0.0)),
                float(np.abs(step.initial_variables).max(initial=0.0)),
                float((np.abs(step.x) / (1.0 + np.abs(point.x))).max(initial=0.0)),
                _MULTIPLIER_RTOL
                * float((np.abs(step.multipliers - lam) / (np.abs(step.multipliers).max(axis=0) + _MIN_DIVISOR)).max()),
            )
            if not np.isfinite(size):
                return None
            if exact_factor is not None and (
                size < _MODE_TOLERANCE or (size < _ROUNDING_TOLERANCE and size > 0.3 * previous_size)
            ):
                return self._build_mode(point, step.multipliers, blocks, exact_factor, iteration)
            if chain.quadratic and exact_factor:
                path = point.x + step.x, point.c + step.u, point.initial_deviations + step.initial_variables, point.z
                lam, previous_size = step.multipliers, size
                if size * exact_factor.precision > _MAX_ONLY_STEP:  # rounding errors need a second step
                    continue
                point = replace(point, x=path[0], c=path[1], initial_deviations=path[2])
                ends, cost = chain.values_at(point)
                return self._build_mode(point, lam, replace(blocks, f=ends, cost=cost), exact_factor, iteration)
            penalty = 1.5 * np.abs(step.multipliers)
            merit = self._cost(point, blocks.cost) + float(np.sum(penalty * np.abs(gaps)))
            predicted_decrease = float(
                np.sum(blocks.gradient * step.x)
                + np.sum(point.c * step.u)
                + point.initial_deviations @ step.initial_variables
            )
            predicted_decrease -= float(np.sum(penalty * np.abs(gaps)))
            length = 1.0
            for _ in range(_MAX_STEP_HALVINGS):
                path = (
                    point.x + length * step.x,
                    point.c + length * step.u,
                    point.initial_deviations + length * step.initial_variables,
                    point.z,
                )
                candidate = replace(point, x=path[0], c=path[1], initial_deviations=path[2])
                ends, cost = chain.values_at(candidate)
                candidate_merit = self._cost(candidate, cost) + float(
                    np.sum(penalty * np.abs(self._matching_defects(candidate, ends)))
                )
                if candidate_merit <= merit + _ARMIJO_FACTOR * length * min(predicted_decrease, 0.0) + 1e-9 * (
                    1.0 + abs(merit)
                ):
                    break
                length *= 0.5
            else:
                if not took_full_step:
                    return None
                took_full_step = False  # the exact curvature misled; the expected one descends
                path = (point.x, point.c, point.initial_deviations, point.z)
                continue
            lam, took_full_step = lam + length * (step.multipliers - lam), length == 1.0
            previous_size = size
        return None

    def _build_mode(
        self, point: ChainPoint, lam: Array, blocks: ChainBlocks, factor: RiccatiFactor, iterations: int
    ) -> PathMode:
        cost = self._cost(point, blocks.cost)
        value = cost + 0.5 * factor.log_det + self.chain.omitted(point, lam[1:])
        return PathMode(point, lam, blocks, factor, value, cost, iterations)

    def _cost(self, point: ChainPoint, data: float) -> float:
        return data + 0.5 * (float(np.sum(point.c**2)) + float(point.initial_deviations @ point.initial_deviations))

    def _matching_defects(self, point: ChainPoint, ends: Array) -> Array:
        return np.concatenate(
            [(point.natural.a + self.S @ point.initial_deviations - point.x[0])[None], ends - point.x[1:]]
        )

    def _factorize(self, blocks: ChainBlocks, *, exact: bool) -> RiccatiFactor | None:
        """Factor with second derivatives, or without those of the model and with the positive ones of the data."""
        n, hessian = self.S.shape[0], blocks.hessian
        H = blocks.second_derivatives.copy() if exact else np.zeros_like(blocks.second_derivatives)
        if not np.isfinite(hessian).all() or not np.isfinite(H).all():
            return None
        hessian = hessian if exact else positive_part(hessian)
        H[:, :n, :n] += hessian[:-1]
        H[:, n:, n:] += np.eye(H.shape[1] - n)
        return riccati(blocks.F, H, hessian[-1], self.S)

    def gradient(self, mode: PathMode) -> tuple[Array, Array]:
        """Return the derivatives of L by q (n_q,) and by the unknown sigmas."""
        chain, point, lam = self.chain, mode.point, mode.lam
        n = self.S.shape[0]
        C, C_nodes = mode.factor.covariances
        M = mode.factor.V[1:] @ mode.factor.F @ C
        if chain.quadratic:
            mu = ChainStep(np.zeros_like(point.x), np.zeros_like(point.c), self.S[0], np.zeros_like(point.x))
        else:
            by_v, by_lam, of_nodes = chain.trace(point, lam[1:], C, M, C_nodes)
            h = by_v.copy()
            h[:, :n] += of_nodes[:-1]
            d = np.concatenate([np.zeros((1, n)), by_lam])
            mu = mode.factor.solve(-h, -of_nodes[-1], -d, np.zeros_like(point.initial_deviations))
        return chain.by_quantities(point, mode.blocks.by_e, lam, C, M, C_nodes, mu.x, mu.u, mu.multipliers)

    def sample_weights(self, mode: PathMode, rng: np.random.Generator, count: int) -> Array:
        """Return log weights (count,) of paths drawn about the most probable one, which all are 0 where all is linear.

        The noise of a stage is drawn given the state that was drawn before it, as the Riccati factor has it, so that
        paths stay near.  The mean of the weights' exponentials is the likelihood over its approximation.
        """
        chain, point, (K, n, _) = self.chain, mode.point, self.chain.shape
        initial_deviations, modes, spread = mode.factor.draws(rng, count)
        half_squares = 0.5 * (np.sum(initial_deviations**2, axis=1) + np.sum(modes**2, axis=(0, 2)))
        initial_deviations = point.initial_deviations + initial_deviations @ spread[0].T
        x = np.empty((K + 1, count, n))
        x[0], c = point.natural.a + initial_deviations @ self.S.T, modes
        for k in range(K):
            c[k] = point.c[k] + (x[k] - point.x[k]) @ mode.factor.gain[k].T + modes[k] @ spread[1][k].T
            x[k + 1] = chain.ends_at(point, k, x[k], c[k], point.z[k])
        cost = chain.costs_at(point, x) + 0.5 * (np.sum(c**2, axis=(0, 2)) + np.sum(initial_deviations**2, axis=1))
        weights = mode.cost + half_squares - cost
        return np.where(np.isfinite(weights), weights, -np.inf)

    def innovations(self, mode: PathMode) -> tuple[Array, Array]:
        """Return the prediction of each value given the values before it, and its standard deviation, (R, n_o) each.

        The Kalman filter uses the model linearized about the most probable path, and processes values at the same time
        one after the other, so that the innovations are independent.  NaN where nothing is measured, or where the noise
        has no deviation.
        """
        chain, point, factor, S = self.chain, mode.point, mode.factor, self.S
        (K, n, _), observed = chain.shape, chain.condition.observed
        predicted, spread, slopes = chain.observed(point)
        expected, deviation = np.full(predicted.shape, np.nan), np.full(predicted.shape, np.nan)
        noise = np.full(predicted.shape, np.nan)
        for j, output in enumerate(observed):
            if output is not None:
                noise[:, j] = np.where(
                    chain.is_measured[:, j] > 0, output.noise.deviation(predicted[:, j], spread[:, j]), np.nan
                )
        rows_of = rows_by_node(chain.node, K)
        e, cov = point.natural.a - point.x[0], S @ S.T
        for k in range(K + 1):
            for r in rows_of[k].tolist():
                for j in np.flatnonzero(np.isfinite(noise[r])).tolist():
                    g = slopes[r, j]
                    cov_slope = cov @ g
                    variance = float(g @ cov_slope) + noise[r, j] ** 2
                    expected[r, j], deviation[r, j] = predicted[r, j] + float(g @ e), np.sqrt(variance)
                    e = e + cov_slope * ((chain.values[r, j] - expected[r, j]) / variance)
                    cov = cov - np.outer(cov_slope, cov_slope) / variance
            if k < K:
                A, B = factor.F[k, :, :n], factor.F[k, :, n:]
                e = A @ e - B @ point.c[k]
                cov = A @ cov @ A.T + B @ B.T
        return expected, deviation

    def track(self, mode: PathMode) -> tuple[Array, Array, Array]:
        """Return times (N,), values of all outputs of the model along the path, and their deviations, (N, n_out)."""
        values, slopes = self.chain.outputs(mode.point)
        _, C = mode.factor.covariances
        variance = np.einsum("noi,nij,noj->no", slopes, C, slopes)
        return self.chain.times, values, np.sqrt(np.maximum(variance, 0.0))

    # Where to begin

    def build_constant_point(self, q: Array, sigma: Array) -> ChainPoint:
        """Return the chain with states that stay as they are at the start."""
        return self.chain.point(q, sigma, self._build_constant_path(q))

    def filter_path(self, q: Array, sigma: Array) -> PathStart | None:
        """Return the path of an extended Kalman filter, in information form, for any noise of the data."""
        chain, (K, n, _) = self.chain, self.chain.shape
        point = chain.point(q, sigma, self._build_constant_path(q))
        if not np.isfinite(point.natural.a).all():
            return None
        x, cov, nodes = point.natural.a.copy(), self.S @ self.S.T, np.empty((K + 1, n))
        z = point.z.copy()
        rows_of = rows_by_node(chain.node, K)
        for k in range(K + 1):
            if rows_of[k].size:
                gradient, hessian = chain.data_at(point, rows_of[k], x, z[k])
                gain = np.linalg.solve(np.eye(n) + cov @ positive_part(hessian), cov)
                cov = 0.5 * (gain + gain.T)
                x = x - cov @ gradient
            nodes[k] = x
            if k < K:
                x, F = chain.stage_at(point, k, x, z[k])
                cov = F[:, :n] @ cov @ F[:, :n].T + F[:, n:] @ F[:, n:].T
                z[k + 1] = z[k]
            if not (np.isfinite(x).all() and np.isfinite(cov).all()):
                return None
        return PathStart(nodes, point.c, point.initial_deviations, point.z, np.zeros((K + 1, n)))

    def interpolate_path(self, q: Array, sigma: Array) -> PathStart:
        """Return nodes on lines between the data of states that are measured, others where they are at the start."""
        chain = self.chain
        point = chain.point(q, sigma, self._build_constant_path(q))
        x = point.x.copy()
        for j, i in chain.measured_states:
            is_measured = chain.is_measured[:, j] > 0
            x[:, i] = np.interp(chain.times, chain.row_times[is_measured, 0], chain.values[is_measured, j])
        return PathStart(x, point.c, point.initial_deviations, point.z, np.zeros_like(x))

    def _build_constant_path(self, q: Array) -> tuple[Array, Array, Array, Array]:
        K, _, m = self.chain.shape
        a = self.chain.condition.link.natural(q).a
        z = np.tile(self.chain.condition.z_guess, (K + 1, 1))
        return np.tile(a, (K + 1, 1)), np.zeros((K, m)), np.zeros(int(self.S.shape[1])), z

    def transfer_start(self, old: NoisyChain, start: PathStart) -> PathStart:
        """Return a start on this chain from one on a chain with other stages of the same experiment."""
        times, old_times = _separate_jump_times(self.chain.times), _separate_jump_times(old.times)

        def interpolate(values: Array) -> Array:
            out = np.empty((times.size, values.shape[1]))
            for j, column in enumerate(values.T):
                out[:, j] = np.interp(times, old_times, column)
            return out

        n_w, middle = start.c.shape[1] // NOISE_MODES, 0.5 * (times[:-1] + times[1:])
        stage = np.clip(np.searchsorted(old_times, middle, side="right") - 1, 0, old_times.size - 2)
        c = np.zeros((times.size - 1, start.c.shape[1]))
        c[:, :n_w] = start.c[stage, :n_w] * np.sqrt(self.chain.h / old.h[stage])  # the same noise for a shorter time
        return PathStart(
            interpolate(start.x), c, start.initial_deviations, interpolate(start.z), interpolate(start.lam)
        )


def _separate_jump_times(times: Array) -> Array:
    """Return times of nodes in which those before and after a jump differ."""
    gaps = np.diff(times)
    return times + 1e-9 * float(gaps[gaps > 0.0].min(initial=1.0)) * np.append(False, gaps == 0.0)


def positive_part(matrices: Array) -> Array:
    """Return symmetric matrices (..., n, n) without their negative eigenvalues."""
    values, vectors = np.linalg.eigh(np.where(np.isfinite(matrices), matrices, 0.0))
    return (vectors * np.maximum(values, 0.0)[..., None, :]) @ vectors.swapaxes(-1, -2)


def rows_by_node(node: Index, K: int) -> list[Index]:
    """Return the rows of data of each of K + 1 nodes."""
    order = np.argsort(node, kind="stable")
    ends = np.searchsorted(node[order], np.arange(K + 2))
    return [order[a:b] for a, b in pairwise(ends.tolist())]


@dataclass(frozen=True)
class PathEvaluation:
    """L at y, prior included, its gradient (n_y,), and the modes; `failure` says in which experiment none was found."""

    y: Array
    value: float
    gradient: Array
    modes: tuple[PathMode, ...]
    prior: float
    failure: str = ""


class PathLikelihood:
    """The likelihood of a whole problem at y = (theta, log of unknown sigmas).

    problem : without the initial states that are random, which `marginal` has taken from it; spreads are their
        deviations per experiment, (n, r)
    max_stage_lengths : of the stages of each experiment
    """

    def __init__(self, problem: CompiledProblem, spreads: Sequence[Array], longest: Sequence[float]) -> None:
        self.problem, self.spreads, self.max_stage_lengths = problem, tuple(spreads), tuple(longest)
        pairs = zip(range(len(problem.conditions)), spreads, longest, strict=True)
        self.chains = [ChainLikelihood(NoisyChain(problem, i, length), S) for i, S, length in pairs]
        self.evaluations = 0

    @property
    def is_linear(self) -> bool:
        """Whether the model is linear in states and noises, so that the covariance alone depends on the stages."""
        return all(likelihood.chain.functions.linear for likelihood in self.chains)

    def with_shorter_stages(self, factor: float) -> PathLikelihood:
        """Return the likelihood on stages that are shorter by the factor `factor`."""
        return PathLikelihood(self.problem, self.spreads, [length / factor for length in self.max_stage_lengths])

    @property
    def stages(self) -> int:
        """Return the number of stages of all experiments."""
        return sum(likelihood.chain.shape[0] for likelihood in self.chains)

    def split_variables(self, y: Array) -> tuple[Array, Array]:
        """Return theta and the unknown sigmas."""
        n = len(self.problem.names)
        return y[:n], np.exp(y[n:])

    def evaluate(self, y: Array, starts: list[PathStart] | None, *, slopes: bool = True) -> PathEvaluation:
        """Return L, with its gradient if `slopes`, from the given paths or from filtered ones."""
        self.evaluations += 1
        theta, sigma = self.split_variables(y)
        prior_rows = self.problem.priors(theta)
        prior = prior_rows.cost + self.problem.prior_constant
        modes, undefined, failure = list[PathMode](), np.full(y.size, np.nan), prior_rows.failure
        if not np.isfinite(prior):
            return PathEvaluation(y, np.inf, undefined, (), np.inf, failure)
        for i, likelihood in enumerate(self.chains):
            q = theta[likelihood.chain.condition.theta]
            mode = None if starts is None else likelihood.find_mode(q, sigma, starts[i])
            for begin in (likelihood.filter_path, likelihood.interpolate_path)[likelihood.chain.quadratic :]:
                if mode is None:
                    start = begin(q, sigma)
                    mode = None if start is None else likelihood.find_mode(q, sigma, start)
            if mode is None or not np.isfinite(mode.value):
                return PathEvaluation(y, np.inf, undefined, (), prior, likelihood.chain.condition.name)
            modes.append(mode)
        value = prior + sum(mode.value for mode in modes)
        evaluation = PathEvaluation(y, value, undefined, tuple(modes), prior)
        return self.with_gradient(evaluation) if slopes else evaluation

    def with_gradient(self, evaluation: PathEvaluation) -> PathEvaluation:
        """Return an evaluation with the gradient of L, NaN where no path was found."""
        theta, sigma = self.split_variables(evaluation.y)
        prior_rows, gradient = self.problem.priors(theta), np.zeros(evaluation.y.size)
        if prior_rows.rows.size:
            gradient[: theta.size] += prior_rows.jacobian.T @ prior_rows.rows
        for likelihood, mode in zip(self.chains, evaluation.modes, strict=False):
            by_q, by_sigma = likelihood.gradient(mode)
            gradient[likelihood.chain.condition.theta] += by_q
            gradient[theta.size :] += by_sigma * sigma
        return replace(evaluation, gradient=gradient) if evaluation.modes else evaluation

    def starts_from(self, other: PathLikelihood, evaluation: PathEvaluation) -> list[PathStart]:
        """Return paths found on other stages as starts."""
        pairs = zip(self.chains, other.chains, evaluation.modes, strict=True)
        return [target.transfer_start(source.chain, mode.start) for target, source, mode in pairs]


def marginal(problem: CompiledProblem) -> tuple[CompiledProblem, list[Array]]:
    """Return the problem without initial states that are known as random ones, and their deviations, (n, r) each."""
    spreads: list[Array] = []
    names: list[str] = []
    for e, condition in zip(problem.experiments, problem.conditions, strict=True):
        random_states = {n: v for n, v in problem.initial_values(e).items() if isinstance(v, Free) and v.random}
        states = problem.model.states
        S = np.zeros((len(states), len(random_states)))
        for j, (name, value) in enumerate(random_states.items()):
            assert isinstance(value.prior, Normal)
            S[states.index(name), j] = value.prior.deviation
        spreads.append(S)
        names += [
            q.name
            for q in problem.quantities
            if q.kind == "initial state" and q.experiment == condition.name and q.symbol_name in random_states
        ]
    return (problem.fix(names) if names else problem), spreads
