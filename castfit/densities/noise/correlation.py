"""Errors of normal data that depend on each other, as users say so, and what that does to normalised residuals.

Let  e = (prediction - value) / sigma  be the normalised errors of one experiment, P their covariance,  P = L L^T.  Then

    W e,  W = L^-1        are independent, of variance 1,        -log p = 1/2 |W e|^2 + 1/2 log |P| + ...

(generalised least squares: Aitken 1935).  With values in the order of time W is lower triangular: entry i of W e is
what is new in value i, given those before it.  Of the Ornstein-Uhlenbeck process  P_ij = exp(-|t_i - t_j| / tau)  it is
the innovation  (e_i - phi_i e_{i-1}) / sqrt(1 - phi_i^2),  phi_i = exp(-(t_i - t_{i-1}) / tau).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import scipy

from castfit._support.arguments import real, reals, text
from castfit._support.records import dataclass
from castfit._support.reprs import brief
from castfit.densities.noise.unknown import Unknown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from castfit._support.arrays import Array, Mask

JOINT = "joint"
"""The name of unknown standard deviations whose covariance is unknown as well."""


@brief
@dataclass(frozen=True)
class Correlated:
    """Errors that are alike in time; create it with `correlated`."""

    sigma: Any = None
    time: Any = None


@brief
@dataclass(frozen=True, eq=False)
class ErrorCovariance:
    """The covariance of errors; create it with `covariance`."""

    matrix: Any


def correlated(sigma: Any = None, *, time: Any) -> Correlated:
    """Declare measurement errors that are autocorrelated in time: an Ornstein-Uhlenbeck process.

    Errors at times s and t have the correlation ``exp(-abs(t - s) / time)``; of data at equal distances that is an
    autoregressive process, AR(1).  Give it as `sigma` of an `Experiment`, for all outputs or per output, each of which
    has errors of its own.

    Parameters
    ----------
    sigma : float, sequence, `relative` or `unknown`, optional
        Standard deviation of the errors, as elsewhere; by default unknown.
    time : float or `unknown`
        Time constant, in the model's unit of time.  Unknown ones are estimated by the likelihood, one for each output,
        or for all that share a name.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k = cf.symbols("x k")
    >>> model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    >>> data = [1.7, 1.34, 1.07, 0.82, 0.69, 0.56, 0.41, 0.27, 0.22, 0.2]
    >>> sigma = cf.correlated(0.1, time=1.0)
    >>> experiment = cf.Experiment({"x": data}, time=[0.4 * i for i in range(1, 11)], sigma=sigma)
    >>> cf.fit(cf.Problem(model, experiment, parameters={"k": 1.0}))["k"]
    k = 0.5505 ± 0.055, 95 % interval [0.4419, 0.6590] (well determined)
    """
    return Correlated(sigma, time)


def covariance(matrix: Any) -> ErrorCovariance:
    """Specify the covariance matrix of measurement errors, for use as `sigma` of an `Experiment`.

    Parameters
    ----------
    matrix : (n, n) array
        Symmetric, positive definite.  For one output: of its n values in the order of time, none at equal times.  For
        all outputs together: of the errors of the n outputs at a time, in the order of the data, the same at all times.

    Examples
    --------
    >>> import castfit as cf
    >>> cf.Experiment({"x": [2.1, 1.2]}, time=[0, 1], sigma={"x": cf.covariance([[0.04, 0.01], [0.01, 0.04]])})
    Experiment(2 values of x, times 0 to 1)
    """
    return ErrorCovariance(matrix)


@dataclass(frozen=True)
class InTime:
    """Errors of one output that are alike in time; `time` is None where it is unknown and not estimated yet."""

    label: str
    time: float | None

    @property
    def numbers(self) -> bool:
        """Whether nothing of it is unknown."""
        return self.time is not None


@dataclass(frozen=True, eq=False)
class Within:
    """Errors of one output with a given correlation matrix P (n, n), of values at times (n,)."""

    P: Array
    times: Array
    numbers: ClassVar[bool] = True

    def __repr__(self) -> str:
        return f"Within({self.P.tolist()}, {self.times.tolist()})"


@dataclass(frozen=True, eq=False)
class Across:
    """Errors of the outputs `names` at a time, of correlation P; None where it is unknown and not estimated yet."""

    names: tuple[str, ...]
    P: Array | None
    unknown: bool = False

    @property
    def numbers(self) -> bool:
        """Whether nothing of it is unknown."""
        return self.P is not None

    def __repr__(self) -> str:
        return f"Across({self.names}, {None if self.unknown or self.P is None else self.P.tolist()})"


Correlation = InTime | Within | Across


def time_mistakes(what: str, time: Any) -> list[str]:
    """Check a time constant and return the error messages."""
    if isinstance(time, Unknown):
        more = (
            [] if time.plain else [f"{what}: the time of correlated() is unknown(); it takes a name and nothing else"]
        )
        return [*time.mistakes(what), *more]
    number = real(time)
    if number is not None and 0.0 < number < np.inf:
        return []
    return [f"{what}: the time of correlated() is {text(time)}; give a positive number, or unknown()"]


def matrix_of(what: str, given: Any, mistakes: list[str]) -> Array | None:
    """Read a covariance matrix, which is symmetric and positive definite."""
    C = reals(given)
    if C is None or C.ndim != 2 or C.shape[0] != C.shape[1] or not np.isfinite(C).all():
        mistakes.append(f"{what} is {text(given)}; give a square matrix of finite numbers")
        return None
    deviation = np.sqrt(np.abs(np.diag(C)))
    bad = np.flatnonzero(np.diag(C) <= 0.0)
    if bad.size:
        mistakes.append(f"{what} has the variance {C[bad[0], bad[0]]:g} in row {bad[0] + 1}; variances are positive")
        return None
    P = C / np.outer(deviation, deviation)
    if not np.allclose(P, P.T, rtol=0.0, atol=1e-10):
        i, j = np.unravel_index(int(np.argmax(np.abs(P - P.T))), P.shape)
        mistakes.append(
            f"{what} is not symmetric: {C[i, j]:g} in row {i + 1}, column {j + 1}, {C[j, i]:g} in row {j + 1}, column "
            f"{i + 1}; give the mean of the matrix and its transpose if that is rounding"
        )
        return None
    least = float(np.linalg.eigvalsh(P)[0])
    if least <= 1e-12:
        mistakes.append(
            f"{what} is not positive definite: the least eigenvalue of its correlations is {least:.2g}; some "
            "combination of errors would have no variance; add the variance that every single value has of its own"
        )
        return None
    return 0.5 * (C + C.T)


@dataclass(frozen=True, eq=False)
class WhitenedErrors:
    """Whitening matrix W (n, n) of the errors of one experiment, sparse, over its values by time and output.

    log_det : log |P|
    """

    W: Any
    log_det: float

    def coloured(self, independent: Array) -> Array:
        """Return W^-1 times independent errors (n,): errors that depend on each other."""
        solve: Any = scipy.sparse.linalg.spsolve
        return np.asarray(solve(self.W.tocsc(), independent))


def whitening(
    times: Array, mask: Mask, outputs: Sequence[str], of: Sequence[Correlation | None]
) -> WhitenedErrors | None:
    """Return W for values where mask (n_points, n_outputs) says so; None where all errors are independent."""
    place = np.cumsum(mask).reshape(mask.shape) - 1
    n = int(mask.sum())
    entries: list[tuple[Any, Any, Any]] = []
    own = np.zeros(n, dtype=np.bool_)
    log_det = 0.0
    done: set[tuple[str, ...]] = set()
    for j, correlation in enumerate(of):
        at = np.flatnonzero(mask[:, j])
        if correlation is None or not at.size:
            continue
        p = place[at, j]
        if isinstance(correlation, InTime):
            if correlation.time is None:
                continue
            phi = np.exp(-np.diff(times[at]) / correlation.time)
            rest = -np.expm1(-2.0 * np.diff(times[at]) / correlation.time)
            entries += [(p, p, np.append(1.0, 1.0 / np.sqrt(rest))), (p[1:], p[:-1], -phi / np.sqrt(rest))]
            log_det += float(np.sum(np.log(rest)))
        elif isinstance(correlation, Within):
            k = np.searchsorted(correlation.times, times[at])
            inverse, part = _inverse_root(correlation.P[np.ix_(k, k)])
            entries.append((np.repeat(p, p.size), np.tile(p, p.size), inverse.ravel()))
            log_det += part
        else:
            P, names = correlation.P, correlation.names
            if P is None or names in done:
                own[p] |= P is not None
                continue
            done.add(names)
            here = [k for k, one in enumerate(of) if isinstance(one, Across) and one.names == names]
            order = [names.index(outputs[k]) for k in here]
            patterns, which = np.unique(mask[:, here], axis=0, return_inverse=True)
            for i, pattern in enumerate(patterns):
                rows = np.flatnonzero(which.ravel() == i)
                kept = np.array(order, dtype=np.intp)[pattern]
                if not kept.size:
                    continue
                inverse, part = _inverse_root(P[np.ix_(kept, kept)])
                q = place[np.ix_(rows, np.array(here, dtype=np.intp)[pattern])]
                m = kept.size
                entries.append(
                    (np.repeat(q, m, axis=1).ravel(), np.tile(q, (1, m)).ravel(), np.tile(inverse.ravel(), rows.size))
                )
                log_det += part * rows.size
        own[p] = True
    if not entries:
        return None
    rest = np.flatnonzero(~own)
    entries.append((rest, rest, np.ones(rest.size)))
    row, column, value = (np.concatenate([e[k] for e in entries]) for k in range(3))
    return WhitenedErrors(_sparse(value, row, column, n), log_det)


def _sparse(value: Any, row: Any, column: Any, n: int) -> Any:
    made: Any = scipy.sparse.csr_array
    return made((value, (row, column)), shape=(n, n))


def placed(W: Any, here: Mask) -> Any:
    """Return W (n, n) as a matrix over all rows (m,) of which values stand where `here` is True; 1 elsewhere."""
    at, rest = np.flatnonzero(here), np.flatnonzero(~here)
    found = W.tocoo()
    row, column = np.concatenate([at[found.row], rest]), np.concatenate([at[found.col], rest])
    entries = np.concatenate([found.data, np.ones(rest.size)])
    return _sparse(entries, row, column, here.size)


def _inverse_root(P: Array) -> tuple[Array, float]:
    """Return L^-1 and log |P| of P = L L^T."""
    L = np.linalg.cholesky(P)
    inverse = scipy.linalg.solve_triangular(L, np.eye(len(P)), lower=True)
    return inverse, 2.0 * float(np.sum(np.log(np.diag(L))))


def known(correlation: Correlation | None, found: CorrelationEstimates) -> Correlation | None:
    """Return a correlation with its unknown entries replaced by estimates."""
    if isinstance(correlation, InTime) and correlation.label in found.times:
        return replace(correlation, time=found.times[correlation.label])
    if isinstance(correlation, Across) and correlation.unknown and found.joint:
        at = [found.joint.index(name) for name in correlation.names]
        S = np.array(found.covariance)[np.ix_(at, at)]
        deviation = np.sqrt(np.diag(S))
        return replace(correlation, P=S / np.outer(deviation, deviation))
    return correlation


@dataclass(frozen=True)
class CorrelationEstimates:
    """Estimates of the dependence between measurement errors.

    times : time constants by name of the output, or of what was given to `unknown`
    joint, covariance : names of outputs, and the covariance (n, n) of their errors
    errors : standard errors of the logarithms of the time constants; infinite where the likelihood is flat
    sigma : of all data, where it was chosen with the smoothness of inputs
    """

    times: Mapping[str, float]
    joint: tuple[str, ...] = ()
    covariance: tuple[tuple[float, ...], ...] = ()
    errors: Mapping[str, float] = field(default_factory=dict[str, float])
    sigma: float | None = None

    def deviation(self, name: str) -> float:
        """Return the standard deviation of the errors of an output."""
        j = self.joint.index(name)
        return float(np.sqrt(self.covariance[j][j]))
