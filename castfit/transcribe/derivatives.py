"""Forward or backward: which way of differentiating an integration is the cheaper one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from castfit._support.arguments import is_one_of, text
from castfit.integrate import method_of

if TYPE_CHECKING:
    from castfit.integrate import IntegratorOptions
    from castfit.problem.compiled_problem import Posed

_MANY = 500
"""Quantities from which gradients of the cost pay for the slower convergence of a Hessian that is only approximated.

One gradient takes about 3 simulations and pays from five to ten quantities (castfit bench adjoint-scaling).  CPU
seconds of whole fits of networks, by gradients (iterations) / by IPOPT with Jacobians / by Gauss-Newton:

    20 states, 100 parameters   3.2 (104) / 0.4 (8) / 0.3 (4)
    20 states, 300 parameters   3.6 (56)  / 2.3 (7) / 1.6 (4)
    20 states, 600 parameters   5.4 (36)  / 6.0 (6) / 4.5 (3)
     5 states, 600 parameters   3.3 (18)  / 3.9 (5) / 3.3 (3)
"""

DERIVATIVES = ("auto", "forward", "adjoint")

_PER_STATE, _AT_ALL = 1.5, 15.0
"""Adjoint states cost about as much as so many forward directions per state, and as so many to begin with.

Parameters from which a Jacobian takes less time backwards: 14 for 2 and 5 states, 20 for 20, above 50 for 100.
"""

_MEASURED = ("auto", "cvodes")  # methods of integration


def derivative_mistakes(given: Any) -> list[str]:
    """Check the option `derivatives` of a transcription."""
    if is_one_of(given, *DERIVATIVES):
        return []
    return [f"derivatives is {text(given)}; choose 'auto', 'forward' or 'adjoint'"]


def adjoint_pays(problem: Posed, options: IntegratorOptions) -> bool:
    """Whether the Jacobian of an interval takes less time by adjoint states than by forward sensitivities.

    Never for a DAE: the backward integrals of IDAS take many small steps.
    """
    n_x = len(problem.model.states)
    if options.method not in _MEASURED or method_of(options, n_x, 0) == "esdirk":
        return False  # whose forward directions are cheap
    directions = max(int(c.link.moving.sum()) for c in problem.conditions) + n_x
    return not problem.model.algebraic_states and directions > _AT_ALL + _PER_STATE * n_x


def gradient_pays(problem: Posed, options: IntegratorOptions) -> bool:
    """Whether a fit by gradients of the cost takes less time than one by the derivatives of all residuals.

    Never for a DAE, as above.
    """
    return options.method in _MEASURED and not problem.model.algebraic_states and len(problem.names) >= _MANY


def adjoint_obstacle(problem: Posed) -> str:
    """Say what about a problem the gradient of its cost does not tell; empty if it is all there is."""
    triggered = [c.name for c in problem.conditions if c.schedule.triggers]
    if triggered:
        return f"states trigger events in '{triggered[0]}', which adjoint states cannot follow"
    if problem.constraints or problem.relations or problem.state_bounds:
        return "constraints and bounds of states have derivatives of their own, which the gradient of the cost has not"
    return ""
