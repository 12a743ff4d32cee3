"""Selection of the scales and offsets to eliminate: those that enter the data linearly and nothing else.

    y = s x + o                  normal errors of y: linear in s and o
    log y = log s + log x        normal errors of log y: linear in log s

Everything else leaves them parameters that are searched: bounds and priors, other densities, errors that depend on the
prediction or on those of other outputs, an offset of log-normal data, sigmas of their own that share a scale,
constraints that contain one, expressions of an experiment's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import casadi as ca
import numpy as np

from castfit._support.casadi_functions import PerObjectCache
from castfit._support.records import dataclass
from castfit.densities.noise.correlation import CrossOutputCorrelation
from castfit.densities.noise.gaussian import LogNormal
from castfit.problem.lie_derivatives import graph_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.problem.compiled_problem import CompiledProblem
    from castfit.problem.observables import ObservedOutput


@dataclass(frozen=True)
class ScaledOutputUse:
    """One scaled output in one experiment, by positions in ``Posed.conditions`` and ``Posed.outputs``.

    scale, offset : entries of theta that are eliminated; -1 if that is not
    scale_row, offset_row : the parameters of the model, by their position in p; -1 where there is no offset
    unit : of the logarithm, log 10 for decades, of which the data are; 0 if they are no logarithms
    """

    condition: int
    output: int
    scale: int
    offset: int
    scale_row: int
    offset_row: int
    unit: float

    @property
    def entries(self) -> tuple[int, ...]:
        """The entries of theta that are eliminated."""
        return tuple(j for j in (self.scale, self.offset) if j >= 0)


@dataclass(frozen=True)
class ScaleBlock:
    """Entries of theta, scales and offsets, that are eliminated together.

    `uses` are those whose data determine them; all of one unknown sigma, or of known ones.
    """

    entries: tuple[int, ...]
    uses: tuple[ScaledOutputUse, ...]


_BLOCKS: PerObjectCache[CompiledProblem, tuple[ScaleBlock, ...]] = PerObjectCache()


def eliminable_blocks(compiled_problem: CompiledProblem) -> tuple[ScaleBlock, ...]:
    """Return the scales and offsets that can be eliminated, in the smallest groups that have no data in common."""
    return _BLOCKS.get(compiled_problem, _find_blocks)


def eliminated_entries(compiled_problem: CompiledProblem) -> NDArray[np.intp]:
    """Return the entries of theta that are eliminated: no search moves them."""
    return np.array(sorted(j for block in eliminable_blocks(compiled_problem) for j in block.entries), dtype=np.intp)


def _find_blocks(compiled_problem: CompiledProblem) -> tuple[ScaleBlock, ...]:
    if not any(output in compiled_problem.model.scalings for output in compiled_problem.outputs):
        return ()
    candidates = list(_list_uses(compiled_problem))
    allowed = _is_allowed(compiled_problem, candidates)
    restricted_uses = [_restrict_use(use, allowed) for use in candidates]
    return tuple(_components([use for use in restricted_uses if use.entries]))


def _list_uses(compiled_problem: CompiledProblem) -> Iterable[ScaledOutputUse]:
    """List all uses of scales and offsets that are entries of theta, whether or not they can be eliminated."""
    index_by_name = {n: i for i, n in enumerate(compiled_problem.model.parameters)}
    for i, condition in enumerate(compiled_problem.conditions):
        of_row = {
            int(row): int(j) for j, row in zip(condition.theta, condition.link.quantity_rows, strict=True) if row >= 0
        }
        for j, observed in enumerate(condition.observed):
            scaling = compiled_problem.model.scalings.get(compiled_problem.outputs[j])
            if scaling is None or observed is None:
                continue
            scale, offset = index_by_name[scaling.scale], index_by_name[scaling.offset] if scaling.offset else -1
            yield ScaledOutputUse(i, j, of_row.get(scale, -1), of_row.get(offset, -1), scale, offset, _unit(observed))


def _unit(observed: ObservedOutput) -> float:
    """Return the unit of the logarithm of log-normal data, 0 of normal ones, NaN of others."""
    correlation = getattr(observed.noise, "correlation", None)
    if isinstance(correlation, CrossOutputCorrelation) and correlation.numbers:
        return np.nan
    if observed.is_weighted:
        return 0.0
    noise = observed.noise
    if isinstance(noise, LogNormal) and noise.is_residual_noise and len(observed.predicted_outputs) == 1:
        return float(np.log(10.0)) if noise.base == 10 else 1.0
    return np.nan


def _is_allowed(compiled_problem: CompiledProblem, uses: Sequence[ScaledOutputUse]) -> frozenset[int]:
    """Return the entries of theta that enter nothing but data in which they are linear."""
    uses_by_entry: dict[int, list[ScaledOutputUse]] = {}
    for use in uses:
        for j in use.entries:
            uses_by_entry.setdefault(j, []).append(use)
    return frozenset(
        j
        for j, entry_uses in uses_by_entry.items()
        if _is_free(compiled_problem, j)
        and _is_linear(compiled_problem, j, entry_uses)
        and _is_pure_scaling(compiled_problem, j, entry_uses)
    )


def _is_free(compiled_problem: CompiledProblem, j: int) -> bool:
    """Check whether a quantity has no bounds and no informative prior; a logarithm may have the lower bound 0."""
    quantity = compiled_problem.quantities[j]
    lower = quantity.lower if quantity.scale != "log" else -np.inf if quantity.lower <= 0.0 else quantity.lower
    return bool(lower == -np.inf and quantity.upper == np.inf and not compiled_problem.informed_mask[j])


def _is_linear(compiled_problem: CompiledProblem, j: int, uses: Sequence[ScaledOutputUse]) -> bool:
    """Whether all data that a quantity moves are linear in it, of one kind, and have one sigma, or known ones."""
    kinds = {use.unit > 0.0 for use in uses}
    groups = {_group(compiled_problem, use) for use in uses}
    if len(kinds) > 1 or len(groups) > 1 or any(np.isnan(use.unit) for use in uses):
        return False
    if kinds == {True}:
        return all(use.offset_row < 0 for use in uses)
    return compiled_problem.quantities[j].scale == "linear"


def _group(compiled_problem: CompiledProblem, use: ScaledOutputUse) -> int:
    observed = compiled_problem.conditions[use.condition].observed[use.output]
    assert observed is not None
    return observed.group


def _is_pure_scaling(compiled_problem: CompiledProblem, j: int, uses: Sequence[ScaledOutputUse]) -> bool:
    """Whether a quantity moves the parameter that it is, in its own outputs only."""
    rows = {
        row for use in uses for row, entry in ((use.scale_row, use.scale), (use.offset_row, use.offset)) if entry == j
    }
    if len(rows) != 1:
        return False
    row = rows.pop()
    for condition in compiled_problem.conditions:
        is_moved = condition.link.pattern[:, condition.theta == j]
        if not set(np.flatnonzero(is_moved.any(axis=1)).tolist()) <= {row}:
            return False
    name = compiled_problem.model.parameters[row]
    if any(relation.involved_mask[j] for relation in compiled_problem.relations):
        return False
    symbol_names = {s.name() for c in compiled_problem.path for s in ca.symvar(graph_of(c, compiled_problem.model))}
    scaled_outputs = {n for n, s in compiled_problem.model.scalings.items() if name in s.parameters}
    output_names = (*compiled_problem.outputs, *compiled_problem.spreads)
    output_rows = ca.jacobian_sparsity(compiled_problem.observed, compiled_problem.model.system.p[row]).get_triplet()[0]
    return name not in symbol_names and all(output_names[k] in scaled_outputs for k in output_rows)


def _restrict_use(use: ScaledOutputUse, allowed: frozenset[int]) -> ScaledOutputUse:
    scale, offset = (j if j in allowed else -1 for j in (use.scale, use.offset))
    return replace(use, scale=scale, offset=offset)


def _components(uses: Sequence[ScaledOutputUse]) -> Iterable[ScaleBlock]:
    """Collect uses that are linked through common entries."""
    remaining = list(uses)
    while remaining:
        linked_uses, entries = [remaining.pop(0)], set[int]()
        while linked_uses:
            entries |= {j for use in linked_uses for j in use.entries}
            linked_uses = [use for use in remaining if entries & {*use.entries}]
            remaining = [use for use in remaining if use not in linked_uses]
        yield ScaleBlock(tuple(sorted(entries)), tuple(use for use in uses if entries & {*use.entries}))
