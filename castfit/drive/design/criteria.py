"""Optimality criteria of designs: convex functions of the information M, with derivatives.

Notation
--------
M    (n, n)     information of data, priors and planned measurements, in relative changes of the quantities
J_i  (k, n)     rows of candidate i, M_i = J_i' J_i;  M(w) = M0 + sum_i w_i M_i
G    (n, n)     d f / d w_i = -tr(G M_i)
V    (N, r)     V V' is the Hessian of f by w;  L = chol M

    D    -log det M                   G = M^-1,  V_i = svec(L^-1 M_i L^-T)
    Ds   -log det M + log det M_22    the entries of svec that belong to nuisance quantities alone are left out
    A    tr(K' M^-1 K)                G = M^-1 K K' M^-1;  one column of K: c-optimality
    E    -lambda_min(M)               by  min_t -t - nu log det(M - t I),  whose Z = nu (M - t I)^-1 has the trace 1

Of every criterion  f(v) >= offset - sum_i v_i tr(G M_i)  for all v >= 0: its tangent, for E  -tr(Z M(v)).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
from scipy.linalg import solve_triangular

from castfit._support.arrays import Array, Index, Mask


@dataclass(frozen=True, eq=False)
class CriterionLinearization:
    """Value of a criterion at M, its smoothed value for a step, and the tangent that bounds it from below.

    value : f itself;  smooth : the function that is minimised, which differs from f for E only
    G (n, n);  offset : see the module
    curvature : from rows J (N, k, n) to V (N, r)
    """

    value: float
    smooth: float
    G: Array
    offset: float
    curvature: Callable[[Array], Array]


class InformationCriterion(ABC):
    """A convex function of M; it may be a logarithm, without a unit."""

    logarithmic: ClassVar[bool] = False

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the criterion."""

    @abstractmethod
    def values(self, M: Array) -> Array:
        """Return f of matrices (..., n, n), infinite where they are singular."""

    @abstractmethod
    def tangent(self, M: Array, M0: Array, nu: float) -> CriterionLinearization | None:
        """Return the criterion at M, smoothed by nu where it has kinks; None where M is singular."""

    @abstractmethod
    def efficiency(self, value: float, bound: float) -> float:
        """Return the share of the best possible that a design reaches, from its value and a lower bound of all."""


@dataclass(frozen=True, eq=False)
class DCriterion(InformationCriterion):
    """The volume of the confidence ellipsoid of the quantities after the first `nuisance` ones: D, or Ds."""

    n: int
    nuisance: int = 0
    logarithmic: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """D, or Ds if only some quantities are targets."""
        return "Ds" if self.nuisance else "D"

    def values(self, M: Array) -> Array:
        """Return -log det M + log det M_22."""
        q = self.nuisance
        log_det = _log_det(M)
        if not q:
            return -log_det
        return np.where(np.isfinite(log_det), _log_det(M[..., :q, :q]), 0.0) - log_det

    def tangent(self, M: Array, M0: Array, nu: float) -> CriterionLinearization | None:
        """Compute the tangent at M; M_22 comes first, so that its Cholesky factor is a part of L."""
        L = _cholesky(M)
        if L is None:
            return None
        q, inverse = self.nuisance, solve_triangular(L, np.eye(self.n), lower=True)
        G = inverse.T @ inverse
        G[:q, :q] -= inverse[:q, :q].T @ inverse[:q, :q]
        value = -2.0 * float(np.log(np.diag(L)[q:]).sum())
        rows, columns = _lower_triangle(self.n)
        mask = rows >= q
        i, j = rows[mask], columns[mask]
        weight = np.where(i == j, 1.0, np.sqrt(2.0))

        def curvature(J: Array) -> Array:
            A = J @ inverse.T
            return np.einsum("Nki,Nki->Ni", A[:, :, i], A[:, :, j]) * weight

        return CriterionLinearization(value, value, G, value + float(np.sum(G * (M - M0))), curvature)

    def efficiency(self, value: float, bound: float) -> float:
        """Return (det M / det M*)^(1/n): how many measurements of the best design are worth one of this."""
        return float(np.exp((bound - value) / (self.n - self.nuisance)))


@dataclass(frozen=True, eq=False)
class ACriterion(InformationCriterion):
    """The sum of the variances of the combinations K' u, (n, q): A, or c where there is one."""

    K: Array

    @property
    def name(self) -> str:
        """A, or c for a single combination."""
        return "c" if self.K.shape[1] == 1 else "A"

    def values(self, M: Array) -> Array:
        """Return tr(K' M^-1 K)."""
        L, regular = _factors(M)
        with np.errstate(all="ignore"):
            squares = np.sum(np.linalg.solve(L, np.broadcast_to(self.K, (*M.shape[:-2], *self.K.shape))) ** 2, (-2, -1))
        return np.where(regular, squares, np.inf)

    def tangent(self, M: Array, M0: Array, nu: float) -> CriterionLinearization | None:
        """Compute the tangent at M, with the rows V_i = sqrt 2 (L^-1 J_i') (J_i M^-1 K).

        Return None if M is singular.
        """
        L = _cholesky(M)
        if L is None:
            return None
        half = solve_triangular(L, self.K, lower=True)
        X = solve_triangular(L, half, lower=True, trans="T")
        G, value = X @ X.T, float(np.sum(half**2))

        def curvature(J: Array) -> Array:
            A = solve_triangular(L, J.reshape(-1, J.shape[2]).T, lower=True).T.reshape(J.shape)
            return np.sqrt(2.0) * np.einsum("Nki,Nkq->Niq", A, J @ X).reshape(len(J), -1)

        return CriterionLinearization(value, value, G, value + float(np.sum(G * (M - M0))), curvature)

    def efficiency(self, value: float, bound: float) -> float:
        """Return the quotient of the variances."""
        return max(bound, 0.0) / value if value > 0.0 else 1.0


@dataclass(frozen=True, eq=False)
class ECriterion(InformationCriterion):
    """The largest variance of a combination of unit length, whose inverse is the least eigenvalue of M."""

    n: int

    @property
    def name(self) -> str:
        """E."""
        return "E"

    def values(self, M: Array) -> Array:
        """Return -lambda_min(M)."""
        return np.asarray(-np.linalg.eigvalsh(M)[..., 0], dtype=float)

    def tangent(self, M: Array, M0: Array, nu: float) -> CriterionLinearization | None:
        """Compute the tangent of the smoothed criterion.

        t solves nu tr (M - t I)^-1 = 1, and is eliminated from the Hessian by d = svec((M - t I)^-1).
        """
        values, U = np.linalg.eigh(M)
        if not np.isfinite(values).all() or values[0] <= 0.0:
            return None
        gap = _solve_gap(values - values[0], nu)
        t, distances = values[0] - gap, values - values[0] + gap
        Z = (U * (nu / distances)) @ U.T
        i, j = _lower_triangle(self.n)
        weight = np.where(i == j, 1.0, np.sqrt(2.0))
        d = np.where(i == j, 1.0 / distances[i], 0.0)
        v = d / np.linalg.norm(d)
        v[0] += 1.0
        v *= np.sqrt(2.0) / np.linalg.norm(v)  # Householder's reflection  1 - v v'  sends d to the first axis

        def curvature(J: Array) -> Array:
            A = J @ (U / np.sqrt(distances))
            Q = np.einsum("Nki,Nki->Ni", A[:, :, i], A[:, :, j]) * weight
            return np.sqrt(nu) * (Q[:, 1:] - np.outer(Q @ v, v[1:]))

        smooth = -float(t) - nu * float(np.log(distances).sum())
        return CriterionLinearization(-float(values[0]), smooth, Z, -float(np.sum(Z * M0)), curvature)

    def efficiency(self, value: float, bound: float) -> float:
        """Return the quotient of the least eigenvalues."""
        return value / bound if bound < 0.0 else 1.0


def _solve_gap(above: Array, nu: float) -> float:
    """Return the gap with  nu sum 1 / (above + gap) = 1,  by Newton's method on a concave function from its left."""
    gap = nu
    for _ in range(60):
        distances = above + gap
        total = float(np.sum(1.0 / distances))
        step = (nu - 1.0 / total) * total**2 / float(np.sum(1.0 / distances**2))
        gap += step
        if abs(step) <= 1e-15 * gap:
            break
    return gap


def standard_deviations(M: Array) -> Array:
    """Compute standard deviations (S, n) from informations (S, n, n).

    They are huge for nearly undetermined quantities.
    """
    size = np.sqrt(np.diagonal(M, axis1=1, axis2=2))
    inverse = np.linalg.inv(M / (size[:, :, None] * size[:, None, :]))
    return np.sqrt(np.abs(np.diagonal(inverse, axis1=1, axis2=2))) / size


@cache
def _lower_triangle(n: int) -> tuple[Index, Index]:
    """Return rows and columns of the lower triangle."""
    rows, columns = np.tril_indices(n)
    return rows, columns


def _cholesky(M: Array) -> Array | None:
    try:
        L = np.linalg.cholesky(M)
    except np.linalg.LinAlgError:
        return None
    return np.asarray(L, dtype=float) if np.isfinite(L).all() else None


def _factors(M: Array) -> tuple[Array, Mask]:
    """Compute Cholesky factors of matrices (..., n, n), and a mask of the positive definite ones, (...)."""
    flat = M.reshape(-1, *M.shape[-2:])
    try:
        return np.asarray(np.linalg.cholesky(M), dtype=float), np.ones(M.shape[:-2], dtype=np.bool_)
    except np.linalg.LinAlgError:
        factors = [_cholesky(matrix) for matrix in flat]
        regular = np.array([L is not None for L in factors], dtype=np.bool_).reshape(M.shape[:-2])
        identity = np.eye(M.shape[-1])
        return np.array([identity if L is None else L for L in factors]).reshape(M.shape), regular


def _log_det(M: Array) -> Array:
    """Return log det of matrices (..., n, n); -inf where one is not positive definite."""
    L, regular = _factors(M)
    return np.where(regular, 2.0 * np.log(np.diagonal(L, axis1=-2, axis2=-1)).sum(-1), -np.inf)
