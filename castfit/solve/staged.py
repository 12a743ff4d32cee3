"""The contract between transcriptions and solvers: a staged estimation problem.

Every transcription lays an estimation problem out as chains of stages, one chain per experiment, that share
the estimated quantities theta.  Solvers see this file and arrays, never models or integrators.

Notation
--------
theta   (n_theta,)  everything estimated, in search scale: shared and local parameters, free initial states
q       (n_q,)      the entries of theta that one chain depends on, ``q = theta[chain.theta]``
s_k     (n_s,)      state at the start of stage k                  (n_s = 0 in single shooting: no nodes)
w_k     (n_w,)      inner variables of stage k                     (n_w = 0 in shooting)
v       (n_v,)      all variables: theta, then chain by chain s_0 w_0 s_1 w_1 ... s_{K-1} w_{K-1}

A chain of K stages states, for k = 0 ... K-1,

    minimise   cost(r_0 ... r_{K-1})                   of its rows r_k(s_k, w_k, q)          (n_r)
    subject to a(q) - s_0                  = 0         initial state                         (n_s)
               d_k(s_k, w_k, q)            = 0         inner equations                       (n_w)
               x_k(s_k, w_k, q) - s_{k+1}  = 0         matching, k = 0 ... K-2               (n_s)
               lower <= c_k(s_k, w_k, q)  <= upper     path constraints                      (n_c)

all chains together

               lower <= h(theta)          <= upper     relations of quantities               (n_h)

and the Jacobian of a chain has the pattern (K = 3, A = da/dq)

              q    s_0  w_0   s_1  w_1   s_2  w_2
    initial   A    -I
    inner 0   D_q  D_s  D_w
    match 0   X_q  X_s  X_w   -I
    inner 1   D_q             D_s  D_w
    match 1   X_q             X_s  X_w   -I
    inner 2   D_q                        D_s  D_w

Stages of one chain are batched: the first axis of every block is k.  Stages with fewer residuals than n_r are
padded with rows of zeros; ``Chain.row_mask`` tells measured rows from padding.

The cost is given, the rows r with their Jacobian J are its local model:

    J^T r = grad cost  exactly,    J^T J = its expected curvature (Fisher's information),
    cost(v + dv) - cost(v)  ~  1/2 |r + J dv|^2 - 1/2 |r|^2        the promised decrease

Two points are compared by their cost, which may be negative; what is small is said relative to 1/2 |r|^2, which may
not.

    known sigma      cost = 1/2 |r|^2,                 r = (model - data) / sigma
    unknown sigma    cost = 1/2 n log(SSE / n),        r = (model - data) / sigma^,   sigma^2 = SSE / n
    other densities  cost = -log p(data),              r = L^-1 score,                L L^T the expected curvature

An unknown sigma is common to a *group* of n rows.  It is eliminated in closed form at every point, so that priors weigh
the same in every unit of the data.  Where sigma^ falls below a floor, the data's resolution, the cost goes on as the
parabola that touches there, with sigma at the floor: nothing runs away where data are reproduced exactly.

What a solver may ask for at a point, one class each; it says what it `takes`, a problem what it `gives`:

    Evaluation          values of all functions                                 evaluate
    Linearization       and rows with their Jacobian, in blocks                 linearize
    MatchingProducts    and one product per stage of the matching conditions    linearize_along
    GradientEvaluation  and the gradient of the cost                            gradient
    HessianBlocks       the exact Hessian of cost and constraints               hessian
    DenseRows           rows with their Jacobian where theta alone moves        dense_evaluator
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from castfit._support.records import dataclass

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index, Mask
    from castfit._support.sparse_rows import SparseRows


_E = TypeVar("_E", bound="Evaluation")

COARSE_RTOL = 1e-4
"""Relative accuracy of functions far from a solution.

Integration of 12 calcium fits that end at 1e-6 takes 0.90 s of CPU time at 1e-6 throughout, 0.74 s with 1e-5 far from
the solution, 0.61 s with 1e-4; as many starts succeed.
"""


def read_only_copy(array: Array) -> Array:
    """Return a copy that nobody can write to."""
    copied = np.array(array)
    copied.flags.writeable = False
    return copied


def same_point(a: Array, b: Array) -> bool:
    """Check whether two points (n_v,) are equal; identical arrays are recognised without comparison."""
    return a is b or bool(np.logical_and.reduce(a == b))


@dataclass(frozen=True)
class ChainShape:
    """Structure of one chain: stages, rows and constraints of one experiment.

    theta (n_q,) : positions in theta (and so in v) of the quantities that it depends on
    n_s, n_w : number of node states per stage, 0 in single shooting, and of inner variables, 0 in shooting
    row_mask (K, n_r) : True where a residual row belongs to a measurement, False where it is padding
    constraint_lower, constraint_upper (K, n_c) : bounds of the path constraints; a padded row has (-inf, inf), an
        equality has equal bounds
    times (K + 1,) : stage boundaries, in the experiment's time;  state_names : of the node components, for messages
    kinds : names of the path constraints, which come by point and kind: row i of a stage is of kind i % len(kinds)
    point_times (K, M) : times of the points
    """

    name: str
    theta: Index
    n_s: int
    n_w: int
    row_mask: Mask
    constraint_lower: Array
    constraint_upper: Array
    times: Array
    state_names: tuple[str, ...]
    kinds: tuple[str, ...] = ()
    point_times: Array = field(default_factory=lambda: np.empty((0, 0)))


@dataclass(frozen=True)
class Specification(ChainShape):
    """A chain before `build_layout` places its variables; the further fields are those of `Chain`.

    `group` is None if all sigmas are known, `datum_mask` if every row is a measured value of its own, `spread` if none
    is computed.
    """

    group: Index | None = None
    datum_mask: Mask | None = None
    spread: Index | None = None


@dataclass(frozen=True, kw_only=True)
class Chain(ChainShape):
    """Chain of one experiment: positions of its variables in v, and properties of its rows.

    group (K, n_r) : which unknown sigma a row is divided by; -1 where sigma is known
    datum_mask (K, n_r) : True at one row of each measured value; a value whose spread is computed has a second row
    spread (K, n_r) : which computed spread a row belongs to, by any numbering; -1 where the spread is a number
    nodes (K, n_s), inner (K, n_w) : positions of the node states and of the inner variables in v
    constraint_unit (K, n_c) : by what violations of path constraints are measured
    whitening (K n_r, K n_r) : sparse W where errors depend on each other across stages: rows of an `Evaluation` are
        W r, the blocks of `Jacobians` those of r
    """

    group: Index
    datum_mask: Mask
    spread: Index
    nodes: Index
    inner: Index
    constraint_unit: Array
    whitening: Any = None

    def whitened(self, rows: Array) -> Array:
        """Return W times rows (K, n_r, ...) of all stages."""
        return (
            rows
            if self.whitening is None
            else (self.whitening @ rows.reshape(self.row_mask.size, -1)).reshape(rows.shape)
        )

    def unwhitened(self, rows: Array) -> Array:
        """Return W^T times rows (K, n_r, ...) of all stages: what gradients are made of."""
        if self.whitening is None:
            return rows
        return (self.whitening.T @ rows.reshape(self.row_mask.size, -1)).reshape(rows.shape)

    @property
    def n_kinds(self) -> int:
        """Number of kinds of path constraints, at least 1."""
        return max(len(self.kinds), 1)

    def describe_constraint(self, k: int, j: int) -> str:
        """Return a description of the path constraint in row j of stage k, with its time."""
        if not self.kinds:
            return f"path constraint {j + 1} near t = {self.times[k]:g} ({self.name})"
        time = self.point_times[k, j // self.n_kinds]
        return f"'{self.kinds[j % self.n_kinds]}' at t = {time:.4g} ({self.name})"

    @property
    def n_stages(self) -> int:
        """Number of stages K."""
        return self.nodes.shape[0]

    @property
    def n_r(self) -> int:
        """Number of residual rows per stage, padding included."""
        return self.row_mask.shape[1]

    @property
    def n_c(self) -> int:
        """Number of path constraint rows per stage, padding included."""
        return self.constraint_lower.shape[1]

    @property
    def n_q(self) -> int:
        """Number of estimated quantities that the chain depends on."""
        return self.theta.shape[0]

    def local(self, v: Array) -> tuple[Array, Array, Array]:
        """Unpack (q, s, w) of this chain from v: shapes (n_q,), (K, n_s), (K, n_w)."""
        return v[self.theta], v[self.nodes], v[self.inner]


@dataclass(frozen=True)
class Relations:
    """Bounds of the relations of quantities: names, lower, upper and unit, (n_h,); unit is as of path constraints."""

    names: tuple[str, ...] = ()
    lower: Array = field(default_factory=lambda: np.empty(0))
    upper: Array = field(default_factory=lambda: np.empty(0))
    unit: Array = field(default_factory=lambda: np.empty(0))


@dataclass(frozen=True)
class Layout:
    """The variables of a staged problem, n_v in all: theta first, with the names of its entries, then the chains.

    group_sizes (n_groups,) : number of rows that share each unknown sigma
    """

    names: tuple[str, ...]
    chains: tuple[Chain, ...]
    n_v: int
    group_sizes: Index
    relations: Relations = field(default_factory=Relations)

    @cached_property
    def correlated(self) -> bool:
        """Whether errors of any chain depend on each other across stages."""
        return any(chain.whitening is not None for chain in self.chains)

    @cached_property
    def of_theta(self) -> bool:
        """Whether nothing but theta is a variable, within bounds and nothing else."""
        return self.n_v == self.n_theta and not self.relations.names and not any(chain.n_c for chain in self.chains)

    @cached_property
    def path_limits(self) -> tuple[Array, Array]:
        """Bounds of all path constraints, padding included, chain by chain, and of relations last, (n_c,) each."""
        lower = [chain.constraint_lower.ravel() for chain in self.chains]
        upper = [chain.constraint_upper.ravel() for chain in self.chains]
        return np.concatenate([*lower, self.relations.lower]), np.concatenate([*upper, self.relations.upper])

    @property
    def path_units(self) -> Array:
        """By what violations of the same are measured, (n_c,)."""
        return np.concatenate([*(chain.constraint_unit.ravel() for chain in self.chains), self.relations.unit])

    @property
    def constrained(self) -> bool:
        """Whether anything but bounds of variables is constrained."""
        return bool(np.isfinite(np.concatenate(self.path_limits)).any())

    @property
    def n_groups(self) -> int:
        """Number of unknown sigmas."""
        return self.group_sizes.size

    @property
    def n_theta(self) -> int:
        """Number of estimated quantities."""
        return len(self.names)

    @cached_property
    def in_one_group(self) -> bool:
        """Whether all measured rows share one unknown sigma; rows that only fill up are zero."""
        return self.n_groups == 1 and int(self.group_sizes[0]) == sum(int(c.row_mask.sum()) for c in self.chains)

    @cached_property
    def grouped(self) -> tuple[Index, tuple[Mask, ...]]:
        """The groups of all rows that share an unknown sigma, chain by chain, and where these are, (K, n_r) each."""
        masks = tuple(chain.group >= 0 for chain in self.chains)
        chain_groups = [chain.group[mask] for chain, mask in zip(self.chains, masks, strict=True)]
        return np.concatenate([np.empty(0, dtype=np.intp), *chain_groups]), masks

    def of_rows(self, factors: Array) -> list[Array]:
        """Spread factors of the groups (n_groups,) over the rows, per chain what multiplies (K, n_r); 1 elsewhere."""
        if self.in_one_group:
            return [factors[0]] * len(self.chains)
        padded_factors = np.append(factors, 1.0)  # group -1, of known sigma, is the last
        return [padded_factors[chain.group] for chain in self.chains]

    def theta(self, v: Array) -> Array:
        """Return the estimated quantities, in search scale."""
        return v[: self.n_theta]

    def pack(self, theta: Array, nodes: tuple[Array, ...], inner: tuple[Array, ...]) -> Array:
        """Assemble v from theta (n_theta,) and, per chain, nodes (K, n_s) and inner variables (K, n_w)."""
        v = np.empty(self.n_v)
        v[: self.n_theta] = theta
        for chain, s, w in zip(self.chains, nodes, inner, strict=True):
            v[chain.nodes] = s
            v[chain.inner] = w
        return v

    def describe(self, i: int) -> str:
        """Return a description of the variable v[i]."""
        if i < self.n_theta:
            return self.names[i]
        for chain in self.chains:
            for kind, positions in (("", chain.nodes), ("inner variable of ", chain.inner)):
                matches = np.argwhere(positions == i)
                if matches.size:
                    k, j = (int(h) for h in matches[0])
                    label = chain.state_names[j] if kind == "" else f"{j}"
                    return f"{kind}{label} at t = {chain.times[k]:g} ({chain.name})"
        raise IndexError(f"variable {i} of {self.n_v} does not exist")


def build_layout(
    names: tuple[str, ...],
    specifications: tuple[Specification, ...],
    n_groups: int = 0,
    relations: Relations | None = None,
) -> Layout:
    """Place theta and the variables of every chain in v; there are at least `n_groups` unknown sigmas."""
    offset = len(names)
    chains: list[Chain] = []
    for spec in specifications:
        stages = spec.row_mask.shape[0]
        width = spec.n_s + spec.n_w
        positions = offset + np.arange(stages * width, dtype=np.intp).reshape(stages, width)
        offset += stages * width
        no_groups = np.full(spec.row_mask.shape, -1, dtype=np.intp)
        chain_fields: dict[str, Any] = {
            **vars(spec),
            "theta": np.asarray(spec.theta, dtype=np.intp),
            "group": no_groups if spec.group is None else np.where(spec.row_mask, spec.group, -1),
            "datum_mask": spec.row_mask if spec.datum_mask is None else spec.datum_mask,
            "spread": no_groups if spec.spread is None else np.where(spec.row_mask, spec.spread, -1),
            "constraint_unit": np.ones(spec.constraint_lower.shape),
        }
        chains.append(Chain(**chain_fields, nodes=positions[:, : spec.n_s], inner=positions[:, spec.n_s :]))
    groups = np.concatenate([np.empty(0, dtype=np.intp), *(chain.group.ravel() for chain in chains)])
    sizes = np.bincount(groups[groups >= 0], minlength=n_groups)
    return Layout(names, tuple(chains), offset, sizes, Relations() if relations is None else relations)


@dataclass(frozen=True)
class ChainValues:
    """Function values of one chain at a point; the first axis is the stage.

    r : (K, n_r)    rows, 0 where padded
    a : (n_s,)      initial state a(q)
    d : (K, n_w)    inner equations
    x : (K, n_s)    state at the end of each stage
    c : (K, n_c)    path constraints
    excess          what the data cost besides half the squares of their rows, unknown sigmas left out
    """

    r: Array
    a: Array
    d: Array
    x: Array
    c: Array
    excess: float = 0.0


@dataclass(frozen=True)
class Jacobians:
    """Derivatives of one chain's functions; element (k, i, j) is d(function i)/d(variable j) in stage k.

    R_s, R_w, R_q : (K, n_r, n_s | n_w | n_q)
    D_s, D_w, D_q : (K, n_w, n_s | n_w | n_q)
    X_s, X_w, X_q : (K, n_s, n_s | n_w | n_q)
    C_s, C_w, C_q : (K, n_c, n_s | n_w | n_q)
    A             : (n_s, n_q)
    """

    R_s: Array
    R_w: Array
    R_q: Array
    D_s: Array
    D_w: Array
    D_q: Array
    X_s: Array
    X_w: Array
    X_q: Array
    C_s: Array
    C_w: Array
    C_q: Array
    A: Array


@dataclass(frozen=True)
class Multipliers:
    """Lagrange multipliers of one chain: initial (n_s,), inner (K, n_w), matching (K - 1, n_s), path (K, n_c)."""

    initial: Array
    inner: Array
    matching: Array
    path: Array


@dataclass(frozen=True)
class Failure:
    """A stage that could not be evaluated: which chain and stage, the cause in one word, the detail in words."""

    chain: str
    stage: int
    cause: str
    detail: str


@dataclass(frozen=True)
class Evaluation:
    """All chains at one point.  Where `ok` is False the values of failed stages are NaN.

    prior : (n_prior,) rows that depend on theta alone
    prior_jacobian : (n_prior, n_theta), dense or sparse
    prior_excess : the part of `excess` that belongs to these rows
    prior_curved : (n_prior,) False where a row's cost is straight: its curvature is only for the solver
    sigma : (n_groups,) the unknown sigmas at this point, in units of what the data are weighted by
    excess : what the cost has besides half the squares, such as the logarithms of unknown sigmas
    surplus : the part of `excess` that stays where unknown sigmas are held: of densities that are not Gaussian
    related : (n_h,) the relations of quantities
    related_jacobian : (n_h, n_theta)
    """

    v: Array
    values: tuple[ChainValues, ...]
    prior: Array
    prior_jacobian: Array | SparseRows
    failures: tuple[Failure, ...] = ()
    sigma: Array = field(default_factory=lambda: np.empty(0), kw_only=True)
    excess: float = field(default=0.0, kw_only=True)
    prior_excess: float = field(default=0.0, kw_only=True)
    prior_curved: Mask | None = field(default=None, kw_only=True)
    surplus: float = field(default=0.0, kw_only=True)
    related: Array = field(default_factory=lambda: np.empty(0), kw_only=True)
    related_jacobian: Array = field(default_factory=lambda: np.empty((0, 0)), kw_only=True)

    @property
    def ok(self) -> bool:
        """Whether every stage could be evaluated."""
        return not self.failures

    @cached_property
    def half_square(self) -> float:
        """Half the sum of all squared rows, priors included, never negative; inf where a stage failed."""
        if not self.ok:
            return np.inf
        total = float(self.prior @ self.prior) + sum(float(np.vdot(c.r, c.r)) for c in self.values)
        return 0.5 * total

    @cached_property
    def informing_square(self) -> float:
        """Half the sum of squares without rows of linear priors: the reference size for small decreases of the cost."""
        if self.prior_curved is None or self.prior_curved.all():
            return self.half_square
        straight = self.prior[~self.prior_curved]
        return self.half_square - 0.5 * float(straight @ straight)

    @property
    def cost(self) -> float:
        """Objective to minimise, priors included; inf if a stage failed."""
        return self.half_square + self.excess if self.ok else np.inf

    def extended(self, kind: type[_E], **extra_fields: Any) -> _E:
        """Return the same values as an evaluation of another kind, with its additional fields."""
        return kind(**{**{name: getattr(self, name) for name in _EVALUATION_FIELDS}, **extra_fields})


_EVALUATION_FIELDS = tuple(f.name for f in fields(Evaluation))


@dataclass(frozen=True)
class Linearization(Evaluation):
    """An evaluation with the Jacobian blocks of every chain.

    information : returns per chain (K, n_r), by what rows are multiplied so that their products are Fisher's
        information, or (K, n_r, n_r), by which matrices; None if they are so already
    """

    jacobians: tuple[Jacobians, ...] = ()
    information: Callable[[], tuple[Array, ...]] | None = None


@dataclass(frozen=True)
class MatchingProducts(Linearization):
    """Linearization with products of end-of-stage states with one direction d (K, n_s) per chain instead of full
    Jacobians.

    X_s (K, 1, n_s), X_w (K, 1, n_w) and X_q (K, 1, n_q) are the derivatives of  d . x:  of the scalar condition
    h_k = |x_k - s_{k+1}|^2  with  d = 2 (x_k - s_{k+1}).
    """


@dataclass(frozen=True)
class GradientEvaluation(Evaluation):
    """An evaluation with the gradient of the cost, (n_v,); NaN where `ok` is False."""

    gradient: Array = field(default_factory=lambda: np.empty(0), kw_only=True)


@dataclass(frozen=True)
class HessianBlocks:
    """The Hessian of  sum_g weight_g 1/2 |r_g|^2 + multipliers . constraints,  without priors; all symmetric.

    Unknown sigmas stay what they are at the point.

    chains : per chain (K, m, m) with m = n_s + n_w + n_q and the variables of a stage in the order (s, w, q); and
        (n_q, n_q), the part of the initial state
    relations : (n_theta, n_theta)
    """

    chains: tuple[tuple[Array, Array], ...]
    relations: Array


@dataclass(frozen=True)
class DenseRows:
    """All rows of a problem whose only variables are theta.

    v (n_theta,) where;  cost, half_square as of an `Evaluation`;  u (m,) priors and measured rows;  E (m, n_theta)
    their derivatives
    """

    v: Array
    cost: float
    half_square: float
    u: Array
    E: Array


class DenseEvaluator(Protocol):
    """Interface for the evaluation of a problem in which theta is the only variable."""

    def cost(self, v: Array) -> float | None:
        """Return the cost at v (n_theta,), None where something cannot be computed."""
        ...

    def rows(self, v: Array) -> DenseRows | None:
        """Return the rows and their derivatives at v (n_theta,), None where something cannot be computed."""
        ...


class StagedProblem(ABC):
    """A staged estimation problem: layout, bounds, start, and its functions at a point.

    lower, upper, scale, start (n_v,) : bounds, typical magnitudes (from data, positive) and starting point
    signal (K, n_r) per chain : the typical magnitude of what each row measures, in units of what it is weighted by (its
        standard deviation where that is known); 0 in padded rows
    least_sigma (n_groups,) : the floors of the unknown sigmas
    gives : what solvers are to ask for, the best first, of the classes above: `Linearization` alone by default;
        `GradientEvaluation` where a few integrations give that, whatever the number of quantities; `MatchingProducts`
        where matching conditions are to be seen as scalars; `HessianBlocks` as well where these can be had
    least_squares : whether rows are residuals, of which R is the derivative; of other densities only the gradient is
        exact
    forgiving : whether some residuals may be large without the model being wrong
    integrated : whether stages are integrated: then what decays within a stage leaves no trace in any derivative
    integration_rtol : relative error of the states that is no smooth function of v: the tolerance of an integrator that chooses
        its steps
    logarithmic (n_theta,) : which entries of theta are logarithms; empty if none is
    eliminated : entries of theta that are eliminated: `evaluate` and `linearize` answer with these at their optimum,
        given all others, which ``Evaluation.v`` says; derivatives are those at that point, by all variables

    A staged problem is frozen: `restricted` makes another one.
    """

    layout: Layout
    lower: Array
    upper: Array
    scale: Array
    start: Array
    signal: tuple[Array, ...]
    least_sigma: Array
    capabilities: tuple[type, ...] = (Linearization,)
    least_squares: bool = True
    tolerates_failures: bool = False
    integrated: bool = False
    integration_rtol: float = 0.0
    logarithmic: Mask = np.empty(0, dtype=np.bool_)
    eliminated: Index = np.empty(0, dtype=np.intp)

    @abstractmethod
    def evaluate(self, v: Array) -> Evaluation:
        """Return the values of all functions at v (n_v,)."""

    @abstractmethod
    def linearize(self, v: Array) -> Linearization:
        """Return values and Jacobian blocks at v (n_v,)."""

    _expects = False  # derivatives where functions are evaluated next

    def expect_derivatives(self) -> None:
        """Take note that derivatives will be asked for where functions are evaluated next."""
        self._expects = True

    def seconds_to_linearize(self, v: Array) -> float:
        """Return the expected seconds of `linearize` at v.

        0 if the linearization is cached, or no estimate is available.
        """
        del v
        return 0.0

    @property
    def dense_evaluator(self) -> DenseEvaluator | None:
        """A faster way to the cost, and to rows with their derivatives, where there is one; the same numbers."""
        return None

    def linearize_along(self, v: Array, directions: Sequence[Array]) -> MatchingProducts:
        """Linearize at v with only products of the end-of-stage states with directions."""
        linearization = self.linearize(v)
        products = [
            replace(j, X_s=d[:, None] @ j.X_s, X_w=d[:, None] @ j.X_w, X_q=d[:, None] @ j.X_q)
            for j, d in zip(linearization.jacobians, directions, strict=True)
        ]
        return linearization.extended(
            MatchingProducts, jacobians=tuple(products), information=linearization.information
        )

    def gradient(self, v: Array, weight: Array | None = None) -> GradientEvaluation:
        """Return the values at v with the gradient of  sum_g weight_g 1/2 |r_g|^2, unknown sigmas held."""
        raise NotImplementedError(f"{type(self).__name__} has no gradients but those of its Jacobians")

    def restricted(
        self, *, lower: Array | None = None, upper: Array | None = None, scale: Array | None = None
    ) -> StagedProblem:
        """Return the same problem with other bounds or magnitudes (n_v,); it shares the functions."""
        new_problem = copy(self)
        arrays_by_name = {"lower": lower, "upper": upper, "scale": scale}
        for name, array in arrays_by_name.items():
            if array is not None:
                setattr(new_problem, name, read_only_copy(array))
        return new_problem

    def data_sizes(self) -> tuple[Array, ...]:
        """Return the size of every measured value in its own standard deviation, (K, n_r) per chain."""
        return self.signal

    @cached_property
    def size_squares(self) -> Array:
        """Sums of the squares of `data_sizes`, (n_groups + 1,), that of known sigmas last."""
        squares = np.zeros(self.layout.n_groups + 1)
        for chain, size in zip(self.layout.chains, self.data_sizes(), strict=True):
            np.add.at(squares, chain.group, size**2)
        return squares

    def low_accuracy(self) -> StagedProblem:
        """Return the same problem with functions of accuracy `COARSE_RTOL`, if that is faster; layout and start agree."""
        return self

    def explicit(self) -> StagedProblem:
        """Return the same problem with all of theta as search variables; layout and start agree."""
        return self

    def describe_failure(self, v: Array) -> str:
        """Describe the cause and place of a failed evaluation of the functions at v; empty if it succeeded."""
        return "; ".join(f"{f.chain}, stage {f.stage + 1}: {f.detail}" for f in self.linearize(v).failures[:3])

    def remark(self, v: Array) -> str:
        """Return a remark about the evaluation of the functions at v; empty if there is none."""
        return ""

    def times(self, v: Array) -> tuple[Array, ...]:
        """Return the stage boundaries at v, per chain (K + 1,): those at estimated times move."""
        return tuple(chain.times for chain in self.layout.chains)

    def node_states(self, v: Array) -> tuple[Array, ...]:
        """Return the states at the start of every stage, per chain (K, n_x): the nodes, where there are any."""
        return tuple(v[chain.nodes] for chain in self.layout.chains)

    def algebraic_states(self, v: Array) -> tuple[Array, ...]:
        """Return algebraic states near the start of every stage, per condition (K, n_z)."""
        return tuple(np.empty((chain.n_stages, 0)) for chain in self.layout.chains)

    def standardised(self, v: Array) -> tuple[tuple[Array, ...], ...]:
        """Return per chain prediction, spread (1 where unknown), and residual of each measured value, (n,) each.

        They come by stage, point and output.  Residuals are normalised by spreads, not by sigmas that are eliminated.
        """
        raise NotImplementedError(f"{type(self).__name__} has no measured values")

    def hessian(
        self,
        v: Array,
        multipliers: tuple[Multipliers, ...],
        weight: Array | None = None,
        related: Array | None = None,
    ) -> HessianBlocks:
        """Return the exact Hessian at v; `related` (n_h,) multiplies the relations, by default nothing.

        weight (n_groups + 1,) is that of the rows of each group, and of those of known sigma; 1 by default.
        """
        raise NotImplementedError(f"{type(self).__name__} has no exact Hessian; use the Gauss-Newton Hessian")

    def in_units(self) -> StagedProblem:
        """Return the problem with the units of its constraints: what they change by over the variables' magnitudes.

        Taken from the derivatives at the start; where these cannot be had units stay.
        """
        if not self.layout.constrained:
            return self
        linear = self.linearize(self.start)
        if not linear.ok:
            return self
        other = copy(self)
        other.layout = _with_units(self.layout, linear, self.scale)
        return other


def _with_units(layout: Layout, linear: Linearization, scale: Array) -> Layout:
    """Measure constraints by how they change over the magnitudes of their variables, all rows of a kind alike."""
    chains: list[Chain] = []
    for chain, j in zip(layout.chains, linear.jacobians, strict=True):
        by_s, by_w = np.abs(j.C_s) * scale[chain.nodes][:, None], np.abs(j.C_w) * scale[chain.inner][:, None]
        by_q = np.abs(j.C_q) * scale[chain.theta]
        size = np.concatenate([by_s, by_w, by_q], axis=2).max(axis=2, initial=0.0)
        is_constraint = np.isfinite(chain.constraint_lower) | np.isfinite(chain.constraint_upper)
        size = (
            np.where(is_constraint & np.isfinite(size), size, 0.0).reshape(-1, chain.n_kinds).max(axis=0, initial=0.0)
        )
        unit = np.tile(_power_of_ten(size), chain.n_c // chain.n_kinds)
        chains.append(replace(chain, constraint_unit=np.broadcast_to(unit, is_constraint.shape).copy()))
    relations = layout.relations
    size = (np.abs(linear.related_jacobian) * scale[: layout.n_theta]).max(axis=1, initial=0.0)
    return replace(layout, chains=tuple(chains), relations=replace(relations, unit=_power_of_ten(size)))


def _power_of_ten(size: Array) -> Array:
    good = np.isfinite(size) & (size > 0.0)
    return np.where(good, 10.0 ** np.round(np.log10(np.where(good, size, 1.0))), 1.0)


def name_violated(layout: Layout, evaluation: Evaluation, threshold: float) -> list[tuple[str, float]]:
    """Name constraints that are violated by more than `threshold` of their units, with by how much, the worst first.

    Of one constraint in one experiment only the worst time is named.
    """
    violations: list[tuple[float, str, float]] = []
    for chain, values in zip(layout.chains, evaluation.values, strict=True):
        excess = np.fmax(np.fmax(chain.constraint_lower - values.c, values.c - chain.constraint_upper), 0.0)
        for kind in range(chain.n_kinds if excess.size else 0):
            column = np.arange(excess.shape[1], dtype=np.intp)
            kind_excess = excess * (column % chain.n_kinds == kind)
            k, j = np.unravel_index(int(np.argmax(kind_excess)), kind_excess.shape)
            size = float(kind_excess[k, j] / chain.constraint_unit[k, j])
            violations.append((size, chain.describe_constraint(int(k), int(j)), float(kind_excess[k, j])))
    relations = layout.relations
    relation_excess = np.fmax(relations.lower - evaluation.related, evaluation.related - relations.upper)
    violations += [
        (float(b / u), f"'{n}'", float(b))
        for n, b, u in zip(relations.names, relation_excess, relations.unit, strict=True)
        if np.isfinite(b)
    ]
    return [(name, amount) for size, name, amount in sorted(violations, reverse=True) if size > threshold]


def gaps(layout: Layout, evaluation: Evaluation) -> tuple[Array, ...]:
    """Return the continuity defects per chain, (K, n_s): a - s_0, then x_k - s_{k+1}."""
    return tuple(gap_of(chain, evaluation, i) for i, chain in enumerate(layout.chains))


def gap_of(chain: Chain, evaluation: Evaluation, i: int) -> Array:
    """Return the continuity defects of chain i, (K, n_s)."""
    values = evaluation.values[i]
    return np.vstack([values.a, values.x[:-1]]) - evaluation.v[chain.nodes]


def rows_in_units(layout: Layout, evaluation: Evaluation, sigma: Array | None = None) -> tuple[Array, ...]:
    """Return the rows r per chain, (K, n_r), divided by other sigmas (n_groups,); by default by none, as measured."""
    if layout.n_groups == 0:
        return tuple(values.r for values in evaluation.values)
    ratio = layout.of_rows(evaluation.sigma if sigma is None else evaluation.sigma / sigma)
    return tuple(values.r * of_rows for of_rows, values in zip(ratio, evaluation.values, strict=True))


def half_square_in_units(layout: Layout, evaluation: Evaluation, sigma: Array) -> float:
    """Compute the objective with other sigmas (n_groups,): half the sum of all squares, plus the remaining terms."""
    excess = evaluation.prior_excess + evaluation.surplus
    if layout.n_groups == 0 or not evaluation.ok:
        return evaluation.half_square + excess
    rows = rows_in_units(layout, evaluation, sigma)
    squares = float(evaluation.prior @ evaluation.prior) + sum(float(np.vdot(r, r)) for r in rows)
    return 0.5 * squares + excess


def weighted_squares(layout: Layout, evaluation: Evaluation, sigma: Array | None = None) -> float:
    """Return chi2: the sum of squares weighted by known sigmas, priors included; where any is unknown, data alone.

    Several unknown sigmas count in their own units: squares in different ones cannot be added.  These are each n at its
    most likely value, so that two points are compared by the sigma (n_groups,) of one of them.
    """
    if layout.n_groups == 0 or not evaluation.ok:
        return 2.0 * (evaluation.half_square + evaluation.prior_excess)
    if layout.in_one_group:
        return float(evaluation.sigma[0]) ** 2 * sum(
            [float(np.vdot(values.r, values.r)) for values in evaluation.values]
        )
    if layout.n_groups == 1:
        rows = rows_in_units(layout, evaluation)
    else:
        rows = rows_in_units(layout, evaluation, evaluation.sigma if sigma is None else sigma)
    return sum(float(np.vdot(r, r)) for r in rows)
