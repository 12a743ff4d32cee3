"""Models that err: likelihoods over paths beside known ones, intervals that hold the truth, and time by length.

``castfit bench process-noise`` repeats the Nile of Durbin and Koopman, the closed form of Ornstein and Uhlenbeck, fits
of simulated data of Ornstein-Uhlenbeck, Van der Pol and FitzHugh-Nagumo equations with white noise, the reactor that an
extended Kalman filter loses, errors of measurement that depend on each other, and a linear grey box of a building.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import linalg, optimize

import castfit as cf
from castfit._support.json_codec import replace_nonfinite
from castfit._support.status import raise_if_mistakes
from castfit._support.text_tables import TextTable
from castfit.transcribe.path_likelihood import PathLikelihood, marginal

from . import batch_reactor, correlated_errors
from .cpu_clock import cpu_timed
from .table import FigureRow, Kind, Report, number_mistakes, record

if TYPE_CHECKING:
    from castfit._support.arrays import Array

NAME = "process-noise"
_N_DATA_SETS = 20  # number of simulated data sets
_STEPS_PER_INTERVAL = 200  # number of simulation steps between two data
_PARTICLES, _FILTERS = 10_000, 8
_N_HORIZON_STEPS = 300  # number of timed steps of a moving horizon
_GREY_BOX_COUNTS = (400, 4000)
_COUNTS = (100, 400, 1600, 6400, 25_600, 100_000)

# Flow of the Nile at Aswan, 1871 to 1970, 1e8 cubic metres a year (Durbin and Koopman 2012, section 2.2.5).
NILE = np.array([
    1120, 1160, 963, 1210, 1160, 1160, 813, 1230, 1370, 1140, 995, 935, 1110, 994, 1020, 960, 1180, 799, 958, 1140,
    1100, 1210, 1150, 1250, 1260, 1220, 1030, 1100, 774, 840, 874, 694, 940, 833, 701, 916, 692, 1020, 1050, 969,
    831, 726, 456, 824, 702, 1120, 1100, 832, 764, 821, 768, 845, 864, 862, 698, 845, 744, 796, 1040, 759,
    781, 865, 845, 944, 984, 897, 822, 1010, 771, 676, 649, 846, 812, 742, 801, 1040, 860, 874, 848, 890,
    744, 749, 838, 1050, 918, 986, 797, 923, 975, 815, 1020, 906, 901, 1170, 912, 746, 919, 718, 714, 740,
], dtype=float)  # fmt: skip


def fitted(problem: cf.Problem) -> cf.PathResult:
    """Fit a problem with noises."""
    result: Any = cf.fit(problem)
    return result


def nile() -> cf.Problem:
    """Return the local level model of the Nile, with a vague start."""
    x, w, s = cf.symbols("x w s")
    model = cf.Model({x: s * w}, parameters=[s], noises=[w])
    experiment = cf.Experiment(
        {"x": NILE}, time=np.arange(100.0), sigma=cf.unknown(), initial={"x": cf.Normal(0, np.sqrt(1e7))}
    )
    return cf.Problem(model, experiment, parameters={"s": cf.Parameter(20.0, scale="log")})


@dataclass(frozen=True)
class NoisyModel:
    """A stochastic equation with the truth, for simulated data: dx = f(x) dt + g dW, y = x_1 + sigma e.

    estimated : names of quantities with truth and guess; logarithmic ones among them
    """

    name: str
    model: cf.Model
    drift: Callable[[Array], Array]
    intensity: Array
    initial: Mapping[str, tuple[float, float]]
    truth: Mapping[str, float]
    guess: Mapping[str, float]
    log: tuple[str, ...]
    sigma: float
    step: float
    count: int

    def simulated(self, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        """Draw a path by Heun's method, and data; return times, states (n, n_x) and values."""
        x = np.array([rng.normal(m, d) for m, d in self.initial.values()])
        h, states = self.step / _STEPS_PER_INTERVAL, [x]
        for _ in range(self.count - 1):
            for dw in rng.standard_normal((_STEPS_PER_INTERVAL, x.size)) * np.sqrt(h) * self.intensity:
                f = self.drift(x)
                x = x + 0.5 * h * (f + self.drift(x + h * f + dw)) + dw
            states.append(x)
        path: Array = np.array(states, dtype=float)
        times: Array = self.step * np.arange(self.count, dtype=float)
        return times, path, path[:, 0] + self.sigma * rng.standard_normal(self.count)

    def problem(self, times: Array, values: Array) -> cf.Problem:
        """Return the problem, begun at its guess, with unknown sigma."""
        states = list(self.initial)
        initial = {n: cf.Normal(m, d) for n, (m, d) in self.initial.items()}
        experiment = cf.Experiment({states[0]: values}, time=times, sigma=cf.unknown(), initial=initial)
        parameters: dict[str, Any] = {
            n: cf.Parameter(v, scale="log") if n in self.log else v for n, v in self.guess.items()
        }
        return cf.Problem(self.model, experiment, parameters=parameters)


def ornstein_uhlenbeck() -> NoisyModel:
    """Return x' = -theta x + s w."""
    x, w, theta, s = cf.symbols("x w theta s")
    model = cf.Model({x: -theta * x + s * w}, parameters=[theta, s], noises=[w])
    return NoisyModel("Ornstein-Uhlenbeck", model, lambda x: -0.8 * x, np.array([0.5]), {"x": (0.0, 0.4)},
                      {"theta": 0.8, "s": 0.5}, {"theta": 1.5, "s": 0.3}, ("theta", "s"), 0.1, 0.2, 201)  # fmt: skip


def van_der_pol() -> NoisyModel:
    """Return the Van der Pol oscillator with noise in its second equation."""
    x, y, w, mu, s = cf.symbols("x y w mu s")
    model = cf.Model({x: y, y: mu * (1 - x**2) * y - x + s * w}, parameters=[mu, s], noises=[w])
    return NoisyModel(
        "Van der Pol", model, lambda z: np.array([z[1], (1 - z[0] ** 2) * z[1] - z[0]]), np.array([0.0, 0.5]),
        {"x": (2.0, 0.5), "y": (0.0, 0.5)}, {"mu": 1.0, "s": 0.5}, {"mu": 1.5, "s": 0.3}, ("s",), 0.1, 0.2, 201,
    )  # fmt: skip


def fitzhugh_nagumo() -> NoisyModel:
    """Return FitzHugh's and Nagumo's nerve with noise in both equations, of which only V is measured."""
    V, R, w1, w2, a, b, c, s1, s2 = cf.symbols("V R w1 w2 a b c s1 s2")
    model = cf.Model(
        {V: c * (V - V**3 / 3 + R) + s1 * w1, R: -(V - a + b * R) / c + s2 * w2},
        parameters=[a, b, c, s1, s2], noises=[w1, w2],
    )  # fmt: skip
    return NoisyModel(
        "FitzHugh-Nagumo", model,
        lambda z: np.array([3.0 * (z[0] - z[0] ** 3 / 3 + z[1]), -(z[0] - 0.2 + 0.2 * z[1]) / 3.0]),
        np.array([0.2, 0.1]), {"V": (-1.0, 0.3), "R": (1.0, 0.3)},
        {"a": 0.2, "b": 0.2, "c": 3.0, "s1": 0.2, "s2": 0.1}, {"a": 0.3, "b": 0.3, "c": 2.5, "s1": 0.3, "s2": 0.2},
        ("c", "s1", "s2"), 0.1, 0.1, 401,
    )  # fmt: skip


def exact_ornstein_uhlenbeck(y: Array, times: Array, values: Array, start: tuple[float, float]) -> float:
    """Return -log L at y = log (theta, s, sigma) by the Kalman filter with exact transitions."""
    theta, s, sigma = np.exp(y)
    m, variance, total = start[0], start[1] ** 2, 0.0
    for dt, value in zip(np.diff(times, prepend=times[0]), values, strict=True):
        a = np.exp(-theta * dt)
        m, variance = a * m, a * a * variance + s * s * (1.0 - a * a) / (2.0 * theta)
        spread, v = variance + sigma**2, value - m
        total += 0.5 * (np.log(2.0 * np.pi * spread) + v * v / spread)
        m, variance = m + variance / spread * v, variance - variance**2 / spread
    return float(total)


def known_likelihoods(seed: int) -> list[FigureRow]:
    """Compare with published and closed forms."""
    result = fitted(nile())
    rows = [
        FigureRow("Nile", "log L at its maximum", result.log_likelihood, -641.5856, "Durbin and Koopman"),
        FigureRow("Nile", "variance of the data", result.values["sigma(x)"] ** 2, 15099.0, "Durbin and Koopman"),
        FigureRow("Nile", "variance of the level", result.values["s"] ** 2, 1469.1, "Durbin and Koopman"),
    ]
    case, rng = ornstein_uhlenbeck(), np.random.default_rng(seed)
    dense, _, states = replace(case, step=0.05, count=801).simulated(rng)
    chosen = np.sort(rng.choice(np.arange(1, dense.size), 199, replace=False))
    times, values = np.append(0.0, dense[chosen]), np.append(states[0], states[chosen])
    result = fitted(case.problem(times, values))
    filter_arguments = times, values, case.initial["x"]
    exact: Any = optimize.minimize(
        exact_ornstein_uhlenbeck, result.y, args=filter_arguments, method="BFGS", options={"gtol": 1e-8}
    )
    rows.append(FigureRow(case.name, "log L at its maximum", result.log_likelihood, -float(exact.fun), "closed form"))
    for name, value in zip(("theta", "s", "sigma(x)"), np.exp(exact.x).tolist(), strict=True):
        rows.append(FigureRow(case.name, name, result.values[name], value, "closed form"))
    return rows


def particle_likelihood(case: NoisyModel, times: Array, values: Array, count: int, rng: np.random.Generator) -> float:
    """Return log L at the truth by a bootstrap particle filter, with Heun's method between data."""
    x = np.array([rng.normal(m, d, count) for m, d in case.initial.values()])
    total = 0.0
    for k, value in enumerate(values):
        if k:
            h = float(times[k] - times[k - 1]) / _STEPS_PER_INTERVAL
            for _ in range(_STEPS_PER_INTERVAL):
                dw = np.array([g * np.sqrt(h) * rng.standard_normal(count) if g else np.zeros(count)
                               for g in case.intensity.tolist()])  # fmt: skip
                f = case.drift(x)
                x = x + 0.5 * h * (f + case.drift(x + h * f + dw)) + dw
        logs = -0.5 * ((value - x[0]) / case.sigma) ** 2
        weights = np.exp(logs - logs.max())
        total += float(np.log(weights.mean()) + logs.max()) - float(np.log(case.sigma * np.sqrt(2.0 * np.pi)))
        # Systematic resampling: one draw for all.
        places = (np.arange(count) + rng.random()) / count
        x = x[:, np.minimum(np.searchsorted(np.cumsum(weights) / weights.sum(), places), count - 1)]
    return total


def beside_particles(seed: int) -> list[FigureRow]:
    """Compare Laplace's approximation, and its correction by importance sampling, with particle filters."""
    case, rng = van_der_pol(), np.random.default_rng(seed)
    times, _, values = (part[:101] for part in case.simulated(rng))
    likelihoods = [particle_likelihood(case, times, values, _PARTICLES, rng) for _ in range(_FILTERS)]
    error = float(np.std(likelihoods, ddof=1)) / _FILTERS**0.5
    mean = float(np.log(np.mean(np.exp(np.array(likelihoods) - likelihoods[0]))) + likelihoods[0])
    experiment = cf.Experiment(
        {"x": values}, time=times, sigma=case.sigma,
        initial={n: cf.Normal(m, d) for n, (m, d) in case.initial.items()},
    )  # fmt: skip
    fixed = {n: cf.Parameter(v, fixed=True) for n, v in case.truth.items()}
    result = fitted(cf.Problem(case.model, experiment, parameters=fixed))
    checked = result.laplace_check(2000, rng=rng)
    note = f"{_FILTERS} particle filters of {_PARTICLES}, ± {error:.2g}"
    return [
        FigureRow(case.name, "log L of 101 values, Laplace", result.log_likelihood, mean, note),
        FigureRow(case.name, "log L, corrected by importance sampling", checked.log_likelihood, mean, note),
        FigureRow(case.name, "effective share of the draws", checked.effective_share, np.nan),
    ]


def simulated_fits(case: NoisyModel, sets: int, seed: int, progress: Callable[[str], object]) -> list[FigureRow]:
    """Fit simulated data sets: how often intervals of 95 % hold the truth, and the band the path."""
    truth = {**case.truth, f"sigma({next(iter(case.initial))})": case.sigma}
    inside, path, seconds, failed = {n: 0 for n in truth}, list[float](), list[float](), 0
    for i in range(sets):
        progress(f"{case.name}: {i + 1} of {sets}")
        times, states, values = case.simulated(np.random.default_rng([seed, i]))
        result, took = cpu_timed(partial(fitted, case.problem(times, values)))
        seconds.append(took)
        if not result.success:
            failed += 1
            continue
        for name, (low, high) in result.confidence_intervals().items():
            inside[name] += low <= truth[name] <= high
        for j, name in enumerate(case.initial):
            band = result.path(name)
            indices = np.searchsorted(band.times, times - 1e-9)
            path.append(float(np.mean((band.lower[indices] <= states[:, j]) & (states[:, j] <= band.upper[indices]))))
    n_finished = sets - failed
    note = f"of {n_finished} fits that converged, of {sets}"
    rows = [
        FigureRow(case.name, f"intervals of {n} that hold {truth[n]:g}, %", 100.0 * k / max(n_finished, 1), 95.0, note)
        for n, k in inside.items()
    ]
    rows.append(FigureRow(case.name, "the path in its bands, %", 100.0 * float(np.mean(path or [np.nan])), 95.0, note))
    return [*rows, FigureRow(case.name, "CPU seconds of a fit", float(np.median(seconds)), np.nan, "median")]


def speed(seed: int) -> list[FigureRow]:
    """Measure log L with its gradient, begun nearby, by the number of nodes."""
    case, rows = van_der_pol(), list[FigureRow]()
    _, _, values = case.simulated(np.random.default_rng(seed))
    for count in _COUNTS:
        long: Array = case.step * np.arange(count, dtype=float)
        problem = case.problem(long, np.resize(np.concatenate([values, values[::-1]]), count))
        likelihood = PathLikelihood(*marginal(problem.posed), [case.step])
        y = np.append(likelihood.problem.guess, np.log(case.sigma))
        evaluation = likelihood.evaluate(y, None)
        starts = [mode.start for mode in evaluation.modes]
        each = 1e6 * cpu_timed(partial(likelihood.evaluate, y + 1e-3, starts))[1] / count
        rows.append(FigureRow(case.name, f"microseconds a node, {count} nodes", each, 100.0, "log L and gradient"))
    return rows


def grey_box(count: int, seed: int) -> cf.Problem:
    """Return a linear thermal model of a building, air and wall, with data every 0.5 h, simulated exactly."""
    Ti, Te, w1, w2, Ci, Ce, Rie, Rea, s1, s2, Ta, P = cf.symbols("Ti Te w1 w2 Ci Ce Rie Rea s1 s2 Ta P")
    model = cf.Model(
        {Ti: (Te - Ti) / (Ci * Rie) + P / Ci + s1 * w1,
         Te: (Ti - Te) / (Ce * Rie) + (Ta - Te) / (Ce * Rea) + s2 * w2},
        parameters=[Ci, Ce, Rie, Rea, s1, s2], inputs=[Ta, P], noises=[w1, w2],
    )  # fmt: skip
    rng, h, times = np.random.default_rng(seed), 0.5, 0.5 * np.arange(count)
    outside, heating = 5.0 + 4.0 * np.sin(2.0 * np.pi * times / 24.0), 4.0 * (rng.random(count) < 0.4)
    A = np.array([[-0.5, 0.5], [0.125, -0.15625]])  # Ci = 2, Ce = 8, Rie = 1, Rea = 4
    B, Q, zero = np.array([[0.0, 0.5], [0.03125, 0.0]]), 0.01 * np.eye(2), np.zeros((2, 2))  # s1 = s2 = 0.1
    transition = linalg.expm(np.block([[A, B], [zero, zero]]) * h)[:2]
    blocks = linalg.expm(np.block([[-A, Q], [zero, A.T]]) * h)  # Van Loan (1978)
    root = np.linalg.cholesky(blocks[2:, 2:].T @ blocks[:2, 2:])
    x, values = np.array([20.0, 18.0]), list[float]()
    for pair in zip(outside, heating, strict=True):
        values.append(x[0] + 0.05 * rng.standard_normal())
        x = transition @ np.array([*x, *pair]) + root @ rng.standard_normal(2)
    experiment = cf.Experiment(
        {"Ti": values}, time=times, sigma=cf.unknown(), initial={"Ti": cf.Normal(20, 1), "Te": cf.Normal(18, 2)},
        inputs={"Ta": cf.Input.piecewise_constant(times, outside), "P": cf.Input.piecewise_constant(times, heating)},
    )  # fmt: skip
    guess = {"Ci": 3.0, "Ce": 5.0, "Rie": 0.7, "Rea": 6.0, "s1": 0.3, "s2": 0.3}
    return cf.Problem(model, experiment, parameters={n: cf.Parameter(v, scale="log") for n, v in guess.items()})


def linear_speed(seed: int) -> list[FigureRow]:
    """Measure fits of a linear grey box, and log L with its gradient, by the number of values."""
    rows = list[FigureRow]()
    for count in _GREY_BOX_COUNTS:
        result, seconds = cpu_timed(partial(fitted, grey_box(count, seed)))
        rows.append(FigureRow("grey box", f"CPU seconds of a fit, {count} values", seconds, np.nan, result.status.name))
        likelihood = PathLikelihood(*marginal(result.owner("bench").posed), result.longest)
        starts = [mode.start for mode in likelihood.evaluate(result.y, None).modes]
        each = 1e6 * cpu_timed(partial(likelihood.evaluate, result.y + 1e-3, starts))[1] / count
        rows.append(FigureRow("grey box", f"microseconds a value, {count} values", each, np.nan, "log L and gradient"))
    return rows


def online(seed: int) -> list[FigureRow]:
    """Measure steps of a moving horizon: three states, a pressure, twelve times the data of `batch_reactor`."""
    _, pressure = batch_reactor.simulate_draw(np.random.default_rng(seed))
    result, rows = batch_reactor.known_reactor(pressure), list[FigureRow]()
    for horizon in (10, 20):
        for words, iterations in (("", 10), ("one iteration, ", 1)):
            observer, seconds = cf.moving_horizon(result, horizon, iterations=iterations), list[float]()
            for k, value in enumerate(np.resize(pressure, _N_HORIZON_STEPS).tolist()):
                seconds.append(1e3 * cpu_timed(partial(observer.step, 0.25 * (k + 1), {"pressure": value}))[1])
            figure = f"milliseconds a step, {words}horizon {horizon}"
            rows.append(FigureRow("batch reactor", figure, float(np.median(seconds[50:])), 2.0, "median"))
    return rows


def run(
    _: str, progress: Callable[[str], object] = lambda text: None, *, starts: int = _N_DATA_SETS, seed: int = 0
) -> Report:
    """Repeat all cases; `starts` is the number of simulated data sets of each."""
    raise_if_mistakes(NAME, number_mistakes(starts=starts, seed=seed))
    progress("known likelihoods")
    rows = known_likelihoods(seed)
    progress("particle filters")
    rows += beside_particles(seed)
    for case in (ornstein_uhlenbeck(), van_der_pol(), fitzhugh_nagumo()):
        rows += simulated_fits(case, starts if case.name != "FitzHugh-Nagumo" else max(starts // 4, 1), seed, progress)
    progress("speed")
    rows += speed(seed) + linear_speed(seed) + online(seed)
    progress("batch reactor")
    rows += batch_reactor.rows(starts, seed)
    progress("correlated errors")
    rows += correlated_errors.rows(starts, seed, NILE)
    sheet = TextTable.from_items(
        rows,
        ("case", lambda row: row.case),
        ("figure", lambda row: row.figure),
        (">found", lambda row: f"{row.found:.8g}"),
        (">reference", lambda row: f"{row.reference:.8g}" if np.isfinite(row.reference) else ""),
        ("", lambda row: row.note),
        title="Models with noise",
    )
    return Report((sheet,), record(NAME, [replace_nonfinite(asdict(row)) for row in rows], data_sets=starts, seed=seed))


KIND = Kind(
    lambda: (NAME,), ("starts", "seed"), run, lambda name: "models with noise: known likelihoods, coverage, speed"
)
