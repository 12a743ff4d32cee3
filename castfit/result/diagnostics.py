"""Whether the residuals of a fit look like noise: one judgement, by output and experiment, in figures and sentences.

Four tests (castfit.result.residual_tests), graded together, and outliers by name.  Outliers
are set aside before the tests: one value far away would hide everything else.  The correlation of neighbours, by which
models are found to miss something, has most of the weight.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.records import dataclass
from castfit._support.reprs import brief, listed, one_line
from castfit._support.text_tables import aligned
from castfit.result.residual_tests import adjusted, neighbours, normality, outliers, trend
from castfit.result.residuals import FEWEST, NOTHING, PROOF, SHOWN, SUSPECTED, UNTESTED, Figure, grade, runs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit._support.arrays import Array, Index
    from castfit.result.goodness_of_fit import Goodness
    from castfit.result.influence import Influential


_TINY = 1e-2  # mean square of residuals, in standard deviations, of data that are no measurements
_NAMED = 3  # outliers in a summary
_HUNG = 2  # influential values in a summary ...
_FAR = 2.0  # ... which move an estimate by so many standard errors
_STARS = {SHOWN: "**", SUSPECTED: "*", NOTHING: ""}


@dataclass(frozen=True)
class _TestWords:
    """How a test is put in words.

    weight : in the grading of all tests together; a test without weight explains another one
    subject, number : of what it is, and its number
    against : what a test speaks against that finds something
    shown, suspected : what is found, two if the number has a sign: for positive and negative ones
    """

    weight: float
    subject: str
    number: str
    against: str
    shown: tuple[str, ...] = ()
    suspected: tuple[str, ...] = ()


_TESTS = {
    "autocorrelation": _TestWords(
        0.8, "neighbouring residuals of {}", "correlation", "independence",
        ("are alike {}: the model misses something, and the intervals are too short by a factor of about {factor:.2g}",
         "alternate {}: they are not independent"),
        ("may be alike {}: the model may miss something, and the intervals may be too short by a factor of about "
         "{factor:.2g}", "may alternate {}: they may not be independent"),
    ),
    "runs": _TestWords(0.0, "the signs of residuals of {}", "changes per pair of neighbours", ""),
    "normality": _TestWords(
        0.1, "residuals of {}", "A² =", "normality",
        ("are not normal, outliers aside {}: another noise model may suit them",),
        ("may not be normal, outliers aside {}",),
    ),
    "with_prediction": _TestWords(
        0.05, "residuals of {}", "rank correlation", "equal sizes along the prediction",
        ("grow with the prediction {}: sigma should depend on it", "shrink with the prediction {}: sigma should depend "
         "on it"),
        ("may grow with the prediction {}: sigma may depend on it", "may shrink with the prediction {}: sigma may "
         "depend on it"),
    ),
    "with_time": _TestWords(
        0.05, "residuals of {}", "rank correlation", "equal sizes along time",
        ("grow with time {}: the values are not equally accurate", "shrink with time {}: the values are not equally "
         "accurate"),
        ("may grow with time {}", "may shrink with time {}"),
    ),
}  # fmt: skip


@brief
@dataclass(frozen=True)
class Outlier:
    """A measured value that does not belong with the others.

    replicate : counted from 0 among equal times
    value, prediction : in the unit of the output
    residual : prediction minus value, in standard deviations (those of the noise model, where it has another scale)
    """

    experiment: str
    output: str
    time: float
    replicate: int
    value: float
    prediction: float
    residual: float

    def named(self, *, experiment: bool = True) -> str:
        """Name it by output, experiment and time."""
        place = f" in {self.experiment}" if experiment else ""
        return f"{self.output}{place} at t = {self.time:g} ({self.residual:+.3g} sigma)"

    def __str__(self) -> str:
        return self.named()


@dataclass(frozen=True)
class Check:
    """One test of residuals.

    number : what was measured; NaN where there is too little to test
    p_value : probability of a number so far from what is expected if the residuals are noise
    sentence : what may be said of it
    grade : what may be claimed: ``"shown"``, ``"suspected"`` or ``"nothing"``
    adjusted : the probability adjusted for all tests of the fit, by which it is graded
    """

    number: float
    p_value: float
    sentence: str
    grade: str = NOTHING
    adjusted: float = np.nan

    @property
    def found(self) -> bool:
        """Whether something is shown or suspected."""
        return self.grade != NOTHING

    def __str__(self) -> str:
        return self.sentence

    def __repr__(self) -> str:
        return one_line(f"{type(self).__name__}({self.sentence})")


_UNSIZED = Check(np.nan, np.nan, "The size of the residuals: not tested, as sigma is not known.")


@brief
@dataclass(frozen=True)
class Checks:
    """The tests of one output, in one experiment or in all.

    output, experiment : no experiment means all of them
    n : number of residuals: of measured values, without those beyond a limit of detection
    autocorrelation : correlation of residuals that are neighbours in time; the test is Durbin and Watson's
    runs : fraction of neighbours whose signs differ, which explains the correlation and is not graded
    normality : Anderson and Darling's A^2
    with_prediction, with_time : rank correlation of the residuals' sizes with the size of the prediction, and with
        time: whether all values are equally accurate
    """

    output: str
    experiment: str
    n: int
    autocorrelation: Check
    runs: Check
    normality: Check
    with_prediction: Check
    with_time: Check

    @property
    def found(self) -> tuple[str, ...]:
        """The sentences of what is shown or suspected."""
        return tuple(check.sentence for check in self.checks.values() if check.found)

    @property
    def checks(self) -> dict[str, Check]:
        """All tests by name."""
        return {name: getattr(self, name) for name in _TESTS}

    @property
    def tested(self) -> bool:
        """Whether there was enough for any test."""
        return any(np.isfinite(check.p_value) for check in self.checks.values())

    def __str__(self) -> str:
        return "\n".join(check.sentence for check in self.checks.values())


@dataclass(frozen=True)
class Diagnostics:
    """What the residuals of a fit look like; ``print`` shows a table.

    outputs : `Checks` by output, of all experiments together
    series : `Checks` by (experiment, output)
    outliers : the farthest first
    several : whether there are several experiments
    heavy : outputs whose noise model expects values far away, so that these count little
    influential : values that the estimates hang on, the most influential first
    chi2 : of the size of all residuals: chi2 per degree of freedom, where standard deviations are known
    at_jumps : of which input the jumps are in the residuals, in words
    correlated : whether the fit knows of errors that depend on each other; what is tested is then what is new in each
    """

    outputs: Mapping[str, Checks]
    series: Mapping[tuple[str, str], Checks]
    outliers: tuple[Outlier, ...]
    several: bool
    heavy: frozenset[str] = frozenset()
    influential: tuple[Influential, ...] = ()
    chi2: Check = _UNSIZED
    at_jumps: str = ""
    correlated: bool = False

    @property
    def remedy(self) -> str:
        """What to try where neighbouring residuals are, or may be, alike; nothing where they are not."""
        if not any(c.autocorrelation.found and c.autocorrelation.number > 0.0 for c in self.outputs.values()):
            return ""
        said = "If no better model is known: noise in its equations, cf.Model(..., noises=[w]), where it errs"
        return f"{said}." if self.correlated else f"{said}; sigma=cf.correlated(time=cf.unknown()) where data drift."

    @property
    def suspicious(self) -> bool:
        """Whether anything is suspected: outliers, residuals that are no noise, values that the estimates hang on."""
        return bool(self.sentences)

    @property
    def dependent(self) -> tuple[str, ...]:
        """The outputs whose neighbouring residuals are shown to be alike: the model misses something there."""
        found = ((name, checks.autocorrelation) for name, checks in self.outputs.items())
        return tuple(name for name, check in found if check.grade == SHOWN and check.number > 0.0)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What is shown or suspected: a line about outliers, one for each finding; nothing where nothing is."""
        named = [outlier.named(experiment=self.several) for outlier in self.outliers[:_NAMED]]
        more = len(self.outliers) - len(named)
        every = f"{', '.join(named)}{f' and {more} more' if more else ''}"
        bent = any(outlier.output not in self.heavy for outlier in self.outliers)
        remark = "which bend the fit, so look at them first" if bent else "which count little in this fit"
        kinds: dict[tuple[str, str, bool], dict[str, Check]] = {}
        for name, checks in self.outputs.items():
            for test, check in checks.checks.items():
                if check.found:
                    kinds.setdefault((test, check.grade, check.number < 0.0), {})[name] = check
        found = [_said(test, claim, who) for (test, claim, _), who in sorted(kinds.items(), key=_order)]
        first = f"Outliers, {remark}: {every}." if named else ""
        return tuple(s for s in (first, self.at_jumps, *found, self._hangs) if s)

    @property
    def _nothing(self) -> str:
        """Say how much was looked at where nothing was found."""
        n = sum(checks.n for checks in self.outputs.values() if checks.tested)
        few = f"The residuals are not tested: they are too few (below {FEWEST} of each output), or no noise."
        return f"Nothing speaks against noise in {n} residuals." if n else few

    @property
    def _hangs(self) -> str:
        """Say what the estimates hang on."""
        strong = [one for one in self.influential if not abs(one.shift) < _FAR]  # NaN: alone
        if not strong:
            return ""
        named = [one.named(experiment=self.several) for one in strong[:_HUNG]]
        more = len(strong) - len(named)
        return f"The estimates hang on few values: {'; '.join(named)}{f'; and {more} more' if more else ''}."

    @property
    def sentence(self) -> str:
        """What is shown or suspected, or how many values were tested where nothing is."""
        return " ".join(self.sentences) or self._nothing

    def __repr__(self) -> str:
        return one_line(f"{type(self).__name__}({self.sentence})")

    def __str__(self) -> str:
        head = ["output", "experiment", "n", "lag 1", "sign changes", "A²", "with prediction", "with time"]
        every = [*self.outputs.values()] + ([*self.series.values()] if self.several else [])
        rows = [[c.output, c.experiment or "all", str(c.n), *map(_cell, c.checks.values())] for c in every]
        cells = [cell for row in rows for cell in row[3:]]
        stars = ["* suspected (p < 0.05), ** shown (p < 0.001), of all tests together"]
        sized = [] if np.isnan(self.chi2.number) else [self.chi2.sentence]
        said = [s for s in self.sentences if s != self._hangs] or [self._nothing]
        hung = [str(one) for one in self.influential] or ["No value by itself decides on the estimates."]
        table = [*aligned([head, *rows], "<<>>>>>>"), *(stars if any(c.endswith("*") for c in cells) else []), ""]
        return "\n".join([*table, *sized, *said, *hung])


def diagnose(
    table: Mapping[str, NDArray[Any]],
    *,
    dof: float,
    known: bool,
    exact: Collection[str] = (),
    not_normal: Collection[str] = (),
    heavy: Collection[str] = (),
    by_experiment: bool = True,
    hat: Array | None = None,
    shared: int | None = None,
    influential: tuple[Influential, ...] = (),
    goodness: Goodness | None = None,
    chi2: float = np.nan,
) -> Diagnostics:
    """Examine the residuals of a fit.

    table : columns ``experiment``, ``output``, ``time``, ``replicate``, ``value``, ``prediction`` and ``normalised``,
        (n,) each, in the order of time within an experiment and output; `normalised` is NaN where there is none
    dof : degrees of freedom of the fit
    known : whether standard deviations are known, so that `normalised` has the deviation 1 if the model is right
    exact : outputs that are fitted to rounding, which is no noise
    not_normal : outputs whose noise model is not normal
    heavy : outputs whose noise model expects values far away
    by_experiment : whether every experiment is tested for itself, too
    hat : (n, k), whose products with each other are the hat matrix of the fit; none if it is not known
    shared : columns of `hat` that experiments share, of which the others are each experiment's own; by default all
    influential : tuple of Influential
    goodness : what is said of chi2
    """
    usable = np.isfinite(table["normalised"])
    parts = _parts(table)
    names = list(dict.fromkeys(name for _, name in parts))
    own = {name: np.concatenate([at for (_, n), at in parts.items() if n == name]) for name in names}
    rest = dof / max(usable.size, 1)
    away = np.zeros(usable.size, dtype=np.bool_)
    skip: set[str] = set()
    for name, every in own.items():
        at = every[usable[every]]
        r = table["normalised"][at]
        if name in exact or _silent(r, known):
            skip.add(name)
        else:
            away[at] = outliers(r, rest * at.size, PROOF / len(names), known=known)

    Q = np.zeros((usable.size, 0)) if hat is None else hat
    by_output = {("", name): [at for (_, n), at in parts.items() if n == name] for name in names}
    by_series = {key: [at] for key, at in parts.items()} if by_experiment else {}

    def checked(family: Mapping[tuple[str, str], Sequence[Index]]) -> dict[tuple[str, str], Checks]:
        """Test and grade the outputs of all experiments, or those of each."""
        figures: dict[tuple[str, str], dict[str, Figure]] = {}
        for (e, name), series in family.items():
            kept = [at for one in series if (at := one[usable[one] & ~away[one]]).size and name not in skip]
            figures[e, name] = _figures(table, kept, Q, shared, normal=name not in not_normal)
        each = [f[test].p_value for f in figures.values() for test in _TESTS if _TESTS[test].weight]
        weights = [w.weight for _ in figures for w in _TESTS.values() if w.weight]
        graded = iter(adjusted(np.array(each), np.array(weights)).tolist())
        found: dict[tuple[str, str], Checks] = {}
        for (e, name), of in figures.items():
            what = f"{name} in {e}" if e else name
            done = {t: _check(t, of[t], what, next(graded) if _TESTS[t].weight else np.nan) for t in _TESTS}
            found[e, name] = Checks(name, e, sum(int(usable[at].sum()) for at in family[e, name]), **done)
        return found

    found = sorted(np.flatnonzero(away).tolist(), key=lambda i: -abs(table["normalised"][i]))
    return Diagnostics(
        outputs={name: checks for (_, name), checks in checked(by_output).items()},
        series=checked(by_series),
        outliers=tuple(_outlier(table, i) for i in found),
        several=len(dict.fromkeys(e for e, _ in parts)) > 1,
        heavy=frozenset(heavy),
        influential=influential,
        chi2=_UNSIZED if goodness is None else _sized(goodness, chi2, dof),
    )


def _sized(goodness: Goodness, chi2: float, dof: float) -> Check:
    """Put the test of chi2 in words; nothing is tested where sigma is unknown."""
    if np.isnan(goodness.p_value) or not dof > 0:
        return _UNSIZED
    return Check(chi2 / dof, goodness.p_value, goodness.sentence, goodness.grade, goodness.p_value)


def _parts(table: Mapping[str, NDArray[Any]]) -> dict[tuple[str, str], Index]:
    """Return the rows of each experiment and output, in their order."""
    keys = list(zip(table["experiment"].tolist(), table["output"].tolist(), strict=True))
    found: dict[tuple[str, str], list[int]] = {}
    for i, key in enumerate(keys):
        found.setdefault(key, []).append(i)
    return {key: np.array(rows) for key, rows in found.items()}


def _silent(r: Array, known: bool) -> bool:
    """Tell whether there is no noise to look at: no number, or data without errors."""
    return not np.any(r) or (known and float(np.mean(r**2)) < _TINY)


def _figures(
    table: Mapping[str, NDArray[Any]], each: list[Index], Q: Array, shared: int | None, *, normal: bool
) -> dict[str, Figure]:
    """Test the residuals of one output, whose rows are given by experiment."""
    if not each:
        return dict.fromkeys(_TESTS, UNTESTED)
    together = np.concatenate(each)
    left = 1.0 - np.sum(Q[together] ** 2, axis=1)  # of the variance of each value, which the fit takes away
    own = together[left > _TINY]
    r = table["normalised"][own] / np.sqrt(left[left > _TINY])
    in_time = [_per_time(table["time"][e], table["normalised"][e][:, None])[:, 0] for e in each]
    return {
        "autocorrelation": neighbours(in_time, [_per_time(table["time"][e], Q[e]) for e in each], shared),
        "runs": runs(in_time),
        "normality": normality(r) if normal else UNTESTED,
        "with_prediction": trend(r, np.abs(table["prediction"][own])),
        "with_time": trend(r, table["time"][own]),
    }


def _per_time(times: Array, rows: Array) -> Array:
    """Return one row per time, of the same deviation: replicates have no order."""
    _, inverse, counts = np.unique(times, return_inverse=True, return_counts=True)
    out = np.zeros((counts.size, rows.shape[1]))
    np.add.at(out, inverse.ravel(), rows)
    return out / np.sqrt(counts)[:, None]


def _check(test: str, figure: Figure, what: str, adjusted_p: float) -> Check:
    """Grade a figure and put it in words."""
    words, claim = _TESTS[test], grade(adjusted_p)
    subject = words.subject.format(what)
    numbers = f"({words.number} {figure.number:.2g}, p = {figure.p_value:.1g})"
    said = f"{subject}: nothing against {words.against} {numbers}."
    if np.isnan(figure.p_value):
        said = f"{subject}: not tested."
    elif not words.weight:
        said = f"{subject} change at {100 * figure.number:.0f} % of neighbours, those of noise at half of them."
    check = Check(figure.number, figure.p_value, f"{said[0].upper()}{said[1:]}", claim, adjusted_p)
    return check if claim == NOTHING else replace(check, sentence=_said(test, claim, {what: check}))


def _order(item: tuple[tuple[str, str, bool], Any]) -> tuple[bool, int]:
    """Sort what is shown before what is suspected, and by tests."""
    (test, claim, _), _ = item
    return claim != SHOWN, list(_TESTS).index(test)


def _said(test: str, claim: str, who: Mapping[str, Check]) -> str:
    """Put what was found of some outputs into a sentence; the factor is that of an autoregressive process."""
    words, numbers = _TESTS[test], [check.number for check in who.values()]
    claims = words.shown if claim == SHOWN else words.suspected
    r = min(max(numbers), 0.99)
    figures = f"({words.number} {', '.join(f'{x:.2g}' for x in numbers[:_NAMED])}{', ...' * (len(numbers) > _NAMED)}"
    chance = max(check.adjusted for check in who.values())
    figures, factor = f"{figures}, p = {chance:.1g})", np.sqrt((1 + r) / (1 - r))
    said = claims[-1 if numbers[0] < 0 else 0].format(figures, factor=factor)
    subject = words.subject.format(listed(who))
    return f"{subject[0].upper()}{subject[1:]} {said}."


def _cell(check: Check) -> str:
    return "-" if np.isnan(check.p_value) else f"{check.number:.2g}{_STARS[check.grade]}"


def _outlier(table: Mapping[str, NDArray[Any]], i: int) -> Outlier:
    columns = ("experiment", "output", "time", "replicate", "value", "prediction", "normalised")
    return Outlier(*(table[name][i].item() for name in columns))
