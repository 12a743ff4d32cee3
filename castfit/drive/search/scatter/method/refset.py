"""The reference set: how it is formed (Eqs. 23-25), updated (Eqs. 27-30), and refilled once exhausted (Eqs. 31-33).

Where the paper is not followed to the letter.  Eq. 30 as printed, f(z) < f(x_i)(1 - eps) for all x_i in R, would admit
new best points only; its text asks for a value that differs from all others, and that is what `is_in_flat_zone` tests.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from castfit._support.arrays import Array
from castfit.drive.search.scatter.method.members import Member, compute_distances, sort_by_quality, stack_points


def compute_least_distances(X: Array, R: Array) -> Array:
    """Return the distance from each row of X to the nearest row of R (Eq. 24), (k,); inf if R is empty."""
    return compute_distances(X, R).min(axis=1, initial=np.inf)


def find_most_distant(X: Array, R: Array, count: int) -> list[int]:
    """Return the indices of rows of X (k, n), each farthest from R and from the rows chosen before (Eq. 25)."""
    nearest = compute_least_distances(X, R)
    indices: list[int] = []
    for _ in range(min(count, len(X))):
        i = int(np.argmax(nearest))
        indices.append(i)
        nearest = np.minimum(nearest, compute_distances(X, X[i : i + 1])[:, 0])
        nearest[indices] = -np.inf
    return indices


def form_by_quality(members: Sequence[Member], b: int) -> tuple[Member, ...]:
    """Form a reference set: the best b/2 (Eq. 23), then the most distant; those without a value come last."""
    order = sort_by_quality(members)
    elite, remaining = order[: b // 2], order[b // 2 :]
    for pool in ([m for m in remaining if np.isfinite(m.f)], [m for m in remaining if not np.isfinite(m.f)]):
        n = order[0].x.size
        indices = find_most_distant(stack_points(pool, n), stack_points(elite, n), b - len(elite))
        elite = (*elite, *(pool[i] for i in indices))
    return sort_by_quality(elite)


def form_by_corners(X: Array, b: int) -> Array:
    """Return the points of a reference set that needs no values: two corners, the midpoint, then the most distant."""
    n = X.shape[1]
    R = np.array([np.zeros(n), np.ones(n), np.full(n, 0.5)])[:b]
    return np.vstack([R, X[find_most_distant(X, R, b - len(R))]])


def has_near_member(x: Array, R: Sequence[Member], distance: float) -> bool:
    """Whether a member lies within `distance`, the root mean square over the unknowns, of x."""
    return bool((compute_least_distances(x[None], stack_points(R, x.size)) <= distance * np.sqrt(x.size))[0])


def is_in_flat_zone(f: float, R: Sequence[Member], epsilon: float) -> bool:
    """Whether a member has the same value within the fraction `epsilon` (Eq. 30)."""
    return any(abs(f - member.f) <= epsilon * abs(member.f) for member in R if np.isfinite(member.f))


def update_refset(
    R: Sequence[Member], candidates: Sequence[Member], *, distance: float, epsilon: float
) -> tuple[Member, ...]:
    """Replace the worst members by better candidates, the best candidate first.

    A candidate enters if it is better than the worst member (Eqs. 27-29) and neither close to a member nor of the same
    value (Eq. 30).  A new best enters always: for the worst member, or for the closest one if it is too close to it.
    """
    elite = sort_by_quality(R)
    for z in sort_by_quality(candidates):
        if not z.f < elite[-1].f:
            break
        is_too_close = has_near_member(z.x, elite, distance)
        if z.f < elite[0].f:
            closest = int(np.argmin(compute_distances(z.x[None], stack_points(elite, z.x.size))[0]))
            replaced_index = closest if is_too_close else len(elite) - 1
        elif is_too_close or is_in_flat_zone(z.f, elite, epsilon):
            continue
        else:
            replaced_index = len(elite) - 1
        elite = sort_by_quality([*elite[:replaced_index], z, *elite[replaced_index + 1 :]])
    return elite


def is_flat(R: Sequence[Member], epsilon: float) -> bool:
    """Whether the members' values hardly differ: the search sits in a flat zone or around one minimum."""
    values = np.array([member.f for member in R])
    return bool(np.isfinite(values).all() and np.std(values) <= epsilon * abs(np.mean(values)))


def count_retained(b: int, *, aggressive: bool) -> int:
    """Return the number of b members that stay: all but g = b/2, or but g = b - 1 if `aggressive`."""
    return 1 if aggressive else b - b // 2


def compute_segments(R: Array) -> Array:
    """Return the segments from every other member to the best one, x_1 - x_k (Eq. 31), (h - 1, n)."""
    return R[0] - R[1:]


def compute_largest_products(X: Array, R: Array) -> Array:
    """Return for each candidate x_v the largest scalar product of x_1 - x_v with a segment, msp (Eq. 32), (k,).

    Without any segment all directions are new, and the products are zero.
    """
    M = compute_segments(R)
    return ((R[0] - X) @ M.T).max(axis=1) if len(M) else np.zeros(len(X))


def find_new_directions(X: Array, R: Array, count: int) -> list[int]:
    """Return the indices of candidates X (k, n), each least aligned with the segments of R and those chosen before (Eq.

    33).
    """
    indices: list[int] = []
    for _ in range(min(count, len(X))):
        products = compute_largest_products(X, np.vstack([R, X[indices]]))
        products[indices] = np.inf
        indices.append(int(np.argmin(products)))
    return indices
