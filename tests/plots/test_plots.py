from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import pyplot

import castfit as cf
from castfit import plots
from castfit.plots._canvas import single
from castfit.plots._grid import Grid
from castfit.plots.searches import _title

RATES = {"k": 1.0, "m": 0.4}
TIMES = np.linspace(0.5, 6.0, 8)


def chain_model():
    """x -> y -> nothing, in closed form below."""
    x, y, k, m = cf.symbols("x y k m")
    return cf.Model({x: -k * x, y: k * x - m * y}, parameters=[k, m], initial={y: 0})


def chain(times, dose, k, m):
    return {"x": dose * np.exp(-k * times), "y": dose * k / (m - k) * (np.exp(-k * times) - np.exp(-m * times))}


def chain_problem(measured, *, sigma=0.05):
    """One experiment per entry of `measured`, a list of tuples of outputs."""
    rng = np.random.default_rng(3)
    experiments = [
        cf.Experiment(
            {n: chain(TIMES, 1.0 + i, **RATES)[n] + 0.05 * rng.standard_normal(TIMES.size) for n in outputs},
            time=TIMES,
            sigma=sigma,
            initial={"x": 1.0 + i},
            name=f"dose {1 + i}",
        )
        for i, outputs in enumerate(measured)
    ]
    return cf.Problem(chain_model(), experiments, parameters={"k": 0.8, "m": 0.5})


@pytest.fixture(scope="module")
def two_doses():
    return cf.fit(chain_problem([("x", "y"), ("y",)]), cf.MultipleShooting(4))


@pytest.fixture(scope="module")
def unknown_sigma():
    return cf.fit(chain_problem([("x", "y")], sigma=None), cf.SingleShooting())


@pytest.fixture(scope="module")
def exploding():
    x, k = cf.symbols("x k")
    model = cf.Model({x: k * x**2}, parameters=[k], initial={x: 1})  # has a pole at t = 1 / k
    experiment = cf.Experiment({"x": [1.1, 1.3, 1.6]}, time=[1, 2, 3])
    return cf.fit(cf.Problem(model, experiment, parameters={"k": 0.5}), cf.SingleShooting())


def panels(figure):
    """Map each title to its axes: data above, residuals below."""
    axes = figure.axes
    return {top.get_title("left"): (top, bottom) for top, bottom in zip(axes[::2], axes[1::2], strict=True)}


def words(figure):
    """All text that stands on a figure and its parts."""
    from matplotlib.text import Text

    return " ".join(text.get_text() for text in figure.findobj(Text)).replace("\n", " ")


def curve(axes):
    return max(axes.lines, key=lambda line: len(line.get_xdata()))


def test_every_measured_output_has_a_panel_with_its_data_and_error_bars(two_doses):
    axes_by_title = panels(plots.fit(two_doses))
    assert axes_by_title.keys() == {"x, dose 1", "y, dose 1", "y, dose 2"}
    for i, experiment in enumerate(two_doses.problem.experiments):
        for name, (times, values) in experiment.data.items():
            (container,) = axes_by_title[f"{name}, dose {1 + i}"][0].containers
            np.testing.assert_allclose(container.lines[0].get_xydata(), np.column_stack([times, values[:, 0]]))
            bars = np.array(container.lines[2][0].get_segments())
            np.testing.assert_allclose(np.diff(bars[:, :, 1]).ravel(), 2 * 0.05)


def test_curves_and_residuals_follow_the_closed_form(two_doses):
    axes_by_title = panels(plots.fit(two_doses))
    for i, experiment in enumerate(two_doses.problem.experiments):
        for name, (times, values) in experiment.data.items():
            top, bottom = axes_by_title[f"{name}, dose {1 + i}"]
            curve_times, heights = curve(top).get_data()
            assert curve_times[0] == 0
            assert curve_times[-1] == 6
            np.testing.assert_allclose(
                heights, chain(curve_times, 1.0 + i, **two_doses.parameters)[name], rtol=1e-5, atol=1e-7
            )
            (points,) = [line for line in bottom.lines if line.get_marker() == "o"]
            expected = (values[:, 0] - chain(times, 1.0 + i, **two_doses.parameters)[name]) / 0.05
            np.testing.assert_allclose(points.get_ydata(), expected, atol=1e-4)


def test_nodes_are_marked(two_doses):
    top, _ = panels(plots.fit(two_doses))["y, dose 2"]
    (marks,) = [line for line in top.lines if line.get_marker() == "|"]
    np.testing.assert_allclose(marks.get_xdata(), [0, 1.5, 3, 4.5])


def test_experiments_share_times_and_outputs_share_values(two_doses):
    axes_by_title = panels(plots.fit(two_doses))
    x1, y1, y2 = (axes_by_title[title][0] for title in ("x, dose 1", "y, dose 1", "y, dose 2"))
    assert x1.get_shared_x_axes().joined(x1, y1)
    assert y1.get_shared_y_axes().joined(y1, y2)
    assert not x1.get_shared_y_axes().joined(x1, y1)
    assert len({bottom.get_ylim() for _, bottom in axes_by_title.values()}) == 1


def test_estimated_noise_replaces_sigma_that_is_unknown(unknown_sigma):
    axes_by_title = panels(plots.fit(unknown_sigma))
    assert axes_by_title.keys() == {"x", "y"}
    (container,) = axes_by_title["x"][0].containers
    bars = np.array(container.lines[2][0].get_segments())
    np.testing.assert_allclose(np.diff(bars[:, :, 1]).ravel(), 2 * unknown_sigma.noise)
    standardised = [
        line.get_ydata() for _, bottom in axes_by_title.values() for line in bottom.lines if line.get_marker() == "o"
    ]
    assert np.sum(np.square(standardised)) == pytest.approx(unknown_sigma.dof)


def test_all_data_and_residuals_lie_inside_the_axes(two_doses, unknown_sigma):
    for result in (two_doses, unknown_sigma):
        for axes in plots.fit(result).axes:
            low, high = axes.get_ylim()
            values = np.concatenate([line.get_ydata() for line in axes.lines if line.get_marker() == "o"])
            assert low < values.min()
            assert values.max() < high


def test_a_failed_fit_shows_the_data_the_reason_and_the_curve_up_to_the_pole(exploding):
    assert not exploding.success
    figure = plots.fit(exploding)
    top, bottom = panels(figure)["x"]
    (container,) = top.containers
    np.testing.assert_allclose(container.lines[0].get_ydata(), [1.1, 1.3, 1.6])
    times, heights = curve(top).get_data()
    assert 1.9 < times[-1] < 2.0
    np.testing.assert_allclose(heights[times < 1.9], 1 / (1 - 0.5 * times[times < 1.9]), rtol=1e-4)
    assert top.get_ylim()[1] < 10  # the data stay visible
    assert not np.isfinite(
        np.concatenate([line.get_ydata() for line in bottom.lines if line.get_marker() == "o"])
    ).any()
    assert exploding.message.split(".")[0] in words(figure)
    assert "no success" in words(figure)


def test_comparison_draws_every_fit_over_the_same_data(two_doses, unknown_sigma):
    problem = two_doses.problem
    other = cf.fit(problem, cf.SingleShooting())
    figure = plots.comparison({"multiple": two_doses, "single": other})
    (legend,) = figure.findobj(lambda artist: type(artist).__name__ == "Legend")
    assert [text.get_text() for text in legend.get_texts()] == ["data", "multiple", "single"]
    for top, bottom in panels(figure).values():
        assert len(top.containers) == 1
        lines = [line for line in top.lines if len(line.get_xdata()) > TIMES.size]
        assert len({line.get_color() for line in lines}) == 2
        assert lines[0].get_linewidth() > lines[1].get_linewidth()  # so that the one behind shows
        dots = [line for line in bottom.lines if line.get_linestyle() == "None"]
        assert [line.get_marker() for line in dots] == ["s", "o"]  # to be told apart in grey as well


def test_comparison_names_the_fit_that_failed(exploding):
    text = words(plots.comparison({"good": exploding, "bad": exploding}))
    assert f"bad: {exploding.message.split('.')[0]}" in text


def test_gallery_puts_problems_side_by_side(two_doses, unknown_sigma):
    figure = plots.gallery({"two": {"a": two_doses}, "one": {"b": unknown_sigma}})
    left, right = figure.subfigs
    assert len(left.axes) == 6
    assert len(right.axes) == 4
    assert "two" in words(left)
    assert "one" in words(right)


def test_correlations_below_the_diagonal(two_doses):
    x, a, b, c = cf.symbols("x a b c")
    t = np.linspace(0.2, 4, 12)
    model = cf.Model({x: -a * x}, parameters=[a, b, c], initial={x: b}, outputs={"seen": x + c})
    experiment = cf.Experiment({"seen": 2 * np.exp(-t) + 0.5 + 0.01 * np.sin(9 * t)}, time=t)
    parameters = {"a": 0.8, "b": 1.5, "c": cf.Parameter(0.2, upper=0.3)}  # c ends at its bound
    for upper, n_shown in ((0.3, 1), (3.0, 3)):
        parameters["c"] = cf.Parameter(0.2, upper=upper)
        result = cf.fit(cf.Problem(model, experiment, parameters=parameters), "single")
        figure = plots.correlation(result)
        axes = figure.axes[0]
        image = np.ma.filled(axes.images[-1].get_array(), np.nan)
        assert np.isfinite(image).sum() == n_shown
        expected = np.where(np.tri(2, dtype=bool), result.correlation[1:, :-1], np.nan)
        np.testing.assert_allclose(image, expected)
        assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b"]
        assert [label.get_text() for label in axes.get_yticklabels()] == ["b", "c"]
        written = [text.get_text().replace("−", "-") for text in axes.texts]
        assert written == [f"{r:.2f}" for r in expected[np.isfinite(expected)]]


def test_plots_correlation_missing_gives_reason(exploding):
    assert "no correlations" in words(plots.correlation(exploding))


@pytest.mark.parametrize(("ending", "magic"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_path_writes_the_figure(two_doses, tmp_path, ending, magic):
    path = tmp_path / f"figure.{ending}"
    plots.fit(two_doses, path)
    assert path.read_bytes().startswith(magic)


def test_result_plot_is_plots_fit(two_doses):
    assert words(two_doses.plot()) == words(plots.fit(two_doses))


@pytest.mark.parametrize("draw", [plots.fit, lambda result: plots.comparison({"it": result})])
def test_a_loaded_result_needs_its_problem(two_doses, tmp_path, draw):
    two_doses.save(tmp_path / "result.json")
    loaded = cf.Result.load(tmp_path / "result.json")
    with pytest.raises(cf.InputError, match="with_problem"):
        draw(loaded)
    assert len(draw(loaded.with_problem(two_doses.problem)).findobj(lambda a: type(a).__name__ == "Axes")) == 6


@pytest.mark.slow
def test_a_figure_that_is_written_needs_no_pyplot(tmp_path):
    code = """
import sys
import matplotlib
before = dict(matplotlib.rcParams)
import castfit as cf
x, k = cf.symbols("x k")
model = cf.Model({x: -k * x}, parameters=[k], initial={x: 1})
result = cf.fit(cf.Problem(model, cf.Experiment({"x": [0.6, 0.4]}, time=[1, 2]), parameters={"k": 1}))
result.plot(sys.argv[1] + "/a.png").canvas.draw()
result.report(sys.argv[1] + "/a.html")
assert "matplotlib.pyplot" not in sys.modules
assert dict(matplotlib.rcParams) == before
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_pyplot_shows_a_figure_like_its_own(two_doses, monkeypatch):
    monkeypatch.setenv("DISPLAY", ":0")  # without one it is silent
    figure, (number,) = two_doses.plot(), pyplot.get_fignums()
    assert pyplot.figure(number) is pyplot.gcf() is figure
    for show in (figure.show, pyplot.show):
        with pytest.warns(UserWarning, match="FigureCanvasAgg is non-interactive"):
            show()
    other = plots.residuals(two_doses)
    assert pyplot.get_fignums() == [number, number + 1]
    pyplot.close(other)
    assert pyplot.get_fignums() == [number]


def test_pyplot_is_not_left_what_is_only_written(two_doses, tmp_path):
    with pyplot.rc_context({"figure.max_open_warning": 2}):
        for k in range(3):  # it would warn of more than two
            plots.correlation(two_doses, tmp_path / f"{k % 2}.png")
    assert pyplot.get_fignums() == []


def test_a_thread_leaves_pyplot_alone(two_doses):
    with ThreadPoolExecutor(1) as pool:
        figure = pool.submit(two_doses.plot).result()
    assert pyplot.get_fignums() == []
    assert figure.axes


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["TkAgg", "Agg"])
def test_without_a_display_there_is_a_figure_all_the_same(backend):
    code = """
import io
import castfit as cf
x, k = cf.symbols("x k")
model = cf.Model({x: -k * x}, parameters=[k], initial={x: 1})
result = cf.fit(cf.Problem(model, cf.Experiment({"x": [0.6, 0.4]}, time=[1, 2]), parameters={"k": 1}))
result.plot().savefig(io.BytesIO())
"""
    environment = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")}
    subprocess.run([sys.executable, "-c", code], check=True, env={**environment, "MPLBACKEND": backend})


@given(st.integers(1, 20), st.integers(1, 8), st.data())
def test_grid_places_every_panel_once_and_names_omitted_panels(n_experiments, n_outputs, data):
    masks = data.draw(
        st.lists(
            st.lists(st.booleans(), min_size=n_outputs, max_size=n_outputs).filter(any),
            min_size=n_experiments,
            max_size=n_experiments,
        )
    )
    conditions = [
        SimpleNamespace(name=f"e{i}", points=SimpleNamespace(mask=np.array([mask]))) for i, mask in enumerate(masks)
    ]
    problem = SimpleNamespace(conditions=conditions, outputs=[f"y{j}" for j in range(n_outputs)])
    grid = Grid.from_problem(problem)
    measured = [(f"e{i}", j) for i, mask in enumerate(masks) for j in range(n_outputs) if mask[j]]
    panel_keys = [(panel.condition.name, panel.output) for panel in grid.panels]
    cells = [(panel.row, panel.column) for panel in grid.panels]
    assert len(set(panel_keys)) == len(panel_keys) == len(set(cells))
    assert set(panel_keys) <= set(measured)
    assert 1 <= len(panel_keys) <= 12
    assert all(row < grid.rows and column < grid.columns <= 4 for row, column in cells)
    assert bool(grid.note) == (len(panel_keys) < len(measured))


def decay_over(times, **options):
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 1})
    units = options.pop("units", {})
    data = np.exp(-0.1 * np.arange(12.0)) + 0.01 * np.sin(9 * np.arange(12.0))
    experiment = cf.Experiment({"x": data}, time=times, sigma=0.02, **options)
    return cf.fit(cf.Problem(model, experiment, parameters={"k": 0.2}, units=units), "single")


DAYS = np.datetime64("2024-02-26") + np.arange(12)


def test_times_that_were_dates_are_shown_as_dates():
    result = decay_over(DAYS, time_unit="h")
    figure = result.plot()
    figure.canvas.draw()
    above, below = figure.axes
    ticks = below.get_xticks()
    labels = [label.get_text() for label in below.get_xticklabels()]
    dates = [np.datetime64("2024-02-26") + np.timedelta64(round(3600 * t), "s") for t in ticks]
    written = {str(day)[8:10]: text for day, text in zip(dates, labels, strict=True)}
    assert written["01"] == "Mar"
    assert all(text == day for day, text in written.items() if day != "01")
    assert len(labels) >= 3
    assert (below.get_xlabel(), below.xaxis.get_offset_text().get_text()) == ("date", "2024-Mar")
    assert not above.xaxis.get_offset_text().get_visible()
    assert below.format_xdata(24.0) == "2024-02-27 00:00:00"
    assert above.lines[0].get_xdata()[1] == 24.0  # what is drawn are numbers
    left = plots.residuals(result).axes[0]
    assert left.get_xlabel() == "date"
    assert left.format_xdata(24.0) == "2024-02-27 00:00:00"


def test_dates_survive_copies_of_their_experiment():
    (experiment,) = decay_over(DAYS, time_unit="d").problem.experiments
    for copy in (experiment, experiment.until(5.0), experiment.with_changes(name="a"), experiment.called("b")):
        assert (copy.origin, copy.time_unit) == (np.datetime64("2024-02-26"), "d")


@pytest.mark.parametrize(
    ("options", "label"),
    [
        ({"times": np.arange(12) * np.timedelta64(1, "D"), "time_unit": "d"}, "time (d)"),
        ({"times": np.arange(12.0)}, "time"),
        ({"times": np.arange(12.0), "units": {"time": "min"}}, "time (min)"),
        ({"times": np.arange(12) * np.timedelta64(1, "D"), "time_unit": "d", "units": {"time": "days"}}, "time (days)"),
    ],
)
def test_times_that_were_no_dates_are_numbers(options, label):
    result = decay_over(**options)
    figure = result.plot()
    figure.canvas.draw()
    assert figure.axes[1].get_xlabel() == label
    assert "4" in [text.get_text() for text in figure.axes[1].get_xticklabels()]


@pytest.mark.parametrize("path", [np.ones(3), 5, b"fit.png"])
def test_plot_invalid_path_refused(path):
    result = cf.fit(chain_problem([("x", "y")]))
    with pytest.raises(cf.InputError, match=r"path is .*; expected a file path"):
        result.plot(path)


def test_a_heading_is_no_wider_than_its_picture():
    figure, axes = single(4.0, 3.8)
    best = SimpleNamespace(objective=103.894, starts=range(2))
    _title(axes, SimpleNamespace(optima=[best], starts=range(6), measure="chi2"), 3, "without success")
    figure.canvas.draw()
    heading = axes.get_title("left")
    assert " ".join(heading.split()) == "6 starts: best χ² = 103.894 found 2 times, 3 without success"
    assert axes._left_title.get_window_extent().x1 <= figure.bbox.x1
