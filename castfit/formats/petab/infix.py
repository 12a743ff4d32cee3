"""CasADi expressions as formulas in the syntax that SBML's infix notation and PEtab share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import casadi as ca


class NotSayable(ValueError):
    """An operation that formulas of SBML have not; the message names it."""


def infix(expressions: Sequence[ca.SX], names: Mapping[str, str], *, of_model: bool = False) -> list[str]:
    """Return expressions as text, with other names for some symbols; formulas of a model may round.

    Raises NotSayable: for operations without a counterpart.
    """
    column = ca.vertcat(*(ca.SX(e) for e in expressions))
    found = ca.symvar(column)
    graph = ca.Function("formulas", found, [ca.densify(column)])
    work: dict[int, str] = {}
    true: set[int] = set()  # what holds truth values, which are no numbers in SBML
    out = ["0"] * len(expressions)

    def number(i: int) -> str:
        return f"piecewise(1, {work[i]}, 0)" if i in true else work[i]

    def truth(i: int) -> str:
        return work[i] if i in true else f"({work[i]} != 0)"

    for k in range(graph.n_instructions()):
        op, taken, given = graph.instruction_id(k), graph.instruction_input(k), graph.instruction_output(k)
        if op == ca.OP_INPUT:
            said = names.get(found[taken[0]].name(), found[taken[0]].name())
        elif op == ca.OP_OUTPUT:
            out[given[1]] = number(taken[0])
            continue
        elif op == ca.OP_CONST:
            value = float(graph.instruction_constant(k))
            said = repr(value) if value >= 0 else f"({value!r})"
        elif op == ca.OP_IF_ELSE_ZERO:
            said = f"piecewise({number(taken[1])}, {truth(taken[0])}, 0)"
        elif op in _WORDS:
            read = truth if op in _LOGICAL else number
            said = _WORDS[op].format(*(read(i) for i in taken))
        elif op in _ROUNDING and of_model:
            said = f"{_ROUNDING[op]}({number(taken[0])})"
        else:
            raise NotSayable(f"an operation ({op} of CasADi) that formulas of SBML have not")
        work[given[0]] = said
        if op in _TRUE:
            true.add(given[0])
        else:
            true.discard(given[0])
    return out


_LOGICAL = frozenset({ca.OP_AND, ca.OP_OR, ca.OP_NOT})
_TRUE = _LOGICAL | {ca.OP_LT, ca.OP_LE, ca.OP_EQ, ca.OP_NE}
_ROUNDING = {ca.OP_FLOOR: "floor", ca.OP_CEIL: "ceil"}  # of SBML; PEtab's tables have not these
_WORDS = {
    ca.OP_ADD: "({0} + {1})",
    ca.OP_SUB: "({0} - {1})",
    ca.OP_MUL: "({0} * {1})",
    ca.OP_DIV: "({0} / {1})",
    ca.OP_POW: "({0} ^ {1})",
    ca.OP_CONSTPOW: "({0} ^ {1})",
    ca.OP_LT: "({0} < {1})",
    ca.OP_LE: "({0} <= {1})",
    ca.OP_EQ: "({0} == {1})",
    ca.OP_NE: "({0} != {1})",
    ca.OP_AND: "({0} && {1})",
    ca.OP_OR: "({0} || {1})",
    ca.OP_NOT: "(!{0})",
    ca.OP_NEG: "(-{0})",
    ca.OP_INV: "(1 / {0})",
    ca.OP_SQ: "({0}^2)",
    ca.OP_TWICE: "(2 * {0})",
    ca.OP_SIGN: "piecewise(1, {0} > 0, -1, {0} < 0, 0)",
    ca.OP_FMAX: "piecewise({0}, {0} > {1}, {1})",
    ca.OP_FMIN: "piecewise({0}, {0} < {1}, {1})",
    ca.OP_EXPM1: "(exp({0}) - 1)",
    ca.OP_LOG1P: "ln(1 + {0})",
    ca.OP_EXP: "exp({0})",
    ca.OP_LOG: "ln({0})",
    ca.OP_SQRT: "sqrt({0})",
    ca.OP_FABS: "abs({0})",
    ca.OP_SIN: "sin({0})",
    ca.OP_COS: "cos({0})",
    ca.OP_TAN: "tan({0})",
    ca.OP_SINH: "sinh({0})",
    ca.OP_COSH: "cosh({0})",
    ca.OP_TANH: "tanh({0})",
    ca.OP_ASIN: "arcsin({0})",
    ca.OP_ACOS: "arccos({0})",
    ca.OP_ATAN: "arctan({0})",
}
