"""The contract between transcriptions and solvers: a staged estimation problem.

Every transcription converts an estimation problem into chains of stages, one chain per experiment, that share
the estimated quantities theta.  Solvers depend on this file and arrays only, never on models or integrators.

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

The rows r with their Jacobian J are a local model of the cost:

    J^T r = grad cost  exactly,    J^T J = its expected curvature (Fisher's information),
    cost(v + dv) - cost(v)  ~  1/2 |r + J dv|^2 - 1/2 |r|^2        the predicted decrease

Two points are compared by their cost, which may be negative; small decreases are relative to 1/2 |r|^2, which is not
negative.

    known sigma      cost = 1/2 |r|^2,                 r = (model - data) / sigma
    unknown sigma    cost = 1/2 n log(SSE / n),        r = (model - data) / sigma^,   sigma^2 = SSE / n
    other densities  cost = -log p(data),              r = L^-1 score,                L L^T the expected curvature

An unknown sigma is common to a *group* of n rows.  It is eliminated in closed form at every point, so that priors weigh
the same in every unit of the data.  If sigma^ falls below a floor, the resolution of the data, the cost continues
as the tangent parabola, with sigma at the floor: the cost stays bounded if data are fitted exactly.

Evaluations at a point, one class each; a solver lists in `takes` what it supports, a problem in `capabilities` what it
provides:

    Evaluation          values of all functions                                 evaluate
    Linearization       and rows with their Jacobian, in blocks                 linearize
    MatchingProducts    and one product per stage of the matching conditions    linearize_along
    GradientEvaluation  and the gradient of the cost                            gradient
    HessianBlocks       the exact Hessian of cost and constraints               hessian
    DenseRows           rows with their Jacobian if theta is the only variable  dense_evaluator
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import field, fields, replace
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np

from castfit._support.arrays import Array, Index, Mask
from castfit._support.records import dataclass
from castfit._support.sparse_rows import SparseRows

_E = TypeVar("_E", bound="Evaluation")

# Relative accuracy of functions far from a solution.
#
# Integration of 12 calcium fits that end at 1e-6 takes 0.90 s of CPU time at 1e-6 throughout, 0.74 s with 1e-5 far from
# the solution, 0.61 s with 1e-4; as many starts succeed.
COARSE_RTOL = 1e-4


def read_only_copy(array: Array) -> Array:
    """Return a copy that cannot be modified."""
    copied = np.array(array)
    copied.flags.writeable = False
    return copied


def same_point(a: Array, b: Array) -> bool:
    """Check whether two points (n_v,) are equal; identical arrays are recognised without comparison."""
    return a is b or bool(np.logical_and.reduce(a == b))


@dataclass(frozen=True)
class ChainShape:
    """Structure of one chain: stages, rows and constraints of one experiment.

    theta (n_q,) : positions in theta (and in v) of the quantities on which the chain depends
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
    """Chain before `build_layout` places its variables; the further fields are explained in `Chain`.

    `group` is None if all sigmas are known, `datum_mask` if every row is a measured value of its own, `spread` if no
    spread is computed.
    """

    group: Index | None = None
    datum_mask: Mask | None = None
    spread: Index | None = None


@dataclass(frozen=True, kw_only=True)
class Chain(ChainShape):
    """Chain of one experiment: positions of its variables in v, and properties of its rows.

    group (K, n_r) : unknown sigma by which a row is divided; -1 if sigma is known
    datum_mask (K, n_r) : True at one row of each measured value; a value whose spread is computed has a second row
    spread (K, n_r) : computed spread of a row, in any numbering; -1 if the spread is a number
    nodes (K, n_s), inner (K, n_w) : positions of the node states and of the inner variables in v
    constraint_unit (K, n_c) : unit of violations of path constraints
    whitening (K n_r, K n_r) : sparse W for errors that are correlated across stages: rows of an `Evaluation` are W r,
        but `Jacobians` contains the derivatives of r
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
        """Return W^T times rows (K, n_r, ...) of all stages, for gradients."""
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
    """Bounds of the relations of quantities: names, lower, upper and unit, (n_h,); unit as of path constraints."""

    names: tuple[str, ...] = ()
    lower: Array = field(default_factory=lambda: np.empty(0))
    upper: Array = field(default_factory=lambda: np.empty(0))
    unit: Array = field(default_factory=lambda: np.empty(0))


@dataclass(frozen=True)
class Layout:
    """Variables of a staged problem, n_v in all: theta first, with the names of its entries, then the chains.

    group_sizes (n_groups,) : number of rows that share each unknown sigma
    """

    names: tuple[str, ...]
    chains: tuple[Chain, ...]
    n_v: int
    group_sizes: Index
    relations: Relations = field(default_factory=Relations)

    @cached_property
    def has_correlated_errors(self) -> bool:
        """Whether errors of any chain are correlated across stages."""
        return any(chain.whitening is not None for chain in self.chains)

    @cached_property
    def is_theta_only(self) -> bool:
        """Whether theta is the only variable, with bounds as the only constraints."""
        return self.n_v == self.n_theta and not self.relations.names and not any(chain.n_c for chain in self.chains)

    @cached_property
    def path_limits(self) -> tuple[Array, Array]:
        """Bounds of all path constraints, padding included, chain by chain, and of relations last, (n_c,) each."""
        lower = [chain.constraint_lower.ravel() for chain in self.chains]
        upper = [chain.constraint_upper.ravel() for chain in self.chains]
        return np.concatenate([*lower, self.relations.lower]), np.concatenate([*upper, self.relations.upper])

    @property
    def path_units(self) -> Array:
        """Units of violations of path constraints and relations, (n_c,)."""
        return np.concatenate([*(chain.constraint_unit.ravel() for chain in self.chains), self.relations.unit])

    @property
    def has_constraints(self) -> bool:
        """Whether there are constraints other than bounds of variables."""
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
        """Whether all measured rows share one unknown sigma; padding rows are zero."""
        return self.n_groups == 1 and int(self.group_sizes[0]) == sum(int(c.row_mask.sum()) for c in self.chains)

    @cached_property
    def group_rows(self) -> tuple[Index, tuple[Mask, ...]]:
        """Groups of all rows that share an unknown sigma, chain by chain, and the mask of these rows, (K, n_r) each."""
        masks = tuple(chain.group >= 0 for chain in self.chains)
        chain_groups = [chain.group[mask] for chain, mask in zip(self.chains, masks, strict=True)]
        return np.concatenate([np.empty(0, dtype=np.intp), *chain_groups]), masks

    def expand_to_rows(self, factors: Array) -> list[Array]:
        """Expand factors of the groups (n_groups,) to the rows, (K, n_r) per chain; 1 for other rows."""
        if self.in_one_group:
            return [factors[0]] * len(self.chains)
        padded_factors = np.append(factors, 1.0)  # group -1, known sigma, is the last
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
    excess          cost of the data besides the half-square of their rows, without unknown sigmas
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
    """Stage that could not be evaluated: its chain and index, a one-word cause, and a description."""

    chain: str
    stage: int
    cause: str
    detail: str


@dataclass(frozen=True)
class Evaluation:
    """Values of all chains at one point.  If `ok` is False, the values of failed stages are NaN.

    prior : (n_prior,) rows that depend on theta alone
    prior_jacobian : (n_prior, n_theta), dense or sparse
    prior_excess : the part of `excess` that belongs to these rows
    prior_curved : (n_prior,) False if the cost of a row is linear: its curvature is only for the solver
    sigma : (n_groups,) unknown sigmas at this point, in units of the weights of the data
    excess : cost besides the half-square, such as the logarithms of unknown sigmas
    surplus : the part of `excess` that remains at constant unknown sigmas: from densities that are not Gaussian
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
        """Half the sum of all squared rows, priors included, never negative; inf if a stage failed."""
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
        """Return an evaluation of another kind with these values and additional fields."""
        return kind(**{**{name: getattr(self, name) for name in _EVALUATION_FIELDS}, **extra_fields})


_EVALUATION_FIELDS = tuple(f.name for f in fields(Evaluation))


@dataclass(frozen=True)
class Linearization(Evaluation):
    """Evaluation with the Jacobian blocks of every chain.

    information : function that returns per chain the factors (K, n_r), or matrices (K, n_r, n_r), that convert products
        of rows to Fisher's information; None if no conversion is needed
    """

    jacobians: tuple[Jacobians, ...] = ()
    information: Callable[[], tuple[Array, ...]] | None = None


@dataclass(frozen=True)
class MatchingProducts(Linearization):
    """Linearization with one product per stage instead of the Jacobians of end-of-stage states.

    X_s (K, 1, n_s), X_w (K, 1, n_w) and X_q (K, 1, n_q) are the derivatives of  d . x  with a direction d (K, n_s) per
    chain:  of the scalar condition  h_k = |x_k - s_{k+1}|^2  with  d = 2 (x_k - s_{k+1}).
    """


@dataclass(frozen=True)
class GradientEvaluation(Evaluation):
    """An evaluation with the gradient of the cost, (n_v,); NaN where `ok` is False."""

    gradient: Array = field(default_factory=lambda: np.empty(0), kw_only=True)


@dataclass(frozen=True)
class HessianBlocks:
    """Hessian of  sum_g weight_g 1/2 |r_g|^2 + multipliers . constraints,  without priors; all symmetric.

    Unknown sigmas are constant.

    chains : per chain (K, m, m) with m = n_s + n_w + n_q and the variables of a stage in the order (s, w, q); and
        (n_q, n_q), the part of the initial state
    relations : (n_theta, n_theta)
    """

    chains: tuple[tuple[Array, Array], ...]
    relations: Array


@dataclass(frozen=True)
class DenseRows:
    """All rows of a problem whose only variables are theta.

    v (n_theta,) : the point
    cost, half_square : as of an `Evaluation`
    u (m,) : priors and measured rows
    E (m, n_theta) : their derivatives
    """

    v: Array
    cost: float
    half_square: float
    u: Array
    E: Array


class DenseEvaluator(Protocol):
    """Interface for the evaluation of a problem in which theta is the only variable."""

    def cost(self, v: Array) -> float | None:
        """Return the cost at v (n_theta,), None if an evaluation fails."""
        ...

    def rows(self, v: Array) -> DenseRows | None:
        """Return the rows and their derivatives at v (n_theta,), None if an evaluation fails."""
        ...


class StagedProblem(ABC):
    """Staged estimation problem: layout, bounds, start, and its functions at a point.

    lower, upper, scale, start (n_v,) : bounds, typical magnitudes (from data, positive) and starting point
    signal (K, n_r) per chain : typical magnitude of the data of each row, in units of its weight (its standard
        deviation if that is known); 0 in padded rows
    least_sigma (n_groups,) : floors of the unknown sigmas
    capabilities : evaluations that solvers should use, the best first: `Linearization` alone by default;
        `GradientEvaluation` if a few integrations give the gradient for any number of quantities; `MatchingProducts`
        for scalar matching conditions; also `HessianBlocks` if they are available
    least_squares : whether rows are residuals, of which R is the derivative; for other densities only the gradient is
        exact
    tolerates_outliers : whether some residuals may be large even if the model is correct
    integrated : whether stages are integrated: then states that decay within a stage leave no trace in any derivative
    integration_rtol : relative error of the states that is not a smooth function of v: the tolerance of an integrator
        that chooses its steps
    logarithmic (n_theta,) : entries of theta that are logarithms; empty if there are none
    eliminated : entries of theta that are eliminated: `evaluate` and `linearize` return values at their optimum, given
        all others (see ``Evaluation.v``); derivatives are those at that point, with respect to all variables

    A staged problem is frozen: `restricted` returns another one.
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
    tolerates_outliers: bool = False
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

    _expects = False  # whether derivatives follow the next evaluation

    def expect_derivatives(self) -> None:
        """Announce that derivatives will be needed at the next point."""
        self._expects = True

    def seconds_to_linearize(self, v: Array) -> float:
        """Return the expected seconds of `linearize` at v.

        0 if the linearization is cached, or no estimate is available.
        """
        del v
        return 0.0

    @property
    def dense_evaluator(self) -> DenseEvaluator | None:
        """Faster evaluator of the cost, and of rows with derivatives, with the same numbers; None if there is none."""
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
        """Return the values at v with the gradient of  sum_g weight_g 1/2 |r_g|^2  at constant unknown sigmas."""
        raise NotImplementedError(f"{type(self).__name__} has no gradients but those of its Jacobians")

    def restricted(
        self, *, lower: Array | None = None, upper: Array | None = None, scale: Array | None = None
    ) -> StagedProblem:
        """Return a copy with other bounds or magnitudes (n_v,) and the same functions."""
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
        """Sums of the squares of `data_sizes`, (n_groups + 1,); known sigmas are last."""
        squares = np.zeros(self.layout.n_groups + 1)
        for chain, size in zip(self.layout.chains, self.data_sizes(), strict=True):
            np.add.at(squares, chain.group, size**2)
        return squares

    def low_accuracy(self) -> StagedProblem:
        """Return a copy of accuracy `COARSE_RTOL`, if that is faster; layout and start agree."""
        return self

    def explicit(self) -> StagedProblem:
        """Return a copy with all of theta as search variables; layout and start agree."""
        return self

    def describe_failure(self, v: Array) -> str:
        """Describe the cause and place of a failed evaluation of the functions at v; empty if it succeeded."""
        return "; ".join(f"{f.chain}, stage {f.stage + 1}: {f.detail}" for f in self.linearize(v).failures[:3])

    def remark(self, v: Array) -> str:
        """Return a remark about the evaluation of the functions at v; empty if there is none."""
        return ""

    def times(self, v: Array) -> tuple[Array, ...]:
        """Return the stage boundaries at v, per chain (K + 1,); boundaries at estimated times depend on v."""
        return tuple(chain.times for chain in self.layout.chains)

    def node_states(self, v: Array) -> tuple[Array, ...]:
        """Return the states at the start of every stage, per chain (K, n_x): the nodes, if there are any."""
        return tuple(v[chain.nodes] for chain in self.layout.chains)

    def algebraic_states(self, v: Array) -> tuple[Array, ...]:
        """Return algebraic states near the start of every stage, per condition (K, n_z)."""
        return tuple(np.empty((chain.n_stages, 0)) for chain in self.layout.chains)

    def standardised(self, v: Array) -> tuple[tuple[Array, ...], ...]:
        """Return per chain prediction, spread (1 if unknown), and residual of each measured value, (n,) each.

        They are ordered by stage, point and output.  Residuals are observed minus predicted, normalised by spreads, not
        by eliminated sigmas.
        """
        raise NotImplementedError(f"{type(self).__name__} has no measured values")

    def hessian(
        self,
        v: Array,
        multipliers: tuple[Multipliers, ...],
        weight: Array | None = None,
        related: Array | None = None,
    ) -> HessianBlocks:
        """Return the exact Hessian at v; `related` (n_h,) multiplies the relations, by default 0.

        weight (n_groups + 1,) : weight of the rows of each group, and of known sigmas; 1 by default
        """
        raise NotImplementedError(f"{type(self).__name__} has no exact Hessian; use the Gauss-Newton Hessian")

    def in_units(self) -> StagedProblem:
        """Return the problem with units of its constraints: their change over the variables' magnitudes.

        The units follow from the derivatives at the start; without derivatives they do not change.
        """
        if not self.layout.has_constraints:
            return self
        linear = self.linearize(self.start)
        if not linear.ok:
            return self
        other = copy(self)
        other.layout = _with_units(self.layout, linear, self.scale)
        return other


def _with_units(layout: Layout, linear: Linearization, scale: Array) -> Layout:
    """Scale constraints by their change over the magnitudes of their variables, with one unit per kind of row."""
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
    """Name constraints that are violated by more than `threshold` of their units, with the amount, the worst first.

    For one constraint in one experiment only the worst time is named.
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
    """Return the rows r per chain, (K, n_r), divided by other sigmas (n_groups,); by default undivided."""
    if layout.n_groups == 0:
        return tuple(values.r for values in evaluation.values)
    ratio = layout.expand_to_rows(evaluation.sigma if sigma is None else evaluation.sigma / sigma)
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
    """Return chi2: the sum of squares weighted by known sigmas, priors included; without priors if any is unknown.

    Several unknown sigmas count in their own units: squares in different units cannot be added.  Each sum is n at its
    most likely sigma, so two points are compared with the sigma (n_groups,) of one of them.
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
