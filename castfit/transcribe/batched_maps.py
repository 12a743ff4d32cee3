"""Batched maps from theta to the parameters and initial states of all experiments, in one call.

The results equal those of `castfit.problem.parameter_map` for each experiment, to the last bit; here all expressions
are one CasADi function, and the rest is a few array operations.

Notation: C experiments, y = (p, a) of each (n_y,), n natural values of theta; dy_i (n_y, n_q) by the q of experiment i,
one after the other in a flat array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import casadi as ca
import numpy as np

from castfit._support.arrays import Array, Index
from castfit._support.casadi_functions import BufferedFunction, PerObjectCache
from castfit._support.records import dataclass
from castfit.model.model import Model
from castfit.problem.compiled_experiments import Condition
from castfit.problem.parameter_map import MappedExpressions, ParameterLink

# One function for the same parts, stored with them, since addresses are the keys.
_FUNCTIONS: PerObjectCache[Model, dict[tuple[int, ...], tuple[tuple[ca.Function, ...], BufferedFunction]]] = (
    PerObjectCache()
)


@dataclass(frozen=True)
class BatchedLinks:
    """The links of some experiments; base (C, n_y), all else (n,).

    direct : entry of n, place in y, place in dy;  numbers : arguments of the expressions that are numbers
    argument_sources : positions of the arguments that are entries of n, and these entries
    values : positions of the values of expressions in y
    slopes : place among all derivatives of expressions, in dy, and the entry of n
    starts (C + 1,) : where the derivatives of each experiment begin
    """

    base: Array
    direct: tuple[Index, Index, Index]
    numbers: Array
    argument_sources: tuple[Index, Index]
    values: Index
    slopes: tuple[Index, Index, Index]
    starts: Index
    evaluate: BufferedFunction | None

    def compute_values(self, n: Array) -> tuple[Array, Array] | None:
        """Return y (C, n_y) at natural values n, and the derivatives of expressions there, for `slopes_at`.

        None if an expression cannot be computed.
        """
        y = self.base.copy()
        flat = y.reshape(-1)
        entry, place, _ = self.direct
        flat[place] = n[entry]
        if self.evaluate is None:
            return y, np.empty(0)
        arguments = self.numbers.copy()
        arguments[self.argument_sources[0]] = n[self.argument_sources[1]]
        self.evaluate.arguments["a"][0] = arguments
        self.evaluate()
        values = self.evaluate.results["values"][0]
        flat[self.values] = values
        return (y, self.evaluate.results["slopes"][0][self.slopes[0]]) if np.isfinite(values).all() else None

    def slopes_at(self, by_n: Array, slope: Array) -> Array | None:
        """Return dy, flat, from the result of `compute_values` and the derivatives of n by theta; None as there."""
        dy = np.zeros(int(self.starts[-1]))
        entry, _, place = self.direct
        dy[place] = slope[entry]
        if self.evaluate is None:
            return dy
        _, place, entry = self.slopes
        derivatives = by_n * slope[entry]
        dy[place] = derivatives
        return dy if np.isfinite(derivatives).all() else None


def batch_links(model: Model, conditions: Sequence[Condition]) -> BatchedLinks | None:
    """Return the links of some experiments; None if they are of another kind."""
    links = [c.link for c in conditions]
    if any(link.n_e or not all(isinstance(part, MappedExpressions) for part in link.parts) for link in links):
        return None
    n_y = links[0].base.size
    if any(link.base.size != n_y for link in links):
        return None
    starts = np.concatenate([[0], np.cumsum([n_y * link.quantity_rows.size for link in links])]).astype(np.intp)
    direct: list[Index] = []
    for i, (link, c) in enumerate(zip(links, conditions, strict=True)):
        q = np.flatnonzero(link.quantity_rows >= 0)
        rows = link.quantity_rows[q]
        direct.append(
            np.array([c.theta[q], i * n_y + rows, starts[i] + rows * link.quantity_rows.size + q], dtype=np.intp)
        )
    parts = [(i, part) for i, link in enumerate(links) for part in link.parts if isinstance(part, MappedExpressions)]
    numbers, argument_sources, values, slopes = _build_expression_indices(links, conditions, parts, starts)
    return BatchedLinks(
        np.array([link.base for link in links]),
        _rows(direct),
        numbers,
        argument_sources,
        values,
        slopes,
        starts,
        _function(model, [part for _, part in parts]) if parts else None,
    )


def _rows(columns: Sequence[Index]) -> tuple[Index, Index, Index]:
    a, b, c = np.concatenate([np.empty((3, 0), dtype=np.intp), *columns], axis=1)
    return a, b, c


def _build_expression_indices(
    links: Sequence[ParameterLink],
    conditions: Sequence[Condition],
    parts: Sequence[tuple[int, MappedExpressions]],
    starts: Index,
) -> tuple[Array, tuple[Index, Index], Index, tuple[Index, Index, Index]]:
    """Return the index arrays that gather the arguments, and scatter the values and derivatives."""
    numbers = np.concatenate([np.empty(0), *(part.numbers for _, part in parts)])
    at_known: list[Index] = []
    entry_known: list[Index] = []
    values: list[Index] = []
    slopes: list[Index] = []
    argument = derivative = 0
    for i, part in parts:
        link, theta = links[i], conditions[i].theta
        n_y, n_q, m, n_a = link.base.size, link.quantity_rows.size, part.rows.size, part.source.size
        j = np.flatnonzero(part.source >= 0)
        q = part.source[j]
        at_known.append(argument + j)
        entry_known.append(theta[q])
        values.append(i * n_y + part.rows)
        row, column = np.repeat(np.arange(m), j.size), np.tile(np.arange(j.size), m)
        # CasADi writes matrices by columns.
        slopes.append(
            np.array(
                [
                    derivative + j[column] * m + row,
                    starts[i] + part.rows[row] * n_q + q[column],
                    theta[q[column]],
                ],
                dtype=np.intp,
            )
        )
        argument, derivative = argument + n_a, derivative + m * n_a
    empty = np.empty(0, dtype=np.intp)
    return (
        numbers,
        (np.concatenate([empty, *at_known]), np.concatenate([empty, *entry_known])),
        np.concatenate([empty, *values]),
        _rows(slopes),
    )


def _function(model: Model, parts: Sequence[MappedExpressions]) -> BufferedFunction:
    cache = _FUNCTIONS.get(model, lambda _: {})
    key = tuple(id(part.jacobian_function) for part in parts)
    if key not in cache:
        arguments = [ca.SX.sym("a", part.source.size) for part in parts]
        evaluated = [cast("list[ca.SX]", part.jacobian_function(a)) for part, a in zip(parts, arguments, strict=True)]
        function = ca.Function(
            "linked",
            [ca.vertcat(*arguments)],
            [
                ca.densify(ca.vertcat(*(result[0] for result in evaluated))),
                ca.vertcat(*(ca.vec(ca.densify(result[1])) for result in evaluated)),
            ],
            ["a"],
            ["values", "slopes"],
        )
        cache[key] = tuple(part.jacobian_function for part in parts), BufferedFunction(function, ("values", "slopes"))
    return cache[key][1]
