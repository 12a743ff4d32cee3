"""The likelihood of quantities where the model itself errs: Laplace's approximation over the path.

With everything that is free, u = (u_0, c_0, ..., c_{K-1}): how initial states deviate and the modes of the noise (see
`castfit.transcribe.noisy_stages`), all standard normal before anything is measured,

    F(u, q) = 1/2 |u|^2 + cost of the data along the path,       -log p(data | q)  ~  L(q) = F(u^) + 1/2 log |F_uu|

at the most probable path u^, exact where the model is linear and errors are normal (Tierney and Kadane 1986).  The path
is searched with its nodes as variables of their own (Bock's multiple shooting) by Newton's method on the Lagrangian

    F + sum_k lam_{k+1} . (f_k - x_{k+1}) + lam_0 . (a + S u_0 - x_0)

whose steps, determinant and covariances come from one Riccati factor, linear in K.  Let T = 1/2 log |F_uu| in which the
inverse is held,  z  the nodes and modes.  As z and lam move with q so that the gradient of the Lagrangian stays zero,

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
from castfit.solve.riccati import RiccatiFactor, riccati
from castfit.transcribe.noisy_stages import MODES, ChainBlocks, ChainPoint, NoisyChain

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index
    from castfit.problem.compiled_problem import Posed

_ITERATIONS, _HALVINGS = 60, 12
_EXACT, _NEAR = 1e-8, 1e-4  # largest change of a mode or, relatively, of a state: solved, and where rounding may end it
_LOOSE = 1e-2  # relative changes of multipliers count so much: they move second derivatives alone
_ARMIJO, _TINY = 1e-4, 1e-300


@dataclass(frozen=True)
class PathStart:
    """Start of the search for a path, with the fields of `ChainPoint`, and the multipliers lam (K + 1, n)."""

    x: Array
    c: Array
    first: Array
    z: Array
    lam: Array


@dataclass(frozen=True)
class PathMode:
    """The most probable path of one experiment.

    value : F + 1/2 log |F_uu|;  cost : F
    """

    at: ChainPoint
    lam: Array
    blocks: ChainBlocks
    factor: RiccatiFactor
    value: float
    cost: float
    iterations: int

    @property
    def start(self) -> PathStart:
        """Return the start of a search at this path."""
        return PathStart(self.at.x, self.at.c, self.at.first, self.at.z, self.lam)


class ChainLikelihood:
    """The likelihood of one experiment, in which initial states of deviations S (n, r) are random."""

    def __init__(self, chain: NoisyChain, S: Array) -> None:
        self.chain, self.S = chain, S

    def mode(self, q: Array, sigma: Array, start: PathStart) -> PathMode | None:
        """Search for the most probable path; None where none is found."""
        chain = self.chain
        path, lam = (start.x, start.c, start.first, start.z), start.lam
        full, last = False, np.inf
        for iteration in range(_ITERATIONS):
            at = chain.point(q, sigma, path)
            at = replace(at, z=chain.algebraic(at))
            if not np.isfinite(at.natural.a).all():
                return None
            blocks = chain.blocks(at, lam[1:])
            if not (np.isfinite(blocks.f).all() and np.isfinite(blocks.F).all() and np.isfinite(blocks.cost)):
                return None
            exact = self._factored(blocks, exact=True) if full or iteration == 0 else None
            factor = exact or self._factored(blocks, exact=False)
            if factor is None:
                return None
            gaps = self._gaps(at, blocks.f)
            h = np.concatenate([blocks.gradient[:-1], at.c], axis=1)
            step = factor.solve(h, blocks.gradient[-1], gaps, at.first)
            size = max(
                float(np.abs(step.u).max(initial=0.0)),
                float(np.abs(step.first).max(initial=0.0)),
                float((np.abs(step.x) / (1.0 + np.abs(at.x))).max(initial=0.0)),
                _LOOSE * float((np.abs(step.multipliers - lam) / (np.abs(step.multipliers).max(axis=0) + _TINY)).max()),
            )
            if not np.isfinite(size):
                return None
            if exact is not None and (size < _EXACT or (size < _NEAR and size > 0.3 * last)):
                cost = self._cost(at, blocks.cost)
                return PathMode(at, step.multipliers, blocks, exact, cost + 0.5 * exact.log_det, cost, iteration)
            price = 1.5 * np.abs(step.multipliers)
            before = self._cost(at, blocks.cost) + float(np.sum(price * np.abs(gaps)))
            promised = float(np.sum(blocks.gradient * step.x) + np.sum(at.c * step.u) + at.first @ step.first)
            promised -= float(np.sum(price * np.abs(gaps)))
            length = 1.0
            for _ in range(_HALVINGS):
                path = (
                    at.x + length * step.x,
                    at.c + length * step.u,
                    at.first + length * step.first,
                    at.z,
                )
                there = replace(at, x=path[0], c=path[1], first=path[2])
                ends, cost = chain.values_at(there)
                after = self._cost(there, cost) + float(np.sum(price * np.abs(self._gaps(there, ends))))
                if after <= before + _ARMIJO * length * min(promised, 0.0) + 1e-9 * (1.0 + abs(before)):
                    break
                length *= 0.5
            else:
                if not full:
                    return None
                full = False  # the exact curvature misled; the expected one descends
                path = (at.x, at.c, at.first, at.z)
                continue
            lam, full = lam + length * (step.multipliers - lam), length == 1.0
            last = size
        return None

    def _cost(self, at: ChainPoint, data: float) -> float:
        return data + 0.5 * (float(np.sum(at.c**2)) + float(at.first @ at.first))

    def _gaps(self, at: ChainPoint, ends: Array) -> Array:
        return np.concatenate([(at.natural.a + self.S @ at.first - at.x[0])[None], ends - at.x[1:]])

    def _factored(self, blocks: ChainBlocks, *, exact: bool) -> RiccatiFactor | None:
        """Factor with second derivatives, or without those of the model and with the positive ones of the data."""
        n, hessian = self.S.shape[0], blocks.hessian
        H = blocks.bend.copy() if exact else np.zeros_like(blocks.bend)
        if not np.isfinite(hessian).all() or not np.isfinite(H).all():
            return None
        hessian = hessian if exact else positive_part(hessian)
        H[:, :n, :n] += hessian[:-1]
        m = H.shape[1] - n
        H[:, n:, n:] += np.eye(m)
        return riccati(blocks.F, H, hessian[-1], self.S)

    def gradient(self, mode: PathMode) -> tuple[Array, Array]:
        """Return the derivatives of L by q (n_q,) and by the unknown sigmas."""
        chain, at, lam = self.chain, mode.at, mode.lam
        n = self.S.shape[0]
        C, C_nodes = mode.factor.covariances
        M = mode.factor.V[1:] @ mode.factor.F @ C
        by_v, by_lam, of_nodes = chain.trace(at, lam[1:], C, M, C_nodes)
        h = by_v.copy()
        h[:, :n] += of_nodes[:-1]
        d = np.concatenate([np.zeros((1, n)), by_lam])
        mu = mode.factor.solve(-h, -of_nodes[-1], -d, np.zeros_like(at.first))
        return chain.by_quantities(at, mode.blocks.by_e, lam, C, M, C_nodes, mu.x, mu.u, mu.multipliers)

    def sampled(self, mode: PathMode, rng: np.random.Generator, count: int) -> Array:
        """Return log weights (count,) of paths drawn about the most probable one, which all are 0 where all is linear.

        The noise of a stage is drawn given the state that was drawn before it, as the Riccati factor has it, so that
        paths stay near.  The mean of the weights' exponentials is the likelihood over its approximation.
        """
        chain, at, (K, n, _) = self.chain, mode.at, self.chain.shape
        first, modes, spread = mode.factor.draws(rng, count)
        half = 0.5 * (np.sum(first**2, axis=1) + np.sum(modes**2, axis=(0, 2)))
        first = at.first + first @ spread[0].T
        x = np.empty((K + 1, count, n))
        x[0], c = at.natural.a + first @ self.S.T, modes
        for k in range(K):
            c[k] = at.c[k] + (x[k] - at.x[k]) @ mode.factor.gain[k].T + modes[k] @ spread[1][k].T
            x[k + 1] = chain.ends_at(at, k, x[k], c[k], at.z[k])
        cost = chain.costs_at(at, x) + 0.5 * (np.sum(c**2, axis=(0, 2)) + np.sum(first**2, axis=1))
        weights = mode.cost + half - cost
        return np.where(np.isfinite(weights), weights, -np.inf)

    def innovations(self, mode: PathMode) -> tuple[Array, Array]:
        """Return the prediction of each value given the values before it, and its standard deviation, (R, n_o) each.

        By the Kalman filter of the model made linear about the most probable path; of values at the same time one
        after the other, so that the innovations are independent.  NaN where nothing is measured, or where the noise has
        no deviation.
        """
        chain, at, factor, S = self.chain, mode.at, mode.factor, self.S
        (K, n, _), observed = chain.shape, chain.condition.observed
        seen, spread, slopes = chain.observed(at)
        expected, deviation = np.full(seen.shape, np.nan), np.full(seen.shape, np.nan)
        noise = np.full(seen.shape, np.nan)
        for j, of in enumerate(observed):
            if of is not None:
                noise[:, j] = np.where(chain.known[:, j] > 0, of.noise.deviation(seen[:, j], spread[:, j]), np.nan)
        rows_of = rows_by_node(chain.node, K)
        e, cov = at.natural.a - at.x[0], S @ S.T
        for k in range(K + 1):
            for r in rows_of[k].tolist():
                for j in np.flatnonzero(np.isfinite(noise[r])).tolist():
                    g = slopes[r, j]
                    along = cov @ g
                    variance = float(g @ along) + noise[r, j] ** 2
                    expected[r, j], deviation[r, j] = seen[r, j] + float(g @ e), np.sqrt(variance)
                    e = e + along * ((chain.values[r, j] - expected[r, j]) / variance)
                    cov = cov - np.outer(along, along) / variance
            if k < K:
                A, B = factor.F[k, :, :n], factor.F[k, :, n:]
                e = A @ e - B @ at.c[k]
                cov = A @ cov @ A.T + B @ B.T
        return expected, deviation

    def track(self, mode: PathMode) -> tuple[Array, Array, Array]:
        """Return times (N,), values of all outputs of the model along the path, and their deviations, (N, n_out)."""
        values, slopes = self.chain.outputs(mode.at)
        _, C = mode.factor.covariances
        variance = np.einsum("noi,nij,noj->no", slopes, C, slopes)
        return self.chain.times, values, np.sqrt(np.maximum(variance, 0.0))

    # Where to begin

    def still(self, q: Array, sigma: Array) -> ChainPoint:
        """Return the chain with states that stay as they are at the start."""
        return self.chain.point(q, sigma, self._still(q))

    def filtered(self, q: Array, sigma: Array) -> PathStart | None:
        """Return the path of an extended Kalman filter, in information form, for any noise of the data."""
        chain, (K, n, _) = self.chain, self.chain.shape
        at = chain.point(q, sigma, self._still(q))
        if not np.isfinite(at.natural.a).all():
            return None
        x, cov, nodes = at.natural.a.copy(), self.S @ self.S.T, np.empty((K + 1, n))
        z = at.z.copy()
        rows_of = rows_by_node(chain.node, K)
        for k in range(K + 1):
            if rows_of[k].size:
                gradient, hessian = chain.data_at(at, rows_of[k], x, z[k])
                gain = np.linalg.solve(np.eye(n) + cov @ positive_part(hessian), cov)
                cov = 0.5 * (gain + gain.T)
                x = x - cov @ gradient
            nodes[k] = x
            if k < K:
                x, F = chain.stage_at(at, k, x, z[k])
                cov = F[:, :n] @ cov @ F[:, :n].T + F[:, n:] @ F[:, n:].T
                z[k + 1] = z[k]
            if not (np.isfinite(x).all() and np.isfinite(cov).all()):
                return None
        return PathStart(nodes, at.c, at.first, at.z, np.zeros((K + 1, n)))

    def interpolated(self, q: Array, sigma: Array) -> PathStart:
        """Return nodes on lines between the data of states that are measured, others where they are at the start."""
        chain = self.chain
        at = chain.point(q, sigma, self._still(q))
        x = at.x.copy()
        for j, i in chain.measured_states:
            known = chain.known[:, j] > 0
            x[:, i] = np.interp(chain.times, chain.row_times[known, 0], chain.values[known, j])
        return PathStart(x, at.c, at.first, at.z, np.zeros_like(x))

    def _still(self, q: Array) -> tuple[Array, Array, Array, Array]:
        K, _, m = self.chain.shape
        a = self.chain.condition.link.natural(q).a
        z = np.tile(self.chain.condition.z_guess, (K + 1, 1))
        return np.tile(a, (K + 1, 1)), np.zeros((K, m)), np.zeros(int(self.S.shape[1])), z

    def moved(self, old: NoisyChain, start: PathStart) -> PathStart:
        """Return a start on this chain from one on a chain with other stages of the same experiment."""
        times, before = _apart(self.chain.times), _apart(old.times)

        def along(values: Array) -> Array:
            out = np.empty((times.size, values.shape[1]))
            for j, of in enumerate(values.T):
                out[:, j] = np.interp(times, before, of)
            return out

        n_w, middle = start.c.shape[1] // MODES, 0.5 * (times[:-1] + times[1:])
        stage = np.clip(np.searchsorted(before, middle, side="right") - 1, 0, before.size - 2)
        c = np.zeros((times.size - 1, start.c.shape[1]))
        c[:, :n_w] = start.c[stage, :n_w] * np.sqrt(self.chain.h / old.h[stage])  # the same noise for a shorter time
        return PathStart(along(start.x), c, start.first, along(start.z), along(start.lam))


def _apart(times: Array) -> Array:
    """Return times of nodes in which those before and after a jump differ."""
    gaps = np.diff(times)
    later = np.append(False, gaps == 0.0)
    return times + 1e-9 * float(gaps[gaps > 0.0].min(initial=1.0)) * later


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
    longest : of the stages of each experiment
    """

    def __init__(self, problem: Posed, spreads: Sequence[Array], longest: Sequence[float]) -> None:
        self.problem, self.spreads, self.longest = problem, tuple(spreads), tuple(longest)
        pairs = zip(range(len(problem.conditions)), spreads, longest, strict=True)
        self.chains = [ChainLikelihood(NoisyChain(problem, i, length), S) for i, S, length in pairs]
        self.evaluations = 0

    def divided(self, by: float) -> PathLikelihood:
        """Return the likelihood on stages that are shorter by the factor `by`."""
        return PathLikelihood(self.problem, self.spreads, [length / by for length in self.longest])

    @property
    def stages(self) -> int:
        """Return the number of stages of all experiments."""
        return sum(each.chain.shape[0] for each in self.chains)

    def split(self, y: Array) -> tuple[Array, Array]:
        """Return theta and the unknown sigmas."""
        n = len(self.problem.names)
        return y[:n], np.exp(y[n:])

    def evaluate(self, y: Array, starts: list[PathStart] | None, *, slopes: bool = True) -> PathEvaluation:
        """Return L with its gradient, begun at the given paths or at filtered ones."""
        self.evaluations += 1
        theta, sigma = self.split(y)
        said = self.problem.priors(theta)
        prior = said.cost + self.problem.prior_constant
        gradient = np.zeros(y.size)
        if said.rows.size:
            gradient[: theta.size] += said.jacobian.T @ said.rows
        value, modes = prior, list[PathMode]()
        nothing = np.full(y.size, np.nan)
        if not np.isfinite(prior):
            return PathEvaluation(y, np.inf, nothing, (), np.inf, said.failure)
        for i, each in enumerate(self.chains):
            q = theta[each.chain.condition.theta]
            mode = None if starts is None else each.mode(q, sigma, starts[i])
            for begin in (each.filtered, each.interpolated):
                if mode is None:
                    start = begin(q, sigma)
                    mode = None if start is None else each.mode(q, sigma, start)
            if mode is None or not np.isfinite(mode.value):
                return PathEvaluation(y, np.inf, nothing, (), prior, each.chain.condition.name)
            value += mode.value
            if slopes:
                by_q, by_sigma = each.gradient(mode)
                gradient[each.chain.condition.theta] += by_q
                gradient[theta.size :] += by_sigma * sigma
            modes.append(mode)
        return PathEvaluation(y, value, gradient, tuple(modes), prior)

    def starts_from(self, other: PathLikelihood, found: PathEvaluation) -> list[PathStart]:
        """Return paths found on other stages as starts."""
        pairs = zip(self.chains, other.chains, found.modes, strict=True)
        return [new.moved(old.chain, mode.start) for new, old, mode in pairs]


def marginal(problem: Posed) -> tuple[Posed, list[Array]]:
    """Return the problem without initial states that are known as random ones, and their deviations, (n, r) each."""
    spreads: list[Array] = []
    names: list[str] = []
    for e, condition in zip(problem.experiments, problem.conditions, strict=True):
        of = {n: v for n, v in problem.initial_values(e).items() if isinstance(v, Free) and v.random}
        states = problem.model.states
        S = np.zeros((len(states), len(of)))
        for j, (name, value) in enumerate(of.items()):
            assert isinstance(value.prior, Normal)
            S[states.index(name), j] = value.prior.deviation
        spreads.append(S)
        names += [
            q.name
            for q in problem.quantities
            if q.kind == "initial state" and q.experiment == condition.name and q.of in of
        ]
    return (problem.fix(names) if names else problem), spreads
