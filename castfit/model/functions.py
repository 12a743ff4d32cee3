"""Functions of symbols, for the right-hand sides of models; they take numbers and arrays too.

They are CasADi's own, with docstrings for modellers.  NumPy's functions of one symbol give the same graphs.  Functions
of Python's `math` return NaN, because CasADi converts symbols to floats; a `Model` refuses expressions with NaN.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

from casadi import (
    acos,
    asin,
    atan,
    atan2,
    ceil,
    cos,
    cosh,
    erf,
    exp,
    expm1,
    fabs,
    floor,
    fmax,
    fmin,
    if_else,
    log,
    log1p,
    log10,
    sign,
    sin,
    sinh,
    sqrt,
    tan,
    tanh,
)

from castfit._support.status import InputError

__all__ = [
    "acos",
    "asin",
    "atan",
    "atan2",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "exp",
    "expm1",
    "fabs",
    "floor",
    "fmax",
    "fmin",
    "if_else",
    "log",
    "log1p",
    "log10",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
]

_FLAT = "Its derivative is zero: no quantity can be estimated through it alone."
_KINK = "Its derivative jumps there: integrators that do not know of the jump take small steps."

# The call of an example with what it prints, what the function is, and what to know of it in a model.
_SAID: dict[str, tuple[str, str, str, str]] = {
    "acos": ("-1", "3.141592653589793", "Arc cosine in radians, of arguments from -1 to 1", "NaN elsewhere."),
    "asin": ("1", "1.5707963267948966", "Arc sine in radians, of arguments from -1 to 1", "NaN elsewhere."),
    "atan": ("1", "0.7853981633974483", "Arc tangent in radians, from -pi/2 to pi/2", "A smooth step with long tails."),
    "atan2": (
        "1, 0",
        "1.5707963267948966",
        "Angle of the point (x, y) in radians, from -pi to pi",
        "y comes first.",
    ),
    "ceil": ("1.2", "2.0", "Smallest whole number that is not below the argument", _FLAT),
    "cos": ("0", "1.0", "Cosine of an angle in radians", "A season: `1 + b * cf.cos(2 * np.pi * (t - t0) / 365)`."),
    "cosh": ("0", "1.0", "Hyperbolic cosine", "It overflows beyond 710."),
    "erf": ("0", "0.0", "Error function, from -1 to 1", "A smooth step: `(1 + cf.erf((t - t0) / w)) / 2`."),
    "exp": ("1", "2.718281828459045", "Exponential function", "Arrhenius' law: `k0 * cf.exp(-E / (R * T))`."),
    "expm1": (
        "1e-20",
        "1e-20",
        "exp(x) - 1 without loss of digits where x is small",
        "What first-order decay has used up: `-cf.expm1(-k * t)`.",
    ),
    "fabs": ("-2", "2.0", "Absolute value", f"It has a kink at zero. {_KINK}"),
    "floor": ("1.8", "1.0", "Largest whole number that is not above the argument", _FLAT),
    "fmax": ("1, 3", "3.0", "Larger one of two values", f"It has a kink where they are equal. {_KINK}"),
    "fmin": ("1, 3", "1.0", "Smaller one of two values", f"It has a kink where they are equal. {_KINK}"),
    "if_else": (
        "2 > 1, 10, 20",
        "DM(10)",
        "One value where a condition holds, another one elsewhere",
        "Both values are computed. Conditions of time are met exactly; for conditions of states see `cf.Event`.",
    ),
    "log": ("1", "0.0", "Natural logarithm", "Minus infinity at zero, NaN below."),
    "log10": ("1000", "3.0", "Logarithm to the base of 10", "Minus infinity at zero, NaN below."),
    "log1p": ("1e-20", "1e-20", "log(1 + x) without loss of digits where x is small", "It takes counts of zero, too."),
    "sign": ("-3", "-1.0", "-1 for negative arguments, 1 for positive ones, 0 for zero", _FLAT),
    "sin": ("0", "0.0", "Sine of an angle in radians", "Forcing by a wave: `a * cf.sin(omega * t)`."),
    "sinh": ("0", "0.0", "Hyperbolic sine", "Butler-Volmer kinetics, where both coefficients of transfer are equal."),
    "sqrt": ("2", "1.4142135623730951", "Square root", "Its slope at zero is infinite; below zero it is NaN."),
    "tan": ("0", "0.0", "Tangent of an angle in radians", "It has a pole at each odd multiple of pi/2."),
    "tanh": ("0", "0.0", "Hyperbolic tangent, from -1 to 1", "A smooth step: `(1 + cf.tanh((t - t0) / w)) / 2`."),
}
_TWO = ("x", "y")
_ARGUMENTS = {"atan2": ("y", "x"), "fmax": _TWO, "fmin": _TWO, "if_else": ("condition", "value", "otherwise")}
_DOCSTRING = """{what}.

Element by element. {note}

Parameters
----------
{arguments} : symbol, expression, number or array

Returns
-------
expression, number or array
    A graph of symbols, a number of a number, CasADi's matrix (for `np.asarray`) of arrays and conditions of numbers.

Raises
------
InputError
    If an argument is none of these, or one is missing.

Examples
--------
>>> import castfit as cf
>>> cf.{name}({call})
{value}
"""


def _documented(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of CasADi with a docstring, a signature and a sentence for what it cannot take."""
    call, value, summary, note = _SAID[name]
    arguments = _ARGUMENTS.get(name, ("x",))

    def call_function(*values: Any) -> Any:
        try:
            result = function(*values)
        except (NotImplementedError, TypeError, SystemError):  # of CasADi: types of C++, or nothing
            result = NotImplemented
        if result is NotImplemented:
            shown_values = ", ".join(repr(value) for value in values) or "nothing"
            raise InputError(
                f"cf.{name}", [f"({', '.join(arguments)}) are symbols, numbers or arrays, not {shown_values}"]
            )
        return result

    wrapper: Any = call_function
    wrapper.__module__, wrapper.__name__, wrapper.__qualname__ = "castfit", name, name
    wrapper.__signature__ = Signature([Parameter(a, Parameter.POSITIONAL_ONLY) for a in arguments])
    wrapper.__doc__ = _DOCSTRING.format(
        what=summary, note=note, arguments=", ".join(arguments), name=name, call=call, value=value
    )
    return wrapper


globals().update({name: _documented(name, globals()[name]) for name in __all__})

# CasADi announces, for np.exp(symbol) and its like, that array shapes will follow NumPy's: scalars are not concerned.
warnings.filterwarnings("ignore", message=r"\s*casadi: a numpy function was called", category=FutureWarning)
