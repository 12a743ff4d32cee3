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

from castfit._support.arguments import text
from castfit._support.reprs import one_line
from castfit._support.status import check, suggest
from castfit.result.path_result import PathBand, PathResult
from castfit.transcribe.path_likelihood import PathLikelihood, marginal, rows_by_node

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.transcribe.path_likelihood import ChainLikelihood


@dataclass(frozen=True, eq=False)
class KalmanResult:
    """Result of filter and smoother: means (N, n) and covariances (N, n, n) of the states at nodes `times` (N,).

    log_likelihood : of the data, by the errors of prediction

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
        check("kalman", [] if state in self.states else [f"'{state}' is no state: {suggest(state, self.states)}"])
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
    given: Any = result
    check("kalman", [] if isinstance(given, PathResult) else [f"result is {text(given)}; pass the result of a model with process noise"])
    problem = result.owner("kalman").posed
    known = [c.name for c in problem.conditions]
    where = known[0] if experiment is None else experiment
    check("kalman", [] if where in known else [f"'{where}' is no experiment: {suggest(str(where), known)}"])
    likelihood = PathLikelihood(*marginal(problem), result.longest)
    each = likelihood.chains[known.index(where)]
    theta, sigma = likelihood.split(result.y)
    with np.errstate(all="ignore"):
        predicted, filtered, slopes, log_l = _forwards(each, theta[each.chain.condition.theta], sigma)
    smoothed = [filtered[-1]]
    for k in range(len(slopes) - 1, -1, -1):
        (m, cov), (ahead, spread) = filtered[k], predicted[k + 1]
        gain = np.linalg.lstsq(spread, slopes[k] @ cov, rcond=1e-12)[0].T if np.isfinite(spread).all() else 0.0 * cov
        later = smoothed[-1]
        smoothed.append((m + gain @ (later[0] - ahead), cov + gain @ (later[1] - spread) @ gain.T))
    before, after = (tuple(np.array(part) for part in zip(*pairs, strict=True)) for pairs in (filtered, smoothed[::-1]))
    return KalmanResult(
        where, problem.model.states, each.chain.times, before[0], before[1], after[0], after[1], log_l,
        result.confidence_level,
    )  # fmt: skip


Density = tuple["Array", "Array"]


def _forwards(each: ChainLikelihood, q: Array, sigma: Array) -> tuple[list[Density], list[Density], list[Array], float]:
    """Run the filter.

    Return the predicted and the updated density of each node, the derivatives of stages, and log L.
    """
    chain, at = each.chain, each.still(q, sigma)
    K, n, _ = chain.shape
    m, cov, log_l = at.natural.a.copy(), each.S @ each.S.T, 0.0
    rows_of = rows_by_node(chain.node, K)
    predicted: list[Density] = []
    filtered: list[Density] = []
    slopes: list[Array] = []
    for k in range(K + 1):
        predicted.append((m, cov))
        for row in rows_of[k].tolist():
            for j, value in enumerate(chain.values[row].tolist()):
                expected, deviation, slope = chain.seen_at(at, row, j, m, at.z[k])
                if np.isfinite(deviation):
                    along = cov @ slope
                    variance = float(slope @ along) + deviation**2
                    log_l -= 0.5 * (np.log(2.0 * np.pi * variance) + (value - expected) ** 2 / variance)
                    m = m + along * ((value - expected) / variance)
                    cov = cov - np.outer(along, along) / variance
        filtered.append((m, cov))
        if k < K:
            m, F = chain.stage_at(at, k, m, at.z[k])
            slopes.append(F[:, :n])
            cov = F[:, :n] @ cov @ F[:, :n].T + F[:, n:] @ F[:, n:].T
    return predicted, filtered, slopes, float(log_l)
