"""The confidence region of a fit in the linear approximation: an ellipsoid, its axes, and the boxes about it.

Notation
--------
theta  (n,)     estimates in search scale; M (n, n) Fisher's information on them, for noise as it is estimated
R      (n, n)   C = R R^T, the covariance of what the data determine, in r directions;  N (k, n) those left open
m      (n,)     magnitudes: |p| of a quantity whose sign is known, so that  u = d p / m  is a change of log |p|
rho             radius:  sqrt(r F(r, dof)),  or sqrt(chi2(r)) where standard deviations are known

    region            u^T C_u^-1 u <= rho^2,  without end along N             [Hemker1972, Eq. 3.18]
    axes              rho s_i v_i  of the singular value decomposition  R_u = V S W^T
    dependent limits  rho / sqrt(M_jj): all other quantities known            [Hemker1972, Eq. 3.19]
    independent       rho sqrt(C_jj): the box about the region                [Hemker1972, Eq. 3.20]
    marginal          t sqrt(C_jj): the interval of one quantity by itself

Along N the region is a cylinder; the other axes are the axes of its cross section.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy

from castfit._support.arguments import read_mapping, read_real, shorten_repr
from castfit._support.public_names import public
from castfit._support.renamed import with_old_names
from castfit._support.reprs import add_brief_repr
from castfit._support.status import raise_if_mistakes, suggest, unknown_names
from castfit._support.text_tables import TextTable, format_interval, format_to_error
from castfit._support.ties import first_argmax, stable_order
from castfit.result.covariance import quantile
from castfit.result.identifiability import POOR_INTERVAL_FRACTION, REPORTED_CORRELATION
from castfit.result.parameter_combinations import format_combination, mixture, rounded_direction, three_digits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit._support.arrays import Array, Mask
    from castfit.result.result import Result


KINDS = ("marginal", "independent", "dependent")
_MIN_REPORTED_GAIN = 10.0  # Factor by which knowing the other quantities must shrink a standard error to be reported.
_SIGN_TEST_SE = 5.0  # Distance from zero, in standard errors, from which on the sign of a quantity is known.
_LISTED_CORRELATION = 0.9  # Smallest absolute correlation that is listed.
_ENDS = (4, 5)  # how many of many axes are printed, best and worst
_ZERO_TOLERANCE = 1e-10  # Relative size below which weights, changes and singular values count as zero.


@public("castfit")
@add_brief_repr
@dataclass(frozen=True, eq=False, repr=False)
class Axis:
    """A principal axis of the confidence region.

    Attributes
    ----------
    weights : dict
        By name, its direction: relative changes of the quantities (see `ConfidenceRegion.magnitudes`), of length 1.
    standard_error : float
        Along it; inf where the data leave it open.
    length : float
        From the centre to the end of the ellipsoid, in the same relative changes.
    combination : str
        What is known so well, or so badly: a product of powers where signs allow it, such as ``k1*k2``, else a sum.
    known_to : float
        Half-width of the interval of that combination by itself; relative for a product, else in the unit of the sum's
        first term.
    sentence : str
        Such as ``k1*k2 is known to 1 %``.
    form : dict
        By name, the weights of relative changes in what is written; its change is `unit` times their sum.
    unit : float
    relative : bool
        Whether `known_to` is relative.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> result = cf.fit(problem)
    >>> print(result.confidence_region().axes[0])
    k1/k2**0.1 is known to 5.7 %
    """

    weights: dict[str, float]
    standard_error: float
    length: float
    combination: str
    known_to: float
    sentence: str
    form: dict[str, float]
    unit: float
    relative: bool

    def __str__(self) -> str:
        return self.sentence


@with_old_names(level="confidence_level")
@public("castfit")
@add_brief_repr
@dataclass(frozen=True, eq=False, repr=False)
class ConfidenceRegion:
    """The ellipsoid in which the estimated quantities lie together; ``result.confidence_region()`` makes it.

    All of it is the linear approximation at the estimate.  n is the number of estimated quantities.

    Attributes
    ----------
    names : tuple of str
    values : (n,) array
        Estimates, natural scale.
    log : (n,) bool array
        Which of them were searched for as logarithms: their half-widths are those of the logarithms.
    confidence_level : float
        Confidence level.
    dof : float
        Degrees of freedom of the noise; inf where standard deviations are known.
    rank : int
        Number of directions that the data determine.
    radius : float
        rho, in standard errors: sqrt(rank F(rank, dof)), or sqrt(chi2(rank)) where standard deviations are known.
    factor : float
        Half-width of the interval of a single quantity in standard errors: Student's t, or normal.
    standard_errors, marginal, independent, dependent : (n,) arrays
        Search scale.  Half-widths of the intervals of one quantity by itself; of the box about the ellipsoid, all
        quantities together; and of the ellipsoid's section along one quantity, all others at their estimates (Hemker's
        independent and dependent limits).  Both have the radius rho: of one quantity with the others known an interval
        would be  factor / radius  of the section.  NaN at a bound, inf where the data leave it open.
    magnitudes : (n,) array
        To what changes along axes are relative: the size of the estimate, or its uncertainty where its sign is not
        known.
    logarithmic : (n,) bool array
        Whose sign is known, so that axes are products of powers in it.
    axes : tuple of Axis
        The best known combination first; those without an end last.
    correlation : (n, n) array
        NaN in rows of quantities at a bound, or not identifiable.
    freed : dict
        Of each quantity at its bound, the quantity that it would be correlated with most if the bound were not there,
        and that correlation.
    unbounded : (n, n) array
        What the correlation would be if no bound held anything, by Fisher's information; NaN where that is singular.
    root : (n, n) array
        root @ root.T is the covariance of relative changes in what is determined.
    undetermined : (k, n) array
        Relative changes that are not.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> result = cf.fit(problem)
    >>> region = result.confidence_region()
    >>> print(region)
    95 % confidence region (linear): 2 directions, radius 2.79 standard errors
            value  std. error  95 %, by itself         all together            others fixed at their estimates
    ----------------------------------------------------------------------------------------------------------
    k1  4.577e-06     1.6e-07  [4.235e-06, 4.919e-06]  [4.139e-06, 5.015e-06]  [4.247e-06, 4.907e-06]
    k2  0.0002796     5.5e-05  [0.0001606, 0.0003987]  [0.0001273, 0.0004319]  [0.0001647, 0.0003945]
    <BLANKLINE>
    combination  known to  half-axis  direction (relative changes)
    --------------------------------------------------------------
    k1/k2**0.1      5.7 %     0.0717  +0.99 k1 -0.12 k2
    k2               43 %      0.548  +0.99 k2 +0.12 k1
    """

    names: tuple[str, ...]
    values: Array
    log: Mask
    confidence_level: float
    dof: float
    rank: int
    radius: float
    factor: float
    standard_errors: Array
    marginal: Array
    independent: Array
    dependent: Array
    magnitudes: Array
    logarithmic: Mask
    axes: tuple[Axis, ...]
    correlation: Array
    freed: Mapping[str, tuple[str, float]]
    unbounded: Array
    root: Array
    undetermined: Array

    def intervals(self, kind: str = "independent") -> dict[str, tuple[float, float]]:
        """Return an interval for each quantity, natural scale.

        Parameters
        ----------
        kind : {"independent", "dependent", "marginal"}
            The box about the ellipsoid, all quantities together; its section, the others at their estimates; or one
            quantity by itself, as in ``result.confidence_intervals()``.
        """
        raise_if_mistakes("intervals", unknown_names("kind is '{}'", [kind], KINDS))
        half_widths: Array = getattr(self, kind)
        with np.errstate(over="ignore", invalid="ignore"):
            low: Array = np.where(self.log, self.values * np.exp(-half_widths), self.values - half_widths)
            high: Array = np.where(self.log, self.values * np.exp(half_widths), self.values + half_widths)
        return {name: (float(low[j]), float(high[j])) for j, name in enumerate(self.names)}

    def contains(self, values: Mapping[str, float]) -> bool:
        """Check whether natural values of all quantities lie jointly in the ellipsoid.

        Directions that the data leave open do not count, quantities at a bound must be there.
        """
        mistakes: list[str] = []
        numbers = {n: read_real(v) for n, v in read_mapping("values", values, mistakes).items()}
        mistakes += unknown_names("unknown quantity '{}'", numbers, self.names)
        mistakes += [f"'{n}' is {shorten_repr(values[n])}; expected a number" for n, v in numbers.items() if v is None]
        mistakes += [f"'{n}' is missing; pass values of all quantities" for n in self.names if n not in numbers]
        raise_if_mistakes("contains", mistakes)
        point = np.array([numbers[n] for n in self.names], dtype=float)
        with np.errstate(divide="ignore", invalid="ignore"):
            changes = (
                np.where(self.log, self.values * np.log(point / self.values), point - self.values) / self.magnitudes
            )
        is_at_bound = np.isnan(self.standard_errors)
        if not np.isfinite(changes).all() or (np.abs(changes[is_at_bound]) > _ZERO_TOLERANCE).any():
            return False
        components = [
            (np.array([a.weights.get(n, 0.0) for n in self.names]) @ changes, a.standard_error)
            for a in self.axes
            if np.isfinite(a.standard_error)
        ]
        return bool(sum((component / error) ** 2 for component, error in components) <= self.radius**2)

    def pair(self, first: str, second: str) -> tuple[Axis, Axis]:
        """Return the axes of the marginal ellipse of two quantities: the best and the worst determined direction.

        The lengths of the axes belong to a region of two directions at the region's level.

        Raises
        ------
        InputError
            If one of them has no finite standard error.
        """
        mistakes = [f"unknown quantity '{n}': {suggest(str(n), self.names)}" for n in (first, second)
                    if n not in self.names]  # fmt: skip
        raise_if_mistakes(
            "pair",
            mistakes or ([f"'{first}' was passed twice; pass two different quantities"] if first == second else []),
        )
        indices = np.array([self.names.index(first), self.names.index(second)])
        raise_if_mistakes("pair", [f"'{self.names[j]}' has no standard error" for j in indices.tolist()
                       if not np.isfinite(self.standard_errors[j])])  # fmt: skip
        errors = self.standard_errors[indices] * self.per_theta[indices]
        C = self.correlation[np.ix_(indices, indices)] * np.outer(errors, errors)
        size, V = np.linalg.eigh(C)
        root, is_free = V * np.sqrt(np.maximum(size, 0.0)), np.ones(2, dtype=np.bool_)
        axis_arguments = (self.magnitudes[indices], self.logarithmic[indices], 2, self.radius_of(2), self.factor)
        best, worst = _axes((first, second), root, np.empty((0, 2)), is_free, *axis_arguments)
        return best, worst

    def radius_of(self, rank: int) -> float:
        """Return the radius of a region of fewer directions at the same level, in standard errors."""
        return _radius(self.confidence_level, rank, self.dof)

    @property
    def per_theta(self) -> Array:
        """By how much the relative changes change with theta, (n,)."""
        return np.where(self.log, self.values, 1.0) / self.magnitudes

    @property
    def gains(self) -> Array:
        """Factors by which each error would shrink if all other quantities were known, (n,).

        Inf if it is undetermined.
        """
        with np.errstate(invalid="ignore"):
            return self.independent / self.dependent

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences about the region that supplement its table."""
        if np.isnan(self.root).any():
            return (
                "The confidence region is undefined: no degrees of freedom are left to estimate the noise. Pass sigma.",
            )
        sentences: list[str] = []
        for i, j, value in self._pairs(REPORTED_CORRELATION):
            between = " and ".join(axis.sentence for axis in self.pair(self.names[i], self.names[j]))
            sentences.append(f"{self.names[i]} and {self.names[j]} are correlated {three_digits(value)}: {between}.")
        for name, (other, value) in self.freed.items():
            if abs(value) >= REPORTED_CORRELATION:
                strength = three_digits(value)
                sentences.append(
                    f"{name} is at its bound. Without the bound it would be correlated with {other} ({strength})."
                )
        listed_pairs = {(i, j) for i, j, _ in self._pairs(REPORTED_CORRELATION)}
        for i, j, value in self._pairs(REPORTED_CORRELATION, self.unbounded) if self.freed else ():
            if (i, j) not in listed_pairs and not {self.names[i], self.names[j]} & {*self.freed}:
                pair = f"{self.names[i]} and {self.names[j]}"
                sentences.append(f"Without the bounds, {pair} would be correlated ({three_digits(value)}).")
        sentences += [f"{axis.sentence}." for axis in self.axes if np.isinf(axis.standard_error)]
        gains = np.nan_to_num(np.where(np.isfinite(self.gains), self.gains, 0.0))
        if gains.size > 1 and gains.max(initial=0.0) >= _MIN_REPORTED_GAIN:
            j = first_argmax(gains)
            row = np.nan_to_num(np.where(np.arange(gains.size) == j, 0.0, self.correlation[j]))
            i = first_argmax(np.abs(row))
            error = abs(self.values[j]) * self.standard_errors[j] if self.log[j] else self.standard_errors[j]
            poor = error * quantile(0.95, self.dof) > POOR_INTERVAL_FRACTION * abs(
                self.values[j]
            )  # as the verdicts have it
            flat = poor or abs(row[i]) >= REPORTED_CORRELATION
            valley = "The objective has a flat valley: " if flat else ""
            sentences.append(
                f"{valley}the standard error of {self.names[j]} would be {gains[j]:.2g} times smaller if the other "
                f"quantities were known. The strongest correlation is with {self.names[i]} ({three_digits(row[i])})."
            )
        return tuple(sentences)

    def _pairs(self, min_correlation: float, correlation: Array | None = None) -> list[tuple[int, int, float]]:
        """List pairs of quantities by their correlation, the largest first."""
        rows, columns = np.triu_indices(len(self.names), 1)
        values = np.nan_to_num((self.correlation if correlation is None else correlation)[rows, columns])
        order = stable_order(np.abs(values), descending=True, scale=1.0)
        return [(int(rows[i]), int(columns[i]), float(values[i])) for i in order if abs(values[i]) >= min_correlation]

    @property
    def limits(self) -> TextTable:
        """The table of intervals: name, estimate, standard error, one by itself, all together, others known."""
        level = f"{100 * self.confidence_level:g} %"
        intervals_by_kind = {kind: self.intervals(kind) for kind in KINDS}
        errors = np.where(self.log, np.abs(self.values) * self.standard_errors, self.standard_errors)

        def cells(name: str) -> tuple[str, ...]:
            j = self.names.index(name)
            value, error = float(self.values[j]), float(errors[j])
            error_text = "inf" if np.isinf(error) else "-" if np.isnan(error) else f"{error:.2g}"
            return (
                name,
                format_to_error(value, error),
                error_text,
                *(_interval(intervals_by_kind[kind][name], value) for kind in KINDS),
            )

        headers = (
            "",
            ">value",
            ">std. error",
            f"{level}, by itself",
            "all together",
            "others fixed at their estimates",
        )
        return TextTable(headers, tuple(cells(name) for name in self.names))

    @property
    def combinations(self) -> TextTable:
        """The table of principal axes: the combination, how well it is known, and the axis in the joint region."""
        rows = [(a.combination, _describe_precision(a), _number(a.length), _weights(a)) for a in self.axes]
        return TextTable(("combination", ">known to", ">half-axis", "direction (relative changes)"), tuple(rows))

    def __str__(self) -> str:
        pairs = [
            f"{self.names[i]}, {self.names[j]}: {three_digits(v)}" for i, j, v in self._pairs(_LISTED_CORRELATION)[:10]
        ]
        listed = ["", "correlations: " + "; ".join(pairs)] if pairs else []
        count = f"{self.rank} direction{'' if self.rank == 1 else 's'}"
        level = f"{100 * self.confidence_level:g} %"
        radius_text = f"radius {self.radius:.3g} standard errors" if self.axes else "radius unknown"
        head = f"{level} confidence region (linear): {count}, {radius_text}"
        axes = self.combinations.lines if self.axes else []
        if len(axes) - 2 > _ENDS[0] + _ENDS[1] + 1:
            cut_start, cut_end = 2 + _ENDS[0], len(axes) - _ENDS[1]
            axes = [
                *axes[:cut_start],
                f"... {cut_end - cut_start} more in result.confidence_region().axes",
                *axes[cut_end:],
            ]
        return "\n".join([head, *self.limits.lines, "", *axes, *listed, *self.sentences])


def confidence_region(result: Result, confidence_level: float) -> ConfidenceRegion:
    """Work out the confidence region of a fit that succeeded."""
    names, log, dof = result.names, result.log, np.inf if result.absolute_sigma else result.dof
    values = np.array(list(result.values.values()))
    is_at_bound = np.array([name in result.active for name in names])
    information, root, undetermined = np.asarray(result.information), result.root, result.undetermined
    slope = np.where(log, values, 1.0)
    is_inflated = result.errors is not None and bool(
        result.errors.times
    )  # by time constants of errors, unlike the root
    if values.size and (root.size == 0 or is_inflated):  # Many experiments, or a file of an earlier version.
        root, undetermined = _from_covariance(np.asarray(result.covariance), slope)
    rank = int(np.count_nonzero(~is_at_bound)) - undetermined.shape[0] if result.rank < 0 else result.rank
    radius, factor = _radius(confidence_level, rank, dof), quantile(confidence_level, dof)
    errors = np.sqrt(np.sum(root**2, axis=1))
    errors = np.where(is_at_bound, np.nan, np.where(np.isinf(result.covariance.diagonal()), np.inf, errors))
    with np.errstate(divide="ignore"):
        conditional_errors = 1.0 / np.sqrt(
            np.maximum(information.diagonal(), 0.0)
        )  # errors if all others were known ...
        numerical = np.array([result.numerical_errors[name] for name in names]) / np.abs(slope)
    numerical = np.where(np.isfinite(numerical), numerical, 0.0)  # ... the integration's stay
    conditional_errors = np.fmin(np.hypot(conditional_errors, numerical), np.where(errors > 0.0, errors, np.inf))
    may_change_sign = np.zeros(values.size, dtype=np.bool_)  # whether bounds say that a quantity may have either sign
    if result.bounds.shape[0] == values.size:
        low, high = result.bounds.T
        may_change_sign = np.isfinite(low) & (low < 0.0) & (high > 0.0)
    magnitudes, logarithmic = _magnitudes(values, slope, log, errors, conditional_errors, factor, may_change_sign)
    weight = slope / magnitudes
    is_free = ~is_at_bound & (slope != 0.0)
    root, undetermined = root * weight[:, None], undetermined * weight
    axes: list[Axis] = []
    if not np.isnan(root).any():  # as they are where no degrees of freedom are left to estimate the noise
        axes = _axes(names, root, undetermined, is_free, magnitudes, logarithmic, rank, radius, factor)
    return ConfidenceRegion(
        *(names, values, log, confidence_level, float(dof), rank, radius, factor),
        *(errors, factor * errors, radius * errors, radius * conditional_errors, magnitudes, logarithmic, tuple(axes)),
        correlation=np.asarray(result.correlation),
        freed=_correlations_without_bounds(names, information, is_at_bound),
        unbounded=_unbounded(information),
        root=root,
        undetermined=undetermined,
    )


def _from_covariance(covariance: Array, slope: Array) -> tuple[Array, Array]:
    """Return root and open directions where only the covariance is known: the latter then lie along quantities."""
    is_undetermined = np.isinf(np.diag(covariance))
    scale = np.where(slope != 0.0, slope, 1.0)
    C = np.where(np.isfinite(covariance), covariance, 0.0) / np.outer(scale, scale)
    S, V = np.linalg.eigh(C)
    return V * np.sqrt(np.maximum(S, 0.0)), np.eye(slope.size)[is_undetermined]


def _radius(level: float, rank: int, dof: float) -> float:
    if rank == 0 or dof <= 0:
        return np.nan
    if np.isinf(dof):
        return float(np.sqrt(scipy.special.chdtri(rank, 1.0 - level)))
    return float(np.sqrt(rank * scipy.special.fdtri(rank, dof, level)))


def _magnitudes(
    values: Array,
    slope: Array,
    log: Mask,
    errors: Array,
    conditional_errors: Array,
    factor: float,
    may_change_sign: Mask,
) -> tuple[Array, Mask]:
    """Return magnitudes, and which quantities have a sign: it would be known if all others were.

    Errors are in search scale, slope is d value / d theta.
    """
    size = np.abs(values)
    natural_errors = np.abs(slope) * np.where(np.isfinite(conditional_errors), conditional_errors, 0.0)
    conditional_widths = natural_errors * (factor if np.isfinite(factor) else 1.0)
    is_significant = size > np.where(
        may_change_sign, _SIGN_TEST_SE * np.abs(slope) * np.nan_to_num(errors, posinf=np.inf), conditional_widths
    )
    is_sign_known = (values != 0.0) & (is_significant | log)
    spread = np.where(np.isfinite(errors), np.abs(slope) * np.nan_to_num(errors, posinf=0.0), natural_errors)
    magnitudes = np.where(is_sign_known, size, np.maximum(size, spread))
    return np.where(magnitudes > 0.0, magnitudes, 1.0), is_sign_known


def _axes(
    names: Sequence[str],
    root: Array,
    N: Array,
    is_free: Mask,
    magnitudes: Array,
    logarithmic: Mask,
    rank: int,
    radius: float,
    factor: float,
) -> list[Axis]:
    """Find the axes in relative changes, from root (n, n) and open directions N (k, n) there."""
    n = len(names)
    basis = np.eye(n)[:, is_free]
    open_directions = N[(N[:, is_free] != 0.0).any(axis=1)]
    if open_directions.shape[0]:
        open_directions = open_directions / np.linalg.norm(open_directions, axis=1, keepdims=True)
        _, sizes, Vt = np.linalg.svd(open_directions[:, is_free])
        basis = basis @ Vt[int(np.count_nonzero(_ZERO_TOLERANCE * sizes[0] < sizes)) :].T

    def error(h: Array) -> float:
        if open_directions.shape[0] and (np.abs(open_directions @ h) > _ZERO_TOLERANCE * np.linalg.norm(h)).any():
            return np.inf
        return float(np.linalg.norm(h @ root))

    V, S, _ = np.linalg.svd(basis.T @ root, full_matrices=False)
    determined = [basis @ V[:, i] for i in range(min(rank, S.size))]
    axes: list[Axis] = []
    for g in [*reversed(determined), *open_directions]:
        clean = np.where(np.abs(g) > _ZERO_TOLERANCE, g, 0.0)
        axis_error = error(clean)
        linear = not logarithmic[clean != 0.0].any()  # Then the combination is a sum in the units of the quantities.
        h = rounded_direction(clean, error, magnitudes if linear else np.ones(n))
        if h is None:
            g = h = clean * np.sign(clean[first_argmax(np.abs(clean))])
            text, unit, known_to, relative = mixture(names, clean), 1.0, factor * axis_error, True
        else:
            g, (text, unit) = clean * np.sign(clean @ h), format_combination(names, h, logarithmic, magnitudes)
            known_to = factor * (axis_error if np.isinf(axis_error) else error(h) * unit)
            relative = bool(logarithmic[h != 0.0].all())
        sentence = f"{text} is not determined"
        if np.isfinite(known_to):
            sentence = f"{text} is known to {half_width(known_to, relative=relative)}"
        elif np.isnan(known_to):
            sentence = f"the standard error of {text} is not available"
        weights, form = (
            {q: float(w) for q, w in zip(names, direction.tolist(), strict=True) if w != 0.0} for direction in (g, h)
        )
        axes.append(Axis(weights, axis_error, radius * axis_error, text, known_to, sentence, form, unit, relative))
    return axes


def _correlations_without_bounds(
    names: Sequence[str], information: Array, is_at_bound: Mask
) -> dict[str, tuple[str, float]]:
    """Return the strongest correlation of each quantity at a bound, from Fisher's information without bounds."""
    correlations: dict[str, tuple[str, float]] = {}
    sensitive_indices = np.flatnonzero(np.diag(information) > 0.0)
    for j in map(int, sensitive_indices[is_at_bound[sensitive_indices]]):
        indices = sensitive_indices[(sensitive_indices == j) | ~is_at_bound[sensitive_indices]]
        row = _unbounded(information, indices)[j, indices]
        row[indices == j] = 0.0
        if row.size > 1 and np.isfinite(row).all():
            partner = first_argmax(np.abs(row))
            correlations[names[j]] = (names[int(indices[partner])], float(row[partner]))
    return correlations


def _unbounded(information: Array, indices: NDArray[np.intp] | None = None) -> Array:
    """Return the correlation of some quantities by Fisher's information alone, (n, n); NaN where it is singular."""
    correlation = np.full(information.shape, np.nan)
    sensitive_indices = np.flatnonzero(np.diag(information) > 0.0) if indices is None else indices
    if sensitive_indices.size == 0 or not np.isfinite(information).all():
        return correlation
    d = np.sqrt(np.diag(information)[sensitive_indices])
    size, V = np.linalg.eigh(information[np.ix_(sensitive_indices, sensitive_indices)] / np.outer(d, d))
    if size[0] > sensitive_indices.size * np.finfo(float).eps * size[-1]:
        C = V / size @ V.T
        errors = np.sqrt(np.diag(C))
        correlation[np.ix_(sensitive_indices, sensitive_indices)] = C / np.outer(errors, errors)
    return correlation


def half_width(half: float, *, relative: bool) -> str:
    """Write to what something is known; a relative half-width that is large as one of the logarithm."""
    if not relative:
        return f"±{half:.2g}"
    if half < 1.0:
        return f"{100 * half:.2g} %"
    return f"a factor of {np.exp(half):.2g}" if half < 300.0 else "no digit"


def _describe_precision(axis: Axis) -> str:
    if np.isinf(axis.known_to):
        return "not determined"
    return axis.sentence.partition(" is known to ")[2] or "-"


def _number(value: float) -> str:
    return "inf" if np.isinf(value) else "-" if np.isnan(value) else f"{value:.3g}"


def _weights(axis: Axis) -> str:
    weights = [*axis.weights.items()]
    largest = [weights[int(i)] for i in stable_order([abs(w) for _, w in weights], descending=True).flat]
    terms = [f"{w:+.2f} {n}" for n, w in largest if abs(w) >= 0.05][:6]
    return " ".join(terms) + (" ..." if sum(abs(w) >= 0.05 for w in axis.weights.values()) > 6 else "")


def _interval(ends: tuple[float, float], value: float) -> str:
    return "no limits" if np.isinf(ends[1]) else format_interval(ends, value)
