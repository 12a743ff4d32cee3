"""Numbers in the place of the model's constants that nothing changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import casadi as ca

from castfit.formats.petab.entities import Entities
from castfit.formats.petab.formulas import Graph


@dataclass(frozen=True)
class Constants:
    """Puts values in the place of constants.

    Attributes
    ----------
    old, new : (n, 1) casadi.SX
        Symbols of the constants that nothing changes, and their values.
    defaults : mapping from the name of a constant that conditions set to its value where they do not
    """

    old: ca.SX
    new: ca.SX
    defaults: Mapping[str, Graph]

    @classmethod
    def of(cls, entities: Entities, kept: Iterable[str], targets: Iterable[str]) -> Constants:
        """Work out the values, which may be expressions of other constants; `kept` ones stay, `targets` among them."""
        stay = {*kept}
        every = [n for n in entities.constants if n not in stay and n in entities.values]
        old = ca.vertcat(*(entities.constants[n] for n in every))
        new = ca.vertcat(*(ca.SX(entities.values[n]) for n in every))
        for _ in every:
            if not ca.depends_on(new, old):
                break
            new = ca.substitute(new, old, new)
        plain = cls(ca.SX(old), ca.SX(new), {})
        return cls(plain.old, plain.new, {n: plain(entities.values[n]) for n in targets if n in entities.values})

    def __call__(self, value: Graph) -> Graph:
        """Return an expression with numbers for constants; a number where nothing else is in it."""
        if not isinstance(value, ca.SX) or value.is_constant():
            return float(value)
        if self.old.numel():
            value = ca.SX(ca.substitute([value], [self.old], [self.new])[0])
        return float(value) if value.is_constant() else value

    def graph(self, value: Graph) -> ca.SX:
        """Return the same as an expression always."""
        return ca.SX(self(value))
