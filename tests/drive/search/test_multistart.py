from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest

import castfit as cf
from castfit import plots
from castfit._support import process_pool as pool
from castfit._support.status import InputError
from castfit.drive.search.multistart import multistart as module
from tests.builders import everything
from tests.drive.chores import QUICK, STRAIGHT, Troubled, oscillator, pole, rows
from tests.drive.killed import run
from tests.paths import ROOT
from tests.workers import no_time_passes_until

SINGLE = cf.SingleShooting()


@pytest.fixture(scope="module")
def many():
    """Starts in many optima of a frequency."""
    return cf.multistart(oscillator(), SINGLE, STRAIGHT, starts=10)


@pytest.fixture(scope="module")
def undisturbed():
    return run(None, starts=8)


@pytest.fixture
def counted(monkeypatch):
    """Count the fits."""
    starts: list[float] = []

    def fit(*arguments, start, **options):
        starts.append(next(iter(start.values())))
        return cf.fit(*arguments, start=start, **options)

    monkeypatch.setattr(module, "fit", fit)
    return starts


def same(one, other):
    """Compare two results, times apart."""
    assert rows(one) == rows(other)
    assert one.optima == other.optima
    assert one.best.values == other.best.values
    assert one.best.chi2 == other.best.chi2
    np.testing.assert_array_equal(one.best.covariance, other.best.covariance)
    assert one.best.problem is not None


def test_every_row_is_the_fit_from_its_start(many):
    for row in many.starts[::5]:
        result = cf.fit(oscillator(), SINGLE, STRAIGHT, start=row.start)
        assert row.values == pytest.approx(result.values, rel=1e-12)
        assert row.status == result.status.value
        assert row.evaluations == result.evaluations


def test_the_best_fit_is_the_lowest_optimum(many):
    assert many.success
    assert many.best.parameters["w"] == pytest.approx(1.3, abs=0.03)
    assert many.best.objective == many.optima[0].objective == min(r.objective for r in many.starts if r.success)
    assert len(many.optima) > 3
    assert sum(len(optimum.starts) for optimum in many.optima) == sum(row.success for row in many.starts)
    best = many.starts[many.optima[0].starts[0]]
    assert best.values == many.best.values


def test_rows_stand_in_the_order_of_the_starts(many):
    assert [row.index for row in many.starts] == list(range(10))


def test_numbers_do_not_depend_on_the_workers(two_workers, many):
    same(cf.multistart(oscillator(), SINGLE, STRAIGHT, starts=10, workers=two_workers), many)


@pytest.mark.slow
def test_numbers_do_not_depend_on_the_workers_for_a_problem_with_everything():
    starts = [{"k2": 0.5}, {"k2": 0.7}, {"k1": 1.1}]
    collocation = cf.Collocation(elements=6)
    one, other = (
        cf.multistart(everything(), collocation, cf.GaussNewton(max_iter=4), starts=starts, workers=n) for n in (1, 2)
    )
    assert rows(one) == rows(other)


def test_a_start_does_not_depend_on_the_others():
    several = run(None, starts=6)
    assert {name: column[:3] for name, column in rows(several).items()} == rows(run(None, starts=3))


@pytest.mark.parametrize("starts", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_half_of_the_starts_cannot_be_integrated(starts):
    result = cf.multistart(pole(), QUICK, STRAIGHT, starts=starts, max_draws=1)
    n_failed = sum(row.start["k"] >= 1 for row in result.starts)
    assert abs(n_failed - starts / 2) <= 2
    assert result.statuses == {"converged": starts - n_failed, "start_failed": n_failed}
    assert sum(result.failures.values()) == 2 * n_failed  # roughly, then accurately
    assert result.best.parameters["k"] == pytest.approx(0.5, abs=1e-6)
    assert f"{n_failed} start_failed" in result.summary()


def test_a_start_that_cannot_be_evaluated_is_drawn_again(counted):
    result = cf.multistart(pole(), QUICK, STRAIGHT, starts=8, max_draws=30)
    assert result.statuses == {"converged": 8}
    assert all(row.start["k"] < 1 for row in result.starts)
    assert sum(row.draws for row in result.starts) == len(counted) > 8
    assert 2 * sum(k > 1 for k in counted) == sum(result.failures.values())  # roughly, then accurately
    assert f"resampled because the model could not be evaluated: {len(counted) - 8}" in result.summary()


def test_multistart_redraws_at_most_max_draws_times(counted):
    result = cf.multistart(pole(), QUICK, starts=2, max_draws=3, limits={"k": (1.5, 2)})
    assert result.statuses == {"start_failed": 2}
    assert [row.draws for row in result.starts] == [3, 3]
    assert len(counted) == len(set(counted)) == 6
    assert not result.success
    assert result.best.problem is not None
    assert "No start converged" in result.summary()


def test_given_starts_are_not_drawn_again():
    result = cf.multistart(pole(), QUICK, STRAIGHT, starts=[{"k": 1.7}, {"k": 0.4}])
    assert [(row.status, row.draws) for row in result.starts] == [("start_failed", 1), ("converged", 1)]


def test_an_error_costs_its_start():
    troubled = Troubled(trouble="none", above=0.6, below=0.9)
    result = cf.multistart(pole(upper=0.95), troubled, STRAIGHT, starts=8)
    for row in result.starts:
        assert row.status == ("error" if 0.6 < row.start["k"] < 0.9 else "converged")
    assert "RuntimeError: trouble at 0." in result.message
    assert result.success


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_a_worker_that_hangs_costs_its_start(monkeypatch):
    """What one that dies costs: see the lost starts below."""
    reports = []
    no_time_passes_until(lambda: len(reports) == 2, monkeypatch)
    starts = [{"k": k} for k in (0.2, 0.7, 0.4)]
    troubled = Troubled(trouble="hang", above=0.6, below=0.9)
    result = cf.multistart(
        pole(), troubled, STRAIGHT, starts=starts, workers=2, fit_max_time=600.0, callback=reports.append
    )
    assert [row.status for row in result.starts] == ["converged", "worker_hung", "converged"]
    assert "Start 1: Its worker process hung" in result.message
    assert result.success


def test_misuse_of_the_fit_is_raised():
    with pytest.raises(InputError, match="transcription is <class"):
        cf.multistart(pole(), cf.SingleShooting, starts=3)


def test_multistart_unpicklable_transcription_requires_one_worker():
    @dataclass(frozen=True)
    class Local(cf.SingleShooting):
        pass

    with pytest.raises(InputError, match=r"cannot be pickled for other processes.*workers=1"):
        cf.multistart(pole(), Local(), STRAIGHT, starts=2, workers=2)
    assert cf.multistart(pole(), Local(), STRAIGHT, starts=[{"k": 0.4}]).success


def test_all_mistakes_are_named_at_once():
    with pytest.raises(InputError) as caught:
        cf.multistart(
            pole(),
            limits={"k": (0, np.inf)},
            starts=0,
            max_draws=0,
            workers=0,
            max_time=0,
            fit_max_time=-1,
            resume=True,
            callback=1,
            verbose=3,
        )
    phrases = ("max_draws is 0", "give checkpoint=path", "workers is 0", "max_time is 0", "fit_max_time is -1",
               "callback is 1", "verbose is 3", "starts is 0", "limits", "'k' has the limits [0, inf]")  # fmt: skip
    assert len(caught.value.problems) == len(phrases)
    assert all(p in mistake for p, mistake in zip(phrases, caught.value.problems, strict=True))
    with pytest.raises(InputError, match="give a Problem"):
        cf.multistart("pole", starts=3)


def test_a_callback_sees_the_run_and_ends_it():
    reports = []

    def callback(report):
        reports.append(report)
        return report.finished == 4

    result = cf.multistart(oscillator(), SINGLE, STRAIGHT, starts=9, callback=callback)
    assert [report.finished for report in reports] == [1, 2, 3, 4]
    assert [report.last_row.index for report in reports] == [0, 1, 2, 3]
    best = [report.best.objective for report in reports]
    assert best == [
        min(report.last_row.objective for report in reports[: i + 1] if report.last_row.success) for i in range(4)
    ]
    assert result.statuses["not_run"] == 5
    assert result.message == "Stopped by the callback. 4 of 9 starts ended."
    assert "4 of 9 starts: best chi2 = " in reports[-1].sentence
    assert "found once" in reports[0].sentence
    assert " s left" in reports[-1].sentence


def test_the_time_limit_cuts_off_and_leaves_the_rest(clock):
    clock.step = 1.0
    result = cf.multistart(oscillator(), SINGLE, STRAIGHT, starts=200, max_time=2000.0)
    statuses = result.statuses
    assert 100 < statuses.pop("not_run") < 199
    assert statuses.pop("cut_off", 0) <= 1
    assert "The time limit was reached." in result.message


def test_the_time_limit_holds_while_a_million_starts_are_drawn(clock):
    clock.step = 1.0
    result = cf.multistart(oscillator(), SINGLE, STRAIGHT, starts=1_000_000, sampling="uniform", max_time=5.0)
    assert 1 <= len(result.starts) < 1_000_000
    assert f"Only {len(result.starts)} of 1000000 starting points were sampled" in result.message


def test_a_start_has_its_own_time_limit():
    result = cf.multistart(oscillator(), SINGLE, STRAIGHT, starts=3, fit_max_time=1e-6)
    assert result.statuses == {"max_time": 3}
    assert result.message == "All 3 starts ended."


def test_multistart_interrupted_returns_finished_starts():
    def interrupt(progress):
        if progress.finished == 3:
            signal.raise_signal(signal.SIGINT)

    result = cf.multistart(oscillator(), SINGLE, STRAIGHT, starts=9, callback=interrupt)
    assert result.message == "Interrupted by the user. 3 of 9 starts ended."
    assert result.success


def test_multistart_prints_only_if_verbose(capfd):
    cf.multistart(oscillator(), SINGLE, STRAIGHT, starts=2)
    assert capfd.readouterr() == ("", "")
    cf.multistart(oscillator(), SINGLE, STRAIGHT, starts=2, verbose=1)
    assert "2 of 2 starts: best chi2 = " in capfd.readouterr().out
    cf.multistart(oscillator(), SINGLE, STRAIGHT, starts=2, verbose=2)
    assert "start 1: converged, chi2 = " in capfd.readouterr().out


def test_the_table_is_columns_of_equal_length(many):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(many.table)
    assert len(frame) == 10
    assert set(frame.groupby("optimum").size()) == {len(o.starts) for o in many.optima}
    assert list(frame["start w"]) == [row.start["w"] for row in many.starts]


# Checkpoints


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stopped_run_ends_as_an_undisturbed_one(tmp_path, workers, undisturbed):
    path = tmp_path / "run.jsonl"
    stopped_result = run(path, workers, starts=8, callback=lambda progress: progress.finished == 5)
    finished_indices = {row.index for row in stopped_result.starts if row.status != "not_run"}
    assert len(finished_indices) < 8
    repeated_indices: set[int] = set()
    result = run(path, starts=8, callback=lambda progress: repeated_indices.add(progress.last_row.index))
    same(result, undisturbed)
    assert not finished_indices.intersection(repeated_indices)
    assert len(repeated_indices) == 8 - len(finished_indices)


def test_a_finished_run_is_read_from_its_checkpoint(tmp_path, counted):
    path = tmp_path / "run.jsonl"
    first_result = run(path, starts=3)
    fits = len(counted)
    same(run(path, starts=3), first_result)
    assert len(counted) == fits


def test_more_starts_continue_a_checkpoint(tmp_path, undisturbed):
    path = tmp_path / "run.jsonl"
    run(path, starts=3)
    run(path, starts=5)
    same(run(path, starts=8), undisturbed)
    with pytest.raises(InputError, match="has 8 starts; starts= is smaller"):
        run(path, starts=6)


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        ({"problem": pole(scale=1.1)}, "differs from this run in the data of 'experiment 1'"),
        ({"problem": pole(upper=3)}, r"bounds, scale and prior of 'k' = \[0.3, 0.0, 2.0, .*has \[0.3, 0.0, 3.0"),
        ({"transcription": cf.MultipleShooting(3)}, "transcription = SingleShooting"),
        ({"solver": cf.GaussNewton(max_iter=5)}, "max_iter=5"),
        ({"rng": 5}, "seed = 4; this run has 5"),
        ({"sampling": "sobol"}, "sampling = uniform; this run has sobol"),
        ({"max_draws": 3}, "max_draws = 2; this run has 3"),
        ({"fit_max_time": 100}, "fit_max_time = inf; this run has 100"),
        ({"limits": {"k": (0, 1)}}, "this run draws other starting points"),
    ],
)
def test_the_checkpoint_of_another_run_is_refused(tmp_path, changes, phrase):
    path = tmp_path / "run.jsonl"
    run(path, starts=2, callback=lambda progress: True)
    content = path.read_bytes()
    options = {"problem": pole(), "transcription": QUICK, "solver": STRAIGHT, "rng": 4, "sampling": "uniform"}
    with pytest.raises(InputError, match=phrase):
        cf.multistart(**{**options, "starts": 2, "max_draws": 2, **changes}, checkpoint=path, resume=True)
    assert path.read_bytes() == content


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_lost_starts_are_run_again_on_resuming(tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "MAX_WORKERS_PER_TASK", 1)  # for further attempts see test_pool.py and test_disturbed.py
    path = tmp_path / "run.jsonl"
    common = {"starts": [{"k": k} for k in (0.2, 0.7, 0.4)], "checkpoint": path, "resume": True}
    trouble = Troubled(trouble="die", above=0.6, below=0.9)
    first_result = cf.multistart(pole(), trouble, STRAIGHT, workers=2, **common)
    assert [row.status for row in first_result.starts] == ["converged", "worker_died", "converged"]
    assert "Start 1: Its worker process died" in first_result.message
    assert first_result.success
    repeated_indices = []
    cf.multistart(
        pole(),
        trouble,
        STRAIGHT,
        workers=2,
        callback=lambda progress: repeated_indices.append(progress.last_row.index),
        **common,
    )
    assert repeated_indices == [1]


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize(("kills", "starts"), [(1, 6), (20, 40)])
def test_a_killed_run_ends_as_an_undisturbed_one(tmp_path, kills, starts):
    root = ROOT
    rng = np.random.default_rng(kills)
    full_result = run(None, starts=starts)
    for i in range(kills):
        path, workers = tmp_path / f"{i}.jsonl", 1 + i % 2
        command = [sys.executable, "-m", "tests.drive.killed", str(path), str(workers), str(starts)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root, text=True) as process:
            for _ in range(rng.integers(1, starts - 2)):
                assert process.stdout.readline()
            process.send_signal(signal.SIGKILL)
        content = path.read_bytes()
        if i % 3 == 0:  # as if the disk had held only a part of the last line
            path.write_bytes(content[: -rng.integers(1, 40)])
        repeated_indices = []
        result = run(
            path,
            starts=starts,
            callback=lambda progress, repeated_indices=repeated_indices: repeated_indices.append(
                progress.last_row.index
            ),
        )
        same(result, full_result)
        assert len(repeated_indices) == starts - content.count(b'"row"') + (i % 3 == 0)
        assert path.read_bytes().count(b'"row"') == starts


# Saving, pictures


def test_a_result_survives_being_saved(tmp_path, many):
    path = tmp_path / "many.jsonl"
    many.save(path)
    loaded = cf.MultistartResult.load(path)
    assert loaded.table.keys() == many.table.keys()
    for name, column in many.table.items():
        np.testing.assert_array_equal(loaded.table[name], column)
    lines = [line for line in loaded.summary().splitlines() if not line.startswith("Residual tests need the problem")]
    assert lines == many.summary().splitlines()
    assert loaded.best.problem is None
    same(loaded.with_problem(oscillator()), many)


def test_a_saved_result_can_be_continued(tmp_path):
    path = tmp_path / "part.jsonl"
    part = cf.multistart(pole(), QUICK, STRAIGHT, starts=4, callback=lambda progress: progress.finished == 2)
    part.save(path)
    result = cf.multistart(pole(), QUICK, STRAIGHT, starts=4, checkpoint=path, resume=True)
    assert rows(result) == rows(cf.multistart(pole(), QUICK, STRAIGHT, starts=4))


def test_the_checkpoint_of_a_run_that_was_cut_short_is_a_result(tmp_path):
    path = tmp_path / "run.jsonl"
    run(path, starts=6, callback=lambda progress: progress.finished == 3)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))  # without what a run writes when it ends
    loaded = cf.MultistartResult.load(path)
    assert loaded.statuses["not_run"] == 3
    assert loaded.message == "Loaded from a checkpoint: 3 starts finished."
    assert loaded.best.values == loaded.starts[loaded.optima[0].starts[0]].values


def test_load_other_files_raises_input_error(tmp_path, many):
    path = tmp_path / "other.json"
    many.best.save(path)
    with pytest.raises(InputError, match="not a castfit checkpoint"):
        cf.MultistartResult.load(path)
    with pytest.raises(InputError, match="cannot be read"):
        cf.MultistartResult.load(tmp_path / "none")


def test_the_waterfall_shows_every_start_once(many, tmp_path):
    figure = many.plot(tmp_path / "waterfall.png")
    (axes,) = figure.axes
    points = np.concatenate([line.get_xydata() for line in axes.lines])
    points = points[np.argsort(points[:, 0])]
    np.testing.assert_array_equal(points[:, 0], np.arange(10))
    np.testing.assert_array_equal(points[:, 1], sorted(row.objective for row in many.starts))
    assert (tmp_path / "waterfall.png").stat().st_size > 1000


def test_pictures_of_failures(undisturbed):
    failed_result = replace(
        undisturbed,
        starts=tuple(replace(row, status="error", objective=np.nan) for row in undisturbed.starts),
        optima=(),
    )
    (axes,) = plots.waterfall(failed_result).axes
    assert "8 starts: none succeeded, 8 have no χ²" in axes.get_title("left")
    with pytest.raises(InputError, match="no start succeeded"):
        plots.parameters(failed_result)


def test_the_picture_of_parameters_has_a_line_per_success(many):
    (axes,) = plots.parameters(many).axes
    lines = [line for line in axes.lines if line.get_marker() not in ("None", "", None)]
    assert len(lines) == sum(row.success for row in many.starts)
    heights = np.concatenate([line.get_ydata() for line in lines])
    assert heights.min() == pytest.approx(0)
    assert heights.max() == pytest.approx(1)


def test_multistart_summary_names_the_measure() -> None:
    """With unknown sigmas fits are compared by -2 log L; with known ones by chi2."""
    x, y, k = cf.symbols("x y k")
    model = cf.Model({x: -k * x, y: k * x}, parameters=[k], initial={x: 2.0, y: 0.0})
    data = {"x": [1.3, 0.7, 0.5], "y": [0.8, 1.2, 1.7]}
    for sigma, measure in ((0.1, "chi2"), ({n: cf.unknown() for n in data}, "-2 log L")):
        experiment = cf.Experiment(data, time=[1, 2, 3], sigma=sigma or 0.1)
        problem = cf.Problem(model, experiment, parameters={"k": cf.Parameter(0.5, 0.01, 10.0, "log")})
        result = cf.multistart(problem, "single", starts=2)
        assert result.measure == measure
        assert measure in result.table
        assert f"{measure} " in result.summary().partition("best:")[0]
        comparison = cf.compare(problem, ["single", "single/box"], starts=2)
        assert comparison.measure == measure
        assert f"correct: {measure} = " in comparison.summary()
        symbol = measure.replace("chi2", "χ²").replace("-", "−")
        assert f"differ at equal {symbol}<" in result._repr_html_()
        assert f", {symbol} = " in comparison._repr_html_()
        assert comparison.rows[1].converged == 2
