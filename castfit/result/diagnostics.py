"""Whether residuals look like noise: per output and experiment, in figures and in sentences.

Five tests (castfit.result.residuals), and outliers by name.  Outliers are set aside before the tests: one value
far away would hide everything else.  A finding is one only if chance alone gives it in a few fits of a thousand, so
that the probability is divided among the tests of all outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.reprs import brief, one_line
from castfit._support.text_tables import aligned
from castfit.result.residuals import UNTESTED, Figure, autocorrelation, normality, outliers, runs, trend

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit._support.arrays import Array, Index
    from castfit.result.goodness_of_fit import Goodness
    from castfit.result.influence import Influential


_SURE = 1e-3  # probability of an outlier, and of a finding by any test, in a fit where nothing is wrong
_TINY = 1e-2  # mean square of residuals, in standard deviations, of data that are no measurements
_NAMED = 3  # outliers in a summary
_HUNG = 2  # influential values in a summary ...
_FAR = 2.0  # ... which move an estimate by so many standard errors


@dataclass(frozen=True)
class _TestWords:
    """How a test is put in words: of what, its number, what is said if nothing or something is found, in summaries.

    wrong : two if the number has a sign, for positive and negative ones
    """

    subject: str
    number: str
    right: str
    wrong: tuple[str, ...]
    short: str


_TESTS = {
    "autocorrelation": _TestWords(
        "Residuals of {} that are neighbours in time", "correlation", "look independent",
        ("are correlated", "alternate"), "are correlated in time, as where the model misses something",
    ),
    "runs": _TestWords(
        "The signs of residuals of {}", "changes per pair of neighbours", "change as often as those of noise",
        ("change too rarely",), "keep their sign for long, as where the model misses something",
    ),
    "normality": _TestWords(
        "The residuals of {}", "A² =", "look normal",
        ("are not normal",), "are not normal, even without outliers",
    ),
    "with_prediction": _TestWords(
        "With the prediction, the residuals of {}", "rank correlation", "do not change in size",
        ("grow", "shrink"), "change in size with the prediction, so sigma should depend on it",
    ),
    "with_time": _TestWords(
        "With time, the residuals of {}", "rank correlation", "do not change in size",
        ("grow", "shrink"), "change in size with time",
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
    found : whether that is too little for chance
    sentence : all that in words
    """

    number: float
    p_value: float
    found: bool
    sentence: str

    def __str__(self) -> str:
        return self.sentence

    def __repr__(self) -> str:
        return one_line(f"{type(self).__name__}({self.sentence})")


_UNSIZED = Check(np.nan, np.nan, False, "The size of the residuals: not tested, as sigma is not known.")


@brief
@dataclass(frozen=True)
class Checks:
    """The tests of one output, in one experiment or in all.

    output, experiment : no experiment means all of them
    n : number of residuals: of measured values, without those beyond a limit of detection
    autocorrelation : correlation of residuals that are neighbours in time; the test is Ljung and Box's, of up to ten
        lags
    runs : fraction of neighbours whose signs differ
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
        """The sentences of what is wrong."""
        return tuple(check.sentence for check in self.checks.values() if check.found)

    @property
    def checks(self) -> dict[str, Check]:
        """All tests by name."""
        return {name: getattr(self, name) for name in _TESTS}

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
    """

    outputs: Mapping[str, Checks]
    series: Mapping[tuple[str, str], Checks]
    outliers: tuple[Outlier, ...]
    several: bool
    heavy: frozenset[str] = frozenset()
    influential: tuple[Influential, ...] = ()
    chi2: Check = _UNSIZED
    at_jumps: str = ""

    @property
    def suspicious(self) -> bool:
        """Whether anything was found: outliers, residuals that are no noise, values that the estimates hang on."""
        return bool(self.outliers or self._hangs or self.at_jumps) or any(
            checks.found for checks in self.outputs.values()
        )

    @property
    def sentences(self) -> tuple[str, ...]:
        """What is wrong, in a line about outliers and a line about the rest; nothing where nothing is."""
        named = [outlier.named(experiment=self.several) for outlier in self.outliers[:_NAMED]]
        more = len(self.outliers) - len(named)
        listed = f"{', '.join(named)}{f' and {more} more' if more else ''}"
        bent = any(outlier.output not in self.heavy for outlier in self.outliers)
        remark = "which bend the fit, so look at them first" if bent else "which count little in this fit"
        first = f"Outliers, {remark}: {listed}." if named else ""
        kinds = {name: [n for n, c in self.outputs.items() if c.checks[name].found] for name in _TESTS}
        if kinds["autocorrelation"]:  # which says what the runs say
            kinds["runs"] = [n for n in kinds["runs"] if n not in kinds["autocorrelation"]]
        found = [f"{_TESTS[name].short} ({', '.join(who)})" for name, who in kinds.items() if who]
        said = f"The residuals {'; '.join(found)}." if found else ""
        return tuple(s for s in (first, self.at_jumps, said, self._hangs) if s)

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
        """What is wrong, or that nothing is."""
        return " ".join(self.sentences) or "The residuals look like noise."

    def __repr__(self) -> str:
        return one_line(f"{type(self).__name__}({self.sentence})")

    def __str__(self) -> str:
        head = ["output", "experiment", "n", "lag 1", "sign changes", "A²", "with prediction", "with time"]
        every = [*self.outputs.values()] + ([*self.series.values()] if self.several else [])
        rows = [[c.output, c.experiment or "all", str(c.n), *map(_cell, c.checks.values())] for c in every]
        sized = [] if np.isnan(self.chi2.number) else [self.chi2.sentence]
        said = [s for s in self.sentences if s != self._hangs] or ["The residuals look like noise."]
        hung = [str(one) for one in self.influential] or ["No value by itself decides on the estimates."]
        return "\n".join([*aligned([head, *rows], "<<>>>>>>"), "", *sized, *said, *hung])


def diagnose(
    table: Mapping[str, NDArray[Any]],
    *,
    dof: float,
    known: bool,
    exact: Collection[str] = (),
    not_normal: Collection[str] = (),
    heavy: Collection[str] = (),
    by_experiment: bool = True,
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
    influential : tuple of Influential
    goodness : what is said of chi2
    """
    usable = np.isfinite(table["normalised"])
    parts = _parts(table)
    names = list(dict.fromkeys(name for _, name in parts))
    own = {name: np.concatenate([at for (_, n), at in parts.items() if n == name]) for name in names}
    rest, several = dof / max(usable.size, 1), len(dict.fromkeys(e for e, _ in parts))
    away = np.zeros(usable.size, dtype=np.bool_)
    skip: set[str] = set()
    for name, every in own.items():
        at = every[usable[every]]
        r = table["normalised"][at]
        if name in exact or _silent(r, known):
            skip.add(name)
        else:
            away[at] = outliers(r, rest * at.size, _SURE / len(names), known=known)

    def checks(name: str, experiment: str, series: list[Index], level: float) -> Checks:
        kept = [at[usable[at] & ~away[at]] for at in series]
        figures = {} if name in skip else _figures(table, [at for at in kept if at.size], normal=name not in not_normal)
        what = f"{name} in {experiment}" if experiment else name
        done = {test: _check(test, figures.get(test, UNTESTED), what, level) for test in _TESTS}
        return Checks(name, experiment, sum(int(np.count_nonzero(usable[at])) for at in series), **done)

    level = _SURE / (len(_TESTS) * max(len(names), 1))
    found = sorted(np.flatnonzero(away).tolist(), key=lambda i: -abs(table["normalised"][i]))
    each = parts.items() if by_experiment else ()
    return Diagnostics(
        outputs={name: checks(name, "", [at for (_, n), at in parts.items() if n == name], level) for name in names},
        series={(e, name): checks(name, e, [at], level / several) for (e, name), at in each},
        outliers=tuple(_outlier(table, i) for i in found),
        several=several > 1,
        heavy=frozenset(heavy),
        influential=influential,
        chi2=_UNSIZED if goodness is None else _sized(goodness, chi2, dof),
    )


def _sized(goodness: Goodness, chi2: float, dof: float) -> Check:
    """Put the test of chi2 in words; nothing is tested where sigma is unknown."""
    if np.isnan(goodness.p_value) or not dof > 0:
        return _UNSIZED
    p = min(goodness.p_value, 1.0 - goodness.p_value)  # too large, or too small
    return Check(chi2 / dof, goodness.p_value, bool(p < _SURE), goodness.sentence)


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


def _figures(table: Mapping[str, NDArray[Any]], each: list[Index], *, normal: bool) -> dict[str, Figure]:
    """Test the residuals of one output, whose rows are given by experiment."""
    together = np.concatenate(each) if each else np.empty(0, dtype=np.intp)
    r = table["normalised"][together]
    in_time = [_per_time(table["time"][e], table["normalised"][e]) for e in each]
    return {
        "autocorrelation": autocorrelation(in_time),
        "runs": runs(in_time),
        "normality": normality(r) if normal else UNTESTED,
        "with_prediction": trend(r, np.abs(table["prediction"][together])),
        "with_time": trend(r, table["time"][together]),
    }


def _per_time(times: Array, r: Array) -> Array:
    """Return one residual per time, of the same deviation: replicates have no order."""
    _, inverse, counts = np.unique(times, return_inverse=True, return_counts=True)
    return np.bincount(inverse.ravel(), r) / np.sqrt(counts)


def _check(test: str, figure: Figure, what: str, level: float) -> Check:
    """Put a figure in words."""
    words, found = _TESTS[test], bool(figure.p_value < level)
    subject = words.subject.format(what)
    if np.isnan(figure.p_value):
        return Check(figure.number, figure.p_value, False, f"{subject}: not tested.")
    said = words.wrong[-1 if figure.number < 0 else 0] if found else words.right
    figures = f"({words.number} {figure.number:.2g}, p = {figure.p_value:.1g})"
    return Check(figure.number, figure.p_value, found, f"{subject} {said} {figures}.")


def _cell(check: Check) -> str:
    return "-" if np.isnan(check.p_value) else f"{check.number:.2g}{'*' if check.found else ''}"


def _outlier(table: Mapping[str, NDArray[Any]], i: int) -> Outlier:
    columns = ("experiment", "output", "time", "replicate", "value", "prediction", "normalised")
    return Outlier(*(table[name][i].item() for name in columns))
