"""``castfit bench design``: designs of experiments beside published ones, and beside what became of them.

Published optima, in closed form where there is one; subjects of a population, beside PopED; models that are to be told
apart; standard deviations that were promised beside the scatter of repeated fits; designs for many draws, and in rounds
from a wrong guess, beside certified bounds; and what the relaxed design costs with many candidates.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import least_squares

import castfit as cf
from castfit._support.status import InputError, raise_if_mistakes
from castfit.drive.design.criteria import DCriterion
from castfit.drive.design.interior_point import CandidatePool, DesignGoal, optimize_weights
from castfit.drive.search.compare.benchmarks import Progress

from .cpu_clock import cpu_timed
from .table import CaseRow, Kind, Report, cases, number_mistakes

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.drive.design.proposal import Design

NAME = "design"
_ALONE = [sys.executable, "-c", f"from {__name__} import alone; alone()"]
_N_TURNS = 5  # number of processes each for Pyomo.DoE and for castfit
_N_TRIALS = 200  # number of experiments that are simulated and fitted
_N_SEQUENCES = 20  # number of sequences of rounds from a wrong guess
_RATES = np.array([0.7, 0.2])  # Box and Lucas (1959)
_DRUG = np.array([4.298, 0.05884, 21.80])  # Atkinson, Chaloner, Herzberg and Juritz (1993): theta_1 to theta_3
_SAMPLES = np.array([0.5, 1, 2, 6, 24, 36, 72, 120])
_POPED = {  # PopED's vignette: relative errors, in % of variances where these vary
    "CL": 5.096246, "V": 3.031164, "ka": 14.260384, "omega(CL)": 29.761226, "omega(V)": 36.681388,
    "omega(ka)": 26.748640, "b": 32.011719, "a": 25.637971,
}  # fmt: skip
_LINE = np.linspace(0.1, 20, 200)


def _support(design: Design, min_distance: float) -> str:
    """Say where a design measures and with which share, neighbours put together."""
    times, weights = design.table["time"], design.table["count"] / np.sum(design.table["count"])
    is_used = weights > 1e-3
    groups = np.split(np.flatnonzero(is_used), np.flatnonzero(np.diff(times[is_used]) > min_distance) + 1)
    points = [(np.average(times[g], weights=weights[g]), weights[g].sum()) for g in groups]
    return ", ".join(f"{t:.5g} ({w:.3g})" for t, w in points)


def consecutive(sigma: Any = 0.03, guess: Any = _RATES, errors: float = 0.0) -> cf.Problem:
    """Return A -> B -> C with four values of B; sigma may be a function of B."""
    a, b, k1, k2 = cf.symbols("a b k1 k2")
    model = cf.Model({a: -k1 * a, b: k1 * a - k2 * b}, parameters=[k1, k2], initial={a: 1.0, b: 0.0})
    times = np.array([1.0, 2.0, 4.0, 8.0])
    values = bateman(times) + errors * np.random.default_rng(1).standard_normal(4)
    pilot = cf.Experiment({"b": values}, times, sigma={"b": sigma(b)} if callable(sigma) else sigma)
    parameters = {n: cf.Parameter(float(v), lower=0, scale="log") for n, v in zip(("k1", "k2"), guess, strict=True)}
    return cf.Problem(model, pilot, parameters=parameters)


def bateman(times: Array, rates: Any = _RATES) -> Any:
    """Return the amount of B."""
    k, m = rates
    return k / (m - k) * (np.exp(-k * times) - np.exp(-m * times))


def _plane(formula: Callable[..., Any], values: dict[str, float], start: float = 0.0) -> cf.Problem:
    """Return a formula of time and parameters as the output y, with one value that tells nothing by itself."""
    z, t, *symbols = cf.symbols(" ".join(["z", "t", *values]))
    model = cf.Model({z: 0 * z}, parameters=symbols, initial={z: 0.0}, outputs={"y": formula(t, *symbols)}, time=t)
    pilot = cf.Experiment({"y": [1.0]}, [start], start=start, sigma=1.0)
    return cf.Problem(model, pilot, parameters=values)


def published() -> Iterator[CaseRow]:
    """Repeat optima that are published, or follow from a formula."""
    design, seconds = cpu_timed(
        lambda: cf.design(consecutive(), cf.Candidate(_LINE, ["b"], continuous_times=True), budget=6)
    )
    yield CaseRow("Box-Lucas, D", "times", _support(design, 0.5), "1.2295 (0.5), 6.8577 (0.5)", seconds)
    M = design.selection.pool.information(design.counts)[0] * 0.03**2 / 3
    yield CaseRow("", "det M", f"{np.linalg.det(M) / np.prod(_RATES) ** 2:.5f}", "0.65677")
    rates = _plane(lambda s, V, K: V * s / (K + s), {"V": 1.0, "K": 2.0})
    concentrations = cf.Candidate(np.linspace(0.001, 20, 2000), ["y"])
    design, seconds = cpu_timed(lambda: cf.design(rates, concentrations, budget=1, exact=False))
    yield CaseRow("Michaelis-Menten, D", "s", _support(design, 0.5), "1.6667 (0.5), 20 (0.5)", seconds)
    drug = _plane(
        lambda t, a, b, c: c * (cf.exp(-b * t) - cf.exp(-a * t)), dict(zip("abc", _DRUG.tolist(), strict=True))
    )
    grid = np.concatenate([np.arange(0.01, 2, 0.005), np.arange(2, 30, 0.05)])
    a, b, c = cf.symbols("a b c")
    peak = cf.log(a / b) / (a - b)
    for case, criterion, expected, value in (
        ("one compartment, D", "D", "0.2288 (0.333), 1.3886 (0.333), 18.417 (0.333)", ""),
        ("area", cf.variance_of(c / b - c / a), "0.2327 (0.0135), 17.634 (0.9865)", "2193.88"),
        ("time of the peak", cf.variance_of(peak), "0.1793 (0.606), 3.566 (0.394)", "0.028138"),
        ("height", cf.variance_of(c * (cf.exp(-b * peak) - cf.exp(-a * peak))), "1.0122 (1)", "1.0000"),
    ):
        design, seconds = cpu_timed(
            lambda criterion=criterion: cf.design(
                drug, cf.Candidate(grid, ["y"]), budget=1, criterion=criterion, exact=False
            )
        )
        yield CaseRow(case, "times", _support(design, 0.2), expected, seconds)
        if value:
            yield CaseRow("", "variance", f"{design.value:.5g}", value)


def told_apart(repeats: int, seed: int) -> Iterator[CaseRow]:
    """Tell models apart [Atkinson and Fedorov 1975]."""
    exponentials = _plane(lambda t, a: 4.5 - 1.5 * cf.exp(t) - 2 * cf.exp(-t) + a - 1, {"a": 1.0}, -1.0)
    parabola = _plane(lambda t, a, b, c: a + b * t + c * t**2, dict.fromkeys("abc", 1.0), -1.0)
    orders: list[cf.Problem] = []
    for order in (1, 2):
        x, k = cf.symbols("x k")
        model = cf.Model({x: -k * x**order}, parameters=[k], initial={x: 1.0})
        pilot = cf.Experiment({"x": [0.7, 0.4]}, [1, 2], sigma=0.03)
        orders.append(cf.Problem(model, pilot, parameters={"k": cf.Parameter(0.5, lower=0)}))
    wave, decay = np.linspace(-1, 1, 401), np.linspace(0.1, 10, 100)
    for case, (one, other), grid, expected, value in (
        ("exponentials, parabola, T", (exponentials, parabola), cf.Candidate(wave),
         "-1 (0.253), -0.67 (0.428), 0.145 (0.247), 0.955 (0.072)", "0.0010867"),
        ("order 1, order 2, T", orders, cf.Candidate(decay, sigma=1.0), "0.7 (0.333), 6.7 (0.667)", "0.010366"),
    ):  # fmt: skip
        design, seconds = cpu_timed(
            lambda p=one, r=other, g=grid: cf.design(p, g, budget=1, criterion=cf.discriminate(r), exact=False)
        )
        yield CaseRow(case, "times", _support(design, 0.04), expected, seconds)
        yield CaseRow("", "T", f"{-design.value:.5g}", value)
    one, other = orders
    design, seconds = cpu_timed(
        lambda: cf.design(
            one, cf.Candidate(np.linspace(0, 10, 201)), budget=8, criterion=cf.discriminate(other), rng=seed
        )
    )
    yield CaseRow("8 values", "misfit beyond the noise", f"{-design.value:.1f}", "91.5", seconds)
    evenly = -design.equidistant_efficiency * design.bound
    yield CaseRow("", "at equidistant times", f"{evenly:.1f}", "50.9")
    times, rng, misfits = (
        np.repeat(design.table["time"], design.table["count"]),
        np.random.default_rng(seed),
        list[float](),
    )
    for _ in range(repeats):
        values = np.exp(-0.5 * times) + 0.03 * rng.standard_normal(times.size)
        misfits.append(
            2 * least_squares(lambda k, y=values: (y - 1 / (1 + k * times)) / 0.03, 0.5).cost - times.size + 1
        )
    yield CaseRow("", f"of {repeats} simulations", f"{np.mean(misfits):.1f}", f"{-design.value:.1f}")


def warfarin() -> tuple[cf.Problem, cf.Population]:
    """Return PopED's first example: one dose by mouth; clearance, volume and absorption vary between subjects."""
    gut, blood, conc, CL, V, ka, a, b = cf.symbols("gut blood conc CL V ka a b")
    rates = {gut: -ka * gut, blood: ka * gut - CL / V * blood}
    model = cf.Model(rates, parameters=[CL, V, ka], outputs={"conc": blood / V}, initial={gut: 70.0, blood: 0.0})
    pilot = cf.Experiment({"conc": np.ones(8)}, _SAMPLES, sigma={"conc": cf.sqrt(a**2 + (b * conc) ** 2)})
    local_parameters = {n: cf.Parameter(v, local=True) for n, v in {"CL": 0.15, "V": 8.0, "ka": 1.0}.items()}
    noise = {n: cf.Parameter(v, lower=0, scale="log") for n, v in {"a": 0.5, "b": 0.1}.items()}
    omega = {"CL": 0.07, "V": 0.02, "ka": 0.6}  # variances
    population = cf.Population({n: cf.Individual(omega=math.sqrt(v)) for n, v in omega.items()})
    return cf.Problem(model, pilot, parameters={**local_parameters, **noise}), population


def populations(sizes: tuple[int, ...] = (8, 4, 2)) -> Iterator[CaseRow]:
    """Repeat PopED's evaluation of 32 subjects, and choose better times."""
    problem, population = warfarin()
    reference_design, seconds = cpu_timed(
        lambda: cf.design(problem, cf.Candidate(_SAMPLES), budget=32, population=population)
    )
    for name, expected in _POPED.items():
        of_variance = 1 if name in ("CL", "V", "ka") else 2  # twice the relative error of its root
        error_text = f"{100 * of_variance * reference_design.after[name]:.6f} %"
        yield CaseRow(
            "PopED's warfarin" if name == "CL" else "", f"error of {name}", error_text, f"{expected:.6f} %", seconds
        )
        seconds = math.nan
    grid = np.concatenate([np.arange(0.25, 4, 0.25), np.arange(4, 12), np.arange(12, 121, 4)])
    for n_times in sizes:
        candidate = cf.Candidate(grid, per_subject=n_times, continuous_times=True, spacing=0.05)
        design, seconds = cpu_timed(
            lambda c=candidate, n=32 * 8 // n_times: cf.design(problem, c, budget=n, population=population)
        )
        efficiency = math.exp((reference_design.value - design.value) / 8)
        n_compared = design.information.n_compared
        label = f"efficiency, {32 * 8 // n_times} subjects x {n_times} chosen times; the best of {n_compared}"
        yield CaseRow("", label, f"{efficiency:.4f}", f"at most {efficiency / design.efficiency:.4f}", seconds)


def trials(repeats: int, seed: int) -> Iterator[CaseRow]:
    """Simulate trials of a population and fit them by mixed effects, which the promise has linearised."""
    x, k, noise = cf.symbols("x k noise")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 10.0})
    pilot = cf.Experiment({"x": [7.0, 3.0]}, [1, 4], sigma={"x": noise + 0 * x})
    parameters = {"k": cf.Parameter(0.3, local=True), "noise": cf.Parameter(0.3, lower=0, scale="log")}
    problem, population = (
        cf.Problem(model, pilot, parameters=parameters),
        cf.Population({"k": cf.Individual(omega=0.3)}),
    )
    candidate = cf.Candidate(np.arange(0.5, 12, 0.5), per_subject=4)
    design = cf.design(problem, candidate, budget=50, population=population)
    verified, seconds = cpu_timed(lambda: design.verify(repeats, rng=seed, verbose=0))
    for name, scatter in verified.quantities.items():
        label = f"scatter of {name}, {verified.fitted} trials; promised"
        case = "50 subjects, 4 chosen times" if name == "k" else ""
        yield CaseRow(case, label, f"{scatter.scatter:.5f}", f"{scatter.predicted_sd:.5f}", seconds)
        seconds = math.nan


def promised(repeats: int, seed: int) -> Iterator[CaseRow]:
    """Fit repeated experiments again, and look how estimates scatter beside what was promised."""
    evenly = cf.Candidate(np.linspace(20 / 6, 20, 6), ["b"], cost_unit="experiment")
    best = cf.Candidate(_LINE, ["b"])
    for case, problem, candidate, budget in (
        ("sigma known", consecutive(), best, 6),
        ("equidistant", consecutive(), evenly, 1),
        ("sigma unknown", consecutive(None, errors=0.03), best, 6),
        ("sigma of B", consecutive(lambda b: 0.01 + 0.05 * b), best, 6),
    ):
        result = cf.fit(problem)
        design = cf.design(result, candidate, budget=budget)
        verified, seconds = cpu_timed(lambda d=design: d.verify(repeats, rng=seed))
        for name in ("k1", "k2"):
            scatter, sd = verified.quantities[name].scatter, design.after[name] * result.values[name]
            label = f"scatter of {name}, {verified.fitted} fits; promised"
            yield CaseRow(case if name == "k1" else "", label, f"{scatter:.5f}", f"{sd:.5f}", seconds)
            seconds = math.nan


def _drug_slopes(theta: Array, times: Array) -> Array:
    """Return slopes by relative changes, (N, 1, 3)."""
    a, b, c = theta
    down, up = np.exp(-b * times), np.exp(-a * times)
    return (np.stack([c * times * up, -c * times * down, down - up], -1) * theta)[:, None]


def for_draws(seed: int, draws: int = 100) -> Iterator[CaseRow]:
    """Compare least efficiencies over draws about the values of one compartment."""
    rng, times = np.random.default_rng(seed), np.geomspace(0.02, 60, 210)
    thetas = _DRUG * np.exp(rng.standard_normal((draws, 3)) * [0.5, 0.5, 0.2])
    J = np.array([_drug_slopes(theta, times) for theta in thetas])

    def offers(rows: Array) -> CandidatePool:
        prior_information = np.tile(1e-10 * np.eye(3), (len(rows), 1, 1))
        return CandidatePool(
            rows, prior_information, np.ones((1, 210)), np.ones(1), np.full(210, np.inf), np.zeros(210)
        )

    def solved(goal: DesignGoal, rows: Array, start: Array | None = None) -> Any:
        return optimize_weights(goal, offers(rows), start=start)

    goal = DesignGoal(DCriterion(3))
    best = np.array([solved(goal, J[s : s + 1]).value for s in range(draws)])

    def min_efficiency(w: Array) -> float:
        return float(np.exp(-np.max(goal.criterion.values(offers(J).information(w)) - best) / 3))

    local, seconds = cpu_timed(lambda: solved(goal, _drug_slopes(_DRUG, times)[None]))
    yield CaseRow(
        f"{draws} draws", "least efficiency, design at the middle", f"{min_efficiency(local.w):.3f}", "", seconds
    )
    mean, seconds = cpu_timed(lambda: solved(goal, J))
    yield CaseRow("", "least efficiency, best on average", f"{min_efficiency(mean.w):.3f}", "", seconds)
    smooth_design, smooth_seconds = cpu_timed(lambda: solved(DesignGoal(DCriterion(3), best, 30.0), J))
    maximin_design, maximin_seconds = cpu_timed(
        lambda: solved(DesignGoal(DCriterion(3), best, 300.0), J, smooth_design.w)
    )
    bound = f"at most {np.exp(-maximin_design.bound / 3):.3f}"
    yield CaseRow(
        "",
        "least efficiency, best of the worst",
        f"{min_efficiency(maximin_design.w):.3f}",
        bound,
        smooth_seconds + maximin_seconds,
    )


def in_rounds(repeats: int, seed: int) -> Iterator[CaseRow]:
    """Begin with a wrong guess, and measure twelve values at once or in four rounds; efficiencies at the truth."""
    wrong_problem, candidate = consecutive(guess=(3.0, 0.03)), cf.Candidate(_LINE, ["b"])

    def det(times: Array) -> float:
        h = 1e-20
        steps = [_RATES * (1 + 1j * h * e) for e in np.eye(2)]
        J = np.stack([np.imag(bateman(times, rates)) / h for rates in steps])
        return float(np.sqrt(np.linalg.det(J @ J.T)))

    def choose_times(problem_or_result: Any, n: int) -> Array:
        table = cf.design(problem_or_result, candidate, budget=n).table
        return np.repeat(table["time"], table["count"])

    def rounds(rng: np.random.Generator) -> float:
        times = choose_times(wrong_problem, 3)
        values = bateman(times) + 0.03 * rng.standard_normal(3)
        for _ in range(3):
            order = np.argsort(times, kind="stable")
            data = cf.Experiment({"b": values[order]}, times[order], sigma=0.03)
            result = cf.fit(wrong_problem.replace(experiments=[data]))
            new_times = choose_times(result if result.success else wrong_problem, 3)
            times = np.append(times, new_times)
            values = np.append(values, bateman(new_times) + 0.03 * rng.standard_normal(3))
        return det(times)

    best = det(np.repeat([1.2295, 6.8577], 6))
    single_efficiency, seconds = cpu_timed(lambda: det(choose_times(wrong_problem, 12)) / best)
    yield CaseRow(
        "wrong guess, 12 values", "efficiency at the truth, at once", f"{single_efficiency:.2f}", "1", seconds
    )
    evenly = det(np.linspace(20 / 12, 20, 12)) / best
    yield CaseRow("", "equidistant", f"{evenly:.2f}", "1")
    efficiencies, seconds = cpu_timed(lambda: [rounds(np.random.default_rng([seed, i])) / best for i in range(repeats)])
    label = f"4 rounds of 3, mean and least of {repeats}"
    yield CaseRow("", label, f"{np.mean(efficiencies):.2f}, {np.min(efficiencies):.2f}", "1", seconds)


def many(sizes: tuple[tuple[int, int], ...], seed: int) -> Iterator[CaseRow]:
    """Count what the relaxed design of many candidates costs; memory in a second run, which it makes slower."""
    for N, n in sizes:
        J = np.random.default_rng(seed).standard_normal((1, N, 1, n))
        offers = CandidatePool(J, np.zeros((1, n, n)), np.ones((1, N)), np.ones(1), np.full(N, np.inf), np.zeros(N))
        design: Any
        design, seconds = cpu_timed(lambda o=offers, n=n: optimize_weights(DesignGoal(DCriterion(n)), o))
        tracemalloc.start()
        optimize_weights(DesignGoal(DCriterion(n)), offers)
        size = tracemalloc.get_traced_memory()[1] / 2**20
        tracemalloc.stop()
        label = f"gap after {design.steps} steps, {size:.0f} MB"
        yield CaseRow(f"{N} candidates, n = {n}", label, f"{design.gap:.1e}", "0", seconds)


def _heated(temperature: Any, concentration: Any, **options: Any) -> Any:
    """Return the run of Pyomo.DoE's reactor (Wang and Dowling 2022), nine times of three outputs."""
    A, B, C, A1, A2, E1, E2, T = cf.symbols("A B C A1 A2 E1 E2 T")
    k1, k2 = (a * cf.exp(-1000 * e / (8.314 * T)) for a, e in ((A1, E1), (A2, E2)))
    model = cf.Model(
        {A: -k1 * A, B: k1 * A - k2 * B, C: k2 * B}, parameters=[A1, A2, E1, E2], inputs=[T],
        initial={A: 5.0, B: 0.0, C: 0.0},
    )  # fmt: skip
    pilot = cf.Experiment({n: [1.0] for n in "ABC"}, [1.0], sigma=0.01, inputs={"T": 500.0})
    problem = cf.Problem(model, pilot, parameters={"A1": 84.79, "A2": 371.72, "E1": 7.78, "E2": 15.05})
    return cf.design(
        problem,
        cf.Candidate(np.linspace(0, 1, 9), list("ABC"), cost_unit="experiment", name="run",
                     initial={"A": concentration}, inputs={"T": temperature}),
        budget=1, **options,
    )  # fmt: skip


def _fishing(times: int, pieces: int = 0, **options: Any) -> Any:
    """Return when to look at fish that are caught, or not, for 4 of 12 (Sager 2013)."""
    x, y, p2, p4, u = cf.symbols("x y p2 p4 u")
    model = cf.Model(
        {x: x - p2 * x * y - 0.4 * u * x, y: -y + p4 * x * y - 0.2 * u * y}, parameters=[p2, p4], inputs=[u],
        initial={x: 0.5, y: 0.7},
    )  # fmt: skip
    dt = 12 / times
    pilot = cf.Experiment({"x": [1.0], "y": [1.0]}, [1.0], sigma=dt**-0.5, inputs={"u": 0.0})
    problem = cf.Problem(model, pilot, parameters={"p2": 1.0, "p4": 1.0})
    inputs = {"u": cf.choose(0, 1, pieces=pieces) if pieces else 0.0}
    candidate = cf.Candidate(dt * (0.5 + np.arange(times)), ["x", "y"], at_most=1, inputs=inputs, name="next")
    return cf.design(problem, candidate, budget={"x": 4 / dt, "y": 4 / dt}, criterion="A", exact=False, **options)


def _yeast(*, chosen: bool, **options: Any) -> Any:
    """Return ten samples of a fed batch of baker's yeast (Asprey and Macchietto 2000)."""
    x, s, dilution, feed, mu, K, Y, m = cf.symbols("x s dilution feed mu K Y m")
    rate = mu * s / (K + s)
    model = cf.Model(
        {x: (rate - dilution - m) * x, s: -rate * x / Y + dilution * (feed - s)}, parameters=[mu, K, Y, m],
        inputs=[dilution, feed], initial={x: 5.0, s: 0.1},
    )  # fmt: skip
    pilot = cf.Experiment({"x": [5.0], "s": [1.0]}, [5.0], sigma=0.3, inputs={"dilution": 0.12, "feed": 15.0})
    values = {"mu": 0.31, "K": 0.18, "Y": 0.55, "m": 0.05}
    problem = cf.Problem(model, pilot, parameters={n: cf.Parameter(v, scale="log") for n, v in values.items()})
    inputs = {"dilution": cf.choose(0.05, 0.2, pieces=5), "feed": cf.choose(5, 35, pieces=5)}
    choice_arguments: dict[str, Any] = {"initial": {"x": cf.choose(1, 10)}, "inputs": inputs} if chosen else {}
    candidate = cf.Candidate(np.arange(1, 41) / 2, ["x", "s"], cost_unit="time", name="next", **choice_arguments)
    return cf.design(problem, candidate, budget=10, **options)


def _run_of(concentration: Any, heat: Any, **options: Any) -> dict[str, Any]:
    """Return the reactor's run, and CPU seconds."""
    design, seconds = cpu_timed(lambda: _heated(heat, concentration, **options))
    return {"T": design.chosen["run"]["T"].tolist(), "log10 det": -design.value / np.log(10), "seconds": seconds}


def run_alone() -> None:
    """Print what one start of the reactor costs, as JSON, in an interpreter that has done nothing else."""
    sys.stdout.write(json.dumps(_run_of(cf.choose(1, 5), cf.choose(300, 700, pieces=8), starts=1)) + "\n")


def beside_pyomo(python: str) -> dict[str, Any]:
    """Let Pyomo.DoE design its reactor's run, with an interpreter of its own that has it and an `ipopt` beside it."""
    script = resources.files(__package__ or "bench").joinpath("pyomo_reactor.py")
    folder = str(Path(python).absolute().parent)
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    environment["PATH"] = os.pathsep.join([folder, environment.get("PATH", "")])
    with resources.as_file(script) as file:
        return _told_by([python, str(file)], environment)


def _told_by(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """Return what a program prints as JSON in its last line; it has one thread."""
    environment_one_thread = {**environment, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment_one_thread, check=False)
    try:
        return json.loads(process.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        error_lines = [line for line in process.stderr.splitlines() if line.strip()][-1:] or [
            f"it ended with {process.returncode}"
        ]
        raise InputError("bench design", [f"{command[0]}: {error_lines[0]}"]) from None


def choices(starts: int, pyomo: str | None = None) -> Iterator[CaseRow]:
    """Choose inputs and initial states besides samples, beside published choices."""
    steps = np.arange(8) / 8

    def log10_det(design: Any) -> str:
        return f"{-design.value / np.log(10):.5f}"

    design, seconds = cpu_timed(lambda: _heated(cf.Input.piecewise_constant(steps, [472.92, *[300.0] * 7]), 5.0))
    yield CaseRow("Pyomo.DoE's reactor", "log10 det, heated early", log10_det(design), "19.29129", seconds)
    for n in (1, starts):
        run = _run_of(cf.choose(1, 5), cf.choose(300, 700, pieces=8), starts=n)
        heat = ", ".join(f"{t:.4g}" for t in run["T"])
        label = f"log10 det, {n} start{'s' * (n > 1)}, T = {heat}"
        yield CaseRow("", label, f"{run['log10 det']:.5f}", "19.29129", run["seconds"])
    if pyomo:
        turns = [(beside_pyomo(pyomo), _told_by(_ALONE, dict(os.environ))) for _ in range(_N_TURNS)]
        pyomo_run, own_run = turns[0]
        pyomo_seconds, own_seconds = (float(np.median([pair[i]["seconds"] for pair in turns])) for i in (0, 1))
        pyomo_design = _heated(cf.Input.piecewise_constant(steps, pyomo_run["T"][:8]), pyomo_run["CA0"])
        heat = ", ".join(f"{t:.4g}" for t in pyomo_run["T"][:8])
        yield CaseRow(
            "", f"of Pyomo.DoE {pyomo_run['version']}, T = {heat}", log10_det(pyomo_design), "", pyomo_seconds
        )
        yield CaseRow("", "as Pyomo.DoE says", f"{pyomo_run['log10 det']:.5f}", "")
        yield CaseRow("", f"with ipopt {pyomo_run['ipopt']}, in {_N_TURNS} turns", "", "", pyomo_seconds)
        yield CaseRow(
            "",
            "log10 det, 1 start, alone, in turns",
            f"{own_run['log10 det']:.5f}",
            log10_det(pyomo_design),
            own_seconds,
        )
        yield CaseRow("", "CPU time, by Pyomo.DoE's", f"{own_seconds / pyomo_seconds:.2f}", "below 1")
    design, seconds = cpu_timed(lambda: _fishing(480))
    yield CaseRow("fishing, 4 of 12 each", "trace, nothing caught", f"{design.value:.6f}", "0.063957", seconds)
    for pieces in (60, 120):  # catching ends between those of 0.2
        design, seconds = cpu_timed(lambda n=pieces: _fishing(240, n, starts=min(starts, 3)))
        yield CaseRow("", f"trace, catch chosen in {pieces} pieces", f"{design.value:.6f}", "0.036944", seconds)
    fed_design, seconds = cpu_timed(lambda: _yeast(chosen=False))
    yield CaseRow("fed batch of yeast", "-log det, as fed before", f"{fed_design.value:.4f}", "", seconds)
    design, seconds = cpu_timed(lambda: _yeast(chosen=True, starts=max(starts // 4, 1)))
    yield CaseRow(
        "", "-log det, feeding and x(0) chosen", f"{design.value:.4f}", f"below {fed_design.value:.4f}", seconds
    )


def _run(name: str, progress: Progress, *, starts: int = _N_TRIALS, seed: int = 0, pyomo: str | None = None) -> Report:
    raise_if_mistakes(f"bench {name}", number_mistakes(starts=starts, seed=seed))

    def run() -> Iterator[CaseRow]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of fits that are simulated
            for label, rows in (
                ("published", published()),
                ("models apart", told_apart(max(starts // 2, 2), seed)),
                ("populations", populations()),
                ("draws", for_draws(seed)),
                ("many candidates", many(((1000, 6), (10_000, 20)) if starts >= _N_SEQUENCES else ((1000, 6),), seed)),
                (f"{starts} repeats", promised(max(starts, 2), seed)),
                ("trials", trials(max(starts, 2), seed)),
                ("rounds", in_rounds(min(starts, _N_SEQUENCES), seed)),
                ("choices", choices(min(starts, _N_SEQUENCES), pyomo)),
            ):
                progress(f"{NAME}: {label}")
                yield from rows

    return cases(name, "designs of experiments", run())


KIND = Kind(
    lambda: (NAME,),
    ("starts", "seed", "pyomo"),
    _run,
    lambda name: "designs of experiments: published optima and choices, promises kept by repeated fits, bounds",
)
