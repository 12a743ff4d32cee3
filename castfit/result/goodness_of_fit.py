"""Whether the model describes the data, in figures and in a sentence.

Where standard deviations are known, chi2 has a distribution of its own.  Where they are not, two things remain: how
much of the data's variance the model leaves, and whether what it leaves looks like noise.  For that the signs of
successive residuals are compared: of m pairs of neighbours half have unequal signs, by the binomial distribution, and
far fewer where the model misses something (a runs test, Wald and Wolfowitz 1940).

Information criteria say what a better fit is worth, given what the model estimates.  With

L   likelihood of the data alone, with all constants: priors are left out
n   number of measured values
k   number of what is estimated: directions of theta that the data determine, unknown deviations of the noise included

    AIC = -2 log L + 2 k,   AICc = AIC + 2 k (k + 1) / (n - k - 1),   BIC = -2 log L + k log n

A quantity at its bound is not counted, nor is one that the data leave open.  Where priors share in determining theta,
k is the sum of the leverages of the data, between 0 and n_theta: the effective number of parameters (Moody 1992).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from castfit._support.reprs import one_line
from castfit.result.residuals import ResidualSeries
from castfit.result.residuals import runs as signs

if TYPE_CHECKING:
    from collections.abc import Sequence


_SURE = 1e-3  # probability below which something is no chance
_RARE = 0.05  # and below which it deserves a word
_POOR = 2.0  # root of chi2 per degree of freedom above which the model does not describe the data
_LARGE = 0.1  # unexplained variance beyond which residuals with a pattern are no detail
_MOST = 0.5  # unexplained variance that deserves a word even without any pattern
EXACT = 1e-12  # unexplained variance of an exact fit: what is left is rounding


@dataclass(frozen=True)
class Goodness:
    """How well the model describes the data.

    described : False where the residuals are far larger than the noise can be, or large and not like noise
    p_value : probability of a chi2 at least as large if the model is right; NaN where standard deviations are unknown
    chi2_per_datum : mean squared weighted residual by output; about 1 where standard deviations are known and right
    unexplained : by output, the sum of squared residuals divided by that of the data about their mean; NaN for constant
        data
    runs : by output, the probability of as few changes of sign if residuals are independent; NaN for few data
    sentence : all that in words
    """

    described: bool
    p_value: float
    chi2_per_datum: dict[str, float]
    unexplained: dict[str, float]
    runs: dict[str, float]
    sentence: str

    def __str__(self) -> str:
        return self.sentence

    def __repr__(self) -> str:
        return one_line(f"{type(self).__name__}({self.sentence})")


UNKNOWN = Goodness(True, np.nan, {}, {}, {}, "")
"""Nothing is known, as of a fit that could not be evaluated."""


def goodness(series: Sequence[ResidualSeries], chi2: float, dof: int, *, absolute_sigma: bool) -> Goodness:
    """Judge the residuals of a fit.

    chi2 holds what priors cost; with `absolute_sigma` the residuals' standard deviations are known to be 1.
    """
    if not np.isfinite(chi2) or not series:
        return UNKNOWN
    outputs = dict.fromkeys(s.output for s in series)
    of = {name: [s for s in series if s.output == name] for name in outputs}
    mean_square = {name: _mean_square(group) for name, group in of.items()}
    unexplained = {name: _unexplained(group) for name, group in of.items()}
    runs = {name: signs([s.residuals for s in group]).p_value for name, group in of.items()}
    judged = absolute_sigma and dof > 0
    p_value = float(special.chdtrc(dof, chi2)) if judged else np.nan
    if dof <= 0:
        described, said = True, "With no degrees of freedom left, the data cannot contradict the model."
    elif absolute_sigma:
        described, said = _by_chi2(series, chi2, dof, p_value, runs)
    else:
        described, said = _by_pattern(unexplained, runs)
    return Goodness(described, p_value, mean_square, unexplained, runs, said)


def _by_chi2(
    series: Sequence[ResidualSeries], chi2: float, dof: int, p_value: float, runs: dict[str, float]
) -> tuple[bool, str]:
    """Judge by the distribution of chi2."""
    ratio = f"chi2/n = {chi2 / sum(s.residuals.size for s in series):.3g}"
    parts = [float(s.residuals @ s.residuals) for s in series]
    worst = series[int(np.argmax(parts))]
    many = len({s.experiment for s in series}) > 1
    place = f"{worst.output} in {worst.experiment}" if many else worst.output
    look = f"look at {place}, which has {100 * max(parts) / max(sum(parts), np.finfo(float).tiny):.0f} % of it"
    if p_value < _SURE and chi2 > _POOR**2 * dof:
        return False, f"The model does not describe the data: {ratio}; {look}. Other starts may be better."
    if p_value < _SURE:
        remedy = "The model lacks something, other starts may be better, or sigma is too small."
        return True, f"The residuals are larger than sigma says: {ratio}, p = {p_value:.1g}; {look}. {remedy}"
    if float(special.chdtr(dof, chi2)) < _SURE:
        factor = np.sqrt(dof / chi2) if chi2 > 0 else np.inf
        much = f"about {factor:.2g} times too large" if np.isfinite(factor) else "too large"
        return True, f"The residuals are smaller than sigma says: {ratio}. Sigma seems {much}, the standard errors too."
    if p_value < _RARE:
        said = f"The residuals are rather large for these sigmas: {ratio}, p = {p_value:.2g}"
        return True, f"{said}, as one data set in {1 / p_value:.0f} has them by chance.{_in_runs(runs)}"
    return True, f"The data agree with the model: {ratio}, p = {p_value:.2g}.{_in_runs(runs)}"


def _by_pattern(unexplained: dict[str, float], runs: dict[str, float]) -> tuple[bool, str]:
    """Judge by what is left and by whether it looks like noise."""
    known = {name: u for name, u in unexplained.items() if np.isfinite(u)}
    if not known:
        return True, ""
    worst = max(known, key=lambda name: known[name])
    tested = {name: p for name, p in runs.items() if known.get(name, 0.0) > EXACT}
    pattern = min(tested, key=lambda name: tested[name] if np.isfinite(tested[name]) else 1.0, default=worst)
    systematic = bool(tested) and tested[pattern] < _SURE / len(tested)
    left = f"{100 * known[worst]:.3g} % of the variance of {worst} unexplained"
    if known[worst] > 1.0 or (systematic and known[worst] > _LARGE):
        more = _in_runs(tested) if systematic else ""
        return False, f"The model does not describe the data: it leaves {left}.{more} Other starts may be better."
    if known[worst] > _MOST:
        return True, f"The model leaves {left}; it looks like noise."
    return True, f"The model leaves {left}.{_in_runs(tested)}"


def _in_runs(runs: dict[str, float]) -> str:
    """Name the outputs whose residuals keep their sign for too long."""
    found = [f"{name} (p = {p:.1g})" for name, p in runs.items() if p < _SURE / len(runs)]
    if not found:
        return ""
    return f" The residuals of {', '.join(found)} keep their sign for long: the model misses something there."


def _mean_square(group: Sequence[ResidualSeries]) -> float:
    return float(np.mean(np.concatenate([s.residuals for s in group]) ** 2))


def _unexplained(group: Sequence[ResidualSeries]) -> float:
    """Return the sum of squared residuals relative to that of the data about their mean."""
    values = np.concatenate([s.values for s in group])
    weight = np.concatenate([1.0 / s.sigma for s in group])
    residuals = np.concatenate([s.residuals for s in group])
    mean = float(np.sum(weight**2 * values) / np.sum(weight**2))
    total = float(np.sum((weight * (values - mean)) ** 2))
    rounding = float(np.sum((weight * np.finfo(float).eps * values) ** 2))
    return float(residuals @ residuals) / total if total > rounding else np.nan


@dataclass(frozen=True)
class Criteria:
    """Information criteria of a fit; only differences between fits of the same data mean something.

    neg2loglik : -2 log likelihood of the data, without priors
    n, k : numbers of data and of what is estimated; k is whole where there are no priors
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
