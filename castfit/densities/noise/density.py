"""What a noise model says of one datum: cost, score and curvature as CasADi graphs.

A noise model is a density of the datum m given predicted quantities  eta = (mu, s, ...):  the prediction of the output
and, where it is not a plain number, what describes the spread.  With

    cost(eta) = -log p(m | eta)                    all constants included
    g         = d cost / d eta                     the score, (n_eta,)
    L L^T     = a curvature                        L (n_eta, n_rows)

the rows of the datum are

    r  with  L r = g,      J = L^T d eta / dv      (n_rows,), (n_rows, n_v)

so that  J^T r = grad cost  exactly and  J^T J = d eta^T L L^T d eta,  whatever the density.  The curvature is the
expected one, E[d2 cost / d eta2], so that the Gauss-Newton method on these rows is Fisher scoring.  For densities of
heavy tails it is that of iteratively reweighted least squares, which converges from farther away, and `information`
says by what the rows are to be multiplied for the expected curvature, of which statistics are made.

A spread has a row of its own.  For  cost = rho(r) + log s,  r = (mu - m)/s  and  psi = rho',  the score of log s is
1 - r psi,  its information  lambda = E[(r psi)^2] - 1  (2 for normal errors).  From a spread that is much too small
steps of Fisher scoring are far too long, from one too large they are too short.  Here the curvature is the secant that
leads to the spread that the datum alone would have, at which |r| = r*,  r* psi(r*) = 1:

    c = (r psi - 1) / log(|r| / r*),    row (1 - r psi) / sqrt c,    derivative sqrt c d log s

so that the iterations do not depend on where the spread begins; `information` is  sqrt(lambda / c).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import casadi as ca
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit._support.arrays import Array


_SINGULAR = 1e-10  # least eigenvalue of a user's curvature, relative to the largest
_EXACT = 0.03  # residuals below count as this large in the secant, whose logarithm is not to be infinite
_NEAR = 1e-6  # of the mode: there the secant is a tangent
_FAR = 1e4  # largest row of a user's likelihood, in standard deviations


@dataclass(frozen=True, eq=False)
class Density:
    """One datum's cost as graphs of eta and the datum.

    eta (n_eta, 1) : symbols of the predicted quantities: the prediction mu, then the spread s if there is one, then, of
        a user's own likelihood, other symbols that it contains
    datum : symbol of the measured value
    cost : -log p(datum | eta), in natural logarithms; infinite or NaN where eta is impossible
    residual : the normalised residual, prediction minus value: of mean 0 and variance 1, or nearly so, if the model is
        right
    factor (n_eta, n_rows) : L; None if the curvature may have any sign, then `factor_of` makes it from numbers
    rows (n_rows, 1) : r, of which L r is the score
    information (n_rows, 1) : what each row of J is to be multiplied by, so that J^T J is the expected curvature; 1
        where it is so already
    curvature (n_eta, n_eta) : what takes the place of the second derivatives in Newton's method where these say
        nothing, as beside a kink
    """

    eta: ca.SX
    datum: ca.SX
    cost: ca.SX
    residual: ca.SX
    factor: ca.SX | None = None
    rows: ca.SX | None = None
    information: ca.SX | None = None
    curvature: ca.SX | None = None

    @cached_property
    def gradient(self) -> ca.SX:
        """The score d cost / d eta, (n_eta, 1)."""
        return ca.gradient(self.cost, self.eta)

    @cached_property
    def hessian(self) -> ca.SX:
        """The second derivatives of the cost by eta, (n_eta, n_eta), or what takes their place."""
        if self.curvature is not None:
            return self.curvature
        return ca.densify(ca.jacobian(self.gradient, self.eta))

    @property
    def known_spread(self) -> Density:
        """The density for a spread that is a number: eta is mu alone, and s is a free symbol of the graphs."""
        if self.factor is None or self.rows is None or self.information is None:
            return self
        return replace(
            self,
            eta=self.eta[0],
            factor=self.factor[0, 0],
            rows=self.rows[0],
            information=self.information[0],
            curvature=None if self.curvature is None else self.curvature[0, 0],
        )


def lower_triangular(
    eta: ca.SX, datum: ca.SX, cost: ca.SX, residual: ca.SX, factor: ca.SX, information: ca.SX | None = None
) -> Density:
    """Build a density from a regular lower triangular L; its rows follow by forward substitution."""
    score = ca.gradient(cost, eta)
    rows: list[ca.SX] = []
    for i in range(eta.numel()):
        done = sum((factor[i, j] * r for j, r in enumerate(rows)), ca.SX(0))
        rows.append((score[i] - done) / factor[i, i])
    one = ca.SX.ones(eta.numel(), 1)
    return Density(eta, datum, cost, residual, factor, ca.vertcat(*rows), one if information is None else information)


def secant(surplus: ca.SX, size: ca.SX, mode: float, slope: float) -> ca.SX:
    """Return the curvature c of a cost in log s, by the secant to the spread that the datum alone would have.

    surplus : r psi - 1
    size : |r|
    mode, slope : where the surplus is zero, and there its derivative by log |r|
    """
    away = ca.log(ca.fmax(size / mode, _EXACT))
    near = ca.fabs(away) < _NEAR
    return ca.if_else(near, slope, surplus / ca.if_else(near, 1, away))


def factor_of(hessian: Array, score: Array) -> tuple[Array, Array]:
    """Make L (..., n, n) and rows (..., n) from curvatures of any sign: L r is the score, exactly.

    L L^T has the eigenvectors of the Hessian and the absolute values of its eigenvalues, as in saddle-free Newton
    methods, of the Hessian scaled by its diagonal, so that nothing depends on units.  Eigenvalues are not less than a
    tiny part of the largest, and so large that no row exceeds 1e4: a cost without curvature has finite steps, too.

    hessian (..., n, n), score (..., n)
    """
    with np.errstate(all="ignore"):
        diagonal = np.sqrt(np.abs(np.diagonal(hessian, axis1=-2, axis2=-1)))
        least = np.abs(score) / _FAR
        unit = np.where(diagonal > least, diagonal, least)
        unit = np.where((unit > 0) & np.isfinite(unit), unit, 1.0)
        scaled = hessian / (unit[..., :, None] * unit[..., None, :])
        right: NDArray[np.bool_] = np.logical_and(
            np.all(np.isfinite(scaled), axis=(-2, -1)), np.all(np.isfinite(score), axis=-1)
        )
        scaled[~right] = 0.0
        values, vectors = np.linalg.eigh(scaled)
        along = np.einsum("...ij,...i->...j", vectors, score / unit)
        size = np.abs(values)
        size = np.maximum(size, _SINGULAR * size.max(axis=-1, keepdims=True))
        root = np.sqrt(np.maximum(size, (along / _FAR) ** 2))
        # The symmetric root, which eigenvectors of either sign make: rows are to be smooth.
        back = np.swapaxes(vectors, -1, -2)
        factor = unit[..., :, None] * ((vectors * root[..., None, :]) @ back)
        rows = np.einsum("...ij,...j->...i", vectors, along / np.where(root > 0, root, 1.0))
        factor[~right], rows[~right] = np.nan, np.nan
        return factor, rows
