"""CasADi expressions as formulas in the syntax that SBML's infix notation and PEtab share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import casadi as ca


class NotSayable(ValueError):
    """An operation that formulas of SBML have not; the message names it."""


def infix(expressions: Sequence[ca.SX], names: Mapping[str, str], *, of_model: bool = False) -> list[str]:
    """Return expressions as text, with other names for some symbols; formulas of a model may round.

    Raises
    ------
    NotSayable
        For operations without a counterpart.
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
            said = _if(truth(taken[0]), number(taken[1]))
        elif op in _WORDS:
            read = truth if op in _LOGICAL else number
            said = _WORDS[op](*(read(i) for i in taken))
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


def _between(sign: str) -> Callable[..., str]:
    def said(a: str, b: str) -> str:
        return f"({a} {sign} {b})"

    return said


def _function(name: str) -> Callable[..., str]:
    def said(*arguments: str) -> str:
        return f"{name}({', '.join(arguments)})"

    return said


def _larger(sign: str) -> Callable[..., str]:
    def said(a: str, b: str) -> str:
        return f"piecewise({a}, {a} {sign} {b}, {b})"

    return said


def _square(a: str) -> str:
    return f"({a}^2)"


def _twice(a: str) -> str:
    return f"(2 * {a})"


def _negative(a: str) -> str:
    return f"(-{a})"


def _inverse(a: str) -> str:
    return f"(1 / {a})"


def _sign(a: str) -> str:
    return f"piecewise(1, {a} > 0, -1, {a} < 0, 0)"


def _if(condition: str, value: str) -> str:
    return f"piecewise({value}, {condition}, 0)"


def _not(a: str) -> str:
    return f"(!{a})"


def _expm1(a: str) -> str:
    return f"(exp({a}) - 1)"


def _log1p(a: str) -> str:
    return f"ln(1 + {a})"


_LOGICAL = frozenset({ca.OP_AND, ca.OP_OR, ca.OP_NOT})
_TRUE = _LOGICAL | {ca.OP_LT, ca.OP_LE, ca.OP_EQ, ca.OP_NE}
_ROUNDING = {ca.OP_FLOOR: "floor", ca.OP_CEIL: "ceil"}  # of SBML; PEtab's tables have not these
_WORDS: dict[int, Callable[..., str]] = {
    ca.OP_ADD: _between("+"),
    ca.OP_SUB: _between("-"),
    ca.OP_MUL: _between("*"),
    ca.OP_DIV: _between("/"),
    ca.OP_POW: _between("^"),
    ca.OP_CONSTPOW: _between("^"),
    ca.OP_LT: _between("<"),
    ca.OP_LE: _between("<="),
    ca.OP_EQ: _between("=="),
    ca.OP_NE: _between("!="),
    ca.OP_AND: _between("&&"),
    ca.OP_OR: _between("||"),
    ca.OP_NOT: _not,
    ca.OP_NEG: _negative,
    ca.OP_INV: _inverse,
    ca.OP_SQ: _square,
    ca.OP_TWICE: _twice,
    ca.OP_SIGN: _sign,
    ca.OP_FMAX: _larger(">"),
    ca.OP_FMIN: _larger("<"),
    ca.OP_EXPM1: _expm1,
    ca.OP_LOG1P: _log1p,
    ca.OP_EXP: _function("exp"),
    ca.OP_LOG: _function("ln"),
    ca.OP_SQRT: _function("sqrt"),
    ca.OP_FABS: _function("abs"),
    ca.OP_SIN: _function("sin"),
    ca.OP_COS: _function("cos"),
    ca.OP_TAN: _function("tan"),
    ca.OP_SINH: _function("sinh"),
    ca.OP_COSH: _function("cosh"),
    ca.OP_TANH: _function("tanh"),
    ca.OP_ASIN: _function("arcsin"),
    ca.OP_ACOS: _function("arccos"),
    ca.OP_ATAN: _function("arctan"),
}
