"""Scales and offsets that are eliminated: between their bounds they are best at every point of a search.

With h what the states show at the measured points, outputs with normal errors are affine in b (m,), and those whose
logarithm has normal errors are proportional to one entry of it:

    mu = h_0 + sum_k h_k b_k,        log mu = log b_k + log h_k

so that  beta = b,  or log b,  minimises squares that are weighted by 1 / sigma, between bounds: a small least-squares
problem after every integration (Loos et al. 2018, Bioinformatics 34, 4266).  No equation of the model
contains b, so that the gradient by all else is that at fixed b (envelope theorem), at bounds too.  Standard deviations
that are eliminated beside them change nothing where all data of a block have one in common; else both are improved in
turns until neither moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import casadi as ca
import numpy as np

from castfit.densities.noise.gaussian import Gaussian, LogNormal
from castfit.problem.lie_derivatives import graph_of
from castfit.problem.parameter_map import MappedExpressions, NaturalValues, natural_value
from castfit.transcribe.variable_projection import Projection, least_squares

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index, Mask
    from castfit.problem.compiled_experiments import Condition
    from castfit.problem.compiled_problem import CompiledProblem
    from castfit.transcribe.observation import MeasurementRows

_TURNS, _STILL = (
    1000,
    1e-13,
)  # largest number of alternations between scales and standard deviations, and their final relative change
_TINY = float(np.finfo(float).tiny)


@dataclass(frozen=True)
class LinearOutputUse:
    """The data of an output in an experiment, by their positions, and the entries of b that it contains, `members`.

    unit : of the logarithm of the data, 0 where they are none;  group : the unknown sigma, -1 where it is known
    """

    condition: int
    output: int
    members: tuple[int, ...]
    unit: float
    group: int


@dataclass(frozen=True, eq=False)
class InnerProjection(Projection):
    """The eliminated entries of theta (see the module) in the place of a staged problem's own projection.

    inner (m,) : their indices in theta
    lower, upper (m,) : natural bounds
    inner_defaults (m,) : values of entries that no measurement depends on
    columns : per experiment, which entries of b it depends on, and their positions in q
    parts : uses whose entries, or unknown sigmas, have to be computed together
    sigma : floor and ceiling of the unknown standard deviations, (n_groups,) each
    """

    inner: Index = field(kw_only=True)
    lower: Array = field(kw_only=True)
    upper: Array = field(kw_only=True)
    inner_defaults: Array = field(kw_only=True)
    columns: tuple[tuple[Index, Index], ...] = field(kw_only=True)
    parts: tuple[tuple[LinearOutputUse, ...], ...] = field(kw_only=True)
    sigma: tuple[Array, Array] = field(kw_only=True)

    @cached_property
    def entries(self) -> Index:
        """The eliminated entries, in order."""
        return np.sort(self.inner)

    def key(self, v: Array) -> bytes:
        """Return a cache key of a point, from all its entries except the eliminated ones."""
        out = v.copy()
        out[self.inner] = 0.0
        return out.tobytes()

    def natural(self, v: Array) -> Array:
        """Return b at v, (m,)."""
        return natural_value(v[self.inner], self.log[self.inner])

    @cached_property
    def _rank(self) -> Index:
        """Numbers of the entries, (m,), different where an output contains both: one simulation shows all of one."""
        rank = np.full(self.inner.size, -1, dtype=np.intp)
        member_sets = [set(use.members) for part in self.parts for use in part]
        for k in range(rank.size):
            used_ranks = {int(rank[j]) for member_set in member_sets if k in member_set for j in member_set}
            rank[k] = next(r for r in range(rank.size) if r not in used_ranks)
        return rank

    def project(
        self,
        v: Array,
        naturals: Sequence[NaturalValues],
        observe: Callable[[Sequence[Array]], Iterable[tuple[MeasurementRows, Array]]],
    ) -> Array:
        """Return v (n_v,) with the eliminated entries at their optimum; see `Projection.projected`."""
        out = v.copy()
        with np.errstate(all="ignore"):  # wild trial points overflow
            b = self.natural(v)
            slope = np.where(self.log[self.inner], b, 1.0)
            jacobians: list[Array] = []
            for natural, (members, places) in zip(naturals, self.columns, strict=True):
                jacobian = np.zeros((natural.p.size, b.size))
                jacobian[:, members] = natural.dp[:, places] / slope[members]
                jacobians.append(jacobian)
            p_without_b = [natural.p - jacobian @ b for natural, jacobian in zip(naturals, jacobians, strict=True)]
            observed = [list(observe(p_without_b))]
            for rank in range(int(self._rank.max()) + 1):
                indicator = (self._rank == rank).astype(float)
                observed.append(
                    list(
                        observe([p + jacobian @ indicator for p, jacobian in zip(p_without_b, jacobians, strict=True)])
                    )
                )
            values = self.inner_defaults.copy()
            for part in self.parts:
                self._solve(part, observed, values)
        out[self.inner] = np.where(self.log[self.inner], np.log(np.maximum(values, _TINY)), values)
        return out

    def _solve(
        self, part: Sequence[LinearOutputUse], observed: Sequence[list[tuple[MeasurementRows, Array]]], values: Array
    ) -> None:
        """Set the entries of one part to their optimal values in `values`."""
        members = sorted({k for use in part for k in use.members})
        is_log = np.array([any(use.unit > 0.0 for use in part if k in use.members) for k in members])
        rows = [self._rows(use, members, observed) for use in part]
        A, d, w = (np.concatenate([row[k] for row in rows]) for k in range(3))
        group = np.repeat([use.group for use in part], [row[1].size for row in rows])
        guess, lower, upper = (array[members] for array in (self.inner_defaults, self.lower, self.upper))
        guess, lower, upper = (
            np.where(is_log, np.log(np.maximum(array, _TINY)), array) for array in (guess, lower, upper)
        )
        if not (np.isfinite(A).all() and np.isfinite(d).all() and np.isfinite(w).all()):
            return
        beta, weight = guess, w
        sigma = np.ones(self.sigma[0].size + 1)  # group -1, of known sigma, is the last
        groups = np.unique(group)
        for _ in range(_TURNS if groups.size > 1 else 1):
            beta = _between(A * weight[:, None], d * weight, guess, lower, upper)
            if groups.size == 1:
                break
            previous_sigma = sigma.copy()
            for g in groups[groups >= 0]:
                mask = group == g
                size = np.sqrt(np.mean((w[mask] * (A[mask] @ beta - d[mask])) ** 2))
                sigma[g] = np.clip(size, self.sigma[0][g], self.sigma[1][g])
            weight = w / sigma[group]
            if (np.abs(sigma - previous_sigma) <= _STILL * previous_sigma).all():
                break
        values[members] = np.where(is_log, np.exp(beta), beta)

    def _rows(
        self, use: LinearOutputUse, members: Sequence[int], observed: Sequence[list[tuple[MeasurementRows, Array]]]
    ) -> tuple[Array, Array, Array]:
        """Return A (n, k), d (n,), and weights (n,):  A beta  is the model of d."""
        measured, g = observed[0][use.condition]
        j = use.output
        index = np.nonzero(measured.weight[:, :, j] > 0.0)
        datum, weight = measured.target[(*index, j)], measured.weight[(*index, j)]
        for slot in (slot for slot in measured.slots if slot.rows[0] == j):
            index, datum = (slot.stage, slot.point), slot.datum
            weight = 1.0 / (g[(*index, slot.columns[1])] if slot.functions.computed_spread else slot.spread)
        h_0 = g[(*index, j)]
        A = np.zeros((datum.size, len(members)))
        if use.unit == 0.0:
            for k in use.members:
                A[:, members.index(k)] = observed[1 + int(self._rank[k])][use.condition][1][(*index, j)] - h_0
            return A, datum - h_0, weight
        h = h_0
        for k in use.members:  # one at most
            A[:, members.index(k)] = 1.0
            h = observed[1 + int(self._rank[k])][use.condition][1][(*index, j)]
        return A, np.log(datum) - np.log(h), weight / use.unit


def _between(A: Array, b: Array, guess: Array, lower: Array, upper: Array) -> Array:
    """Minimise |A x - b| subject to bounds; components that the data do not determine stay near `guess`."""
    x = least_squares(A, b, guess, np.zeros(guess.size))
    if ((x >= lower) & (x <= upper)).all():
        return x
    if x.size == 1:
        return np.clip(x, lower, upper)
    from scipy.optimize import lsq_linear

    size = np.linalg.norm(A, axis=0)
    size[size == 0.0] = 1.0
    fixed = lower == upper
    high = np.where(fixed, np.nextafter(upper, np.inf), upper)  # it wants an interval
    solution: Any = lsq_linear(A / size, b, (lower * size, high * size), method="bvls", tol=1e-15)
    return np.clip(solution.x / size, lower, upper)


@dataclass(frozen=True)
class LinearQuantities:
    """The quantities that can be eliminated, by their entries in theta, their data, and why others cannot, by name."""

    entries: tuple[int, ...]
    uses: tuple[LinearOutputUse, ...]
    obstacles: Mapping[str, str]

    def projection(self, compiled_problem: CompiledProblem, sigma: tuple[Array, Array]) -> InnerProjection:
        """Build the projection that replaces a staged problem's own one.

        `sigma` has the floors and ceilings of unknown sigmas.
        """
        inner = np.array(self.entries, dtype=np.intp)
        place = {j: k for k, j in enumerate(self.entries)}
        columns: list[tuple[Index, Index]] = []
        for c in compiled_problem.conditions:
            pairs = [(place[j], position) for position, j in enumerate(c.theta.tolist()) if j in place]
            members, positions = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
            columns.append((members, positions))
        quantities = [compiled_problem.quantities[j] for j in self.entries]
        lower, upper, guess = (np.array([getattr(q, n) for q in quantities]) for n in ("lower", "upper", "guess"))
        theta = np.asarray(compiled_problem.to_search(np.array([q.guess for q in compiled_problem.quantities])))
        return InnerProjection(
            (), np.asarray(compiled_problem.log), theta, np.zeros(theta.size),
            inner=inner, lower=lower, upper=upper, inner_defaults=guess,
            columns=tuple(columns), parts=tuple(_group_uses(self.uses)), sigma=sigma,
        )  # fmt: skip


def _group_uses(uses: Sequence[LinearOutputUse]) -> Iterator[tuple[LinearOutputUse, ...]]:
    """Collect uses with common entries, and, where their sigmas differ, with common unknown ones."""
    remaining = list(uses)
    while any(use.members for use in remaining):
        part = [remaining.pop(next(i for i, use in enumerate(remaining) if use.members))]
        while True:
            members = {k for use in part for k in use.members}
            groups = {use.group for use in part}
            mixed = groups - {-1} if len(groups) > 1 else set[int]()
            related = [use for use in remaining if members & {*use.members} or use.group in mixed]
            if not related:
                break
            part += related
            remaining = [use for use in remaining if use not in related]
        yield tuple(part)


def linear_quantities(compiled_problem: CompiledProblem, names: Iterable[str] | None = None) -> LinearQuantities:
    """Find the quantities, among all or `names`, that enter only the data and there linearly; in order."""
    requested_names = compiled_problem.names if names is None else tuple(names)
    obstacles: dict[str, str] = {}
    candidates: list[int] = []
    for name in requested_names:
        j = compiled_problem.names.index(name)
        reason = _describe_other_use(compiled_problem, j)
        if reason:
            obstacles[name] = reason
        else:
            candidates.append(j)
    patterns = (
        [_Pattern.from_condition(compiled_problem, i, c, candidates) for i, c in enumerate(compiled_problem.conditions)]
        if candidates
        else []
    )
    chosen: list[int] = []
    for j in candidates:
        reason = next((reason for pattern in patterns if (reason := pattern.obstacle(j, chosen))), "")
        reason = reason or _kind(patterns, j)
        if reason:
            obstacles[compiled_problem.names[j]] = reason
        else:
            chosen.append(j)
    uses = tuple(use for pattern in patterns for use in pattern.uses(chosen)) if chosen else ()
    return LinearQuantities(tuple(chosen), uses, obstacles)


def _describe_other_use(compiled_problem: CompiledProblem, j: int) -> str:
    """Return the reason why a quantity enters more than the measured outputs; empty if it does not."""
    if compiled_problem.quantities[j].kind != "parameter":
        return "it is an initial state"
    if compiled_problem.informed_mask[j]:
        return "it has a prior"
    name = compiled_problem.quantities[j].symbol_name
    constraint_names = {s.name() for c in compiled_problem.path for s in ca.symvar(graph_of(c, compiled_problem.model))}
    if name in constraint_names or any(relation.involved_mask[j] for relation in compiled_problem.relations):
        return "it is in a constraint"
    for c in compiled_problem.conditions:
        mask: Mask = c.theta == j
        if (mask & (c.link.moving_quantities | c.link.starting_quantities)).any():
            return "states, their initial values or events depend on it"
        if (mask & ~np.isin(np.arange(mask.size), _expressed(c))).any():
            return "it is in what cannot be taken apart"
    return ""


def _expressed(condition: Condition) -> Index:
    """Return the entries of q that are parameters, or that occur in expressions of parameters."""
    link = condition.link
    indices = set(np.flatnonzero(link.quantity_rows >= 0).tolist())
    for part in link.parts:
        if isinstance(part, MappedExpressions):
            indices |= set(part.source[part.source >= 0].tolist())
    return np.array(sorted(indices), dtype=np.intp)


@dataclass(frozen=True)
class _Pattern:
    """Dependence of one experiment's data on the entries `candidates` of theta.

    dependency_mask (n_g, k) : whether an output or a standard deviation contains a candidate
    nonlinear_pairs : per output, pairs of entries in which it is not linear
    pure : pairs of an output and an entry to which it is proportional
    """

    compiled_problem: CompiledProblem
    condition: int
    candidates: tuple[int, ...]
    dependency_mask: Mask
    nonlinear_pairs: Mapping[int, frozenset[tuple[int, int]]]
    pure: frozenset[tuple[int, int]]

    @classmethod
    def from_condition(
        cls, compiled_problem: CompiledProblem, i: int, condition: Condition, candidates: Sequence[int]
    ) -> _Pattern:
        """Work it out from the graphs."""
        link, system = condition.link, compiled_problem.model.system
        n = [ca.SX.sym(f"n{index}") for index in range(link.quantity_rows.size)]
        p = [ca.SX(value) for value in link.base_p.tolist()]
        for entry in np.flatnonzero(link.parameter_of >= 0):
            p[int(link.parameter_of[entry])] = n[int(entry)]
        for part in link.parts:
            if isinstance(part, MappedExpressions):
                pairs = zip(cast("list[int]", part.source.tolist()), part.numbers.tolist(), strict=True)
                arguments = [n[s] if s >= 0 else ca.SX(v) for s, v in pairs]
                values: Any = part.jacobian_function(ca.vertcat(*arguments))[0]
                for k, row in enumerate(part.rows.tolist()):
                    if row < link.n_p:
                        p[row] = values[k]
        column = ca.substitute(compiled_problem.observed, system.p, ca.vertcat(*p)) if p else compiled_problem.observed
        place = {j: index for index, j in enumerate(condition.theta.tolist())}
        candidate_indices = [k for k, j in enumerate(candidates) if j in place]
        symbols = [n[place[candidates[k]]] for k in candidate_indices]
        dependence: Mask = np.zeros((column.numel(), len(candidates)), dtype=np.bool_)
        nonlinear_pairs: dict[int, set[tuple[int, int]]] = {}
        proportional_pairs: set[tuple[int, int]] = set()
        if not symbols:
            return cls(compiled_problem, i, tuple(candidates), dependence, {}, frozenset())
        derivatives = ca.jacobian(column, ca.vertcat(*symbols))
        rows, columns = derivatives.sparsity().get_triplet()
        for row, k in zip(rows, columns, strict=True):
            dependence[row, candidate_indices[k]] = True
        stack: Any = ca.vertcat
        second_derivatives = (
            ca.jacobian(stack(*derivatives.nonzeros()), ca.vertcat(*symbols)) if rows else ca.SX(0, len(symbols))
        )
        for nonzero_index, k in zip(*second_derivatives.sparsity().get_triplet(), strict=True):
            pair = tuple(
                sorted((candidates[candidate_indices[columns[nonzero_index]]], candidates[candidate_indices[k]]))
            )
            nonlinear_pairs.setdefault(rows[nonzero_index], set()).add((pair[0], pair[1]))
        for row, k in zip(rows, columns, strict=True):
            if ca.SX(ca.substitute(column[row], symbols[k], 0)).is_zero():
                proportional_pairs.add((row, candidates[candidate_indices[k]]))
        return cls(
            compiled_problem,
            i,
            tuple(candidates),
            dependence,
            {r: frozenset(pair_set) for r, pair_set in nonlinear_pairs.items()},
            frozenset(proportional_pairs),
        )

    def _measured(self, j: int) -> Iterator[int]:
        """Yield the rows of measured outputs, and of all spreads, that contain an entry of theta."""
        observed = self.compiled_problem.conditions[self.condition].observed
        for row in np.flatnonzero(self.dependency_mask[:, self.candidates.index(j)]).tolist():
            if row >= len(self.compiled_problem.outputs) or observed[row] is not None:
                yield row

    def obstacle(self, j: int, chosen: Sequence[int]) -> str:
        """Return the reason why an entry of theta cannot be eliminated together with `chosen` ones; empty if it can."""
        outputs, names = self.compiled_problem.outputs, self.compiled_problem.names
        for row in self._measured(j):
            if row >= len(outputs):
                return f"{self.compiled_problem.spreads[row - len(outputs)]} depends on it"
            unit, nonlinear_pairs = self._unit(row), self.nonlinear_pairs.get(row, frozenset())
            if np.isnan(unit):
                return f"the errors of '{outputs[row]}' are not normal, or not independent"
            if (j, j) in nonlinear_pairs or (unit > 0.0 and (row, j) not in self.pure):
                return f"'{outputs[row]}' is not {'proportional to' if unit > 0.0 else 'linear in'} it"
            conflicts = [k for k in chosen if self.dependency_mask[row, self.candidates.index(k)]]
            conflicts = conflicts if unit > 0.0 else [k for k in conflicts if tuple(sorted((j, k))) in nonlinear_pairs]
            if conflicts:
                return f"'{outputs[row]}' is not linear in it and '{names[conflicts[0]]}' together"
        return ""

    def _unit(self, row: int) -> float:
        """Return the unit of the logarithm of log-normal data, 0 of normal ones, NaN of others."""
        observed = self.compiled_problem.conditions[self.condition].observed[row]
        noise: Any = None if observed is None else observed.noise
        if not isinstance(noise, (Gaussian, LogNormal)) or not noise.is_residual_noise or noise.correlation is not None:
            return float("nan")
        if isinstance(noise, Gaussian):
            return 0.0
        return float(np.log(10.0)) if noise.base == 10 else 1.0

    def units(self, j: int) -> set[bool]:
        """Return whether the data that contain an entry are logarithms."""
        return {self._unit(row) > 0.0 for row in self._measured(j)}

    def uses(self, chosen: Sequence[int]) -> Iterator[LinearOutputUse]:
        """Return the data of all measured outputs, whose errors are of the kind that is eliminated or of one group."""
        place = {j: k for k, j in enumerate(chosen)}
        for row, observed in enumerate(self.compiled_problem.conditions[self.condition].observed):
            if observed is None:
                continue
            inside = np.flatnonzero(self.dependency_mask[row]).tolist()
            members = tuple(place[self.candidates[k]] for k in inside if self.candidates[k] in place)
            if members or observed.group >= 0:
                yield LinearOutputUse(self.condition, row, members, self._unit(row), observed.group)


def _kind(patterns: Sequence[_Pattern], j: int) -> str:
    """Return an obstacle if no data depend on an entry, or if both values and logarithms do; empty otherwise."""
    kinds = set[bool]().union(*(pattern.units(j) for pattern in patterns))
    if not kinds:
        return "no measured value depends on it"
    return "values and logarithms of values depend on it" if len(kinds) > 1 else ""
