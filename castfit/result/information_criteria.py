"""Information criteria: what a model's better fit is worth, given what it estimates.

Notation
--------
L   likelihood of the data alone, with all constants: priors are left out
n   number of measured values
k   number of what is estimated: directions of theta that the data determine, unknown deviations of the noise included

    AIC = -2 log L + 2 k,   AICc = AIC + 2 k (k + 1) / (n - k - 1),   BIC = -2 log L + k log n

A quantity at its bound is not counted, nor is one that the data leave open.  Where priors share in determining theta,
k is the sum of the leverages of the data, between 0 and n_theta: the effective number of parameters (Moody 1992).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Criteria:
    """Information criteria of a fit; only differences between fits of the same data mean something.

    Attributes
    ----------
    neg2loglik : float
        -2 log likelihood of the data, without priors.
    n : int
    k : float
        A whole number where there are no priors.
    """

    neg2loglik: float
    n: int
    k: float

    @property
    def aic(self) -> float:
        """Akaike's information criterion."""
        return self.neg2loglik + 2 * self.k

    @property
    def aicc(self) -> float:
        """Akaike's criterion, corrected for few data (Hurvich and Tsai 1989); inf where n <= k + 1."""
        rest = self.n - self.k - 1
        return self.aic + 2 * self.k * (self.k + 1) / rest if rest > 0 else np.inf

    @property
    def bic(self) -> float:
        """Schwarz's (Bayesian) information criterion."""
        return self.neg2loglik + self.k * float(np.log(self.n))

    def __str__(self) -> str:
        k = f"{self.k:.3g}" if self.k != round(self.k) else f"{self.k:.0f}"
        return (
            f"-2 log L = {self.neg2loglik:.6g} of {self.n} data, {k} estimated: "
            f"AIC {self.aic:.6g}, AICc {self.aicc:.6g}, BIC {self.bic:.6g}"
        )
