"""A verdict in words on every estimated quantity, and on the fit as a whole.

Undetermined directions that share quantities form a group.  A group of g quantities with g - 1 directions leaves one
combination determined, and its name follows from the gradient that is orthogonal to all directions: in relative
changes a gradient of small integers is a product of powers (k1*k2), in absolute changes one of +-1 a sum (k1 + k2).
All of this is local: it says what the data determine near the estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import linalg

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from castfit.statistics import Statistics

    Array = NDArray[np.float64]

POOR = 1.0  # poorly determined: the standard error exceeds this fraction of the value
CORRELATED = 0.99  # correlations at least this large are reported
NUMERICAL = 0.5  # the integration limits the accuracy if its share of the standard error exceeds this
EXACT = 1e-3  # how closely a direction must match a named combination
LARGEST_POWER = 4

WELL_DETERMINED = "well determined"
CORRELATED_WITH = "correlated"
POORLY_DETERMINED = "poorly determined"
AT_BOUND = "at its bound"
NOT_IDENTIFIABLE = "not identifiable"
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Verdict:
    """What the data say about one quantity: `kind` is one of the constants above, `sentence` says more."""

    name: str
    kind: str
    sentence: str


@dataclass(frozen=True)
class Combination:
    """Quantities that the data do not tell apart.

    Attributes
    ----------
    names : tuple of str
    directions : tuple of dict
        Changes that leave the data alone: weight by name, each quantity in units of its own effect on the data.
    sentence : str
        Such as ``only k1*k2 enters``.
    """

    names: tuple[str, ...]
    directions: tuple[dict[str, float], ...]
    sentence: str

    def __str__(self) -> str:
        listed = ", ".join(_signed(d) for d in self.directions)
        return f"{self.sentence} (direction{'s' if len(self.directions) > 1 else ''} {listed})"


@dataclass(frozen=True)
class Identifiability:
    """The verdicts on all quantities, the combinations that are not determined, and a sentence on the whole.

    `condition` is the condition number of the column-scaled reduced Jacobian; inf if it is deficient.
    """

    verdicts: tuple[Verdict, ...]
    combinations: tuple[Combination, ...]
    condition: float
    sentence: str

    def __getitem__(self, name: str) -> Verdict:
        """Return the verdict on a quantity."""
        return next(v for v in self.verdicts if v.name == name)

    def __str__(self) -> str:
        return "\n".join([self.sentence, *(f"  {c}" for c in self.combinations)])


def judge(
    names: Sequence[str], values: Array, slopes: Array, at_bound: dict[str, str], statistics: Statistics
) -> Identifiability:
    """Put statistics into words.

    Parameters
    ----------
    names : sequence of str
    values : (n_theta,) array
        Estimates, natural scale.
    slopes : (n_theta,) array
        d value / d theta.
    at_bound : dict
        ``"lower"`` or ``"upper"`` for each quantity that a bound holds.
    statistics : Statistics
        In search scale.
    """
    combinations = _combinations(names, values, slopes, statistics)
    errors = slopes * statistics.standard_errors
    verdicts = tuple(
        _verdict(j, names, values, errors, at_bound, combinations, statistics) for j in range(len(names))
    )
    return Identifiability(verdicts, combinations, statistics.condition, _overall(verdicts))


def no_verdict(names: Sequence[str], reason: str) -> Identifiability:
    """Say that nothing is known, for instance because the fit failed."""
    verdicts = tuple(Verdict(name, UNKNOWN, reason) for name in names)
    return Identifiability(verdicts, (), np.nan, f"Nothing is known about identifiability: {reason}.")


def _verdict(
    j: int,
    names: Sequence[str],
    values: Array,
    errors: Array,
    at_bound: dict[str, str],
    combinations: Sequence[Combination],
    statistics: Statistics,
) -> Verdict:
    name = names[j]
    if name in at_bound:
        return Verdict(name, AT_BOUND, f"at its {at_bound[name]} bound")
    for combination in combinations:
        if name in combination.names:
            return Verdict(name, NOT_IDENTIFIABLE, f"not identifiable: {combination.sentence}")
    if not np.isfinite(errors[j]):
        return Verdict(name, UNKNOWN, "no degrees of freedom are left to estimate the noise")
    kind, remarks = WELL_DETERMINED, list[str]()
    correlation = np.where(np.arange(len(names)) == j, 0.0, np.nan_to_num(statistics.correlation[j]))
    partner = int(np.argmax(np.abs(correlation)))
    if abs(correlation[partner]) >= CORRELATED:
        kind = CORRELATED_WITH
        remarks.append(f"correlated {_three_digits(correlation[partner])} with {names[partner]}")
    if errors[j] > POOR * abs(values[j]):
        kind = POORLY_DETERMINED
        remarks.insert(0, "poorly determined: standard error exceeds the value")
    if statistics.numerical_errors[j] > NUMERICAL * statistics.standard_errors[j]:
        remarks.append("accuracy limited by the integration")
    if kind == WELL_DETERMINED:
        remarks.insert(0, kind)
    return Verdict(name, kind, "; ".join(remarks))


def _overall(verdicts: Sequence[Verdict]) -> str:
    """Count the verdicts, the worst first."""
    total = len(verdicts)
    parts: list[str] = []
    for kind in (NOT_IDENTIFIABLE, UNKNOWN, POORLY_DETERMINED, AT_BOUND, CORRELATED_WITH):
        found = [v.name for v in verdicts if v.kind == kind]
        if found:
            parts.append(f"{len(found)} of {total} {kind} ({', '.join(found)})")
    if not parts:
        return "All quantities are well determined." if total != 1 else f"{verdicts[0].name} is well determined."
    if any(v.kind == WELL_DETERMINED for v in verdicts):
        parts.append("the others are well determined")
    return f"{'; '.join(parts)}."


def _combinations(names: Sequence[str], values: Array, slopes: Array, statistics: Statistics) -> tuple[Combination, ...]:
    """Group the undetermined directions and name what each group leaves determined."""
    natural = statistics.directions / statistics.scale * slopes  # changes of the natural values
    found: list[Combination] = []
    for rows in _groups(statistics.directions != 0.0):
        members = np.flatnonzero((statistics.directions[rows] != 0.0).any(axis=0))
        own = tuple(names[j] for j in members)
        directions = tuple(
            {names[j]: float(y[j]) for j in members if y[j] != 0.0} for y in statistics.directions[rows]
        )
        changes = natural[np.ix_(rows, members)]
        found.append(Combination(own, directions, _sentence(own, values[members], changes)))
    return tuple(found)


def _groups(takes_part: NDArray[np.bool_]) -> Iterable[list[int]]:
    """Collect directions (rows) that are linked through shared quantities (columns)."""
    left = list(range(takes_part.shape[0]))
    while left:
        group, reached = [left.pop(0)], takes_part[[0]].any(axis=0)
        reached = takes_part[group].any(axis=0)
        while linked := [i for i in left if (takes_part[i] & reached).any()]:
            group += linked
            left = [i for i in left if i not in linked]
            reached = takes_part[group].any(axis=0)
        yield sorted(group)


def _sentence(names: Sequence[str], values: Array, changes: Array) -> str:
    """Name the one combination of g quantities that g - 1 changes (rows) leave alone, if it has a name."""
    listing = ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]
    if len(names) == changes.shape[0]:
        return f"the data do not depend on {listing}"
    if len(names) == changes.shape[0] + 1:
        candidates = [_product(names, values, changes), _sum(names, changes)]
        if any(candidates):
            return f"only {' or '.join(c for c in candidates if c)} enters"
    return f"{listing} enter only in combination"


def _gradient(changes: Array) -> Array:
    """Return the vector orthogonal to all changes, its smallest entry 1 in size and its first entry positive."""
    gradient = linalg.null_space(changes / np.abs(changes).max(axis=1, keepdims=True), rcond=1e-8)[:, 0]
    smallest = np.abs(gradient).min()
    return gradient / smallest * np.sign(gradient[0]) if smallest > 0 else np.full(gradient.size, np.nan)


def _product(names: Sequence[str], values: Array, changes: Array) -> str:
    """Name a product of powers such as k1*k2 or k1/k2**2; empty if it is none."""
    if (values == 0.0).any():
        return ""
    powers = _gradient(changes / values)
    if not (np.abs(powers - np.round(powers)) < EXACT).all() or np.abs(powers).max() > LARGEST_POWER + EXACT:
        return ""
    text = ""
    for name, power in sorted(zip(names, np.round(powers).astype(int), strict=True), key=lambda pair: pair[1] < 0):
        operator = ("*" if power > 0 else "/") if text else ""
        text += f"{operator}{name}" + (f"**{abs(power)}" if abs(power) > 1 else "")
    return text


def _sum(names: Sequence[str], changes: Array) -> str:
    """Name a sum or difference such as k1 + k2; empty if it is none."""
    signs = _gradient(changes)
    if not (np.abs(np.abs(signs) - 1.0) < EXACT).all():
        return ""
    return names[0] + "".join(f" {'+' if s > 0 else '-'} {n}" for n, s in zip(names[1:], signs[1:], strict=True))


def _signed(weights: dict[str, float]) -> str:
    return " ".join(f"{w:+.2f} {name}" for name, w in weights.items())


def _three_digits(correlation: float) -> str:
    """Format a correlation, never rounding it up to 1."""
    return f"{np.sign(correlation) * min(abs(correlation), 0.9994):.3f}"
