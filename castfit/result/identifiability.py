"""A verdict in words on every estimated quantity, and on the fit as a whole.

Undetermined directions that share quantities form a group.  A group of g quantities with r directions leaves g - r
combinations determined, whose gradients are orthogonal to the directions: in relative changes a gradient of small
integers is a product of powers (k1*k2), in absolute changes one of +-1 a sum (k1 + k2).  All of this is local: it holds
near the estimate.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy

from castfit._support.records import dataclass
from castfit._support.reprs import add_brief_repr, join_with_and, one_line
from castfit._support.status import raise_if_mistakes, unknown_names
from castfit._support.ties import first_argmax, stable_order
from castfit.result.block_matrix import BlockMatrix
from castfit.result.fisher_information import positive
from castfit.result.parameter_combinations import product, three_digits

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from castfit._support.arrays import Array
    from castfit.result.covariance import Statistics


POOR_INTERVAL_FRACTION = 0.5  # poorly determined: half its 95 % interval exceeds this fraction of the value
REPORTED_CORRELATION = 0.99  # correlations at least this large are reported
NUMERICAL_ERROR_SHARE = 0.5  # the integration limits the accuracy if its share of the standard error exceeds this
COMBINATION_RTOL = 1e-3  # Largest deviation of a direction from a named combination.
LARGEST_POWER = 4
_RANK_MARGIN = 10.0  # multiple of the rank tolerance up to which a gradient adds nothing to the rank
_NORMAL_QUANTILE_975 = 1.96  # Half-width of a 95 % interval in standard errors if sigma is known.
_MAX_NAMES_PRINTED = 20  # names that a sentence holds
_MAX_TERMS_LISTED = 6  # Terms of a combination in a sentence; of more terms, the first three are listed.

WELL_DETERMINED = "well determined"
CORRELATED_WITH = "correlated"
POORLY_DETERMINED = "poorly determined"
AT_BOUND = "at its bound"
AT_KINK = "at the kink of its prior"
NOT_IDENTIFIABLE = "not identifiable"
UNKNOWN = "unknown"
WIDE_INTERVAL = "poorly determined: the 95 % confidence interval is wider than the estimate"


@add_brief_repr
@dataclass(frozen=True)
class IdentifiabilityStatus:
    """Identifiability of one quantity: `kind` is one of the constants above, `sentence` gives details."""

    name: str
    kind: str
    sentence: str


@add_brief_repr
@dataclass(frozen=True)
class ConfoundedQuantities:
    """Quantities that the data do not tell apart.

    names : tuple of str
    directions : changes that leave the data alone: weight by name, each quantity in units of its own effect on the data
    sentence : such as ``only k1*k2 enters``
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

    verdicts: tuple[IdentifiabilityStatus, ...]
    combinations: tuple[ConfoundedQuantities, ...]
    condition: float
    sentence: str

    def __getitem__(self, name: str) -> IdentifiabilityStatus:
        """Return the verdict on a quantity."""
        raise_if_mistakes("identifiability", unknown_names("'{}' is not estimated", [name], self._by_name))
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, IdentifiabilityStatus]:
        return {verdict.name: verdict for verdict in self.verdicts}

    def __repr__(self) -> str:
        return one_line(f"{type(self).__name__}({self.sentence})")

    def __str__(self) -> str:
        return "\n".join([self.sentence, *(f"  {c}" for c in self.combinations)])


def judge(
    names: Sequence[str],
    values: Array,
    slopes: Array,
    at_bound: dict[str, str],
    statistics: Statistics,
    *,
    reach: float = _NORMAL_QUANTILE_975,
    unknown: str = "",
) -> Identifiability:
    """Classify the identifiability of each quantity from the statistics.

    names : sequence of str
    values (n_theta,) : estimates, natural scale
    slopes (n_theta,) : d value / d theta
    at_bound : ``"lower"`` or ``"upper"`` for each quantity that a bound holds
    statistics : in search scale
    reach : half the width of a 95 % interval in standard errors
    unknown : why standard errors mean nothing here, if they do; what is not identifiable is so at any point
    """
    combinations = combinations_of(
        names, values, slopes, statistics.directions, statistics.scale, statistics.jacobian, statistics.rank_tolerance
    )
    if not unknown and statistics.dof <= 0 and np.isnan(statistics.noise).any():
        unknown = "no degrees of freedom are left to estimate the noise"
    verdicts: list[IdentifiabilityStatus] = []
    with np.errstate(invalid="ignore"):  # infinitely uncertain, and too small for a number
        errors = slopes * statistics.standard_errors
    group_of = {name: c for c in reversed(combinations) for name in c.names}
    partners, strengths = _strongest(statistics.correlation)
    for j, name in enumerate(names):
        group = group_of.get(name)
        if name in at_bound:
            verdicts.append(IdentifiabilityStatus(name, AT_BOUND, f"at its {at_bound[name]} bound"))
        elif slopes[j] == 0.0:  # on a logarithmic scale, exp(theta) underflows
            verdicts.append(
                IdentifiabilityStatus(
                    name, POORLY_DETERMINED, "the estimate underflows to zero, so it has no standard error"
                )
            )
        elif group is not None:
            verdicts.append(IdentifiabilityStatus(name, NOT_IDENTIFIABLE, f"not identifiable: {group.sentence}"))
        elif np.isinf(statistics.standard_errors[j]):  # of so many directions that not all are listed
            verdicts.append(IdentifiabilityStatus(name, NOT_IDENTIFIABLE, "not identifiable from these data"))
        elif unknown:
            verdicts.append(IdentifiabilityStatus(name, UNKNOWN, unknown))
        else:
            strongest = names[int(partners[j])], float(strengths[j])
            verdicts.append(_verdict(j, names, values, errors, reach, statistics, strongest))
    return Identifiability(tuple(verdicts), combinations, statistics.condition, overall(verdicts, unknown))


def no_verdict(names: Sequence[str], reason: str) -> Identifiability:
    """Return the identifiability of quantities without statistics, for instance after a failed fit."""
    verdicts = tuple(IdentifiabilityStatus(name, UNKNOWN, reason) for name in names)
    return Identifiability(verdicts, (), np.nan, overall(verdicts, reason))


def _strongest(correlation: Array) -> tuple[NDArray[np.intp], Array]:
    """Return with which other quantity each is correlated most, and how much; of blocks as these say."""
    matrix: Any = correlation
    if isinstance(matrix, BlockMatrix):
        return matrix.strongest()
    finite_correlation = np.nan_to_num(correlation)
    np.fill_diagonal(finite_correlation, 0.0)
    partners = np.array([first_argmax(row) for row in np.abs(finite_correlation)], dtype=np.intp)
    return partners, finite_correlation[np.arange(len(finite_correlation)), partners]


def _verdict(
    j: int,
    names: Sequence[str],
    values: Array,
    errors: Array,
    reach: float,
    statistics: Statistics,
    strongest: tuple[str, float],
) -> IdentifiabilityStatus:
    """Judge a quantity that is free and identifiable by its interval and its strongest correlation."""
    name, (partner, correlation) = names[j], strongest
    kind, remarks = WELL_DETERMINED, list[str]()
    if abs(correlation) >= REPORTED_CORRELATION:
        kind = CORRELATED_WITH
        remarks.append(f"correlated {three_digits(correlation, '')} with {partner}")
    if errors[j] * reach > POOR_INTERVAL_FRACTION * abs(values[j]):
        kind = POORLY_DETERMINED
        remarks.insert(0, WIDE_INTERVAL)
    if statistics.numerical_errors[j] > NUMERICAL_ERROR_SHARE * statistics.standard_errors[j]:
        remarks.append("accuracy limited by integration errors")
    if kind == WELL_DETERMINED:
        remarks.insert(0, kind)
    return IdentifiabilityStatus(name, kind, "; ".join(remarks))


def overall(verdicts: Sequence[IdentifiabilityStatus], reason: str) -> str:
    """Count the verdicts, the worst first."""
    if not verdicts and not reason:
        return "Nothing is estimated; the model was only evaluated."
    if all(v.kind == UNKNOWN for v in verdicts):
        return f"Identifiability is not assessed: {reason}."
    total = len(verdicts)
    parts: list[str] = []
    for kind in (NOT_IDENTIFIABLE, UNKNOWN, POORLY_DETERMINED, AT_BOUND, AT_KINK, CORRELATED_WITH):
        matching_names = [v.name for v in verdicts if v.kind == kind]
        if matching_names:
            parts.append(f"{len(matching_names)} of {total} {kind} ({_some(matching_names)})")
    if not parts:
        return "All quantities are well determined." if total != 1 else f"{verdicts[0].name} is well determined."
    if any(v.kind == WELL_DETERMINED for v in verdicts):
        parts.append("the others are well determined")
    return f"{'; '.join(parts)}."


def _some(names: Sequence[str]) -> str:
    """List names, of very many the first."""
    names_text = ", ".join(names[:_MAX_NAMES_PRINTED])
    return (
        names_text if len(names) <= _MAX_NAMES_PRINTED else f"{names_text} and {len(names) - _MAX_NAMES_PRINTED:,} more"
    )


def combinations_of(
    names: Sequence[str],
    values: Array,
    slopes: Array,
    directions: Array,
    scale: Array,
    jacobian: Array | None = None,
    rank_tolerance: float = 0.0,
) -> tuple[ConfoundedQuantities, ...]:
    """Group the undetermined directions and name what each group leaves determined.

    names : sequence of str
    values (n_theta,) : natural scale
    slopes (n_theta,) : d value / d theta
    directions (k, n_theta) : changes scale * dtheta that leave the data alone
    scale (n_theta,)
    jacobian (m, n_theta) : by theta; a named combination must not increase its rank, to the relative tolerance
    """
    natural = directions / scale * slopes  # changes of the natural values
    combinations: list[ConfoundedQuantities] = []
    for group in _groups(directions != 0.0):
        indices: list[int] = np.flatnonzero((directions[group] != 0.0).any(axis=0)).tolist()
        member_names = tuple(names[j] for j in indices)
        moves = tuple({names[j]: float(y[j]) for j in indices if y[j] != 0.0} for y in directions[group])
        changes = natural[np.ix_(group, indices)]
        rows = None
        if jacobian is not None and (slopes[indices] != 0.0).all():
            rows = scipy.sparse.csr_array(jacobian[:, indices]).toarray() / slopes[indices]
        sentence = _sentence(member_names, values[indices], changes, rows, rank_tolerance)
        combinations.append(ConfoundedQuantities(member_names, moves, sentence))
    return tuple(combinations)


def _groups(takes_part: NDArray[np.bool_]) -> Iterable[list[int]]:
    """Collect directions (rows) that are linked through shared quantities (columns)."""
    remaining = list(range(takes_part.shape[0]))
    while remaining:
        group, is_reached = [remaining.pop(0)], takes_part[[0]].any(axis=0)
        is_reached = takes_part[group].any(axis=0)
        while linked := [i for i in remaining if (takes_part[i] & is_reached).any()]:
            group += linked
            remaining = [i for i in remaining if i not in linked]
            is_reached = takes_part[group].any(axis=0)
        yield sorted(group)


def _sentence(
    names: Sequence[str], values: Array, changes: Array, rows: Array | None = None, rank_tolerance: float = 0.0
) -> str:
    """Name the combinations of g quantities that the changes (r, g) leave alone, if they have names.

    rows (m, g) : derivatives of the data by the values; a name is used only if its gradients do not increase their rank
    """
    if len(names) == changes.shape[0]:
        return f"the data do not depend on {join_with_and(_few(names))}"
    rank = len(names) - changes.shape[0]
    relative = changes / values if (values != 0.0).all() else np.full(changes.shape, np.nan)
    signs = _integers(changes, largest=1)
    sums = [_sum(names, row) for row in signs if _keeps_rank(rows, signs, rank, rank_tolerance)]
    # Values of simple ratios make a sum look like a product of higher powers, too.
    powers = _integers(relative, largest=1 if sums else LARGEST_POWER)
    products = [product(names, row) for row in powers if _keeps_rank(rows, powers / values, rank, rank_tolerance)]
    combination_texts = [join_with_and(_few(terms)) for terms in (products, sums) if terms]
    if not combination_texts:
        return f"{join_with_and(_few(names))} are identifiable only in combination"
    return f"only {' or '.join(combination_texts)} enter{'s' if rank == 1 else ''}"


def _keeps_rank(rows: Array | None, gradients: Array, rank: int, tolerance: float) -> bool:
    """Check that gradients (k, g) add nothing to the rank of the rows (m, g); True if active constraints lower it."""
    if rows is None:
        return True
    scale = positive(np.linalg.norm(rows, axis=0))
    scaled_rows, scaled_gradients = rows / scale, gradients / scale
    scaled_gradients = scaled_gradients / np.linalg.norm(scaled_gradients, axis=1, keepdims=True)
    padding = np.zeros((gradients.shape[1], gradients.shape[1]))
    row_values, joint_values = (
        np.linalg.svd(np.vstack([scaled_rows, *extra, padding]), compute_uv=False) for extra in ([], [scaled_gradients])
    )
    limit = _RANK_MARGIN * tolerance
    return bool(row_values[rank] > limit * row_values[0] or joint_values[rank] <= limit * joint_values[0])


def _integers(changes: Array, *, largest: int) -> Array:
    """Return integer vectors that span the complement of the changes (r, g) (g - r, g); no rows if there are none.

    Every quantity is part of at least one of them: its size is measured by the effect of its change.
    """
    r, g = changes.shape
    no_rows = np.zeros((0, g), dtype=int)
    if not np.isfinite(changes).all():
        return no_rows
    relative = changes / np.abs(changes).max(axis=1, keepdims=True)
    sizes = np.abs(relative).max(axis=0)
    if (sizes == 0.0).any():
        return no_rows
    complement = _null_space(relative / sizes)
    if complement.shape[0] != g - r or np.linalg.cond(complement[:, r:]) > 1.0 / COMBINATION_RTOL:
        return no_rows
    scaled_rows = np.linalg.solve(complement[:, r:], complement)
    rows = np.where(np.abs(scaled_rows) > COMBINATION_RTOL, scaled_rows, 0.0) / sizes
    rows = rows / np.where(rows != 0.0, np.abs(rows), np.inf).min(axis=1, keepdims=True)
    rows = rows * np.sign(rows[np.arange(g - r), np.argmax(rows != 0.0, axis=1)])[:, None]
    rounded_rows = np.rint(rows)
    is_named = (np.abs(rows - rounded_rows) < COMBINATION_RTOL).all() and np.abs(rounded_rows).max() <= largest
    return rounded_rows.astype(int) if is_named and (rounded_rows != 0.0).any(axis=0).all() else no_rows


def _null_space(rows: Array) -> Array:
    """Compute an orthonormal basis of the null space of the rows, as rows."""
    _, S, Vt = np.linalg.svd(rows)
    return Vt[int(np.count_nonzero(COMBINATION_RTOL * S[0] < S)) :]


def _sum(names: Sequence[str], signs: Array) -> str:
    """Write a sum such as k1 + k2 or k1 - k2; its first sign is positive."""
    terms = "".join(
        f" {'+' if sign > 0 else '-'} {name}" for name, sign in zip(names, signs.tolist(), strict=True) if sign
    )
    return terms.removeprefix(" + ")


def _signed(weights: dict[str, float]) -> str:
    """Write a direction; of many weights the largest."""
    listed_names = (
        weights
        if len(weights) <= _MAX_TERMS_LISTED
        else [[*weights][int(i)] for i in stable_order(np.abs([*weights.values()]), descending=True)[:3].flat]
    )
    suffix = f" and {len(weights) - 3} others" if len(weights) > _MAX_TERMS_LISTED else ""
    return " ".join(f"{weights[name]:+.2f} {name}" for name in listed_names) + suffix


def _few(terms: Sequence[str]) -> Sequence[str]:
    return terms if len(terms) <= _MAX_TERMS_LISTED else (*terms[:3], f"{len(terms) - 3} others")
