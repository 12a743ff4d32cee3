"""Result of a fit of a model with noise: quantities, the estimated path, and the whiteness of the innovations.

The path is a density: at every node the most probable states given all data, at the estimates, and the deviation that
Laplace's approximation has there, in which the quantities are uncertain, too.  Innovations are what each value differs
by from what the values before it let expect: white and of variance 1 where the model is right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from castfit._support.arguments import is_count, read_level, read_reals, rng_mistakes, shorten_repr
from castfit._support.arrays import Array
from castfit._support.json_codec import check_shapes, load_record, write_record
from castfit._support.public_names import public
from castfit._support.renamed import with_old_names
from castfit._support.reprs import join_limited, one_line
from castfit._support.status import InputError, Status, raise_if_mistakes, suggest, unknown_names
from castfit._support.text_tables import TabularReport, TextTable, format_interval, format_to_error
from castfit._support.views import views
from castfit.problem.fingerprint import describe_differences, question
from castfit.problem.parameter_map import natural_value
from castfit.problem.problem import Posable, kind_mistakes
from castfit.result.estimate import Estimate
from castfit.result.residual_tests import adjust_p_values, lag1_test, normality
from castfit.result.residuals import SHOWN_P_VALUE, SUSPECTED_P_VALUE
from castfit.transcribe.path_likelihood import PathLikelihood, marginal

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_MAX_DRAWS = 1_000_000  # paths that `laplace_check` draws at most
FORMAT = 1  # Version of the file format of saved results.
_MAY_BE_ZERO_RELATIVE_SE = 3.0  # Relative standard error from which on a positive quantity may be zero.
_INSTEAD = {
    **dict.fromkeys(("diagnostics", "residuals", "residual_table", "normalised_residuals", "goodness"),
                    "residuals depend on the smoothed path; use innovations and white"),
    **dict.fromkeys(("chi2", "cost", "objective", "dof"),
                    "the fit maximises log_likelihood; use log_likelihood, aic and bic"),
    **dict.fromkeys(("initial_states", "trajectories", "simulate"), "the states are a smoothed path; use path(name)"),
    **dict.fromkeys(("identifiability", "correlation", "information", "influence", "confidence_region"),
                    "use covariance, standard_errors and confidence_intervals()"),
}  # fmt: skip
_MIN_ACCURATE_SHARE, _MIN_TESTABLE_SHARE = 0.5, 0.05  # effective shares of draws


@public("castfit")
@dataclass(frozen=True, eq=False)
class PathBand:
    """A state or output along the path: its most probable values, and where it lies with some probability.

    times, values, deviations, lower, upper (n,) : at all nodes, at times of data and between them

    Examples
    --------
    >>> import castfit as cf
    >>> x, w = cf.symbols("x w")
    >>> model = cf.Model({x: 0.5 * w}, noises=[w])
    >>> experiment = cf.Experiment({"x": [1.0, 1.4, 0.9]}, [1.0, 2.0, 3.0], sigma=0.2, start=0, initial={"x": 1.0})
    >>> band = cf.fit(cf.Problem(model, experiment)).path("x")
    >>> [round(float(at), 3) for at in (band.at(2.0), band.deviations[-1])]
    [1.302, 0.187]
    """

    name: str
    experiment: str
    times: Array
    values: Array
    deviations: Array
    lower: Array
    upper: Array
    confidence_level: float

    def at(self, times: Any) -> Array:
        """Return values at times between the first and the last node, on lines between nodes."""
        return np.asarray(np.interp(np.asarray(times, dtype=float), self.times, self.values), dtype=float)

    def __repr__(self) -> str:
        return one_line(f"PathBand('{self.name}' in '{self.experiment}': {self.times.size} nodes)")


@dataclass(frozen=True)
class PathTrack:
    """The path of one experiment: times (n,), values and deviations (n, n_out) of all outputs of the model, by name."""

    names: tuple[str, ...]
    times: Array
    values: Array
    deviations: Array


@dataclass(frozen=True)
class Innovations:
    """Innovations of one experiment: values minus their expectation given earlier values.

    Times (n,), the rest (n, n_o).

    expected, deviation : moments of each value given the data before it; NaN if there is no value, or if the noise of
        the data has no deviation
    standardised : (value - expected) / deviation: independent, of mean 0 and variance 1, if the model is right
    """

    outputs: tuple[str, ...]
    times: Array
    values: Array
    expected: Array
    deviation: Array

    @property
    def standardised(self) -> Array:
        """The innovations in their standard deviations, (n, n_o)."""
        return (self.values - self.expected) / self.deviation


@public("castfit")
@dataclass(frozen=True)
class LaplaceCheck:
    """Laplace's approximation beside the likelihood itself, by importance sampling.

    log_likelihood : without the approximation, up to `standard_error`
    correction : by how much it exceeds the approximation
    effective_share : of the draws, in the least favourable experiment: 1 where the approximation is exact

    Examples
    --------
    >>> import castfit as cf
    >>> x, w = cf.symbols("x w")
    >>> model = cf.Model({x: -(x**3) + 0.5 * w}, noises=[w])
    >>> experiment = cf.Experiment({"x": [0.4, 0.9, -0.1, 0.3]}, range(1, 5), sigma=0.2, start=0, initial={"x": 0.5})
    >>> print(cf.fit(cf.Problem(model, experiment)).laplace_check(200, rng=0))  # doctest: +ELLIPSIS
    log L = ... without the Laplace approximation, ...: no evidence against the Laplace approximation.
    """

    log_likelihood: float
    correction: float
    standard_error: float
    effective_share: float
    draws: int

    def __str__(self) -> str:
        if not np.isfinite(self.log_likelihood):
            return "Laplace approximation: not tested, because the likelihood is not finite at these estimates."
        share = f"{100 * self.effective_share:.0f} % of {self.draws} importance samples are effective"
        shift = f"log L = {self.log_likelihood:.3f} ± {self.standard_error:.2g} without the Laplace approximation"
        if self.effective_share < _MIN_TESTABLE_SHARE:
            return f"{share}: too few to test the Laplace approximation. Do not rely on it."
        sentence = f"{shift}, which is {self.correction:+.3f}; {share}"
        if self.effective_share < _MIN_ACCURATE_SHARE:
            return (
                f"{sentence}: the path distribution is not normal, so estimates and confidence intervals are "
                "approximate."
            )
        return f"{sentence}: no evidence against the Laplace approximation."


@public("castfit")
@with_old_names(described="is_adequate")
@dataclass(frozen=True, eq=False, repr=False)
class PathResult(TabularReport):
    """Result of `fit` for a problem whose model has noises: estimates, and the path by the same likelihood.

    Attributes
    ----------
    status : Status
    message : str
        How it ended, in words.
    names : tuple of str
        Estimated quantities, unknown sigmas last.
    y : (n,) array
        Estimates in search scale; `log` (n,) tells which are logarithms.
    covariance : (n, n) array
        Of the estimates in natural scale, from the curvature of the likelihood; NaN at bounds, infinite for what may
        be 0 as far as the likelihood tells, beside which the others are as if it were known.
    log_likelihood : float
        By Laplace's approximation over the path, all constants included; exact for linear models with normal errors.
    neg2logprior : float
        -2 log of the priors of quantities; 0 if there are none.  What is known of random initial states is part of the
        likelihood.
    refined : float
        By how much halving the stages changed -log L; NaN if they were not halved.
    stages : int
        Stages of all experiments.
    tracks : mapping from experiment to PathTrack
    innovations : mapping from experiment to Innovations
    active : mapping from name to "lower" or "upper"
        Quantities that a bound holds.
    n_data, iterations, evaluations : int
    time : float
        Seconds.
    history : tuple of float
        -2 log L, priors included, by iteration.

    Examples
    --------
    >>> import castfit as cf
    >>> x, w, s = cf.symbols("x w s")
    >>> model = cf.Model({x: s * w}, parameters=[s], noises=[w])  # a random walk
    >>> data = [1.1, 0.9, 1.6, 2.2, 1.9, 2.4, 3.3, 3.1, 2.6, 2.9, 3.5, 4.1]
    >>> experiment = cf.Experiment({"x": data}, time=range(1, 13), sigma=0.2, start=0, initial={"x": cf.Normal(0, 10)})
    >>> result = cf.fit(cf.Problem(model, experiment, parameters={"s": cf.Parameter(0.3, scale="log")}))
    >>> result.success, round(result.log_likelihood, 2)
    (True, -12.29)
    >>> result.path("x")
    PathBand('x' in 'experiment 1': 13 nodes)
    """

    instead: ClassVar[str] = (
        "models with process noise have confidence_intervals(), aic, path, innovations and laplace_check(); for other "
        "methods fit the model without noises"
    )
    status: Status
    message: str
    names: tuple[str, ...]
    y: Array
    log: NDArray[np.bool_]
    covariance: Array
    log_likelihood: float
    neg2logprior: float
    refined: float
    stages: int
    longest: tuple[float, ...]
    tracks: Mapping[str, PathTrack]
    innovations: Mapping[str, Innovations]
    active: Mapping[str, str]
    units: Mapping[str, str]
    n_data: int
    iterations: int
    evaluations: int
    time: float
    history: tuple[float, ...]
    confidence_level: float
    question: Mapping[str, str]
    problem: Posable | None = None

    @property
    def success(self) -> bool:
        """Whether the estimates maximise the likelihood."""
        return self.status.success

    @cached_property
    def values(self) -> dict[str, float]:
        """The estimates by name, natural scale."""
        return dict(zip(self.names, natural_value(self.y, self.log).tolist(), strict=True))

    @property
    def parameters(self) -> dict[str, float]:
        """Estimates by name, natural scale; a fit accepts them as a start."""
        return self.values

    @cached_property
    def standard_errors(self) -> dict[str, float]:
        """Standard errors by name, natural scale; NaN at bounds and where the curvature gives none."""
        return dict(zip(self.names, np.sqrt(np.diag(self.covariance)).tolist(), strict=True))

    def confidence_intervals(self, confidence_level: float | None = None) -> dict[str, tuple[float, float]]:
        """Return normal intervals by name, symmetric in the logarithm for quantities on a logarithmic scale.

        Parameters
        ----------
        confidence_level : float, optional
            By default that of the result.
        """
        z, out = self._quantile("confidence_intervals", confidence_level), dict[str, tuple[float, float]]()
        for (name, value), log in zip(self.values.items(), self.log, strict=True):
            half_width = z * self.standard_errors[name]
            with np.errstate(over="ignore"):
                ends = (
                    value * np.exp(np.array([-1.0, 1.0]) * half_width / value)
                    if log
                    else (value - half_width, value + half_width)
                )
            out[name] = float(ends[0]), float(ends[1])
        return out

    def __getitem__(self, name: str) -> Estimate:
        """Return an estimate by name, with its standard error and interval."""
        if name not in self.values:
            raise InputError("result", [f"'{name}' is not estimated: {suggest(str(name), self.names)}"])
        error, log = self.standard_errors[name], bool(self.log[self.names.index(name)])
        if name in self.active:
            verdict = "at its bound"
        elif np.isnan(error):
            verdict = "not determined"
        else:  # a likelihood that is flat towards 0 does not tell how small
            verdict = "may be 0" if log and error > _MAY_BE_ZERO_RELATIVE_SE * self.values[name] else "determined"
        return Estimate(
            self.values[name], name=name, standard_error=error, interval=self.confidence_intervals()[name],
            confidence_level=self.confidence_level, verdict=verdict, unit=self.units.get(name, ""),
        )  # fmt: skip

    def __iter__(self) -> Iterator[Estimate]:
        """Go through all estimates."""
        return (self[name] for name in self.names)

    @property
    def neg2loglik(self) -> float:
        """-2 log L."""
        return -2.0 * self.log_likelihood

    @property
    def aic(self) -> float:
        """-2 log L + 2 k with k estimated quantities, without those that a bound holds."""
        return self.neg2loglik + 2.0 * (len(self.names) - len(self.active))

    @property
    def bic(self) -> float:
        """-2 log L + k log n with n measured values, and k as in `aic`."""
        return self.neg2loglik + (len(self.names) - len(self.active)) * float(np.log(self.n_data))

    # The path

    def path(self, name: str, experiment: str | None = None, *, confidence_level: float | None = None) -> PathBand:
        """Return a state or output along the path, smoothed: given all data, at the estimated quantities.

        The band includes the uncertainty of the quantities; to exclude it, fix the quantities at their estimates.

        Parameters
        ----------
        name : str
            A state, an algebraic state or an output of the model.
        experiment : str, optional
            By default the first one.
        confidence_level : float, optional
            Of the band, at each time by itself; by default that of the result.

        Raises
        ------
        InputError
            For an unknown name or experiment.
        """
        z = self._quantile("path", confidence_level)
        experiment_name = next(iter(self.tracks), "") if experiment is None else experiment
        raise_if_mistakes("path", unknown_names("unknown experiment '{}'", [experiment_name], self.tracks))
        track = self.tracks[experiment_name]
        raise_if_mistakes("path", unknown_names("unknown state or output '{}'", [name], track.names))
        j = track.names.index(name)
        values, deviations = track.values[:, j], track.deviations[:, j]
        level = self.confidence_level if confidence_level is None else confidence_level
        ends = values - z * deviations, values + z * deviations
        return PathBand(name, experiment_name, track.times, values, deviations, *ends, level)

    def laplace_check(self, draws: int = 500, *, rng: int | np.random.Generator | None = None) -> LaplaceCheck:
        """Draw paths about the most probable ones, and say whether Laplace's approximation may be trusted.

        Parameters
        ----------
        draws : int
            Each takes as long as a simulation of all experiments.
        rng : int or numpy.random.Generator, optional

        Returns
        -------
        LaplaceCheck
            ``print`` shows a sentence.
        """
        is_valid = is_count(draws, 2, _MAX_DRAWS)
        mistakes = [] if is_valid else [f"draws is {shorten_repr(draws)}; expected an integer from 2 to {_MAX_DRAWS}"]
        raise_if_mistakes("laplace_check", [*mistakes, *rng_mistakes(rng)])
        problem, generator = self.owner("laplace_check"), np.random.default_rng(rng)
        likelihood = PathLikelihood(*marginal(problem.posed), self.longest)
        evaluation = likelihood.evaluate(self.y, None, slopes=False)
        raise_if_mistakes(
            "laplace_check",
            [f"no most probable path was found in '{evaluation.failure}'; fit again"] if evaluation.failure else [],
        )
        correction, variance, shares = 0.0, 0.0, list[float]()
        for chain, mode in zip(likelihood.chains, evaluation.modes, strict=True):
            logs = chain.sample_weights(mode, generator, draws)
            top = float(logs.max())
            weights = np.exp(logs - top)
            share = float(weights.sum() ** 2 / np.sum(weights**2)) / draws
            correction += top + float(np.log(np.mean(weights)))
            variance += max(1.0 / share - 1.0, 0.0) / draws  # rounding apart
            shares.append(share)
        log_l = -sum(mode.value for mode in evaluation.modes) + correction
        return LaplaceCheck(float(log_l), correction, float(np.sqrt(variance)), min(shares), draws)

    @cached_property
    def whiteness(self) -> tuple[tuple[str, float, float], ...]:
        """Tests of the innovations: subject, statistic, and p-value adjusted for all tests.

        The tests are the correlation of neighbours of each output, and of all values the mean square and the Anderson
        and Darling test of a normal distribution.
        """
        tests: list[tuple[str, float, float]] = []
        all_series: list[Array] = []
        for output in dict.fromkeys(n for innovations in self.innovations.values() for n in innovations.outputs):
            series = [
                innovations.standardised[np.isfinite(innovations.standardised[:, j]), j]
                for innovations in self.innovations.values()
                for j in [innovations.outputs.index(output)]
            ]
            all_series += series
            neighbor_test = lag1_test(series)
            tests.append((f"neighbours of {output}", neighbor_test.number, neighbor_test.p_value))
        all_values = np.concatenate([*all_series, np.empty(0)])
        if all_values.size:
            squares, n = float(all_values @ all_values), all_values.size
            tails = float(special.chdtr(n, squares)), float(special.chdtrc(n, squares))
            tests.append(("mean square", squares / n, min(2.0 * min(tails), 1.0)))
            shape = normality(all_values)
            tests.append(("normality", shape.number, shape.p_value))
        p = adjust_p_values(np.array([f[2] for f in tests]), np.ones(len(tests)))
        return tuple((label, value, float(q)) for (label, value, _), q in zip(tests, p, strict=True))

    @property
    def is_adequate(self) -> bool:
        """Whether this is a solution, and the innovations are not shown to be anything but white noise."""
        return self.success and not any(p < SHOWN_P_VALUE for _, _, p in self.whiteness)

    @property
    def white(self) -> str:
        """Sentence about the tests of the innovations against white noise of variance 1."""
        tested = [t for t in self.whiteness if np.isfinite(t[2])]
        if not tested:
            return "Innovations: too few to be tested."
        test_texts = ", ".join(f"{label} {value:.2f}" for label, value, _ in tested)
        suspect_labels = [label for label, _, p in tested if p < SUSPECTED_P_VALUE]
        if not suspect_labels:
            return f"Innovations: {test_texts}; no evidence against white noise of variance 1."
        certainty = "shown" if min(p for _, _, p in tested) < SHOWN_P_VALUE else "suspected"
        return (
            f"Innovations: {test_texts}; deviation from white noise of variance 1 is {certainty}: "
            f"{', '.join(suspect_labels)}."
        )

    # Files, pictures and text

    def plot(self, path: str | Path | None = None, **options: Any) -> Figure:
        """Plot data and the path with its band; also write the figure to `path` if it is given.

        Parameters
        ----------
        path : str or Path, optional
        **options
            Of `castfit.plots.time_courses`.
        """
        self.owner("plot")
        return views().plots.paths(self, path, **options)

    def predict(self, times: Any = None, *, confidence_level: float | None = None) -> dict[str, dict[str, Array]]:
        """Return the path of all states and outputs with its bands, per experiment, on lines between nodes.

        Parameters
        ----------
        times : (n,) array, optional
            Within the data; by default the nodes.  `castfit.moving_horizon` estimates later times.
        confidence_level : float, optional
            Of the bands ``"x lower"`` and ``"x upper"``.

        Raises
        ------
        InputError
            For times before the start or after the last datum.
        """
        predictions = dict[str, dict[str, Array]]()
        for name, track in self.tracks.items():
            array = track.times if times is None else read_reals(times)
            t = np.empty(0) if array is None or array.ndim > 1 else np.atleast_1d(array)
            first_time, last_time = float(track.times[0]), float(track.times[-1])
            is_outside = not (t.size and np.isfinite(t).all() and t.min() >= first_time and t.max() <= last_time)
            message = (
                f"times of '{name}' must be between {first_time:g} and {last_time:g}; "
                "for later times use cf.moving_horizon"
            )
            raise_if_mistakes("predict", [message] if is_outside else [])
            predictions[name] = {"time": t}
            for output in track.names:
                band = self.path(output, name, confidence_level=confidence_level)
                columns = {output: band.values, f"{output} lower": band.lower, f"{output} upper": band.upper}
                predictions[name] |= {
                    n: np.asarray(np.interp(t, band.times, v), dtype=float) for n, v in columns.items()
                }
        return predictions

    def report(self, path: str | Path, **options: Any) -> Path:
        """Write a page that tells the story of this fit: question, path, estimates, innovations, the way there.

        Parameters
        ----------
        path : str or Path
            Where to write the page; it ends in ``.html``.
        **options
            Of `castfit.report.report`.
        """
        return views().reports.report(self, path, **options)

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError; for an attribute of other results the message names the replacement."""
        if name in _INSTEAD:
            raise AttributeError(f"results of models with process noise have no {name}: {_INSTEAD[name]}")
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def save(self, path: str | Path) -> None:
        """Write everything but the problem as JSON."""
        write_record(path, "castfit_path_result", FORMAT, self, without=("problem",))

    @classmethod
    def load(cls, path: str | Path) -> PathResult:
        """Read a result that was saved; `plot` and `laplace_check` then need `with_problem`.

        Raises
        ------
        InputError
            If the file is no saved result of a model with noises, or of a later version of castfit.
        """
        return load_record(cls, path, "castfit_path_result", FORMAT, problem=None)

    def use_all(self) -> None:
        """Compute all that needs no problem; an error shows that entries of a file do not fit together."""
        n = len(self.names)
        check_shapes([("y", self.y, (n,)), ("log", self.log, (n,)), ("covariance", self.covariance, (n, n))])
        for name, track in self.tracks.items():
            innovations, m, k = self.innovations[name], track.times.size, len(track.names)
            size = innovations.times.size, len(innovations.outputs)
            check_shapes([("times", track.times, (m,)), ("values", track.values, (m, k))])
            check_shapes([("deviations", track.deviations, (m, k)), ("innovations", innovations.times, size[:1])])
            check_shapes((part, getattr(innovations, part), size) for part in ("values", "expected", "deviation"))
        self.summary()
        self.confidence_intervals()

    def with_problem(self, problem: Posable) -> PathResult:
        """Return the result together with the problem that it answers, after loading.

        Raises
        ------
        InputError
            If it is another problem.
        """
        raise_if_mistakes("with_problem", kind_mistakes(problem, may_be_fixed=True, may_be_noisy=True))
        differences = describe_differences(dict(self.question), question(problem))
        raise_if_mistakes(
            "with_problem",
            [
                f"{label}: the problem differs from the result; pass the problem that was fitted"
                for label in differences
            ],
        )
        return replace(self, problem=problem)

    def owner(self, what: str) -> Posable:
        """Return the problem that it answers, which `what` needs."""
        if self.problem is None:
            raise InputError(what, ["the loaded result has no problem; call result.with_problem(problem) first"])
        return self.problem

    def _quantile(self, method_name: str, confidence_level: float | None) -> float:
        return float(special.ndtri(0.5 + 0.5 * read_level(method_name, confidence_level, self.confidence_level)))

    @property
    def parts(self) -> Sequence[TextTable | str]:
        """The sheets and sentences of its summary."""

        def blank_if_unknown(e: Estimate, cell: str) -> str:
            return cell if np.isfinite(e.standard_error) and e.verdict != "may be 0" else ""

        table = TextTable.from_items(
            self,
            ("", lambda e: e.name),
            (">estimate", lambda e: format_to_error(e.value, e.standard_error if blank_if_unknown(e, "-") else np.nan)),
            (">std. error", lambda e: blank_if_unknown(e, f"{e.standard_error:.3g}")),
            (
                f"{100 * self.confidence_level:g} % interval",
                lambda e: blank_if_unknown(e, format_interval(e.interval, e.value, " to ")),
            ),
            ("", lambda e: "" if e.verdict == "determined" else e.verdict),
        )
        head = f"{self.status.value}: log L = {self.log_likelihood:.6g}   AIC {self.aic:.6g}   BIC {self.bic:.6g}"
        count = f"{self.n_data} values, {self.stages} stages, {self.iterations} iterations, {self.time:.2f} s"
        refined = f"Halving the stages changed log L by {abs(self.refined):.2g}."
        if np.isnan(self.refined):
            refined = "The stages were not refined, so the discretisation error is unknown."
        sheets: list[TextTable | str] = [table] if self.names else []
        return [f"{head}   ({count})", self.message, *sheets, f"{refined} {self.white}"]

    def summary(self) -> str:
        """Return the text that `print` shows."""
        lines: list[str] = []
        for part in self.parts:
            lines += [*part.lines, ""] if isinstance(part, TextTable) else [part, ""]
        return "\n".join(lines[:-1])

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        values_text = join_limited((f"{name} = {value:.4g}" for name, value in self.values.items()), 60)
        return one_line(f"PathResult({self.status.value}: log L = {self.log_likelihood:.6g}, {values_text})")
