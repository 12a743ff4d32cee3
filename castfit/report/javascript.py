"""CasADi functions as JavaScript: a statement for each operation, so that browsers compute the same."""

from __future__ import annotations

import casadi as ca

_INPUTS = (ca.OP_INPUT, ca.OP_PARAMETER)
_UNARY = {
    ca.OP_ASSIGN: "{0}", ca.OP_NEG: "-{0}", ca.OP_SQ: "{0}*{0}", ca.OP_TWICE: "2*{0}", ca.OP_INV: "1/{0}",
    ca.OP_NOT: "{0}===0?1:0", ca.OP_EXP: "Math.exp({0})", ca.OP_LOG: "Math.log({0})", ca.OP_SQRT: "Math.sqrt({0})",
    ca.OP_SIN: "Math.sin({0})", ca.OP_COS: "Math.cos({0})", ca.OP_TAN: "Math.tan({0})", ca.OP_ASIN: "Math.asin({0})",
    ca.OP_ACOS: "Math.acos({0})", ca.OP_ATAN: "Math.atan({0})", ca.OP_SINH: "Math.sinh({0})",
    ca.OP_COSH: "Math.cosh({0})", ca.OP_TANH: "Math.tanh({0})", ca.OP_ASINH: "Math.asinh({0})",
    ca.OP_ACOSH: "Math.acosh({0})", ca.OP_ATANH: "Math.atanh({0})", ca.OP_LOG1P: "Math.log1p({0})",
    ca.OP_EXPM1: "Math.expm1({0})", ca.OP_FABS: "Math.abs({0})", ca.OP_SIGN: "Math.sign({0})",
    ca.OP_FLOOR: "Math.floor({0})", ca.OP_CEIL: "Math.ceil({0})", ca.OP_ERF: "erf({0})",
}  # fmt: skip
_BINARY = {
    ca.OP_ADD: "{0}+{1}", ca.OP_SUB: "{0}-{1}", ca.OP_MUL: "{0}*{1}", ca.OP_DIV: "{0}/{1}",
    ca.OP_POW: "Math.pow({0},{1})", ca.OP_CONSTPOW: "Math.pow({0},{1})", ca.OP_LT: "{0}<{1}?1:0",
    ca.OP_LE: "{0}<={1}?1:0", ca.OP_EQ: "{0}==={1}?1:0", ca.OP_NE: "{0}!=={1}?1:0", ca.OP_AND: "{0}&&{1}?1:0",
    ca.OP_OR: "{0}||{1}?1:0", ca.OP_FMIN: "Math.min({0},{1})", ca.OP_FMAX: "Math.max({0},{1})",
    ca.OP_IF_ELSE_ZERO: "{0}?{1}:0", ca.OP_ATAN2: "Math.atan2({0},{1})", ca.OP_HYPOT: "Math.hypot({0},{1})",
    ca.OP_FMOD: "{0}%{1}", ca.OP_COPYSIGN: "copysign({0},{1})",
}  # fmt: skip
_MEANING = {**_UNARY, **_BINARY}


def unknown_operations(function: ca.Function) -> list[str]:
    """Name the operations of a function that there is no JavaScript for, each once."""
    supported = {*_MEANING, *_INPUTS, ca.OP_CONST, ca.OP_OUTPUT}
    codes = {function.instruction_id(k) for k in range(function.n_instructions())} - supported
    names = {getattr(ca, name): name[3:].lower() for name in dir(ca) if name.startswith("OP_")}
    return sorted(str(names.get(code, code)) for code in codes)


def script(function: ca.Function) -> str:
    """Return a JavaScript function of arrays, which answers with an array of arrays: the nonzeros of each output.

    Parameters
    ----------
    function : casadi.Function
        Of scalar operations (SX), all of which `unknown_operations` knows.
    """
    lines: list[str] = []
    used: set[int] = set()
    for k in range(function.n_instructions()):
        code, slots = function.instruction_id(k), function.instruction_output(k)
        arguments = function.instruction_input(k)
        if code == ca.OP_OUTPUT:
            lines.append(f"o{slots[0]}[{slots[1]}]=w{arguments[0]};")
            continue
        used.add(slots[0])
        if code == ca.OP_CONST:
            value = _number(function.instruction_constant(k))
        elif code in _INPUTS:
            value = f"i{arguments[0]}[{arguments[1]}]"
        else:
            value = _MEANING[code].format(*(f"w{i}" for i in arguments))
        lines.append(f"w{slots[0]}={value};")
    takes = ",".join(f"i{k}" for k in range(function.n_in()))
    outputs = "".join(f"const o{k}=new Float64Array({function.nnz_out(k)});" for k in range(function.n_out()))
    names = f"let {','.join(f'w{i}' for i in sorted(used))};" if used else ""
    gives = ",".join(f"o{k}" for k in range(function.n_out()))
    return f"({takes})=>{{{names}{outputs}{''.join(lines)}return [{gives}];}}"


def _number(value: float) -> str:
    """Write a number as JavaScript reads it."""
    if value != value:
        return "NaN"
    if abs(value) == float("inf"):
        return "-Infinity" if value < 0 else "Infinity"
    return repr(float(value))
