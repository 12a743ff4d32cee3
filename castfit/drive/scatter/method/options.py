"""The options of a scatter search, under the names that its users know from SSm and eSS."""

from __future__ import annotations

from dataclasses import dataclass

from castfit._reading import flag_mistakes, is_count, is_one_of, real, text

_MOST = 10**9  # "never" is a number too


@dataclass(frozen=True)
class Options:
    """The options; see `castfit.scatter_search` for what they mean, and `mistakes` for what they may be."""

    dim_refset: int = 6
    n_diverse: int | None = None
    local_n1: int = 0
    local_n2: int = 1
    local_searches: int = 2
    balance: float = 0.5
    prob_bound: float = 0.5
    subranges: int = 4
    first_refset: str = "quality"
    regeneration: str = "directions"
    aggressive: bool = False
    go_beyond: bool = False
    merit_filter: bool = False
    distance_filter: str = "paths"
    relax_after: int = 3
    min_distance: float = 1e-3
    min_difference: float = 1e-4
    restart_after: int | None = None

    @property
    def diverse_points(self) -> int:
        """The number m of diverse points, ten times b unless it is given."""
        return 10 * self.dim_refset if self.n_diverse is None else self.n_diverse

    def mistakes(self) -> list[str]:
        """Say everything that is wrong, naming the fix."""
        found: list[str] = []
        counts = (
            ("dim_refset", self.dim_refset, 3),
            ("local_n1", self.local_n1, 0),
            ("local_n2", self.local_n2, 1),
            ("local_searches", self.local_searches, 1),
            ("subranges", self.subranges, 1),
            ("relax_after", self.relax_after, 1),
        )
        found += [f"{n} is {text(v)}; give an integer from {least} to {_MOST}" for n, v, least in counts
                  if not is_count(v, least, _MOST)]  # fmt: skip
        if self.n_diverse is not None:
            least = self.dim_refset if is_count(self.dim_refset, 3) else 3
            if not is_count(self.n_diverse, least, _MOST):
                found.append(f"n_diverse is {text(self.n_diverse)}; give at least as many as dim_refset, or None")
        if self.restart_after is not None and not is_count(self.restart_after, 1):
            found.append(f"restart_after is {text(self.restart_after)}; give a number of generations, or None")
        for name in ("balance", "prob_bound", "min_distance", "min_difference"):
            number = real(getattr(self, name))
            if number is None or not 0.0 <= number <= 1.0:
                found.append(f"{name} is {text(getattr(self, name))}; give a number from 0 to 1")
        for name, valid in (
            ("first_refset", ("quality", "corners")),
            ("regeneration", ("directions", "distance")),
            ("distance_filter", ("paths", "minima", "none")),
        ):
            if not is_one_of(getattr(self, name), *valid):
                found.append(f"{name} is {text(getattr(self, name))}; choose {' or '.join(map(repr, valid))}")
        return found + flag_mistakes(
            aggressive=self.aggressive, go_beyond=self.go_beyond, merit_filter=self.merit_filter
        )
