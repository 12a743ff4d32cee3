"""Functions of symbols, for the right-hand sides of models; they take numbers and arrays too.

They are CasADi's own.  NumPy's functions of one symbol give the same graphs.  Those of Python's `math` give a number,
NaN, because CasADi turns a symbol into a float; a `Model` refuses what they leave behind.
"""

from __future__ import annotations

import warnings

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

# CasADi announces, for np.exp(symbol) and its like, that array shapes will follow NumPy's: scalars are not concerned.
warnings.filterwarnings("ignore", message=r"\s*casadi: a numpy function was called", category=FutureWarning)
