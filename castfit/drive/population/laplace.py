"""Laplace's approximation of the likelihood of a population, and its exact gradient (docs/understand/laplace.md).

Individual fits: the modes of all individuals' own parameters at once, with separate dampings,

    minimise over phi_i      F_i = c_i(phi_i, s) + 1/2 (phi_i - mu_i)^T Omega^-1 (phi_i - mu_i)

by Levenberg-Marquardt steps   (A_i + lambda_i diag A_i) d_i = -(g_i + Omega^-1 (phi_i - mu_i)),   A_i = H_i + Omega^-1,
with the expected curvature H_i (Fisher scoring).  Near earlier modes, the difference of the exact curvature and H_i
there, `curvature_excess`, is added, so that the steps are nearly Newton steps.  Individuals at their modes are not
simulated again; an individual that cannot be simulated keeps its point, and the failure is reported.

With the mode phi_i of F_i and the curvature A_i,

    -log p(data of i | y)  ~  L_i = F_i + 1/2 log |Omega| + 1/2 log |A_i|                  [1; 2: FOCE with interaction]

The mode moves with y:  d phi_i/dy = -F_phiphi^-1 F_phiy,  and so

    dL_i/dy = dF_i/dy + 1/2 d log|Omega|/dy
              + 1/2 tr A_i^-1 (dH_i/ds ds/dy + dOmega^-1/dy + sum_k dH_i/dphi_k dphi_ik/dy)      [2]

Central differences of the gradient and of H along phi and s give the second derivatives of c and the first derivatives
of H: one pair of simulations of all individuals for each own and shared parameter.

1   Wolfinger, Biometrika 80 (1993) 791.
2   Almquist, Leander, Jirstrand, J. Pharmacokinet. Pharmacodyn. 42 (2015) 191.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from castfit._support.arrays import Array, Mask
from castfit.drive.population.compiled import CompiledPopulation
from castfit.drive.population.likelihoods import Cohort, IndividualCurvature

# Predicted decreases of -log p by a Newton step, relative to 1 + |-log p|:
_MODE_DECREASE_RTOL = 1e-14  # at a mode: phi then has an error of 1e-7 of its own uncertainty
_ROUGH_MODE_DECREASE_RTOL = 1e-6  # at a mode, during the first steps of a search
_ERROR_DECREASE_RTOL = 1e-7  # of the size of integration errors: smaller ones are accepted without a test
_MAX_DAMPING = 1e10  # of the diagonal: a search that needs more has failed
_MIN_EIGENVALUE_FRACTION = 0.1  # of the smallest one of the expected curvature: the exact one needs at least this
_MAX_MODE_ITERATIONS = 100  # simulations of an individual in the search for its mode


@dataclass(frozen=True)
class IndividualPrior:
    """Normal prior of the own parameters: mean (n, m) and precision Omega^-1 (m, m)."""

    mean: Array
    precision: Array

    def pull(self, phi: Array, mean: Array) -> tuple[Array, Array]:
        """Return 1/2 eta^T Omega^-1 eta (k,), and Omega^-1 eta (k, m), at phi (k, m)."""
        force = (phi - mean) @ self.precision
        return 0.5 * ((phi - mean) * force).sum(axis=1), force


@dataclass(frozen=True)
class IndividualModes:
    """The modes of all individuals.

    cost : (n,) F_i at phi (n, m); inf if it cannot be computed
    arrived : (n,) whether the individual is at its mode;  failures : reasons of failed fits, by index
    sweeps : number of simulations with derivatives
    evaluation : the data costs of all individuals at the modes
    """

    phi: Array
    cost: Array
    arrived: Mask
    failures: Mapping[int, str]
    sweeps: int
    evaluation: IndividualCurvature


def find_modes(
    cohort: Cohort,
    prior: IndividualPrior,
    s: Array,
    start: Array,
    curvature_excess: Array | None = None,
    *,
    roughly: bool = False,
) -> IndividualModes:
    """Find the modes of all individuals from phi = start (n, m).

    `curvature_excess` (n, m, m) is added to expected curvatures if the sum is definite.  With `roughly`, the modes have
    a lower accuracy.
    """
    n, m = start.shape
    phi: Array = start.copy()
    everybody = np.arange(n, dtype=np.intp)
    evaluation = cohort.curved(phi, s, everybody)
    failed_individuals = np.flatnonzero(~np.isfinite(evaluation.cost))
    if failed_individuals.size:  # start again at the mean of the population
        phi[failed_individuals] = prior.mean[failed_individuals]
        evaluation = evaluation.replaced(
            failed_individuals, cohort.curved(phi[failed_individuals], s, failed_individuals)
        )
    pull, _ = prior.pull(phi, prior.mean)
    cost, damping = evaluation.cost + pull, np.zeros(n)
    is_active, arrived, sweeps = np.isfinite(cost), np.zeros(n, dtype=np.bool_), 1
    for _ in range(_MAX_MODE_ITERATIONS):
        individuals = np.flatnonzero(is_active)
        if not individuals.size:
            break
        _, force = prior.pull(phi[individuals], prior.mean[individuals])
        gradient = evaluation.gradient[individuals, :m] + force
        curvature = _definite(
            evaluation.curvature[individuals, :m, :m] + prior.precision,
            None if curvature_excess is None else curvature_excess[individuals],
        )
        diagonal = np.einsum("kii->ki", curvature)
        damped = curvature + (damping[individuals, None] * diagonal)[:, :, None] * np.eye(m)
        step = solve_batched(damped, -gradient)
        newton = 0.5 * np.einsum("ki,ki->k", gradient, solve_batched(curvature, gradient))
        predicted_decrease = -np.einsum("ki,ki->k", gradient, step) - 0.5 * np.einsum(
            "ki,kij,kj->k", step, curvature, step
        )
        is_at_mode = newton <= (_ROUGH_MODE_DECREASE_RTOL if roughly else _MODE_DECREASE_RTOL) * (
            1.0 + np.abs(cost[individuals])
        )
        arrived[individuals[is_at_mode]], is_active[individuals[is_at_mode]] = True, False
        individuals, step, predicted_decrease, newton = (
            individuals[~is_at_mode],
            step[~is_at_mode],
            predicted_decrease[~is_at_mode],
            newton[~is_at_mode],
        )
        if not individuals.size:
            break
        trial = cohort.curved(phi[individuals] + step, s, individuals)
        sweeps += 1
        trial_cost = trial.cost + prior.pull(phi[individuals] + step, prior.mean[individuals])[0]
        with np.errstate(invalid="ignore"):
            ratio = np.where(np.isfinite(trial_cost), (cost[individuals] - trial_cost) / predicted_decrease, -1.0)
        is_accepted = (ratio > 1e-3) | (
            (newton < _ERROR_DECREASE_RTOL * (1.0 + np.abs(cost[individuals]))) & np.isfinite(trial_cost)
        )
        accepted_individuals = individuals[is_accepted]
        phi[accepted_individuals] += step[is_accepted]
        cost[accepted_individuals] = trial_cost[is_accepted]
        evaluation = evaluation.replaced(accepted_individuals, trial.select_individuals(np.flatnonzero(is_accepted)))
        damping[accepted_individuals] = np.where(
            ratio[is_accepted] > 0.75, damping[accepted_individuals] * 0.1, damping[accepted_individuals]
        )
        damping[accepted_individuals] = np.where(
            (ratio[is_accepted] > 0.25) | (damping[accepted_individuals] > 0.0), damping[accepted_individuals], 1e-3
        )
        damping[accepted_individuals[damping[accepted_individuals] < 1e-6]] = 0.0
        rejected_individuals = individuals[~is_accepted]
        damping[rejected_individuals] = np.maximum(10.0 * damping[rejected_individuals], 1e-3)
        is_active[rejected_individuals[damping[rejected_individuals] > _MAX_DAMPING]] = False
    stalled_message = "the steps make no progress"
    failures = {
        i: stalled_message if np.isfinite(cost[i]) else evaluation.failures.get(i, "the data cannot be predicted")
        for i in np.flatnonzero(~arrived).tolist()
    }
    return IndividualModes(phi, cost, arrived, failures, sweeps, evaluation)


def solve_batched(matrices: Array, right: Array) -> Array:
    """Return the solutions x (k, m) of  matrices (k, m, m) x = right (k, m)."""
    return np.asarray(np.linalg.solve(matrices, right[..., None]), dtype=float)[..., 0]


def _definite(expected: Array, curvature_excess: Array | None) -> Array:
    """Return expected curvatures (k, m, m) plus `curvature_excess`; without it if the sum is nearly indefinite."""
    if curvature_excess is None:
        return expected
    exact = np.where(
        np.isfinite(curvature_excess).all(axis=(1, 2), keepdims=True), expected + curvature_excess, expected
    )
    size = np.sqrt(np.einsum("kii->ki", expected))
    unit = size[:, :, None] * size[:, None, :]
    is_definite = (
        np.linalg.eigvalsh(exact / unit)[:, 0] > _MIN_EIGENVALUE_FRACTION * np.linalg.eigvalsh(expected / unit)[:, 0]
    )
    return np.where(is_definite[:, None, None], exact, expected)


_MAX_EM_STEP = 1.0  # step of a parameter, mostly a logarithm, towards the maximum of an expectation
# Of a parameter's magnitude: the truncation error is 1e-6, and integration errors of 1e-9 contribute as much.
_DIFFERENCE_STEP_FRACTION = 1e-3


@dataclass(frozen=True)
class MarginalLikelihood:
    """The approximate likelihood at y.

    parts (n,) : L_i; inf if an individual could not be fitted
    prior : -log of priors of population and shared parameters, without constants
    precise (n, m, m) : A_i^-1, the covariance of own parameters given their data
    """

    y: Array
    parts: Array
    prior: float
    modes: IndividualModes
    precise: Array

    @property
    def value(self) -> float:
        """-log of likelihood and priors."""
        return float(self.parts.sum()) + self.prior


@dataclass(frozen=True)
class LikelihoodScores:
    """Gradients of each individual's L_i by y (n, n_y), and of priors (n_y,) with their curvature (n_y, n_y).

    bend (n, m, m): exact minus expected second derivatives of the data cost
    moving (n, m, n_y): derivatives of the modes by y
    """

    parts: Array
    prior: Array
    prior_curvature: Array
    bend: Array
    moving: Array

    @property
    def gradient(self) -> Array:
        """Gradient of the sum over all individuals and the prior, (n_y,)."""
        return self.parts.sum(axis=0) + self.prior


class LaplaceApproximation:
    """Laplace's approximation for one question and its cohort."""

    def __init__(self, question: CompiledPopulation, cohort: Cohort) -> None:
        self.question, self.cohort = question, cohort
        self.sweeps = 0

    def prior(self, y: Array) -> tuple[IndividualPrior, Array] | None:
        """Return the prior of own parameters, and Omega, at y.

        Return None if they are not finite or Omega is singular.
        """
        with np.errstate(all="ignore"):
            mu, _ = self.question.means(y)
            omega = self.question.omega_at(y)
        if not (np.isfinite(mu).all() and np.isfinite(omega).all()):
            return None
        try:
            return IndividualPrior(mu, np.asarray(np.linalg.inv(omega), dtype=float)), omega
        except np.linalg.LinAlgError:
            return None

    def value(
        self, y: Array, start: Array, curvature_excess: Array | None = None, *, roughly: bool = False
    ) -> MarginalLikelihood | None:
        """Fit all individuals from phi = start (n, m), and return the likelihood; None if y is not admissible.

        `curvature_excess` and `roughly` as in `find_modes`.
        """
        prior_and_omega = self.prior(y)
        if prior_and_omega is None:
            return None
        prior, omega = prior_and_omega
        modes = find_modes(self.cohort, prior, y[self.question.of_shared], start, curvature_excess, roughly=roughly)
        self.sweeps += modes.sweeps
        m = self.question.m
        parts, covariances = np.full(self.question.n, np.inf), np.full((self.question.n, m, m), np.nan)
        fitted_indices = np.flatnonzero(np.isfinite(modes.cost))
        a = modes.evaluation.curvature[fitted_indices, :m, :m] + prior.precision
        covariances[fitted_indices] = np.linalg.inv(a)
        parts[fitted_indices] = modes.cost[fitted_indices] + 0.5 * (
            np.linalg.slogdet(omega)[1] + np.linalg.slogdet(a)[1]
        )
        prior_terms = self.question.priors(y)
        return MarginalLikelihood(
            y, parts, 0.5 * float(prior_terms.rows @ prior_terms.rows) + prior_terms.excess, modes, covariances
        )

    def scores(self, marginal: MarginalLikelihood, *, forward: bool = False) -> LikelihoodScores:
        """Return the exact gradient if all individuals could be fitted; with `forward`, to about 1e-3.

        Forward differences take half the time.  The errors of two such gradients are correlated, so that their
        difference has an error of about 1e-3, too.
        """
        question, modes, y = self.question, marginal.modes, marginal.y
        m, n_y = question.m, question.n_y
        mu, mu_y = question.means(y)
        omega = question.omega_at(y)
        precision = np.linalg.inv(omega)
        d_omega = np.zeros((m, m, n_y))
        d_omega[..., question.of_omega] = question.covariance.slopes(y[question.of_omega])
        d_precision = -np.einsum("ij,jky,kl->ily", precision, d_omega, precision)
        eta, ds = modes.phi - mu, question.shared_slopes
        # Of c, (n, m + n_s, m + n_s);  dH_oo along each direction, (n, m, m, m + n_s).
        second, third = self._bends(marginal, forward=forward)
        exact_curvature = second[:, :m, :m] + precision
        by_y = (
            second[:, :m, m:] @ ds
            - np.einsum("ij,njy->niy", precision, mu_y)
            + np.einsum("ijy,nj->niy", d_precision, eta)
        )
        phi_y = np.asarray(np.linalg.solve(exact_curvature, -by_y), dtype=float)  # derivatives of the mode
        # dF/dy at fixed phi, by the envelope theorem all of dF/dy
        gradients = modes.evaluation.gradient[:, m:] @ ds
        gradients -= np.einsum("niy,ij,nj->ny", mu_y, precision, eta)
        gradients += 0.5 * np.einsum("ni,ijy,nj->ny", eta, d_precision, eta)
        gradients += 0.5 * np.einsum("ij,jiy->y", precision, d_omega)
        volume = np.einsum("nij,njik->nk", marginal.precise, third)  # tr A^-1 dH along each direction
        log_det = np.einsum("nij,jiy->ny", marginal.precise, d_precision)
        log_det += np.einsum("nk,nky->ny", volume[:, :m], phi_y) + volume[:, m:] @ ds
        prior_terms = question.priors(y)
        by_prior = prior_terms.jacobian.T @ prior_terms.rows, prior_terms.jacobian.T @ prior_terms.jacobian
        return LikelihoodScores(
            gradients + 0.5 * log_det, *by_prior, second[:, :m, :m] - modes.evaluation.curvature[:, :m, :m], phi_y
        )

    def expected(self, marginal: MarginalLikelihood) -> Array:
        """Return the information about y that a linear model with the same curvatures would have, (n_y, n_y).

        Typical values and shared parameters have the information of generalised least squares, the covariance has
        1/2 sum_i tr(M_i dOmega M_i dOmega)  with  M_i = (Omega + H_i^-1)^-1.
        """
        question, y = self.question, marginal.y
        m, (_, mu_y) = question.m, question.means(y)
        precision = np.linalg.inv(question.omega_at(y))
        ds = question.shared_slopes
        h, gain = marginal.modes.evaluation.curvature, precision @ marginal.precise  # Omega^-1 A^-1
        marginal_precisions = precision - gain @ precision
        shared_curvatures = h[:, m:, m:] - h[:, m:, :m] @ marginal.precise @ h[:, :m, m:]
        cross = np.einsum("niy,nij,js->ys", mu_y, gain @ h[:, :m, m:], ds)
        information = np.einsum("niy,nij,njz->yz", mu_y, marginal_precisions, mu_y) + cross + cross.T
        information += ds.T @ shared_curvatures.sum(axis=0) @ ds
        d_omega = question.covariance.slopes(y[question.of_omega])
        product = np.einsum("nij,jky->niky", marginal_precisions, d_omega)
        information[question.of_omega, question.of_omega] += 0.5 * np.einsum("niky,nkiz->yz", product, product)
        prior_terms = question.priors(y)
        return information + prior_terms.jacobian.T @ prior_terms.jacobian

    def improved(self, marginal: MarginalLikelihood) -> Array:
        """Return y after a step of expectation and maximisation with fixed modes.

        With own parameters of mean phi_i and covariance A_i^-1, typical values come from a weighted regression, shared
        parameters from a Newton step in which own parameters change as well, and  Omega = mean(eta eta^T + A^-1).
        These steps are efficient far from the optimum, but their fixed point is not the maximum of the likelihood.
        """
        question, modes, y = self.question, marginal.modes, marginal.y
        n, m, k = question.n, question.m, len(question.upper)
        mu, mu_y = question.means(y)
        precision = np.linalg.inv(question.omega_at(y))
        mean_slopes = mu_y[..., :k]
        shared = np.zeros((k, question.shared.size))
        shared[question.of_shared, np.arange(question.shared.size)] = 1.0
        prior_terms = question.priors(y)
        gradient = (
            -np.einsum("niy,ij,nj->y", mean_slopes, precision, modes.phi - mu)
            + (prior_terms.jacobian.T @ prior_terms.rows)[:k]
        )
        curvature = (
            np.einsum("niy,ij,njz->yz", mean_slopes, precision, mean_slopes)
            + (prior_terms.jacobian.T @ prior_terms.jacobian)[:k, :k]
        )
        if question.shared.size:
            volume = 0.5 * np.einsum(
                "nij,njik->k", marginal.precise, self._bends(marginal, range(m, m + question.shared.size))[1]
            )
            h = modes.evaluation.curvature
            shared_curvature = (h[:, m:, m:] - h[:, m:, :m] @ marginal.precise @ h[:, :m, m:]).sum(axis=0)
            gradient += shared @ (modes.evaluation.gradient[:, m:].sum(axis=0) + volume)
            curvature += shared @ shared_curvature @ shared.T
        lower, upper = question.bounds
        new_y = y.copy()
        newton = np.asarray(np.linalg.lstsq(curvature, -gradient, rcond=1e-12)[0], dtype=float)
        new_y[:k] += np.clip(newton, -_MAX_EM_STEP, _MAX_EM_STEP)
        new_y[:k] = np.clip(new_y[:k], lower[:k], upper[:k])
        new_means, _ = question.means(new_y)
        eta = modes.phi - (new_means if np.isfinite(new_means).all() else mu)
        omega = (np.einsum("ni,nj->ij", eta, eta) + marginal.precise.sum(axis=0)) / n
        new_y[question.of_omega] = question.covariance.coordinates(omega)
        return np.clip(new_y, lower, upper)

    def _bends(
        self, marginal: MarginalLikelihood, selected_directions: range | None = None, *, forward: bool = False
    ) -> tuple[Array, Array]:
        """Differentiate gradients and curvatures along all or some own and shared parameters by finite differences."""
        signs = (1.0, 0.0) if forward else (1.0, -1.0)
        base = (
            marginal.modes.evaluation.gradient,
            marginal.modes.evaluation.curvature[:, : self.question.m, : self.question.m],
        )
        n, m, n_s = self.question.n, self.question.m, self.question.shared.size
        directions = range(m + n_s) if selected_directions is None else selected_directions
        second, third = np.empty((n, m + n_s, len(directions))), np.empty((n, m, m, len(directions)))
        width = self.widths(marginal)
        for column, k in enumerate(directions):
            ends = [self._evaluate_shifted(marginal, k, sign * width[k]) if sign else base for sign in signs]
            distance = (signs[0] - signs[1]) * width[k]
            second[..., column] = (ends[0][0] - ends[1][0]) / distance
            third[..., column] = (ends[0][1] - ends[1][1]) / distance
        return second, third

    def _evaluate_shifted(self, marginal: MarginalLikelihood, k: int, step: float) -> tuple[Array, Array]:
        """Return gradients and curvatures by own parameters at a shifted own or shared parameter k."""
        self.sweeps += 1
        m, phi, s = self.question.m, marginal.modes.phi.copy(), marginal.y[self.question.of_shared]
        if k < m:
            phi[:, k] += step
        else:
            s[k - m] += step
        evaluation = self.cohort.curved(phi, s, np.arange(self.question.n, dtype=np.intp))
        return evaluation.gradient, evaluation.curvature[:, :m, :m]

    def widths(self, marginal: MarginalLikelihood) -> Array:
        """Return steps of differences along own and shared parameters, (m + n_s,)."""
        question = self.question
        local_sizes = np.where(question.lognormal, 1.0, np.abs(question.means(marginal.y)[0]).mean(axis=0))
        local_sizes = np.where(local_sizes > 0.0, local_sizes, np.sqrt(np.diag(question.omega_at(marginal.y))))
        is_log = question.log[question.of_shared]
        shared_sizes = np.abs(marginal.y[question.of_shared])
        return _DIFFERENCE_STEP_FRACTION * np.concatenate(
            [local_sizes, np.where(is_log | (shared_sizes == 0.0), 1.0, shared_sizes)]
        )
