"""Goodness of fit: whether the model describes the data, in numbers and in a sentence.

If standard deviations are known, chi2 has a known distribution.  If they are unknown, the fit is assessed by the
unexplained part of the variance of the data, and by the residual tests of castfit.result.diagnostics
(`Goodness.with_dependence`).

Data without a time course, one time in each experiment, may differ little more than their errors.  A model that leaves
more variance than a constant is then rejected only if the ratio of the variances is significant (Fisher's F).

Information criteria weigh the likelihood against the number of estimated quantities.  With

L   likelihood of the data alone, with all constants: priors are left out
n   number of measured values
k   number of estimated directions: directions of theta that the data determine, and unknown deviations of the noise

    AIC = -2 log L + 2 k,   AICc = AIC + 2 k (k + 1) / (n - k - 1),   BIC = -2 log L + k log n

A quantity at its bound is not counted, nor is a quantity that the data leave open.  If priors also determine theta,
k is the sum of the leverages of the data, between 0 and n_theta: the effective number of parameters (Moody 1992).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import scipy

from castfit._support.distribution_functions import chi2_cdf, chi2_tail
from castfit._support.records import dataclass
from castfit._support.reprs import join_limited, one_line
from castfit._support.ties import first_argmax
from castfit.result.residuals import NO_FINDING, SIGNIFICANT, ResidualSeries, grade
from castfit.result.residuals import runs as signs

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


_MAX_RMS_RESIDUAL = 2.0  # root of chi2 per degree of freedom above which the model does not describe the data
LARGE_UNEXPLAINED_VARIANCE = 0.1  # unexplained variance beyond which residuals with a pattern are no detail
_REPORTED_UNEXPLAINED_VARIANCE = 0.5  # unexplained variance that deserves a word even without any pattern
EXACT_UNEXPLAINED_VARIANCE = (
    1e-12  # Unexplained variance up to which a fit is exact: the residuals are rounding errors.
)


@dataclass(frozen=True)
class Goodness:
    """Goodness of fit of a model to the data.

    described : False where the residuals are far larger than the noise can be, or large and shown to be no noise; that
        chi2 is up to four times the degrees of freedom is no reason, as sigmas are seldom known that well: see p_value
    p_value : probability of a chi2 at least as large if the model is right; NaN where standard deviations are unknown
    chi2_per_datum : mean squared weighted residual by output; about 1 where standard deviations are known and right
    unexplained : by output, the sum of squared residuals divided by that of the data about their mean; NaN for constant
        data; without outliers where the noise model expects them
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

    @property
    def grade(self) -> str:
        """Grade of chi2 as evidence against the model, or against sigma if chi2 is too small.

        A sigma that is too large is never only suspected.
        """
        return SIGNIFICANT if grade(1.0 - self.p_value) == SIGNIFICANT else grade(self.p_value)

    @property
    def amiss(self) -> bool:
        """Whether the data are not described, or chi2 deviates significantly from its expectation."""
        return not self.described or self.grade == SIGNIFICANT

    @property
    def doubtful(self) -> tuple[str, ...]:
        """Outputs with a large unexplained part: the fit is poor if their residuals are shown not to be noise."""
        open_to_doubt = self.described and np.isnan(self.p_value)
        return (
            tuple(name for name, share in self.unexplained.items() if share > LARGE_UNEXPLAINED_VARIANCE)
            if open_to_doubt
            else ()
        )

    def with_dependence(self, outputs: Collection[str]) -> Goodness:
        """Return the goodness of fit, given outputs whose residuals have a shown autocorrelation."""
        worst_output = max(
            (name for name in self.doubtful if name in outputs), key=self.unexplained.__getitem__, default=""
        )
        if not worst_output:
            return self
        sentence = _no_fit_sentence(
            f"{unexplained_message(worst_output, self.unexplained[worst_output])}, and the residuals show a pattern"
        )
        return replace(self, described=False, sentence=sentence)


NO_OPTIMUM = "This point is not an optimum, so the model is not assessed."

UNKNOWN = Goodness(True, np.nan, {}, {}, {}, "")
"""Nothing is known, as of a fit that could not be evaluated."""


def goodness(series: Sequence[ResidualSeries], chi2: float, dof: int, *, absolute_sigma: bool) -> Goodness:
    """Judge the residuals of a fit.

    chi2 holds what priors cost; with `absolute_sigma` the residuals' standard deviations are known to be 1.
    """
    if not np.isfinite(chi2) or (dof > 0 and not series):
        return UNKNOWN
    outputs = dict.fromkeys(s.output for s in series)
    series_by_output = {name: [s for s in series if s.output == name] for name in outputs}
    mean_square = {name: _mean_square(group) for name, group in series_by_output.items()}
    unexplained = {name: _unexplained(group) for name, group in series_by_output.items()}
    runs = {name: signs([s.residuals for s in group]).p_value for name, group in series_by_output.items()}
    is_tested = absolute_sigma and dof > 0
    p_value = chi2_tail(dof, chi2) if is_tested else np.nan
    if dof <= 0:
        described, sentence = True, "No degrees of freedom are left, so the goodness of fit cannot be tested."
    elif absolute_sigma:
        described, sentence = _assess_by_chi2(series, chi2, dof, p_value)
    else:
        is_constant_in_time = all(np.unique(s.times).size < 2 for s in series)
        n = {name: sum(s.residuals.size for s in group) for name, group in series_by_output.items()}
        described, sentence = _assess_by_variance(unexplained, n, dof if is_constant_in_time else 0)
        n_set_aside = sum(s.residuals.size - np.count_nonzero(s.counted) for s in series)
        if n_set_aside:
            sentence += (
                f" {'1 outlier is' if n_set_aside == 1 else f'{n_set_aside} outliers are'} excluded here, because the "
                "noise model gives outliers little weight."
            )
    return Goodness(described, p_value, mean_square, unexplained, runs, sentence)


def _assess_by_chi2(series: Sequence[ResidualSeries], chi2: float, dof: int, p_value: float) -> tuple[bool, str]:
    """Judge by the distribution of chi2."""
    ratio = f"chi2/n = {chi2 / sum(s.residuals.size for s in series):.3g}"
    square_sums = [float(s.residuals @ s.residuals) for s in series]
    worst_series = series[first_argmax(square_sums)]
    has_many_experiments = len({s.experiment for s in series}) > 1
    label = f"{worst_series.output} in {worst_series.experiment}" if has_many_experiments else worst_series.output
    percentage = 100 * max(square_sums) / max(sum(square_sums), np.finfo(float).tiny)
    share = f"; {label} contributes {percentage:.0f} % of chi2" if len(series) > 1 else ""
    claim = grade(p_value)
    if claim == SIGNIFICANT and chi2 > _MAX_RMS_RESIDUAL**2 * dof:
        remedy = "Try other starting points, revise the model, or check whether sigma is too small."
        return False, f"The model does not fit the data: {ratio}{share}. {remedy}"
    if claim == SIGNIFICANT:
        remedy = "The model may be incomplete, another starting point may be better, or sigma may be too small."
        return True, f"The residuals are larger than sigma implies: {ratio}, p = {p_value:.1g}{share}. {remedy}"
    if grade(chi2_cdf(dof, chi2)) == SIGNIFICANT:
        factor = np.sqrt(dof / chi2) if chi2 > 0 else np.inf
        size_text = f"too large by a factor of about {factor:.2g}" if np.isfinite(factor) else "too large"
        return True, (
            f"The residuals are smaller than sigma implies: {ratio}. "
            f"Sigma, and with it the standard errors, seems {size_text}."
        )
    if claim != NO_FINDING:
        sentence = f"The residuals are somewhat large for these sigmas: {ratio}, p = {p_value:.2g}"
        return True, f"{sentence}. By chance, about 1 of {1 / p_value:.0f} data sets has residuals this large."
    return True, f"The residuals are consistent with sigma (chi-squared test): {ratio}, p = {p_value:.2g}."


def _assess_by_variance(unexplained: dict[str, float], n: dict[str, int], dof: int) -> tuple[bool, str]:
    """Assess the fit by the unexplained variance.

    `dof` is 0 unless data without a time course are compared with a constant.
    """
    finite_parts = {name: u for name, u in unexplained.items() if np.isfinite(u)}
    if not finite_parts:
        return True, (
            f"The measurements of {join_limited(unexplained)} are constant, so the explained variance is undefined."
        )
    worst_output = [*finite_parts][first_argmax([*finite_parts.values()])]
    worst_part = finite_parts[worst_output]
    remainder_text = unexplained_message(worst_output, worst_part)
    if worst_part > 1.0:
        # Degrees of freedom of the model and of a constant.
        model_dof, constant_dof = dof * n[worst_output] / sum(n.values()), n[worst_output] - 1
        if (
            dof
            and grade(float(scipy.special.fdtrc(model_dof, constant_dof, worst_part * constant_dof / model_dof)))
            != SIGNIFICANT
        ):
            return True, f"The measurements of {worst_output} differ too little between experiments to test the fit."
        return False, _no_fit_sentence(remainder_text)
    return True, (
        f"The model leaves {remainder_text}{', most of it' if worst_part > _REPORTED_UNEXPLAINED_VARIANCE else ''}."
    )


def _no_fit_sentence(remainder_text: str) -> str:
    return f"The model does not fit the data: it leaves {remainder_text}. Another starting point may give a better fit."


def unexplained_message(output: str, share: float) -> str:
    """Describe the part of an output's variance that a model leaves unexplained, also if it exceeds the whole."""
    if share <= 1.0:
        return f"{100 * share:.3g} % of the variance of {output} unexplained"
    return f"{share:.3g} times the variance of {output} unexplained, more than a constant model would"


def _mean_square(group: Sequence[ResidualSeries]) -> float:
    return float(np.mean(np.concatenate([s.residuals for s in group]) ** 2))


def _unexplained(group: Sequence[ResidualSeries]) -> float:
    """Return the sum of squared residuals relative to that of the data about their mean."""
    values = np.concatenate([s.values[s.counted] for s in group])
    weight = np.concatenate([1.0 / s.sigma[s.counted] for s in group])
    residuals = np.concatenate([s.residuals[s.counted] for s in group])
    total = float(np.sum((weight * (values - np.sum(weight**2 * values) / np.sum(weight**2))) ** 2))
    rounding = float(np.sum((weight * np.finfo(float).eps * values) ** 2))
    return float(residuals @ residuals) / total if total > rounding else np.nan


@dataclass(frozen=True)
class Criteria:
    """Information criteria of a fit; only differences between fits of the same data mean something.

    neg2loglik : -2 log likelihood of the data, without priors
    n, k : numbers of data and of estimated directions; k is an integer if there are no priors
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
        n_remaining = self.n - self.k - 1
        if np.isnan(n_remaining):
            return np.nan
        return self.aic + 2 * self.k * (self.k + 1) / n_remaining if n_remaining > 0 else np.inf

    @property
    def bic(self) -> float:
        """Schwarz's (Bayesian) information criterion."""
        return self.neg2loglik + self.k * float(np.log(self.n))

    def __str__(self) -> str:
        if np.isnan(self.k):
            return (
                f"2 loss = {self.neg2loglik:.6g} for {self.n} measurements. The loss is not a likelihood, so "
                "information criteria are not defined."
            )
        k = f"{self.k:.3g}" if self.k != round(self.k) else f"{self.k:.0f}"
        return (
            f"-2 log L = {self.neg2loglik:.6g} for {self.n} measurements and {k} estimated quantities: AIC "
            f"{self.aic:.6g}, AICc {self.aicc:.6g}, BIC {self.bic:.6g}"
        )
