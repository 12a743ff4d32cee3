"""CasADi expressions as formulas in the syntax that SBML's infix notation and PEtab share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import casadi as ca


class UnsupportedFormula(ValueError):
    """An operation that formulas of SBML have not; the message names it."""


def infix(expressions: Sequence[ca.SX], names: Mapping[str, str], *, of_model: bool = False) -> list[str]:
    """Return expressions as text, with other names for some symbols; formulas of a model may round.

    Raises NotSayable: for operations without a counterpart.
    """
    column = ca.vertcat(*(ca.SX(e) for e in expressions))
    symbols = ca.symvar(column)
    graph = ca.Function("formulas", symbols, [ca.densify(column)])
    texts: dict[int, str] = {}
    truth_slots: set[int] = set()  # slots of truth values, which are not numbers in SBML
    out = ["0"] * len(expressions)

    def number(i: int) -> str:
        return f"piecewise(1, {texts[i]}, 0)" if i in truth_slots else texts[i]

    def truth(i: int) -> str:
        return texts[i] if i in truth_slots else f"({texts[i]} != 0)"

    for k in range(graph.n_instructions()):
        op, sources, targets = graph.instruction_id(k), graph.instruction_input(k), graph.instruction_output(k)
        if op == ca.OP_INPUT:
            text = names.get(symbols[sources[0]].name(), symbols[sources[0]].name())
        elif op == ca.OP_OUTPUT:
            out[targets[1]] = number(sources[0])
            continue
        elif op == ca.OP_CONST:
            value = float(graph.instruction_constant(k))
            text = repr(value) if value >= 0 else f"({value!r})"
        elif op == ca.OP_IF_ELSE_ZERO:
            text = f"piecewise({number(sources[1])}, {truth(sources[0])}, 0)"
        elif op in _WORDS:
            write_operand = truth if op in _LOGICAL else number
            text = _WORDS[op].format(*(write_operand(i) for i in sources))
        elif op in _ROUNDING and of_model:
            text = f"{_ROUNDING[op]}({number(sources[0])})"
        else:
            raise UnsupportedFormula(f"an operation ({op} of CasADi) that formulas of SBML have not")
        texts[targets[0]] = text
        if op in _TRUE:
            truth_slots.add(targets[0])
        else:
            truth_slots.discard(targets[0])
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
