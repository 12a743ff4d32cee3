"""What identifiers mean, worked out once each, when it is first asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import casadi as ca


@dataclass
class Memory(ABC):
    """Remembers what identifiers mean, and notices what depends on itself."""

    _known: dict[str, ca.SX] = field(default_factory=dict[str, ca.SX], kw_only=True)
    _busy: list[str] = field(default_factory=list[str], kw_only=True)

    def remembered(self, name: str) -> ca.SX:
        """Return what an identifier means; zero, after a complaint, while that is being worked out."""
        if name not in self._known:
            if name in self._busy:
                self._round(name)
                return ca.SX(0)
            self._busy.append(name)
            self._known[name] = self._valued(name)
            self._busy.pop()
        return self._known[name]

    @abstractmethod
    def _valued(self, name: str) -> ca.SX:
        """Work out what an identifier means."""

    @abstractmethod
    def _round(self, name: str) -> None:
        """Complain that something depends on itself."""
