"""Graphs of CasADi rewritten operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, cast

import casadi as ca

Replace = Callable[[int, Sequence[ca.SX]], ca.SX | None]
"""What takes the place of an operation, a number of CasADi's, on its arguments; None where it stays."""


def rewrite_operations(columns: Sequence[ca.SX], operations: Collection[int], replace: Replace) -> list[ca.SX]:
    """Return columns of expressions with other operations in the place of some of the given kinds."""
    symbols = ca.symvar(ca.vertcat(*columns))
    graph = ca.Function("graph", symbols, [ca.densify(c) for c in columns])
    instructions = range(graph.n_instructions())
    if not any(graph.instruction_id(k) in operations for k in instructions):
        return list(columns)
    work: dict[int, ca.SX] = {}
    column_scalars = [list(_scalars(ca.densify(c))) for c in columns]
    for k in instructions:
        op, inputs, outputs = graph.instruction_id(k), graph.instruction_input(k), graph.instruction_output(k)
        if op == ca.OP_INPUT:
            work[outputs[0]] = symbols[inputs[0]]
        elif op == ca.OP_OUTPUT:
            column_scalars[outputs[0]][outputs[1]] = work[inputs[0]]
        elif op == ca.OP_CONST:
            work[outputs[0]] = ca.SX(graph.instruction_constant(k))
        else:
            arguments = [work[i] for i in inputs]
            replacement = replace(op, arguments) if op in operations else None
            work[outputs[0]] = apply_operation(op, arguments) if replacement is None else replacement
    return [ca.vertcat(*rows) if rows else ca.SX(0, 1) for rows in column_scalars]


def apply_operation(op: int, arguments: Sequence[ca.SX]) -> ca.SX:
    """Return one of CasADi's operations of one or two arguments."""
    sx = cast("Any", ca.SX)
    return sx.binary(op, *arguments) if len(arguments) == 2 else sx.unary(op, *arguments)


def _scalars(column: ca.SX) -> Iterable[ca.SX]:
    return ca.vertsplit(column) if column.numel() else []
