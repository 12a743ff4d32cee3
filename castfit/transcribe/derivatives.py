"""Forward or backward: which way of differentiating an integration is the cheaper one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from castfit._reading import is_one_of, text

if TYPE_CHECKING:
    from castfit.posed import Posed

DERIVATIVES = ("auto", "forward", "adjoint")

_PER_STATE, _AT_ALL = 2.5, 10.0
"""Adjoint states cost about as much as so many forward directions per state, and as so many to begin with."""


def derivative_mistakes(given: Any) -> list[str]:
    """Check the option `derivatives` of a transcription."""
    if is_one_of(given, *DERIVATIVES):
        return []
    return [f"derivatives is {text(given)}; choose 'auto', 'forward' or 'adjoint'"]


def adjoint_pays(problem: Posed) -> bool:
    """Whether the Jacobian of an interval takes less time by adjoint states than by forward sensitivities.

    Never for a DAE: the backward integrals of IDAS take many small steps.
    """
    n_x = len(problem.model.states)
    directions = max(int(c.link.moving.sum()) for c in problem.conditions) + n_x
    return not problem.model.algebraic_states and directions > _AT_ALL + _PER_STATE * n_x
