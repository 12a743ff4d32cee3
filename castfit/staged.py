"""The contract between transcriptions and solvers: a staged least-squares problem.

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

    minimise   1/2 sum_k |r_k(s_k, w_k, q)|^2          weighted residuals                    (n_r)
    subject to a(q) - s_0                  = 0         initial state                         (n_s)
               d_k(s_k, w_k, q)            = 0         inner equations                       (n_w)
               x_k(s_k, w_k, q) - s_{k+1}  = 0         matching, k = 0 ... K-2               (n_s)
               lower <= c_k(s_k, w_k, q)  <= upper     path constraints                      (n_c)

and its Jacobian has the pattern (K = 3, A = da/dq)

              q    s_0  w_0   s_1  w_1   s_2  w_2
    initial   A    -I
    inner 0   D_q  D_s  D_w
    match 0   X_q  X_s  X_w   -I
    inner 1   D_q             D_s  D_w
    match 1   X_q             X_s  X_w   -I
    inner 2   D_q                        D_s  D_w

Stages of one chain are batched: the first axis of every block is k.  Stages with fewer residuals than n_r are
padded with rows of zeros; ``Chain.row_mask`` tells measured rows from padding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Index = NDArray[np.intp]
    Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Chain:
    """Where one experiment's variables lie in v, and how large its blocks are.

    Attributes
    ----------
    name : str
        The experiment.
    theta : (n_q,) int array
        Positions in theta (and so in v) of the quantities that this chain depends on.
    nodes : (K, n_s) int array
        Positions of the node states in v.
    inner : (K, n_w) int array
        Positions of the inner variables in v.
    row_mask : (K, n_r) bool array
        True where a residual row is a measurement, False where it is padding.
    constraint_lower, constraint_upper : (K, n_c) arrays
        Bounds of the path constraints; a padded row has (-inf, inf), an equality has equal bounds.
    times : (K + 1,) array
        Stage boundaries, in the experiment's time.
    state_names : tuple of str
        Names of the node components, for messages.
    """

    name: str
    theta: Index
    nodes: Index
    inner: Index
    row_mask: Mask
    constraint_lower: Array
    constraint_upper: Array
    times: Array
    state_names: tuple[str, ...]

    @property
    def n_stages(self) -> int:
        """Number of stages K."""
        return self.nodes.shape[0]

    @property
    def n_s(self) -> int:
        """Number of node states per stage; 0 in single shooting."""
        return self.nodes.shape[1]

    @property
    def n_w(self) -> int:
        """Number of inner variables per stage; 0 in shooting."""
        return self.inner.shape[1]

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
class Layout:
    """The variables of a staged problem: theta first, then the chains.

    Attributes
    ----------
    names : tuple of str
        Names of the entries of theta, for tables and messages.
    chains : tuple of Chain
    n_v : int
        Number of variables in all.
    """

    names: tuple[str, ...]
    chains: tuple[Chain, ...]
    n_v: int

    @property
    def n_theta(self) -> int:
        """Number of estimated quantities."""
        return len(self.names)

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
        """Say in words which variable v[i] is."""
        if i < self.n_theta:
            return self.names[i]
        for chain in self.chains:
            for kind, positions in (("", chain.nodes), ("inner variable of ", chain.inner)):
                hit = np.argwhere(positions == i)
                if hit.size:
                    k, j = (int(h) for h in hit[0])
                    what = chain.state_names[j] if kind == "" else f"{j}"
                    return f"{kind}{what} at t = {chain.times[k]:g} ({chain.name})"
        raise IndexError(f"variable {i} of {self.n_v} does not exist")


@dataclass(frozen=True)
class Specification:
    """Sizes from which `lay_out` places one chain; the fields are those of `Chain`."""

    name: str
    theta: Index
    n_s: int
    n_w: int
    row_mask: Mask
    constraint_lower: Array
    constraint_upper: Array
    times: Array
    state_names: tuple[str, ...]


def lay_out(names: tuple[str, ...], specifications: tuple[Specification, ...]) -> Layout:
    """Place theta and the variables of every chain in v."""
    offset = len(names)
    chains: list[Chain] = []
    for spec in specifications:
        stages = spec.row_mask.shape[0]
        width = spec.n_s + spec.n_w
        positions = offset + np.arange(stages * width, dtype=np.intp).reshape(stages, width)
        offset += stages * width
        chains.append(
            Chain(
                spec.name,
                np.asarray(spec.theta, dtype=np.intp),
                positions[:, : spec.n_s],
                positions[:, spec.n_s :],
                spec.row_mask,
                spec.constraint_lower,
                spec.constraint_upper,
                spec.times,
                spec.state_names,
            )
        )
    return Layout(names, tuple(chains), offset)


@dataclass(frozen=True)
class Values:
    """What one chain's functions are worth at a point; the first axis is the stage.

    r : (K, n_r)    weighted residuals, 0 in padded rows
    a : (n_s,)      initial state a(q)
    d : (K, n_w)    inner equations
    x : (K, n_s)    state at the end of each stage
    c : (K, n_c)    path constraints
    """

    r: Array
    a: Array
    d: Array
    x: Array
    c: Array


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

    prior : (n_prior,) weighted residuals that depend on theta alone
    prior_jacobian : (n_prior, n_theta)
    """

    v: Array
    values: tuple[Values, ...]
    prior: Array
    prior_jacobian: Array
    failures: tuple[Failure, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every stage could be evaluated."""
        return not self.failures

    @property
    def cost(self) -> float:
        """Half the sum of squared weighted residuals; inf where a stage failed."""
        if not self.ok:
            return np.inf
        total = float(self.prior @ self.prior) + sum(float(np.vdot(c.r, c.r)) for c in self.values)
        return 0.5 * total


@dataclass(frozen=True)
class Linearization(Evaluation):
    """An evaluation with the Jacobian blocks of every chain."""

    jacobians: tuple[Jacobians, ...] = ()


class StagedProblem(ABC):
    """A staged least-squares problem: layout, bounds, start, and its functions at a point.

    Attributes
    ----------
    layout : Layout
    lower, upper, scale, start : (n_v,) arrays
        Bounds, typical magnitudes (from data, positive) and starting point of all variables.
    signal : tuple of (K, n_r) arrays
        Per chain the typical magnitude of what each row measures, in its standard deviations; 0 in padded rows.
    absolute_sigma : bool
        Whether these standard deviations are known; if not, only their ratios mean something.
    exact_hessian : bool
        Whether `hessian` is available.
    second_start : callable, optional
        Makes another starting point (n_v,), for solvers that get nowhere from the first; None if there is none.
    """

    layout: Layout
    lower: Array
    upper: Array
    scale: Array
    start: Array
    signal: tuple[Array, ...]
    absolute_sigma: bool = True
    exact_hessian: bool = False
    second_start: Callable[[], Array] | None = None

    @abstractmethod
    def evaluate(self, v: Array) -> Evaluation:
        """Return the values of all functions at v (n_v,)."""

    @abstractmethod
    def linearize(self, v: Array) -> Linearization:
        """Return values and Jacobian blocks at v (n_v,)."""

    def coarse(self) -> StagedProblem:
        """Return the same problem with functions of lower accuracy, if that is faster; layout and start agree."""
        return self

    def explain(self, v: Array) -> str:
        """Say where and why the functions could not be evaluated at v; empty if they could."""
        return "; ".join(f"{f.chain}, stage {f.stage + 1}: {f.detail}" for f in self.linearize(v).failures[:3])

    def node_states(self, v: Array) -> tuple[Array, ...]:
        """Return the states at the start of every stage, per chain (K, n_x): the nodes, where there are any."""
        return tuple(v[chain.nodes] for chain in self.layout.chains)

    def hessian(self, v: Array, multipliers: tuple[Multipliers, ...]) -> tuple[tuple[Array, Array], ...]:
        """Return the Hessian of  1/2 |r|^2 + multipliers . constraints  in blocks, without the prior.

        Per chain: (K, m, m) with m = n_s + n_w + n_q and the variables of a stage in the order (s, w, q);
        and (n_q, n_q), the part of the initial state.  Both symmetric.
        """
        raise NotImplementedError(f"{type(self).__name__} has no exact Hessian; use the Gauss-Newton Hessian")


def gaps(layout: Layout, evaluation: Evaluation) -> tuple[Array, ...]:
    """Return the continuity defects per chain, (K, n_s): a - s_0, then x_k - s_{k+1}."""
    return tuple(
        np.vstack([values.a, values.x[:-1]]) - evaluation.v[chain.nodes]
        for chain, values in zip(layout.chains, evaluation.values, strict=True)
    )
