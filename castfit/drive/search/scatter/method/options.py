"""The options of a scatter search, under the names that its users know from SSm and eSS."""

from __future__ import annotations

from dataclasses import dataclass

from castfit._support.arguments import flag_mistakes, is_count, is_one_of, is_within, option_mistakes

_MAX_COUNT = 10**9  # largest value of a count, which stands for "never"
_MAX_DIVERSE = 20_000  # largest number of diverse points, since all of them are drawn before the first simulation


@dataclass(frozen=True)
class ScatterOptions:
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
        """Return all mistakes in the options, with remedies."""
        max_counts = {"dim_refset": 1000, "subranges": 10_000}
        min_counts = {
            "dim_refset": 3,
            "local_n1": 0,
            "local_n2": 1,
            "local_searches": 1,
            "subranges": 1,
            "relax_after": 1,
        }
        allowed_words = {
            "first_refset": ("quality", "corners"),
            "regeneration": ("directions", "distance"),
            "distance_filter": ("paths", "minima", "none"),
        }
        values = vars(self)
        min_diverse = self.dim_refset if is_count(self.dim_refset, 3) else 3
        diverse = self.n_diverse is None or is_count(self.n_diverse, min_diverse, _MAX_DIVERSE)
        restart = self.restart_after is None or is_count(self.restart_after, 1)
        mistakes = option_mistakes(
            *((n, values[n], is_count(values[n], min_count, max_counts.get(n, _MAX_COUNT)),
               f"give an integer from {min_count} to {max_counts.get(n, _MAX_COUNT)}")
              for n, min_count in min_counts.items()),
            ("n_diverse", self.n_diverse, diverse,
             f"give at least as many as dim_refset, at most {_MAX_DIVERSE}, or None"),
            ("restart_after", self.restart_after, restart, "give a number of generations, or None"),
            *((n, values[n], is_within(values[n], 0, 1), "give a number from 0 to 1")
              for n in ("balance", "prob_bound", "min_distance", "min_difference")),
            *((n, values[n], is_one_of(values[n], *valid), f"choose {' or '.join(map(repr, valid))}")
              for n, valid in allowed_words.items()),
        )  # fmt: skip
        return mistakes + flag_mistakes(**{n: values[n] for n in ("aggressive", "go_beyond", "merit_filter")})
