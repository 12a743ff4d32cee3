"""Which method "auto" is.

The compiled ESDIRK method where there is a C compiler and its factorizations are cheap, else CVODES, or IDAS for a DAE.
They are where a model is small, and where the elimination of its matrix in a good order (ordering.py) takes few
products per state.  CPU time of values with sensitivities, relative to CVODES at equal errors 1e-4, 1e-6, 1e-8:

                                             products per state     3 directions            more
    heat equation, 20, 40, 100, 200 cells           1          0.41 0.27 0.19 ... 0.52 0.34 0.28
    relaxing chain, 40, 100 cells                   1          0.39 0.34 0.29 ... 0.46 0.37 0.32
    stiff network of 20 states                     12          0.18 0.30 0.37
    stiff network of 50 states                     29          0.27 0.29 0.79          0.10 0.15 0.21 (23 directions)
    dense network of 24 states                     97          0.72 0.83 1.07
    dense network of 32 states                   dense         0.65 0.98 1.23          0.15 0.21 0.34 (23 directions)

The models of the library and of PEtab's collection take 0.05 ... 0.3 (castfit bench sweep).
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import casadi as ca
import numpy as np

from castfit.integrate.native import obstacle
from castfit.integrate.ordering import elimination

if TYPE_CHECKING:
    from castfit.integrate.options import IntegratorOptions

_SMALL = 20  # states and algebraic states together, whatever the pattern
_LARGEST = 400  # more were not measured
_PRODUCTS = 30  # of an elimination, per state
_FINEST = 1e-12  # relative tolerance; rounding errors of its stages are near

_CHEAP: WeakKeyDictionary[ca.Function, bool] = WeakKeyDictionary()


def method_of(options: IntegratorOptions, n_x: int, n_z: int, graph: ca.Function | None = None) -> str:
    """Return the method that options mean for a model of n_x states and n_z algebraic states.

    graph (t, x, z, p, u) -> (ode, alg) is that model; without it, it counts as one without a pattern.
    """
    if options.method != "auto":
        return options.method
    fine = options.relative_tolerance < _FINEST
    return sundials(n_z) if fine or obstacle() or not _suits(n_x, n_z, graph) else "esdirk"


def sundials(n_z: int) -> str:
    """Return the method of SUNDIALS for a model of n_z algebraic states."""
    return "idas" if n_z else "cvodes"


def _suits(n_x: int, n_z: int, graph: ca.Function | None) -> bool:
    n = n_x + n_z
    if n <= _SMALL:
        return True
    if graph is None or n > _LARGEST:
        return False
    if graph not in _CHEAP:
        rows, columns = pattern(graph)
        found = elimination(n, n_x, rows, columns)
        _CHEAP[graph] = found is not None and found.targets.size <= _PRODUCTS * n
    return _CHEAP[graph]


def pattern(graph: ca.Function) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and columns of the entries of the Jacobian of (ode, alg) by (x, z)."""
    n_x = graph.size1_in(1)
    found = [
        np.array(graph.jac_sparsity(i, j, False).get_triplet(), dtype=np.int64) + np.array([[i * n_x], [(j - 1) * n_x]])
        for i in (0, 1)
        for j in (1, 2)
    ]
    rows, columns = np.concatenate(found, axis=1)
    return rows, columns
