"""Collinearity of sensitivities, and subsets of quantities estimable together (Brun, Reichert and Kuensch 2001).

Notation
--------
M  (n, n)  Fisher's information;  S~ (m, n) the columns of the sensitivities, each of length 1:  (S~^T S~)_ij =
           M_ij / sqrt(M_ii M_jj)
K          a subset of the quantities

    gamma_K = 1 / sqrt(smallest eigenvalue of S~_K^T S~_K)         [Brun2001, Eq. 15]
    rho_K   = det(S_K^T S_K)^(1 / 2|K|)                             [Brun2002, Eq. 6]

gamma_K = 10 means: what a change of one quantity of K does to the data can be undone by the others but for a tenth.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import comb
from typing import TYPE_CHECKING

import numpy as np

from castfit._support.ties import first_argmax, stable_order

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index


# Collinearity index gamma above which a subset is not identifiable; Brun et al. use 5 to 20.
MAX_COLLINEARITY_INDEX = 10.0
_MAX_N_SUBSETS = 20_000  # Number of subsets up to which all subsets of one size are examined.
_MIN_EIGENVALUE = 1e-14  # Eigenvalues of a normalised matrix below this value are rounding errors.
_SUBSET_BATCH_SIZE = 4096  # Number of subsets whose eigenvalues are computed in one call.


def normalised(information: Array) -> Array:
    """Return S~^T S~, (n, n); rows of quantities that move nothing are zero."""
    d = np.sqrt(np.maximum(np.diag(information), 0.0))
    safe = np.where(d > 0.0, d, 1.0)
    return information / np.outer(safe, safe)


def collinearity(information: Array, subset: Sequence[int] | Index) -> float:
    """Return gamma_K; inf if the quantities are indistinguishable or one has no effect."""
    indices = np.asarray(subset, dtype=np.intp)
    if indices.size == 0:
        return 1.0
    return float(_gammas(normalised(information)[np.ix_(indices, indices)][None])[0])


def _gammas(matrices: Array) -> Array:
    min_eigenvalues = np.linalg.eigvalsh(matrices)[:, 0]
    return np.where(
        min_eigenvalues > _MIN_EIGENVALUE, 1.0 / np.sqrt(np.maximum(min_eigenvalues, _MIN_EIGENVALUE)), np.inf
    )


def most_collinear(information: Array, size: int, count: int) -> list[tuple[Index, float]]:
    """Return the `count` most collinear subsets of a size, the worst first; none if there are too many to try.

    Subsets whose smallest eigenvalues agree to rounding keep the order of the quantities.
    """
    sensitive_indices = np.flatnonzero(np.diag(information) > 0.0)
    if not 1 < size <= sensitive_indices.size or comb(sensitive_indices.size, size) > _MAX_N_SUBSETS:
        return []
    subsets, gammas = _all(normalised(information), sensitive_indices, size)
    order = stable_order(1.0 / gammas**2, scale=1.0)[:count]  # by eigenvalues of matrices with entries 1
    return [(subsets[i], float(gammas[i])) for i in order]


def largest_subset(information: Array, magnitudes: Array) -> Index:
    """Return the largest subset (k,) of quantities whose collinearity index is acceptable.

    Among several subsets, the subset with the largest rho_K is returned.
    If rho_K agrees to rounding, the first subset in the order of the quantities is returned.
    rho_K counts changes in units of `magnitudes` (n,).  Among more than 20,000 subsets of a size not all are tried:
    quantities are then added one by one, the one that is farthest from what the others do first.
    """
    sensitive_indices = np.flatnonzero(np.diag(information) > 0.0)
    S = normalised(information)
    for size in range(sensitive_indices.size, 0, -1):
        if comb(sensitive_indices.size, size) > _MAX_N_SUBSETS:
            changes = magnitudes[sensitive_indices] * np.sqrt(np.diag(information)[sensitive_indices])
            return _greedy(S, sensitive_indices[stable_order(changes, descending=True)])
        subsets, gammas = _all(S, sensitive_indices, size)
        valid_subsets = subsets[gammas <= MAX_COLLINEARITY_INDEX]
        if valid_subsets.size:
            # det(S_K^T S_K) with columns in units of the magnitudes; the logarithm adds up.
            lengths = np.log(magnitudes[valid_subsets]) + 0.5 * np.log(np.diag(information)[valid_subsets])
            determinants = np.linalg.slogdet(S[valid_subsets[:, :, None], valid_subsets[:, None, :]])[1]
            return valid_subsets[first_argmax(lengths.sum(axis=1) + 0.5 * determinants, scale=1.0)]
    return np.empty(0, dtype=np.intp)


def _all(S: Array, sensitive_indices: Index, size: int) -> tuple[Index, Array]:
    subsets = sensitive_indices[
        np.array(list(itertools.combinations(range(sensitive_indices.size), size)), dtype=np.intp)
    ]
    batches = [subsets[i : i + _SUBSET_BATCH_SIZE] for i in range(0, subsets.shape[0], _SUBSET_BATCH_SIZE)]
    return subsets, np.concatenate([_gammas(S[k[:, :, None], k[:, None, :]]) for k in batches])


def _greedy(S: Array, sensitive_indices: Index) -> Index:
    """Add the most orthogonal quantity repeatedly, while the collinearity index is acceptable (Yao et al. 2003).

    The subset begins with the first of `sensitive_indices`.
    """
    order: list[int] = [int(j) for j in sensitive_indices]
    selected_indices: list[int] = order[:1]
    remaining: list[int] = order[1:]
    unexplained_parts = dict.fromkeys(remaining, 1.0)
    while remaining:
        chosen_block = S[np.ix_(selected_indices, selected_indices)]
        for j in remaining:
            couplings = S[np.ix_(selected_indices, [j])][:, 0]
            unexplained_parts[j] = float(S[j, j] - couplings @ np.linalg.lstsq(chosen_block, couplings)[0])
        best = remaining[first_argmax([unexplained_parts[j] for j in remaining], scale=1.0)]
        wider = [*selected_indices, best]
        if _gammas(S[np.ix_(wider, wider)][None])[0] > MAX_COLLINEARITY_INDEX:
            break
        selected_indices, remaining = wider, [j for j in remaining if j != best]
    return np.sort(np.array(selected_indices, dtype=np.intp))


def sensitivities(information: Array, magnitudes: Array, n_data: int) -> Array:
    """Return delta^msqr (n,) of Brun et al. (Eq. 9): how many standard deviations the data move, in root mean square.

    Per relative change of 1 of each quantity: a change by its magnitude, in search scale.
    """
    return magnitudes * np.sqrt(np.maximum(np.diag(information), 0.0) / max(n_data, 1))
