"""Classification of SBML quantities by what determines them: rule, reactions, events, algebraic rule, or nothing.

A quantity that nothing determines is a constant: a parameter of castfit's model, or an expression of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from castfit.formats.sbml.document import SbmlDocument


class QuantityRole(Enum):
    """Kind of mechanism that determines a quantity."""

    CONSTANT = "nothing"
    ASSIGNED = "an assignment rule"
    RATE = "a rate rule"
    REACTIONS = "reactions"
    HELD = "events"
    ALGEBRAIC = "an algebraic rule"
    EQUILIBRIUM = "the equilibrium of fast reactions"

    @property
    def is_state(self) -> bool:
        """Whether it is a state of an ODE."""
        return self in (QuantityRole.RATE, QuantityRole.REACTIONS, QuantityRole.HELD)


def roles_of(contents: SbmlDocument) -> tuple[dict[str, QuantityRole], tuple[str, ...]]:
    """Classify each quantity, ignoring algebraic rules, and list the candidates for these, likeliest first."""
    reacting = {p.species for r in contents.reactions.values() for p in r.participants}
    changed = {name for event in contents.events for name in event.assignments}
    roles: dict[str, QuantityRole] = {}
    for name, q in contents.quantities.items():
        if name in contents.assigned:
            roles[name] = QuantityRole.ASSIGNED
        elif name in contents.rates:
            roles[name] = QuantityRole.RATE
        elif q.kind == "species" and name in reacting and not q.boundary and not q.constant:
            roles[name] = QuantityRole.REACTIONS
        else:
            roles[name] = QuantityRole.HELD if name in changed else QuantityRole.CONSTANT
    free = [n for n, role in roles.items() if role in (QuantityRole.CONSTANT, QuantityRole.HELD)]
    free = [n for n in free if not contents.quantities[n].constant]
    return roles, tuple(sorted(free, key=lambda n: (n in changed, n in contents.initial)))


def match_equations(needs: Sequence[Iterable[str]]) -> list[str | None]:
    """Give each equation a quantity of its own among those it contains; None where there is none left.

    Augmenting paths (Kuhn 1955).
    """
    owner: dict[str, int] = {}

    def place(equation: int, visited: set[str]) -> bool:
        for name in needs[equation]:
            if name in visited:
                continue
            visited.add(name)
            if name not in owner or place(owner[name], visited):
                owner[name] = equation
                return True
        return False

    for equation in range(len(needs)):
        place(equation, set())
    quantity_by_equation = {equation: name for name, equation in owner.items()}
    return [quantity_by_equation.get(equation) for equation in range(len(needs))]
