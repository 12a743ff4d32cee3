"""Which method "auto" is.

The compiled ESDIRK method where there is a C compiler and the model is small, else CVODES, or IDAS for a DAE.  Sweeps
of values and sensitivities take it 0.1 ... 0.3 times as long as CVODES at equal accuracy for up to about 15 states
(castfit bench sweep).  Its matrices are dense, so that a chain of n neighbours, relaxing, with 3 directions, takes
at 1e-9, in milliseconds,

    n                 5     20     40     80
    ESDIRK          1.0    3.8     15     47
    CVODES          2.2    4.2    9.7     16
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from castfit.integrate.native import obstacle

if TYPE_CHECKING:
    from castfit.integrate.options import IntegratorOptions

_LARGEST = 20  # states and algebraic states together
_FINEST = 1e-12  # relative tolerance; rounding errors of its stages are near


def method_of(options: IntegratorOptions, n_x: int, n_z: int) -> str:
    """Return the method that options mean for a model of n_x states and n_z algebraic states."""
    if options.method != "auto":
        return options.method
    suits = n_x + n_z <= _LARGEST and options.relative_tolerance >= _FINEST
    return "esdirk" if suits and not obstacle() else sundials(n_z)


def sundials(n_z: int) -> str:
    """Return the method of SUNDIALS for a model of n_z algebraic states."""
    return "idas" if n_z else "cvodes"
