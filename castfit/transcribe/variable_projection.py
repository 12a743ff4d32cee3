"""Elimination of scales and offsets: at every point of a search they have their optimal values.

With the states at the measured points, x, the rows of the outputs y = s x + o,

    r = w (s x + o - m),        w = 1 / sigma, up to an unknown factor that is common to all of them,

are linear in s and o, those of log-normal data in log s:  r = w (log s + log x - log m);  so are those of
autocorrelated errors, W r.  No equation of the model contains s or o, so that their optimum s^(x), o^(x) is a small
least-squares problem after every integration.  There

    d cost / d (s, o) = 0,      d cost(x, s^(x), o^(x)) / d x = partial d cost / d x,

whatever the unknown factor is.  Gradients are exact, then, and with the columns of s and o kept in the Jacobian the
step of Gauss and Newton in all other variables is that of variable projection (Golub and Pereyra 1973) in the form of
Kaufman (1975), Newton's step is Newton's for the reduced cost (Schur complement), and Fisher's information is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.records import dataclass
from castfit.problem.linear_scales import ScaleBlock, ScaledOutputUse, eliminable_blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit._support.arrays import Array, Index
    from castfit.problem.compiled_problem import CompiledProblem
    from castfit.problem.parameter_map import NaturalValues
    from castfit.solve.staged import Jacobians, Layout
    from castfit.transcribe.observation import MeasurementRows


_MIN_EFFECT_DIFFERENCE = 1e-10  # relative difference of two effects below which data do not distinguish them
_MIN_OUTPUT_EFFECT = 1e-10  # of the contribution of the states to an output; less is integration and rounding error


@dataclass(frozen=True, eq=False)
class Projection:
    """The eliminated entries of theta, the first variables of a staged problem; arrays are (n_theta,).

    log : which entries of theta are logarithms
    default_values : values if the data do not determine them, as for an unmeasured or constant output
    min_effects : effect on all rows below which a scale counts as zero
    whitening_roots : W of the values of outputs with autocorrelated errors, by condition and output
    """

    blocks: tuple[ScaleBlock, ...]
    log: NDArray[np.bool_]
    default_values: Array
    min_effects: Array
    whitening_roots: Mapping[tuple[int, int], Any] = field(default_factory=dict[tuple[int, int], Any])

    @cached_property
    def entries(self) -> Index:
        """The eliminated entries."""
        return np.array(sorted(j for block in self.blocks for j in block.entries), dtype=np.intp)

    def key(self, v: Array) -> bytes:
        """Return a key of the point that ignores the eliminated entries."""
        if not self.blocks:
            return v.tobytes()
        out = v.copy()
        out[self.entries] = 0.0
        return out.tobytes()

    def neutral(self, i: int, p: Array) -> Array:
        """Return parameters (..., n_p) of condition i with eliminated scales set to 1 and eliminated offsets to 0."""
        out = p.copy()
        for use in (use for block in self.blocks for use in block.uses if use.condition == i):
            if use.scale >= 0:
                out[..., use.scale_row] = 1.0
            if use.offset_row >= 0:
                out[..., use.offset_row] = 0.0
        return out

    def with_output_effects(self, slopes: Iterable[tuple[MeasurementRows, Array]]) -> Projection:
        """Return the projection with the effects of the outputs at typical magnitudes of the states.

        slopes (K, M, n_g, n) are per condition derivatives of what is observed by the states, times their magnitudes.
        """
        squares, observed = np.zeros_like(self.min_effects), tuple(slopes)
        with np.errstate(all="ignore"):
            for use in (use for block in self.blocks for use in block.uses if use.scale >= 0 and use.unit == 0.0):
                measured, dg = observed[use.condition]
                weight = measured.weight[:, :, use.output]
                effect = np.where(weight > 0.0, weight * np.abs(dg[:, :, use.output]).sum(axis=2), 0.0)
                squares[use.scale] += float(np.sum(effect**2))
        return replace(self, min_effects=_MIN_OUTPUT_EFFECT * np.sqrt(np.where(np.isfinite(squares), squares, 0.0)))

    def without_zero_scales(self, layout: Layout, jacobians: tuple[Jacobians, ...]) -> tuple[Jacobians, ...]:
        """Return derivatives of weighted rows, with those by scales of zero set to zero: they are rounding errors."""
        if not (self.min_effects > 0.0).any():
            return jacobians
        squares = np.zeros_like(self.min_effects)
        with np.errstate(all="ignore"):
            for chain, j in zip(layout.chains, jacobians, strict=True):
                np.add.at(squares, chain.theta, np.square(j.R_q).sum(axis=(0, 1)))
            is_silent = (squares <= self.min_effects**2) & (self.min_effects > 0.0)
        if not is_silent.any():
            return jacobians
        return tuple(
            replace(j, R_q=np.where(is_silent[chain.theta], 0.0, j.R_q))
            for chain, j in zip(layout.chains, jacobians, strict=True)
        )

    def project(
        self,
        v: Array,
        naturals: Sequence[NaturalValues],
        observe: Callable[[Sequence[Array]], Iterable[tuple[MeasurementRows, Array]]],
    ) -> Array:
        """Return v (n_v,) with the eliminated entries at their optimum.

        `observe` returns per condition the observed expressions (K, M, n_g) for other parameters (n_p,) of the outputs.
        """
        out, p = v.copy(), [natural.p for natural in naturals]
        observed = tuple(observe([self.neutral(i, parameters) for i, parameters in enumerate(p)]))
        out[self.entries] = self.default_values[self.entries]
        with np.errstate(all="ignore"):  # wild trial points overflow
            for block in self.blocks:
                rows = [
                    self._decorrelate_rows(use, block, p[use.condition], *observed[use.condition]) for use in block.uses
                ]
                A, b = (np.concatenate([part[k] for part in rows]) for k in range(2))
                entries = list(block.entries)
                defaults = self.default_values[entries]
                if block.uses[0].unit > 0.0 and not self.log[entries[0]]:  # what is linear is the logarithm
                    solution = np.exp(least_squares(A, b, np.log(defaults), self.min_effects[entries]))
                else:
                    solution = least_squares(A, b, defaults, self.min_effects[entries])
                out[entries] = np.where(np.isfinite(solution), solution, defaults)
        return out

    def _decorrelate_rows(
        self, use: ScaledOutputUse, block: ScaleBlock, p: Array, measured: MeasurementRows, g: Array
    ) -> tuple[Array, Array]:
        """Return the rows of one output, transformed to independent errors."""
        A, b = _rows(use, block, p, measured, g)
        W = self.whitening_roots.get((use.condition, use.output))
        return (A, b) if W is None else (W @ A, W @ b)


def projection_of(problem: CompiledProblem, theta: Array) -> Projection:
    """Return the projection of a problem; eliminated entries without informative data stay at theta (n_theta,)."""
    blocks = eliminable_blocks(problem) if problem.model.scalings else ()
    roots = dict[tuple[int, int], Any]()
    for use in (use for block in blocks for use in block.uses) if problem.correlations else ():
        condition = problem.conditions[use.condition]
        whitening, output_mask = (
            condition.whitening(problem.outputs),
            np.nonzero(condition.points.mask)[1] == use.output,
        )
        if whitening is not None:
            roots[use.condition, use.output] = whitening.W[output_mask][:, output_mask]
    return Projection(blocks, problem.log, theta, np.zeros(theta.size), roots)


# No quantity is eliminated.
NOTHING = Projection((), np.empty(0, dtype=np.bool_), np.empty(0), np.empty(0))


def _rows(
    use: ScaledOutputUse, block: ScaleBlock, p: Array, measured: MeasurementRows, g: Array
) -> tuple[Array, Array]:
    """Return the weighted data of one output: A (n, number of entries), and b (n,), of which A x is the model."""
    j = use.output
    if use.unit > 0.0:
        slots = [slot for slot in measured.slots if slot.rows[0] == j]
        x = np.concatenate([np.empty(0), *(g[slot.stage, slot.point, j] for slot in slots)])
        m = np.concatenate([np.empty(0), *(slot.datum for slot in slots)])
        w = np.concatenate([np.empty(0), *(1.0 / (slot.spread * use.unit) for slot in slots)])
        return w[:, None], w * (np.log(m) - np.log(x))
    stage, point = np.nonzero(measured.weight[:, :, j] > 0.0)
    x, m, w = (part[stage, point, j] for part in (g, measured.target, measured.weight))
    A = np.zeros((x.size, len(block.entries)))
    b = m.copy()
    if use.scale >= 0:
        A[:, block.entries.index(use.scale)] = x * w
    else:
        b -= x
    if use.offset >= 0:
        A[:, block.entries.index(use.offset)] = w
    elif use.offset_row >= 0:
        b -= p[use.offset_row]
    return A, b * w


def least_squares(A: Array, b: Array, default: Array, min_effect: Array) -> Array:
    """Solve A x = b by least squares; undetermined components stay near `default`, in units of their effect."""
    d = np.linalg.norm(A, axis=0)
    if not (np.isfinite(d).all() and np.isfinite(b).all()):
        return np.full(default.size, np.nan)
    is_determined = d > min_effect
    inverse = np.divide(1.0, d, out=np.zeros_like(d), where=is_determined)
    U, S, Vt = np.linalg.svd(A * inverse, full_matrices=False)
    rank = int(np.count_nonzero(_MIN_EFFECT_DIFFERENCE * S[:1].sum() < S))
    if rank == default.size:
        return Vt.T @ ((U.T @ b) / S) * inverse
    step = U[:, :rank].T @ (b - A @ default) / S[:rank]
    return default + Vt[:rank].T @ step * inverse
