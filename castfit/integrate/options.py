"""Options of integration: method, tolerances, compilation, and the method that "auto" selects.

It is the compiled ESDIRK method if there is a C compiler and its factorizations are cheap, else CVODES, or IDAS for a
DAE.  Factorizations are cheap for small models, and if the elimination of the matrix in a good order (esdirk.py) takes
few products per state.  Then CPU time is 0.05 ... 0.8 of that of CVODES at equal errors (measured on networks and on
discretized partial differential equations, docs/compared/history_of_measurements.md).  With many directions a
factorization matters less than the solves with it, and larger ones pay.  Small ODEs are integrated by explicit steps as
long as no stiffness is detected.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import casadi as ca
import numpy as np

from castfit._support.arguments import flag_mistakes, is_count, is_one_of, is_within, plain_numbers, shorten_repr
from castfit._support.public_names import public
from castfit._support.records import dataclass
from castfit._support.reprs import add_brief_repr
from castfit._support.status import raise_if_mistakes, suggest
from castfit.integrate.esdirk import elimination
from castfit.integrate.esdirk_binding import missing_integrator_reason

SUNDIALS = ("cvodes", "adams", "idas")
STEPPED = ("esdirk", "explicit")
"""Methods of the compiled integrator."""
METHODS = ("auto", *SUNDIALS, *STEPPED, "rosenbrock", "collocation")
COMPILE = ("deserved", "never", "auto", "always")

_MAX_STATES_ALWAYS_SUITABLE = 20  # states and algebraic states up to which ESDIRK suits any pattern
_MAX_STATES_WITHOUT_DIRECTIONS = 400  # without sensitivities: above it CVODES takes half of the time
_MAX_PRODUCTS_PER_STATE = 30  # products of a factorization per state, with few directions
_MIN_MANY_DIRECTIONS = 20  # directions of sensitivities from which costlier factorizations pay
_MAX_STATES_WITH_DIRECTIONS = 2000  # with sensitivities: 1,000 cells took half of the time of CVODES
_MAX_PRODUCTS_PER_DIRECTION = 40  # products of a factorization per direction and state, with many directions
_MIN_ESDIRK_RTOL = 1e-12  # relative tolerance below which rounding errors of the ESDIRK stages matter
_MAX_COLLOCATION_ELEMENTS = 100_000  # elements per interval: integration of a lane takes a second or more

_ELIMINATION_PRODUCTS: WeakKeyDictionary[ca.Function, float] = WeakKeyDictionary()
"""Products of each model's elimination in a good order; infinite if a dense one is cheaper."""


@public("castfit")
@add_brief_repr
@dataclass(frozen=True)
class IntegratorOptions:
    """Options of the numerical integrator.

    Parameters
    ----------
    method : {"auto", "cvodes", "adams", "idas", "esdirk", "explicit", "rosenbrock", "collocation"}
        CVODES (BDF, for ODEs; "adams": its Adams-Moulton formulas of orders 1 to 12, half the time where an ODE is not
        stiff), IDAS (BDF, for DAEs and ODEs), castfit's ESDIRK methods (L-stable Runge-Kutta of order
        4 or, for relative tolerances up to 1e-5, 5, for both; compiled, so they need a C compiler once), these with
        explicit steps in between (Tsitouras' pair of order 5(4)) wherever an ODE is not stiff, CasADi's Rosenbrock
        method of order 5(4) or its collocation (Radau, order 5, `elements` equal steps without error control).
        "auto" is "explicit" for ODEs of up to 20 states and "esdirk" for DAEs as small, or for models of up to 400
        states, with sensitivities 2,000, of which few depend on many others, where there is a C compiler, else CVODES
        for an ODE and IDAS for a DAE.
    relative_tolerance, absolute_tolerance : float
        Per step, of states and sensitivities alike; the absolute one is relative to each state's magnitude, which is
        taken from data and simulation, so that results do not depend on units.  The defaults give gradients to about
        1e-6 (Lotka-Volterra, calcium); the usual simulation tolerance of 1e-6 gives 1e-4.
    max_steps : int
        Steps between two output times before a lane is given up; a usual interval takes 10 to 1000.
    elements : int
        Number of steps of "collocation" per lane, at most 100,000: no limit of time ends them before the last.
    compile : {"deserved", "never", "auto", "always"}
        Whether to compile the model's equations, into the cache folder: "auto" where a C compiler is found, "always"
        with an error where not.  "deserved" lets "esdirk" and "explicit" compile a model once evaluating its equations
        has taken as long as that will, over all fits and searches; results are the same to the last bit.
        "collocation" has nothing to gain and leaves it.
    watch_sensitivities : bool
        Whether "esdirk" and "explicit" integrate sensitivities by steps of their own where on the steps that the states
        need they err by more than the power 2/3 of the relative tolerance in a step, 1e-6 of them by default; SUNDIALS'
        integrators choose steps for both.  Else, for searches, steps are those that the states need, and what takes
        more than `max_steps`, or in all 25 times as many, a tenth of them an output where that is more, is given up,
        without trying another method.  The last two methods' sensitivities are always those of the states' steps.

    Raises
    ------
    InputError
        Listing every option that is out of range.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k = cf.symbols("x k")
    >>> model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    >>> tight = cf.IntegratorOptions(relative_tolerance=1e-10, absolute_tolerance=1e-12)
    >>> print(cf.simulate(model, {"k": 1.0}, [0, 1.0], integrator=tight)["x"].round(9))
    [2.         0.73575888]
    """

    method: str = "auto"
    relative_tolerance: float = 1e-9
    absolute_tolerance: float = 1e-11
    max_steps: int = 10_000
    elements: int = 100
    compile: str = "deserved"
    watch_sensitivities: bool = True

    def __post_init__(self) -> None:
        plain_numbers(self)
        mistakes = [
            f"{name} is {shorten_repr(value)}: {suggest(str(value), valid)}"
            for name, value, valid in (("method", self.method, METHODS), ("compile", self.compile, COMPILE))
            if not is_one_of(value, *valid)
        ]
        mistakes += [
            f"{name} is {shorten_repr(value)}; it must be a number between 0 and {upper:g}"
            for name, upper in (("relative_tolerance", 0.1), ("absolute_tolerance", np.inf))
            if not is_within(value := getattr(self, name), 0.0, upper, strictly=True)
        ]
        mistakes += flag_mistakes(watch_sensitivities=self.watch_sensitivities)
        mistakes += [
            f"{name} is {shorten_repr(value)}; it must be a positive integer, at most {max_value}"
            for name, max_value in (("max_steps", 10**9), ("elements", _MAX_COLLOCATION_ELEMENTS))
            if not is_count(value := getattr(self, name), 1, max_value)
        ]
        if is_one_of(self.method, "collocation") and is_one_of(self.compile, "always"):
            mistakes.append(
                "compile is 'always', but 'collocation' spends its time elsewhere; use 'deserved' or 'auto'"
            )
        raise_if_mistakes("IntegratorOptions", mistakes)


def method_of(
    options: IntegratorOptions, n_x: int, n_z: int, graph: ca.Function | None = None, *, directions: int = 0
) -> str:
    """Return the method that the options select for a model of n_x states and n_z algebraic states.

    graph (t, x, z, p, u) -> (ode, alg) is the model; without it, its Jacobian counts as dense.  `directions` is the
    number of directions of sensitivities, 0 for none or an unknown number.
    """
    if options.method != "auto":
        return options.method
    is_tight = options.relative_tolerance < _MIN_ESDIRK_RTOL
    if is_tight or missing_integrator_reason() or not _suits_esdirk(n_x, n_z, graph, directions):
        return sundials(n_z)
    return "esdirk" if n_z or n_x > _MAX_STATES_ALWAYS_SUITABLE else "explicit"


def sundials(n_z: int) -> str:
    """Return the method of SUNDIALS for a model of n_z algebraic states."""
    return "idas" if n_z else "cvodes"


def _suits_esdirk(n_x: int, n_z: int, graph: ca.Function | None, directions: int) -> bool:
    n = n_x + n_z
    if n <= _MAX_STATES_ALWAYS_SUITABLE:
        return True
    has_many_directions = directions >= _MIN_MANY_DIRECTIONS
    if graph is None or n > (_MAX_STATES_WITH_DIRECTIONS if directions else _MAX_STATES_WITHOUT_DIRECTIONS):
        return False
    if graph not in _ELIMINATION_PRODUCTS:
        sparse_elimination = elimination(n, n_x, *pattern(graph))
        _ELIMINATION_PRODUCTS[graph] = np.inf if sparse_elimination is None else sparse_elimination.products
    price = _ELIMINATION_PRODUCTS[graph]
    if not has_many_directions:
        return price <= _MAX_PRODUCTS_PER_STATE * n
    return min(price, n**3 / 12) <= _MAX_PRODUCTS_PER_DIRECTION * directions * n


def pattern(graph: ca.Function) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and columns of the entries of the Jacobian of (ode, alg) by (x, z)."""
    n_x = graph.size1_in(1)
    blocks = [
        np.array(graph.jac_sparsity(i, j, False).get_triplet(), dtype=np.int64) + np.array([[i * n_x], [(j - 1) * n_x]])
        for i in (0, 1)
        for j in (1, 2)
    ]
    rows, columns = np.concatenate(blocks, axis=1)
    return rows, columns
