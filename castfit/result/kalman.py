"""Extended Kalman filter and smoother, as a check of other estimates, and to show where the two fail.

The filter goes through the data once: states are predicted by the model without noise, their covariance by its
derivatives there, and each value corrects both as if it depended on the states along a straight line.  The smoother
goes back (Rauch, Tung and Striebel 1965).  For linear models with normal errors both are exact, and the same as
`fit`; elsewhere they believe in derivatives at predictions, which a poor start may put anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from castfit._support.arguments import shorten_repr
from castfit._support.public_names import public
from castfit._support.reprs import one_line
from castfit._support.status import raise_if_mistakes, suggest
from castfit._support.time_limit import interruptible
from castfit.result.path_result import PathBand, PathResult
from castfit.transcribe.path_likelihood import PathLikelihood, marginal, rows_by_node

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.transcribe.path_likelihood import ChainLikelihood


@public("castfit")
@dataclass(frozen=True, eq=False)
class KalmanResult:
    """Result of filter and smoother: means (N, n) and covariances (N, n, n) of the states at nodes `times` (N,).

    log_likelihood : log likelihood of the data, from the prediction errors

    Examples
    --------
    >>> import castfit as cf
    >>> x, w = cf.symbols("x w")
    >>> model = cf.Model({x: -x + 0.5 * w}, noises=[w])
    >>> experiment = cf.Experiment({"x": [0.4, 0.2]}, time=[1, 2], sigma=0.1, start=0, initial={"x": cf.Normal(1, 0.5)})
    >>> result = cf.fit(cf.Problem(model, experiment))
    >>> cf.kalman(result).log_likelihood - result.log_likelihood < 1e-9
    True
    """

    experiment: str
    states: tuple[str, ...]
    times: Array
    filtered_means: Array
    filtered_covariances: Array
    smoothed_means: Array
    smoothed_covariances: Array
    log_likelihood: float
    confidence_level: float

    def filtered(self, state: str) -> PathBand:
        """Return a state given the data up to each time."""
        return self._band(state, self.filtered_means, self.filtered_covariances)

    def smoothed(self, state: str) -> PathBand:
        """Return a state given all data."""
        return self._band(state, self.smoothed_means, self.smoothed_covariances)

    def _band(self, state: str, means: Array, covariances: Array) -> PathBand:
        raise_if_mistakes(
            "kalman", [] if state in self.states else [f"unknown state '{state}': {suggest(state, self.states)}"]
        )
        j = self.states.index(state)
        value, deviation = means[:, j], np.sqrt(np.maximum(covariances[:, j, j], 0.0))
        z = float(special.ndtri(0.5 + 0.5 * self.confidence_level)) * deviation
        return PathBand(
            state, self.experiment, self.times, value, deviation, value - z, value + z, self.confidence_level
        )

    def __repr__(self) -> str:
        return one_line(
            f"KalmanResult('{self.experiment}': log L = {self.log_likelihood:.6g}, {self.times.size} nodes)"
        )


@interruptible
def kalman(result: PathResult, experiment: str | None = None) -> KalmanResult:
    """Run the extended Kalman filter and smoother through the data of an experiment, at a result's estimates.

    Parameters
    ----------
    result : PathResult
        Of a model with noises.
    experiment : str, optional
        By default the first one.

    Raises
    ------
    InputError
        If the result is of another kind, or its problem is not known.

    Examples
    --------
    >>> import castfit as cf
    >>> x, w = cf.symbols("x w")
    >>> model = cf.Model({x: -x + 0.5 * w}, noises=[w])
    >>> experiment = cf.Experiment({"x": [0.4, 0.2]}, time=[1, 2], sigma=0.1, start=0, initial={"x": cf.Normal(1, 0.5)})
    >>> found = cf.kalman(cf.fit(cf.Problem(model, experiment)))
    >>> bool(found.filtered("x").values[0] == 1.0), bool(found.smoothed("x").values[0] > 1.0)
    (True, True)
    """
    argument: Any = result
    raise_if_mistakes(
        "kalman",
        []
        if isinstance(argument, PathResult)
        else [f"result is {shorten_repr(argument)}; pass the result of a model with process noise"],
    )
    problem = result.owner("kalman").posed
    experiment_names = [c.name for c in problem.conditions]
    experiment_name = experiment_names[0] if experiment is None else experiment
    raise_if_mistakes(
        "kalman",
        []
        if experiment_name in experiment_names
        else [f"unknown experiment '{experiment_name}': {suggest(str(experiment_name), experiment_names)}"],
    )
    likelihood = PathLikelihood(*marginal(problem), result.longest)
    chain_likelihood = likelihood.chains[experiment_names.index(experiment_name)]
    theta, sigma = likelihood.split_variables(result.y)
    with np.errstate(all="ignore"):
        predicted, filtered, slopes, log_l = _forwards(
            chain_likelihood, theta[chain_likelihood.chain.condition.theta], sigma
        )
    smoothed = [filtered[-1]]
    for k in range(len(slopes) - 1, -1, -1):
        (m, cov), (predicted_mean, predicted_cov) = filtered[k], predicted[k + 1]
        gain = (
            np.linalg.lstsq(predicted_cov, slopes[k] @ cov, rcond=1e-12)[0].T
            if np.isfinite(predicted_cov).all()
            else 0.0 * cov
        )
        next_smoothed = smoothed[-1]
        smoothed.append(
            (m + gain @ (next_smoothed[0] - predicted_mean), cov + gain @ (next_smoothed[1] - predicted_cov) @ gain.T)
        )
    filtered_moments, smoothed_moments = (
        tuple(np.array(part) for part in zip(*pairs, strict=True)) for pairs in (filtered, smoothed[::-1])
    )
    return KalmanResult(
        experiment_name, problem.model.states, chain_likelihood.chain.times, filtered_moments[0],
        filtered_moments[1], smoothed_moments[0], smoothed_moments[1], log_l, result.confidence_level,
    )  # fmt: skip


Density = tuple["Array", "Array"]


def _forwards(
    chain_likelihood: ChainLikelihood, q: Array, sigma: Array
) -> tuple[list[Density], list[Density], list[Array], float]:
    """Run the filter.

    Return the predicted and the updated density of each node, the derivatives of stages, and log L.
    """
    chain, evaluation = chain_likelihood.chain, chain_likelihood.build_constant_point(q, sigma)
    K, n, _ = chain.shape
    m, cov, log_l = evaluation.natural.a.copy(), chain_likelihood.S @ chain_likelihood.S.T, 0.0
    rows_of = rows_by_node(chain.node, K)
    predicted: list[Density] = []
    filtered: list[Density] = []
    slopes: list[Array] = []
    for k in range(K + 1):
        predicted.append((m, cov))
        for row in rows_of[k].tolist():
            for j, value in enumerate(chain.values[row].tolist()):
                expected, deviation, slope = chain.seen_at(evaluation, row, j, m, evaluation.z[k])
                if np.isfinite(deviation):
                    cov_slope = cov @ slope
                    variance = float(slope @ cov_slope) + deviation**2
                    log_l -= 0.5 * (np.log(2.0 * np.pi * variance) + (value - expected) ** 2 / variance)
                    m = m + cov_slope * ((value - expected) / variance)
                    cov = cov - np.outer(cov_slope, cov_slope) / variance
        filtered.append((m, cov))
        if k < K:
            m, F = chain.stage_at(evaluation, k, m, evaluation.z[k])
            slopes.append(F[:, :n])
            cov = F[:, :n] @ cov @ F[:, :n].T + F[:, n:] @ F[:, n:].T
    return predicted, filtered, slopes, float(log_l)
