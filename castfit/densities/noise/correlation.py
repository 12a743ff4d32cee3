"""Correlated errors of normal data: their specification, and the whitening of normalised residuals.

Let  e = (prediction - value) / sigma  be the normalised errors of one experiment, P their covariance,  P = L L^T.  Then

    W e,  W = L^-1        are independent, of variance 1,        -log p = 1/2 |W e|^2 + 1/2 log |P| + ...

(generalised least squares: Aitken 1935).  With values in the order of time W is lower triangular: entry i of W e is
the innovation of value i, given the values before it.  For the Ornstein-Uhlenbeck process,
P_ij = exp(-|t_i - t_j| / tau),  it is  (e_i - phi_i e_{i-1}) / sqrt(1 - phi_i^2),  phi_i = exp(-(t_i - t_{i-1}) / tau).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, ClassVar

import numpy as np
import scipy

from castfit._support.arguments import read_real, read_reals, shorten_repr
from castfit._support.arrays import Array, Mask
from castfit._support.records import dataclass
from castfit._support.reprs import add_brief_repr
from castfit.densities.noise.unknown import UnknownSigma

# The name of unknown standard deviations whose covariance is unknown as well.
JOINT = "joint"


@add_brief_repr
@dataclass(frozen=True)
class Correlated:
    """Autocorrelated errors; create it with `correlated`."""

    sigma: Any = None
    time: Any = None


@add_brief_repr
@dataclass(frozen=True, eq=False)
class ErrorCovariance:
    """The covariance of errors; create it with `covariance`."""

    matrix: Any


def correlated(sigma: Any = None, *, time: Any) -> Correlated:
    """Declare measurement errors that are autocorrelated in time: an Ornstein-Uhlenbeck process.

    Errors at times s and t have the correlation ``exp(-abs(t - s) / time)``; for data at equal distances, this is an
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
class TimeCorrelation:
    """Autocorrelated errors of one output; `time` is None if it is unknown and not yet estimated."""

    label: str
    time: float | None

    @property
    def numbers(self) -> bool:
        """Whether nothing of it is unknown."""
        return self.time is not None

    @property
    def identity(self) -> str:
        """Text that identifies the correlation in fingerprints; files hold its hash."""
        return self.label or f"InTime(label='', time={self.time!r})"


@dataclass(frozen=True, eq=False)
class OutputCorrelation:
    """Errors of one output with a given correlation matrix P (n, n), of values at times (n,)."""

    P: Array
    times: Array
    numbers: ClassVar[bool] = True

    @property
    def identity(self) -> str:
        """Text that identifies the correlation in fingerprints; files hold its hash."""
        return f"Within({self.P.tolist()}, {self.times.tolist()})"


@dataclass(frozen=True, eq=False)
class CrossOutputCorrelation:
    """Errors of the outputs `names` at a time, of correlation P; None where it is unknown and not estimated yet."""

    names: tuple[str, ...]
    P: Array | None
    unknown: bool = False

    @property
    def numbers(self) -> bool:
        """Whether nothing of it is unknown."""
        return self.P is not None

    @property
    def identity(self) -> str:
        """Text that identifies the correlation in fingerprints, without estimated numbers; files hold its hash."""
        return f"Across({self.names}, {None if self.unknown or self.P is None else self.P.tolist()})"


Correlation = TimeCorrelation | OutputCorrelation | CrossOutputCorrelation


def time_mistakes(label: str, time: Any) -> list[str]:
    """Check a time constant and return the error messages."""
    if isinstance(time, UnknownSigma):
        setting_mistakes = (
            []
            if time.is_unspecified
            else [f"{label}: the time of correlated() is unknown(); it takes a name and nothing else"]
        )
        return [*time.mistakes(label), *setting_mistakes]
    number = read_real(time)
    if number is not None and 0.0 < number < np.inf:
        return []
    return [f"{label}: the time of correlated() is {shorten_repr(time)}; give a positive number, or unknown()"]


def read_covariance(label: str, matrix: Any, mistakes: list[str]) -> Array | None:
    """Read a covariance matrix, which is symmetric and positive definite."""
    C = read_reals(matrix)
    if C is None or C.ndim != 2 or C.shape[0] != C.shape[1] or not (C.size and np.isfinite(C).all()):
        mistakes.append(f"{label} is {shorten_repr(matrix)}; give a square matrix of finite numbers")
        return None
    deviation = np.sqrt(np.abs(np.diag(C)))
    bad_rows = np.flatnonzero(np.diag(C) <= 0.0)
    if bad_rows.size:
        mistakes.append(
            f"{label} has the variance {C[bad_rows[0], bad_rows[0]]:g} in row {bad_rows[0] + 1}; variances are positive"
        )
        return None
    P = C / np.outer(deviation, deviation)
    if not np.allclose(P, P.T, rtol=0.0, atol=1e-10):
        i, j = np.unravel_index(int(np.argmax(np.abs(P - P.T))), P.shape)
        mistakes.append(
            f"{label} is not symmetric: {C[i, j]:g} in row {i + 1}, column {j + 1}, {C[j, i]:g} in row {j + 1}, column "
            f"{i + 1}; give the mean of the matrix and its transpose if that is rounding"
        )
        return None
    min_eigenvalue = float(np.linalg.eigvalsh(P)[0])
    if min_eigenvalue <= 1e-12:
        mistakes.append(
            f"{label} is not positive definite: the least eigenvalue of its correlations is {min_eigenvalue:.2g}; some "
            "combination of errors would have no variance; add the variance that every single value has of its own"
        )
        return None
    return 0.5 * (C + C.T)


@dataclass(frozen=True, eq=False)
class WhiteningMatrix:
    """Whitening matrix W (n, n) of the errors of one experiment, sparse, over its values by time and output.

    log_det : log |P|
    """

    W: Any
    log_det: float

    def coloured(self, independent: Array) -> Array:
        """Return W^-1 times independent errors (n,): errors that depend on each other."""
        solve: Any = scipy.sparse.linalg.spsolve
        return np.asarray(solve(self.W.tocsc(), independent))


def whitening_matrix(
    times: Array, mask: Mask, outputs: Sequence[str], correlations: Sequence[Correlation | None]
) -> WhiteningMatrix | None:
    """Return W for the values selected by mask (n_points, n_outputs), or None if all errors are independent."""
    positions = np.cumsum(mask).reshape(mask.shape) - 1
    n = int(mask.sum())
    entries: list[tuple[Any, Any, Any]] = []
    has_entries = np.zeros(n, dtype=np.bool_)
    log_det = 0.0
    processed_names: set[tuple[str, ...]] = set()
    for j, correlation in enumerate(correlations):
        time_indices = np.flatnonzero(mask[:, j])
        if correlation is None or not time_indices.size:
            continue
        p = positions[time_indices, j]
        if isinstance(correlation, TimeCorrelation):
            if correlation.time is None:
                continue
            phi = np.exp(-np.diff(times[time_indices]) / correlation.time)
            remaining = -np.expm1(-2.0 * np.diff(times[time_indices]) / correlation.time)
            entries += [(p, p, np.append(1.0, 1.0 / np.sqrt(remaining))), (p[1:], p[:-1], -phi / np.sqrt(remaining))]
            log_det += float(np.sum(np.log(remaining)))
        elif isinstance(correlation, OutputCorrelation):
            k = np.searchsorted(correlation.times, times[time_indices])
            inverse, block_log_det = _inverse_root(correlation.P[np.ix_(k, k)])
            entries.append((np.repeat(p, p.size), np.tile(p, p.size), inverse.ravel()))
            log_det += block_log_det
        else:
            P, names = correlation.P, correlation.names
            if P is None or names in processed_names:
                has_entries[p] |= P is not None
                continue
            processed_names.add(names)
            output_indices = [
                k
                for k, candidate in enumerate(correlations)
                if isinstance(candidate, CrossOutputCorrelation) and candidate.names == names
            ]
            order = [names.index(outputs[k]) for k in output_indices]
            patterns, pattern_indices = np.unique(mask[:, output_indices], axis=0, return_inverse=True)
            for i, pattern in enumerate(patterns):
                rows = np.flatnonzero(pattern_indices.ravel() == i)
                matrix_indices = np.array(order, dtype=np.intp)[pattern]
                if not matrix_indices.size:
                    continue
                inverse, block_log_det = _inverse_root(P[np.ix_(matrix_indices, matrix_indices)])
                q = positions[np.ix_(rows, np.array(output_indices, dtype=np.intp)[pattern])]
                m = matrix_indices.size
                entries.append(
                    (np.repeat(q, m, axis=1).ravel(), np.tile(q, (1, m)).ravel(), np.tile(inverse.ravel(), rows.size))
                )
                log_det += block_log_det * rows.size
        has_entries[p] = True
    if not entries:
        return None
    remaining = np.flatnonzero(~has_entries)
    entries.append((remaining, remaining, np.ones(remaining.size)))
    row, column, value = (np.concatenate([e[k] for e in entries]) for k in range(3))
    return WhiteningMatrix(_sparse(value, row, column, n), log_det)


def _sparse(value: Any, row: Any, column: Any, n: int) -> Any:
    csr_array: Any = scipy.sparse.csr_array
    return csr_array((value, (row, column)), shape=(n, n))


def embed_rows(W: Any, mask: Mask) -> Any:
    """Return W (n, n) as a matrix over all rows (m,) of which values stand where `mask` is True; 1 elsewhere."""
    indices, other_indices = np.flatnonzero(mask), np.flatnonzero(~mask)
    coo = W.tocoo()
    row, column = np.concatenate([indices[coo.row], other_indices]), np.concatenate([indices[coo.col], other_indices])
    entries = np.concatenate([coo.data, np.ones(other_indices.size)])
    return _sparse(entries, row, column, mask.size)


def _inverse_root(P: Array) -> tuple[Array, float]:
    """Return L^-1 and log |P| of P = L L^T."""
    L = np.linalg.cholesky(P)
    inverse = scipy.linalg.solve_triangular(L, np.eye(len(P)), lower=True)
    return inverse, 2.0 * float(np.sum(np.log(np.diag(L))))


def with_numbers(correlation: Correlation | None, estimates: CorrelationEstimates) -> Correlation | None:
    """Return a correlation with its unknown entries replaced by estimates."""
    if isinstance(correlation, TimeCorrelation) and correlation.label in estimates.times:
        return replace(correlation, time=estimates.times[correlation.label])
    if isinstance(correlation, CrossOutputCorrelation) and correlation.unknown and estimates.joint:
        indices = [estimates.joint.index(name) for name in correlation.names]
        S = np.array(estimates.covariance)[np.ix_(indices, indices)]
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
