"""How to integrate: method, tolerances, compilation."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from castfit._support.reprs import brief
from castfit._support.arguments import flag_mistakes, is_one_of, real, text
from castfit._support.status import check, suggest

SUNDIALS = ("cvodes", "idas")
METHODS = ("auto", "cvodes", "idas", "esdirk", "rosenbrock", "collocation")
COMPILE = ("never", "auto", "always")


@brief
@dataclass(frozen=True)
class IntegratorOptions:
    """How to integrate.

    Parameters
    ----------
    method : {"auto", "cvodes", "idas", "esdirk", "rosenbrock", "collocation"}
        CVODES (BDF, for ODEs), IDAS (BDF, for DAEs and ODEs), castfit's ESDIRK methods (L-stable Runge-Kutta of order
        4 or, for relative tolerances up to 1e-5, 5, for both; compiled, so they need a C compiler once), CasADi's
        Rosenbrock method of order 5(4) or its collocation (Radau, order 5, `elements` equal steps without error
        control).  "auto" is the ESDIRK method for up to 20 states, or 400 of which few depend on many others, where
        there is a C compiler, else CVODES for an ODE and IDAS for a DAE.
    relative_tolerance, absolute_tolerance : float
        Per step, of states and sensitivities alike; the absolute one is relative to each state's magnitude, which is
        taken from data and simulation, so that results do not depend on units.  The defaults give gradients to about
        1e-6 (Lotka-Volterra, calcium); the usual simulation tolerance of 1e-6 gives 1e-4.
    max_steps : int
        Steps between two output times before a lane is given up; a usual interval takes 10 to 1000.
    elements : int
        Number of steps of "collocation" per lane.
    compile : {"never", "auto", "always"}
        Whether to compile the model's equations, into the cache folder: "auto" where a C compiler is found, "always"
        with an error where not.  "collocation" has nothing to gain and leaves it.
    watch_sensitivities : bool
        Whether steps of "esdirk", "cvodes" and "idas" are short enough for sensitivities too.  Else they are those that
        the states need: half the time or less where parameters are decades off, for searches; and what takes more than
        `max_steps` is given up, without trying another method.  The other methods' sensitivities are always those of
        the states' steps.

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
    compile: str = "never"
    watch_sensitivities: bool = True

    def __post_init__(self) -> None:
        mistakes = [
            f"{name} is {text(value)}: {suggest(str(value), valid)}"
            for name, value, valid in (("method", self.method, METHODS), ("compile", self.compile, COMPILE))
            if not is_one_of(value, *valid)
        ]
        mistakes += [
            f"{name} is {text(value)}; it must be a number between 0 and {upper:g}"
            for name, value, upper in (
                ("relative_tolerance", self.relative_tolerance, 0.1),
                ("absolute_tolerance", self.absolute_tolerance, np.inf),
            )
            if not _is_between(value, upper)
        ]
        mistakes += flag_mistakes(watch_sensitivities=self.watch_sensitivities)
        mistakes += [
            f"{name} is {text(value)}; it must be a positive integer"
            for name, value in (("max_steps", self.max_steps), ("elements", self.elements))
            if not _is_count(value)
        ]
        if (self.method, self.compile) == ("collocation", "always"):
            mistakes.append("compile is 'always', but 'collocation' spends its time elsewhere; use 'never' or 'auto'")
        check("IntegratorOptions", mistakes)


def _is_between(value: Any, upper: float) -> bool:
    number = real(value)
    return isinstance(value, Real) and number is not None and 0.0 < number < upper


def _is_count(value: Any) -> bool:
    return isinstance(value, Integral) and int(value) > 0
