"""What the user says of a steady state before an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from castfit.inputs import Input


@dataclass(frozen=True, eq=False)
class SteadyStart:
    """The steady state in which an experiment begins; create it with `castfit.steady_state`.

    Attributes
    ----------
    inputs : mapping from str to Input
        Constant ones that hold before the experiment; those left out stand at their value at its start.
    parameters : mapping from str to float or casadi.SX
        Values that differ from the experiment's before it.
    initial : mapping from str to float or casadi.SX
        From where the model comes to rest, and what its conserved sums are; the model's own where it is left out.
    replace : mapping
        Initial states of the experiment itself that differ from the steady state: a number, an expression, `free`.
    """

    inputs: Mapping[str, Input]
    parameters: Mapping[str, Any]
    initial: Mapping[str, Any]
    replace: Mapping[str, Any]
