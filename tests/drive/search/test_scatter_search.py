"""Scatter search of models: counting, limits, workers, checkpoints, interruption, misuse."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import castfit as cf
from castfit import plots, problems
from castfit._bench.searches import draw_histogram
from castfit.drive.run.checkpoint import read
from castfit.drive.run.optima import ObjectiveMeasure
from castfit.drive.search.scatter import scatter_search as module
from castfit.drive.search.scatter.bounds import read_search_bounds, with_log_scales
from castfit.plots import searches as pictures
from tests.builders import decay_model, decay_problem, everything, refused

SINGLE = cf.SingleShooting(cf.IntegratorOptions(relative_tolerance=1e-7, absolute_tolerance=1e-9))
SMALL = {"dim_refset": 4, "n_diverse": 12}


def waves(**changes) -> cf.Problem:
    """An oscillation whose frequency has many local optima."""
    x, v, w, c = cf.symbols("x v w c")
    model = cf.Model({x: v, v: -(w**2) * x - c * v}, parameters=[w, c])
    times = np.linspace(0.5, 10, 20)
    data = np.exp(-0.1 * times) * np.cos(4.0 * times)
    experiment = cf.Experiment({"x": data}, time=times, sigma=0.1, initial={"x": 1.0, "v": -0.1}, start=0.0)
    parameters = {"w": cf.Parameter(1.0, lower=0.5, upper=9.0), "c": cf.Parameter(0.5, lower=0.0, upper=2.0)}
    return cf.Problem(model, experiment, **{"parameters": parameters, **changes})


def explosion() -> cf.Problem:
    """x' = k x^2 from x = 1 has a pole at 1/k: it reaches the last time, 1, only for k < 1."""
    x, k = cf.symbols("x k")
    times = np.linspace(0.1, 1.0, 10)
    experiment = cf.Experiment({"x": 1 / (1 - 0.6 * times)}, time=times, sigma=0.1, initial={"x": 1.0}, start=0.0)
    parameters = {"k": cf.Parameter(0.1, lower=-1.0, upper=3.0)}
    return cf.Problem(cf.Model({x: k * x**2}, parameters=[k]), experiment, parameters=parameters)


def search(problem=None, **options) -> cf.ScatterResult:
    return cf.scatter_search(problem or waves(), SINGLE, **{**SMALL, "max_eval": 200, **options})


@cache
def undisturbed() -> cf.ScatterResult:
    return search(rng=3)


def same(one: cf.ScatterResult, other: cf.ScatterResult) -> None:
    """Compare two results, times apart."""
    assert [(m.simulations, m.chi2) for m in one.history] == [(m.simulations, m.chi2) for m in other.history]
    assert [replace(s, seconds=0.0) for s in one.searches] == [replace(s, seconds=0.0) for s in other.searches]
    for name in ("simulations", "n_sensitivity_evaluations", "generations", "failures", "reason", "optima"):
        assert getattr(one, name) == getattr(other, name), name
    assert one.best is not None
    assert other.best is not None
    np.testing.assert_array_equal(one.best.theta, other.best.theta)
    assert one.best.chi2 == other.best.chi2


def test_the_global_optimum_is_found_among_many():
    result = undisturbed()
    assert result.success
    assert result.best is not None
    assert result.chi2 == result.best.chi2 < 1e-6
    frequency = np.sqrt(result.best.values["w"] ** 2 - 0.01)
    assert min(frequency, 4 * np.pi - frequency) == pytest.approx(4.0, rel=1e-4)  # samples do not tell these two apart
    assert result.best.problem is not None
    assert result.best.standard_errors["w"] > 0


def test_scatter_search_counts_its_work():
    result = undisturbed()
    assert result.simulations >= 200
    assert 0 < result.n_sensitivity_evaluations < result.simulations
    assert sum(s.simulations for s in result.searches) < result.simulations
    best = [m.objective for m in result.history]
    assert best == sorted(best, reverse=True)
    assert result.simulations_to(best[-1]) == result.history[-1].simulations
    assert result.simulations_to(best[-1] - 1.0) == np.inf
    assert result.seconds_to(best[0]) == result.history[0].seconds
    assert all(optimum.objective >= result.objective - 1e-6 for optimum in result.optima)
    text = str(result)
    for label in ("simulations", "local searches", "limit of simulations", "chi2"):
        assert label in text
    assert "ScatterResult(chi2" in repr(result)


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_alpha_pinene_is_solved(scale):
    benchmark = problems.load("alpha_pinene", scale=scale)
    result = cf.scatter_search(
        benchmark.problem, rng=1, vtr=ObjectiveMeasure.from_problem(benchmark.problem).at_height(19.873), max_eval=2000
    )
    assert result.best is not None
    assert benchmark.reference.is_reached(result.chi2)
    assert benchmark.reference.is_matched(result.best.values)
    assert result.best.problem is benchmark.problem
    assert result.reason == "The target objective was reached."
    assert result.logarithmic == benchmark.problem.names


def test_another_seed_draws_other_points():
    assert search(rng=4, max_eval=12).history != search(rng=5, max_eval=12).history


@pytest.mark.slow
def test_scatter_search_rng_accepts_a_generator():
    one, other = (search(rng=np.random.default_rng(3), max_eval=60) for _ in range(2))
    same(one, other)


@pytest.mark.slow
def test_numbers_do_not_depend_on_processes():
    same(search(rng=3, max_eval=100), search(rng=3, max_eval=100, workers=2))


def test_numbers_do_not_depend_on_the_workers():
    serial_result = search(rng=3, max_eval=100)
    with ThreadPoolExecutor(1) as executor:
        same(serial_result, search(rng=3, max_eval=100, workers=executor))


def test_scatter_search_resumed_equals_uninterrupted(tmp_path):
    full_result = search(rng=3, max_eval=160)
    file = tmp_path / "search.jsonl"

    stopped_result = search(rng=3, max_eval=160, checkpoint=file, callback=lambda progress: True)
    assert stopped_result.reason == "Stopped by the callback."
    assert stopped_result.simulations < full_result.simulations
    resumed_result = search(rng=3, max_eval=160, checkpoint=file, resume=True, workers=1)
    same(full_result, resumed_result)
    _, records, _ = read(file)
    assert sum("result" in record for record in records) <= max(len(records) - 1, 1)


@pytest.mark.slow
def test_a_finished_search_is_not_repeated(tmp_path):
    file = tmp_path / "search.jsonl"
    first_result = search(rng=3, max_eval=100, checkpoint=file)
    resumed_result = search(rng=3, max_eval=1, checkpoint=file, resume=True)
    assert resumed_result.objective <= first_result.history[0].objective
    assert resumed_result.generations <= first_result.generations


def test_a_checkpoint_of_other_options_is_refused(tmp_path):
    file = tmp_path / "search.jsonl"
    search(max_eval=20, checkpoint=file)
    with refused("exists; set resume=True"):
        search(max_eval=20, checkpoint=file)
    with refused("has options = ", "has seed = 0; this run has 1"):
        search(rng=1, max_eval=20, checkpoint=file, resume=True, balance=0.1)


def test_half_of_the_space_cannot_be_simulated():
    result = search(explosion(), max_eval=150, include_guess=False)
    assert result.best is not None
    assert result.best.values["k"] == pytest.approx(0.6, abs=1e-4)
    assert sum(result.failures.values()) >= 4
    assert "failed simulations" in str(result)


def test_scatter_search_without_any_simulation_fails():
    problem = explosion()
    hopeless = problem.replace(parameters={"k": cf.Parameter(2.0, lower=1.5, upper=3.0)})
    result = search(hopeless, max_eval=40)
    assert result.best is None
    assert not result.success
    assert result.chi2 == np.inf
    assert "No point could be simulated" in result.message
    assert "No point could be simulated" in str(result)


@pytest.mark.parametrize("each", [5, pytest.param(100, marks=pytest.mark.slow)])
def test_the_limit_of_simulations_grows_with_the_problem(each, monkeypatch):
    assert module._PER_QUANTITY == 100
    monkeypatch.setattr(module, "_PER_QUANTITY", each)
    problem = decay_problem(parameters={"k": cf.Parameter(0.5, lower=0.1, upper=2.0)})
    result = search(problem, max_eval=None)
    assert 11 * each <= result.simulations < 11 * each + 100


def test_limits_end_the_search(clock):
    assert search(max_eval=10).simulations >= 10
    assert len(search(max_eval=10).searches) == 0
    clock.step = 1.0
    quick = search(max_eval=1e9, max_time=1000.0)
    clock.step = 0.0
    assert quick.reason == "The time limit was reached."
    assert quick.best is not None
    target_result = search(vtr=1e9)
    assert target_result.reason == "The target objective was reached."
    assert target_result.simulations < 60


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_interruption_keeps_the_best(workers):
    def press(progress) -> None:
        if progress.generation == 1:
            signal.raise_signal(signal.SIGINT)

    result = search(rng=3, callback=press, workers=workers)
    assert result.reason == "Interrupted by the user."
    assert result.best is not None
    assert result.generations == 1
    assert result.objective <= result.history[0].objective


def test_an_interruption_during_a_fit_keeps_the_best():
    class Pressing(cf.GaussNewton):
        def solve(self, staged, control, **options):
            def press(iteration):
                signal.raise_signal(signal.SIGINT)
                return control.callback(iteration) if control.callback else None

            return super().solve(staged, replace(control, callback=press), **options)

    result = cf.scatter_search(waves(), SINGLE, Pressing("levenberg_marquardt", homotopy="never"), **SMALL)
    assert result.reason == "Interrupted by the user."
    assert len(result.searches) == 1
    assert result.best is not None


def test_the_callback_sees_every_generation():
    reports = []
    result = search(max_eval=150, callback=lambda report: reports.append(report))
    assert [report.generation for report in reports] == list(range(len(reports)))
    assert reports[-1].simulations <= result.simulations
    assert "best chi2" in reports[-1].sentence


def test_scatter_search_prints_only_if_verbose(capfd):
    search(max_eval=60)
    assert capfd.readouterr() == ("", "")
    search(max_eval=60, verbose=2)
    out, err = capfd.readouterr()
    assert "generation 0: best chi2 = " in out
    assert err == ""


def test_log_vars_auto_takes_the_logarithm_of_wide_ranges():
    parameters = {
        "w": cf.Parameter(2.0, lower=0.0, upper=9.0),
        "c": cf.Parameter(0.5, lower=-1.0, upper=2.0),
    }
    problem = waves(parameters=parameters)
    mistakes: list[str] = []
    changed = with_log_scales(problem, "auto", mistakes)
    assert mistakes == []
    assert [q.scale for q in changed.quantities] == ["log", "linear"]
    assert changed.quantities[0].lower == pytest.approx(9e-6)
    assert with_log_scales(problem, [], mistakes) is problem.posed
    explicit_problem = with_log_scales(waves(), ["w"], mistakes)
    assert [q.scale for q in explicit_problem.quantities] == ["log", "linear"]


def test_the_box_maps_there_and_back():
    problem = everything(state_bounds={}, constraints=())
    mistakes: list[str] = []
    read_search_bounds(problem, mistakes)
    assert any("'k2' lies in [-inf, inf]" in m and "Parameter(value, lower=..., upper=...)" in m for m in mistakes)
    box = read_search_bounds(waves(), mistakes)
    x = np.random.default_rng(0).random((5, 2))
    np.testing.assert_allclose(box.cube(box.theta(x)), x)
    np.testing.assert_array_equal(box.theta(np.array([2.0, -1.0])), [9.0, 0.0])


def test_a_zero_bound_is_reached_by_the_last_fit():
    times = np.linspace(0, 4, 9)
    experiment = cf.Experiment({"x": np.ones(9)}, time=times, sigma=0.1, initial={"x": 1.0})
    problem = cf.Problem(decay_model(), experiment, parameters={"k": cf.Parameter(0.5, lower=0.0, upper=10.0)})
    result = search(problem, max_eval=100)
    assert result.logarithmic == ("k",)
    assert result.best is not None
    assert result.best.values["k"] == pytest.approx(0.0, abs=1e-9)


def test_constraints_and_priors_count():
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k])
    experiment = cf.Experiment({"x": np.exp(-0.8 * np.arange(1, 5))}, time=np.arange(1.0, 5), sigma=0.1,
                               initial={"x": 1.0}, start=0.0)  # fmt: skip
    parameters = {"k": cf.Parameter(0.2, lower=0.1, upper=3.0, prior=cf.Normal(0.8, 1.0))}
    problem = cf.Problem(model, experiment, parameters=parameters,
                         constraints=[cf.Constraint(x, lower=0.2)])  # fmt: skip
    result = search(problem, max_eval=120, include_guess=False)
    assert result.best is not None
    assert result.best.values["k"] == pytest.approx(-np.log(0.2) / 4, rel=1e-4)


def test_other_transcriptions_and_starts_serve_local_searches():
    for transcription, start in ((cf.MultipleShooting(5), None), (cf.MultipleShooting(5), "matching")):
        result = cf.scatter_search(
            lotka(),
            transcription,
            cf.GaussNewton(),
            rng=0,
            **SMALL,
            max_eval=150,
            vtr=ObjectiveMeasure.from_problem(lotka()).at_height(0.02754),
            local_start=start,
        )
        assert result.chi2 < 0.02754


def lotka() -> cf.Problem:
    return problems.load("lotka_volterra").problem


def test_every_mistake_is_listed_at_once():
    with refused(
        "the option islands= was removed",
        "there is no option 'dim_refse': did you mean 'dim_refset'?",
        "n_diverse is 3",
        "transcription is <class",
        "solver is 'ipot': did you mean 'ipopt'?",
        "rng is -1",
        "max_eval is 0",
        "vtr is 'low'",
        "local_start is 'guess'",
        "join_reach is 2",
        "include_guess is 1",
        "workers is 0",
        "max_time is -1",
        "callback is 5",
        "verbose is 7",
        "resume=True continues a checkpoint",
        "log_vars names 'q', which is no free parameter",
        "'k' lies in [-inf, inf]; scatter search needs finite bounds",
    ):
        cf.scatter_search(
            decay_problem(), cf.SingleShooting, "ipot", rng=-1, max_eval=0, max_time=-1, vtr="low", log_vars=["q"],
            include_guess=1, local_start="guess", join_reach=2, islands=0, workers=0, callback=5, verbose=7,
            resume=True, dim_refse=3, n_diverse=3,
        )  # type: ignore[arg-type]  # fmt: skip
    with refused("problem is 5; give a Problem"):
        cf.scatter_search(5)  # type: ignore[arg-type]
    with refused("log_vars names 'k', which lies in [-1, 2]"):
        wide = decay_problem(parameters={"k": cf.Parameter(0.5, lower=-1, upper=2)})
        cf.scatter_search(wide, log_vars=["k"])


def test_scatter_result_plots(tmp_path):
    result = undisturbed()
    figure = result.plot(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 0
    lines = figure.axes[0].get_lines()
    assert lines[0].get_ydata()[0] == result.history[0].objective
    assert lines[0].get_xdata()[-1] == result.simulations
    joint_figure = pictures.curves({"one": [result], "other": [result]}, target=1e-3)
    assert [text.get_text() for text in joint_figure.axes[1].get_legend().get_texts()] == ["one", "other"]
    bars = draw_histogram([1e-3, 1e-3, 10.0, np.inf], target=1e-4)
    assert "1 without a value" in bars.axes[0].get_title(loc="left")
    assert sum(patch.get_height() for patch in bars.axes[0].patches) == 3
    with refused("no fit has a value"):
        draw_histogram([np.nan])
    with refused("no search has a value"):
        pictures.curves({"none": [replace(result, history=())]})
    assert plots is not None
