"""Results of profiles: curve, limits and verdicts of each quantity, and their table, figures and file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from castfit._support.arguments import option_mistakes, read_real, read_reals, shorten_repr
from castfit._support.arrays import Array
from castfit._support.json_codec import check_shapes, rebuild_fields, rebuild_value
from castfit._support.public_names import public
from castfit._support.renamed import accept_old_names, with_old_names
from castfit._support.status import InputError, raise_if_mistakes, suggest
from castfit._support.text_tables import TabularReport, TextTable
from castfit._support.views import views
from castfit.drive.run.run_result import SavedResult
from castfit.drive.uncertainty.profile.branches import (
    BOUND,
    CROSSED,
    CUT,
    FAR,
    INTERRUPTED,
    JUMP,
    LIMIT,
    ZERO,
    AcceptedInterval,
    ProfileBranch,
    envelope,
    interpolate_delta,
    regions,
)
from castfit.result.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BOUNDED = "bounded"
OPEN = "open"
FLAT = "flat"
AT_BOUND = "at a bound"
UNFINISHED = "unfinished"
NOT_REPRODUCED = "not reproduced"

_APART = ("profiles", "best", "header")  # fields that are saved in records of their own
_FLAT_RISE_FRACTION = 1e-3  # of the threshold: a profile that rises by less is flat


@dataclass(frozen=True)
class Side:
    """One side of a profile at one level.

    kind : "bounded", "open", "flat", "at a bound", "unfinished" or "not reproduced".  "flat" is an open side on which
        the objective does not rise: data and model do not distinguish the values.  "not reproduced" is a limit, or a
        bound, at which the model integrated with error control has another objective.
    limit : the confidence limit; infinite if the side is open or flat, the bound if it is at a bound, NaN if unknown
    followed : the last value that was computed
    """

    kind: str
    limit: float
    followed: float
    sentence: str


@with_old_names(levels="confidence_levels", others="nuisance")
@public("castfit")
@dataclass(frozen=True, eq=False)
class Profile:
    """Profile of the objective along one quantity, with all other quantities fitted anew.

    The objective is the difference of -2 log L to the best fit; if sigmas are known, the difference of chi2.  Arrays
    are in ascending order of `values`; if there are several optima, they follow the lowest one.

    Attributes
    ----------
    name : str
    kind : {"parameter", "initial state", "sigma", "expression", "prediction"}
    scale : {"linear", "log"}
        The scale of the steps and of the figures.
    estimate : float
        Of the best fit.
    curvature : float
        Second derivative of the objective at the estimate, in `scale`, of the linearized problem.
    names : tuple of str
        All estimated quantities, which are fitted again at each value.
    log : tuple of bool
        Whether the branches contain the logarithm of each of these quantities.
    thresholds : mapping from confidence level to float
        Thresholds of the objective.
    linear : mapping from confidence level to (float, float)
        Intervals from the covariance, for comparison.
    branches : tuple of Branch
        The solutions that were followed, those from the best fit first.

    Examples
    --------
    >>> import castfit as cf
    >>> result = cf.fit(cf.problems.load("bellman").problem)
    >>> profile = cf.profile(result, "k1")["k1"]
    >>> [float(f"{limit:.3g}") for limit in profile.limits()]
    [4.25e-06, 4.93e-06]
    """

    name: str
    kind: str
    scale: str
    estimate: float
    curvature: float
    names: tuple[str, ...]
    log: tuple[bool, ...]
    thresholds: Mapping[str, float]
    linear: Mapping[str, tuple[float, float]]
    branches: tuple[ProfileBranch, ...]

    @cached_property
    def _envelope(self) -> tuple[Array, Array, Array, Array]:
        return envelope(self.branches)

    @property
    def values(self) -> Array:
        """Fixed values of the target, (n,), natural scale, ascending."""
        return self._natural(self._envelope[0])

    @property
    def objective(self) -> Array:
        """Increase of -2 log L over the best fit, (n,)."""
        return self._envelope[1]

    @property
    def optimum(self) -> NDArray[np.intp]:
        """Index of the optimum that each point belongs to, (n,): 0 is the optimum of the best fit."""
        return self._envelope[3].astype(np.intp)

    @property
    def nuisance(self) -> dict[str, Array]:
        """The other quantities along the profile, by name, (n,) each, natural scale."""
        theta, log = self._envelope[2], np.array(self.log)
        with np.errstate(over="ignore"):
            natural = np.where(log, np.exp(np.where(log, theta, 0.0)), theta)
        return {name: natural[:, j] for j, name in enumerate(self.names)}

    @property
    def confidence_levels(self) -> tuple[float, ...]:
        """Confidence levels, ascending."""
        return tuple(float(level) for level in self.thresholds)

    @accept_old_names(level="confidence_level")
    def threshold(self, confidence_level: float | None = None) -> float:
        """Return the threshold of the objective at a confidence level, by default the highest level."""
        return self.thresholds[self._key(confidence_level)]

    @accept_old_names(level="confidence_level")
    def regions(self, confidence_level: float | None = None) -> tuple[tuple[float, float], ...]:
        """Return all intervals below the threshold, ascending; more than one if other optima are as good.

        An end is infinite if the profile was followed to the requested reach without crossing the threshold.
        """
        level = confidence_level
        return tuple((self._side(r, 0, level).limit, self._side(r, 1, level).limit) for r in self._regions(level))

    @accept_old_names(level="confidence_level")
    def limits(self, confidence_level: float | None = None) -> tuple[float, float]:
        """Return the confidence interval: the region around the estimate, by default at the highest level."""
        lower, upper = self.sides(confidence_level)
        return lower.limit, upper.limit

    @accept_old_names(level="confidence_level")
    def sides(self, confidence_level: float | None = None) -> tuple[Side, Side]:
        """Return the verdicts below and above the estimate, each with a kind and a sentence."""
        interval = self._find_estimate_interval(confidence_level)
        return self._side(interval, 0, confidence_level), self._side(interval, 1, confidence_level)

    @property
    def flat(self) -> bool:
        """Whether the objective does not rise on either side: model and data do not determine the quantity."""
        return all(side.kind == FLAT for side in self.sides())

    @property
    def sentence(self) -> str:
        """The verdict on both sides."""
        lower, upper = self.sides()
        if self.flat:
            return (
                f"{self.name} is not identifiable: the profile is flat from {lower.followed:.3g} to "
                f"{upper.followed:.3g}."
            )
        n_more = len(self.regions()) - 1
        suffix = (
            f" {n_more} more interval{'s' if n_more > 1 else ''} of values lie within the threshold." if n_more else ""
        )
        return f"{lower.sentence} {upper.sentence}{suffix}"

    def approximation(self, values: Array) -> Array:
        """Return the quadratic approximation of the objective at values (n,), on which linear intervals are based."""
        with np.errstate(all="ignore"):
            c = np.log(values) if self.scale == "log" else np.asarray(values, dtype=float)
            centre = np.log(self.estimate) if self.scale == "log" else self.estimate
            return 0.5 * self.curvature * (c - centre) ** 2

    def at(self, values: Array) -> Array:
        """Return the interpolated objective at values (n,); infinite outside of the followed range."""
        array = read_reals(values)
        raise_if_mistakes("Profile.at", option_mistakes(("values", values, array is not None, "expected numbers")))
        assert array is not None
        with np.errstate(all="ignore"):
            c = np.log(array) if self.scale == "log" else array
        return np.min([interpolate_delta(branch, c) for branch in self.branches], axis=0)

    def _natural(self, c: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.exp(c) if self.scale == "log" else np.asarray(c, dtype=float)

    def _key(self, level: float | None) -> str:
        keys = tuple(self.thresholds)
        if level is None:
            return keys[-1]
        number = read_real(level)
        for key in keys:
            if number is not None and abs(float(key) - number) < 1e-9:
                return key
        listed = ", ".join(keys)
        raise InputError(
            "profile", [f"confidence_level is {shorten_repr(level)}; the profile was computed for {listed}"]
        )

    def _regions(self, level: float | None) -> tuple[AcceptedInterval, ...]:
        return regions(self.branches, self.threshold(level))

    def _find_estimate_interval(self, level: float | None) -> AcceptedInterval:
        centre = float(np.log(self.estimate)) if self.scale == "log" else self.estimate
        intervals = self._regions(level)
        matches = [r for r in intervals if r.holds(centre)]
        return (
            matches[0] if matches else min(intervals, key=lambda r: min(abs(r.lower - centre), abs(r.upper - centre)))
        )

    def _side(self, region: AcceptedInterval, side_index: int, level: float | None) -> Side:
        """Describe the end of a region below (0) or above (1)."""
        key, name, log, end = self._key(level), self.name, self.scale == "log", region.ends[side_index]
        c, top, percent = (region.lower, region.upper)[side_index], self.thresholds[key], f"{100 * float(key):g} %"
        direction = -1.0 if side_index == 0 else 1.0
        centre = float(np.log(self.estimate)) if log else self.estimate
        coordinates, value = direction * self._envelope[0], float(self._natural(np.array(c)))
        is_on_path = (coordinates >= direction * centre) & (coordinates <= direction * c)
        max_rise = float(np.max(self._envelope[1][is_on_path], initial=0.0))
        side, limit_phrase, reach_phrase = (("below", "at least", "down to"), ("above", "at most", "up to"))[side_index]
        infinity = 0.0 if end == ZERO or (log and side_index == 0) else direction * np.inf
        reproduced = all(branch.reproduced(c, top) for branch in self.branches)
        if not reproduced and end in (LIMIT, JUMP, CROSSED, BOUND):
            sentence = (
                f"{name}: the limit {side} is not reliable, because integration with error control gives another "
                f"objective at {value:.5g}. Use finer elements or tighter integrator tolerances."
            )
            return Side(NOT_REPRODUCED, np.nan, value, sentence)
        if end in (LIMIT, JUMP, CROSSED):
            jump_note = " (another optimum has the lower objective beyond this value)" if end == JUMP else ""
            return Side(BOUNDED, value, value, f"{name} is {limit_phrase} {value:.5g} ({percent}){jump_note}.")
        if end == BOUND:
            flat_note = "" if max_rise >= _FLAT_RISE_FRACTION * top else ", and the profile is flat on this side"
            sentence = f"{name}: no value {reach_phrase} the bound {value:.5g} is excluded by the data{flat_note}."
            return Side(AT_BOUND, value, value, sentence)
        if end in (FAR, ZERO) and max_rise < _FLAT_RISE_FRACTION * top:
            sentence = f"{name} is unbounded {side}: the profile is flat to {value:.3g}, where the computation stopped."
            return Side(FLAT, infinity, value, sentence)
        if end in (FAR, ZERO):
            rise_text = f"{max_rise:.2g} of the threshold {top:.3g}"
            sentence = (
                f"{name} is unbounded {side} as far as computed: at {value:.3g} the objective has risen by {rise_text}."
            )
            return Side(OPEN, infinity, value, sentence)
        reason = {
            CUT: "the time limit was reached",
            INTERRUPTED: "it was interrupted",
        }.get(end, "no fit with a fixed value converged beyond this point")
        sentence = (
            f"{name}: the profile ends {side} {value:.5g}, because {reason}. "
            f"The objective has risen by {max_rise:.2g} of the threshold {top:.3g}."
        )
        return Side(UNFINISHED, np.nan, value, sentence)


@dataclass(frozen=True)
class Other:
    """Another optimum along a profile: its values by name, and the difference of its -2 log L to the best fit."""

    values: Mapping[str, float]
    objective: float


@with_old_names(levels="confidence_levels", by="statistic")
@public("castfit")
@dataclass(frozen=True, eq=False, repr=False)
class Profiles(SavedResult, TabularReport, Mapping[str, Profile]):
    """Profiles of several quantities: a mapping from name to `Profile`.

    Attributes
    ----------
    profiles : mapping from str to Profile
        The profiles that were computed, complete or not.
    best : Result
        The best fit, from which profiles start: the passed fit, or a better one that was found.
    improved : float
        Decrease of -2 log L from the passed fit to `best`; 0 if no better fit was found.
    optima : tuple of Other
        Other optima that were found, the lowest first.
    by : {"chi2", "F"}
        Distribution whose quantiles define the thresholds.
    message : str
        How the run ended, in words.
    complete : bool
        Whether all sides were followed to the requested end.
    time : float
        Seconds.
    solves : int
        Number of constrained fits.
    evaluations : mapping from str to int
        Numbers of evaluations of values and of derivatives.
    transcription, solver : str
    header : mapping
        The problem's fingerprint and the options, for `save`.

    Examples
    --------
    >>> import castfit as cf
    >>> result = cf.fit(cf.problems.load("bellman").problem)
    >>> profiles = cf.profile(result, "k1")
    >>> profiles.complete, profiles.statistic
    (True, 'F')
    """

    _driver, _contents = "profile", "completed profiles"

    profiles: Mapping[str, Profile]
    best: Result
    improved: float
    optima: tuple[Other, ...]
    statistic: str
    message: str
    complete: bool
    time: float
    solves: int
    evaluations: Mapping[str, int]
    transcription: str
    solver: str
    header: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __getitem__(self, name: str) -> Profile:
        """Return the profile of a quantity."""
        if not isinstance(cast("Any", name), str) or name not in self.profiles:
            raise KeyError(f"no profile of '{name}': {suggest(name, self.profiles)}")
        return self.profiles[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self.profiles)

    def __len__(self) -> int:
        """Count the profiles."""
        return len(self.profiles)

    @property
    def confidence_levels(self) -> tuple[float, ...]:
        """Confidence levels, ascending."""
        return next((p.confidence_levels for p in self.profiles.values()), ())

    @accept_old_names(level="confidence_level")
    def limits(self, confidence_level: float | None = None) -> dict[str, tuple[float, float]]:
        """Return the confidence interval of each quantity, by default at the highest requested level."""
        return {name: profile.limits(confidence_level) for name, profile in self.profiles.items()}

    @property
    def verdicts(self) -> dict[str, tuple[str, str]]:
        """Verdicts per quantity for the sides below and above: "bounded", "open", ..., as in `Side.kind`."""
        return {n: (p.sides()[0].kind, p.sides()[1].kind) for n, p in self.profiles.items()}

    @property
    def table(self) -> dict[str, NDArray[Any]]:
        """Every point as columns, for instance for ``pandas.DataFrame(profiles.table)``.

        ``quantity``, ``value``, ``objective``, ``optimum``, then one column for each estimated quantity.
        """
        rows = list(self.profiles.values())
        columns: dict[str, NDArray[Any]] = {
            "quantity": np.concatenate([np.repeat(p.name, p.values.size) for p in rows] or [np.empty(0, dtype=str)]),
            "value": np.concatenate([np.empty(0), *(p.values for p in rows)]),
            "objective": np.concatenate([np.empty(0), *(p.objective for p in rows)]),
            "optimum": np.concatenate([np.empty(0, dtype=np.intp), *(p.optimum for p in rows)]),
        }
        return columns | {n: np.concatenate([np.empty(0), *(p.nuisance[n] for p in rows)]) for n in self.best.names}

    def plot(self, path: str | Path | None = None) -> Figure:
        """Plot every profile with its thresholds and the quadratic approximation; also write the figure to `path`."""
        return views().plots.profiles(self, path)

    def _records(self) -> Iterable[Mapping[str, Any]]:
        return [
            {"profiles": list(self.profiles.values())},
            {"best": self.best},
            {"end": {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _APART}},
        ]

    @classmethod
    def _restored(cls, header: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> Profiles | None:
        content: dict[str, Any] = {}
        for record in records:
            content |= record
        if not {"profiles", "best", "end"} <= content.keys():
            return None
        profiles = [rebuild_value(Profile, entry) for entry in content["profiles"]]
        end = rebuild_fields(cls, {name: value for name, value in content["end"].items() if name not in _APART})
        return cls(
            profiles={p.name: p for p in profiles}, best=rebuild_value(Result, content["best"]), header=header, **end
        )

    def use_all(self) -> None:
        """Compute all that needs no problem."""
        for profile in self.profiles.values():
            for branch in profile.branches:
                shape = branch.c.size, len(profile.names)
                check_shapes([("theta", branch.theta, shape), ("log", profile.log, shape[1:])])
                check_shapes((part, getattr(branch, part), shape[:1]) for part in ("c", "delta", "slope"))
        self.summary()

    def _sheet(self, level: float | None = None) -> TextTable:
        rows: list[tuple[str, ...]] = []
        percent = ""
        for profile in self.profiles.values():
            key = profile.confidence_levels[-1] if level is None else level
            percent = f"{100 * key:g} %"
            low, high = profile.limits(key)
            linear = profile.linear.get(f"{key:g}", (np.nan, np.nan))
            lower, upper = profile.sides(key)
            rows.append((profile.name, f"{profile.estimate:.5g}", _interval(low, high), _interval(*linear),
                         _verdict(lower), _verdict(upper)))  # fmt: skip
        return TextTable(("", ">estimate", f"{percent} by profile", "linear", "below", "above"), tuple(rows))

    @accept_old_names(level="confidence_level")
    def summary(self, confidence_level: float | None = None) -> str:
        """Return the text that `print` shows."""
        table = [*self._sheet(confidence_level).lines, ""] if self.profiles else []
        return "\n".join([*table, *self._remarks()])

    def _remarks(self) -> list[str]:
        """Return the remarks that supplement the table."""
        lines = [p.sentence for p in self.profiles.values() if any(s.kind not in (BOUNDED,) for s in p.sides())]
        for p in self.profiles.values():
            intervals = p.regions()
            if len(intervals) > 1:
                lines.append(f"{p.name}: {' and '.join(_interval(*r) for r in intervals)} are not excluded.")
        if self.improved > 0.0:
            lines.append(
                f"The profile found a better fit (-2 log L lower by {self.improved:.4g}); the results refer to it."
            )
        for k, other in enumerate(self.optima[:5], 1):
            listed = ", ".join(f"{n} = {v:.4g}" for n, v in list(other.values.items())[:6])
            lines.append(f"Other optimum {k}: -2 log L higher by {other.objective:.4g}, at {listed}.")
        lines.append(
            f"{self.message} {self.transcription}, {self.solver}: {self.solves} fits, {self.time:.2f} s; limits by "
            f"{'chi-square (sigma is known)' if self.statistic == 'chi2' else 'F (sigma is estimated)'}."
        )
        return lines

    def __repr__(self) -> str:
        """Return a one-line summary of the profiles."""
        bounded = sum(all(k == BOUNDED for k in kinds) for kinds in self.verdicts.values())
        return f"Profiles({len(self)} quantities: {bounded} with two finite limits; {self.message})"

    @property
    def parts(self) -> tuple[TextTable | str, ...]:
        """The table, and the sentences below it."""
        return *([self._sheet()] if self.profiles else []), *self._remarks()


def _interval(low: float, high: float) -> str:
    ends = ["?" if np.isnan(end) else f"{end:.5g}" for end in (low, high)]
    return f"[{ends[0]}, {ends[1]}]"


def _verdict(side: Side) -> str:
    return f"{side.kind} ({side.followed:.3g})" if side.kind in (OPEN, FLAT, AT_BOUND) else side.kind
