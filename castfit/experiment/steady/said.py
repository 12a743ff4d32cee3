"""What the user says of a steady state before an experiment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from castfit._support.reprs import brief

if TYPE_CHECKING:
    from castfit.experiment.inputs import Input


@brief
@dataclass(frozen=True, eq=False)
class SteadyStart(Mapping[str, Any]):
    """The steady state in which an experiment begins; create it with `castfit.steady_state`.

    As a mapping it holds the initial states that differ from the steady state.

    Attributes
    ----------
    inputs : mapping from str to Input
        Constant ones that hold before the experiment; those left out stand at their value at its start.
    parameters : mapping from str to float or casadi.SX
        Values that differ from the experiment's before it.
    initial : mapping from str to float or casadi.SX
        From where the model comes to rest, and what its conserved sums are; the model's own where it is left out.
        Where the experiment is measured at rest only, this may be another steady state, the one before.
    replace : mapping
        Initial states of the experiment itself that differ from the steady state: a number, an expression, `free`.
    settled : bool
        Whether the experiment is measured at rest only.
    """

    inputs: Mapping[str, Input]
    parameters: Mapping[str, Any]
    initial: Mapping[str, Any]
    replace: Mapping[str, Any]
    settled: bool = False

    def __getitem__(self, name: str) -> Any:
        """Return the initial value of a state that differs from the steady state."""
        return self.replace[name]

    def __iter__(self) -> Iterator[str]:
        """Go through the states that differ from the steady state."""
        return iter(self.replace)

    def __len__(self) -> int:
        """Count the states that differ from the steady state."""
        return len(self.replace)
