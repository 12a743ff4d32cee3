"""Pictures of what is known: bands, ellipses, directions, sensitivities; their axes, scales and labels."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy import special

import castfit as cf
from castfit import plots
from castfit.plots._canvas import escape_text, log_spaced

HOSTILE = "a$b$_<i>"


def decay(times, *, sigma=0.02, units=None, several=(1.0,), names=("k", "m"), noise=0.02):
    """Experiments of y = m x0 exp(-k t), fitted."""
    x = cf.symbols("x")
    k, m = (cf.symbols(n) for n in names)
    model = cf.Model({x: -k * x}, parameters=[k, m], outputs={"y": m * x})
    rng = np.random.default_rng(1)
    experiments = [
        cf.Experiment(
            {"y": 2 * x0 * np.exp(-0.7 * times) * (1 + noise * rng.standard_normal(times.size))},
            time=times, sigma=sigma, initial={"x": x0}, name=f"start {x0:g}",
        )
        for x0 in several
    ]  # fmt: skip
    guess = {names[0]: 0.5, names[1]: cf.Parameter(1.5, scale="log")}
    return cf.fit(cf.Problem(model, experiments, parameters=guess, units=units), cf.SingleShooting())


@pytest.fixture(scope="module")
def result():
    return decay(np.linspace(0.5, 4, 8), units={"time": "h", "y": "mg/L", "k": "1/h"})


def words(figure):
    from matplotlib.text import Text

    return " | ".join(text.get_text() for text in figure.findobj(Text))


def shade(figure):
    (band,) = [c for axes in figure.axes for c in axes.collections if type(c).__name__.startswith("FillBetween")]
    return band.get_paths()[0].vertices


def test_units_stand_on_axes_and_in_titles(result):
    text = words(result.plot())
    assert "time (h)" in text
    assert "y (mg/L)" in text
    assert "k (1/h)" in words(plots.ellipses(result))
    assert "time (h)" in words(plots.residuals(result))
    assert "time (h)" in words(plots.sensitivities(result))


def test_a_band_is_the_predicted_one_and_wider_with_noise(result):
    curve_band, value_band = (shade(result.plot(bands="linear", noise=noise)) for noise in (False, True))
    prediction = result.predict(np.array([0.5, 4.0]), bands="linear")["start 1"]
    for side in ("lower", "upper"):
        ends = prediction[f"y {side}"]
        assert np.min(np.abs(curve_band[:, 1] - ends[1]) + np.abs(curve_band[:, 0] - 4.0)) < 1e-6
    assert np.ptp(value_band[:, 1]) > np.ptp(curve_band[:, 1])
    assert "95 % of the curve" in words(result.plot(bands="linear"))
    assert "80 % of new values" in words(result.plot(bands="linear", noise=True, confidence_level=0.8))


def test_options_are_checked(result):
    with pytest.raises(cf.InputError, match="3 mistakes"):
        result.plot(log="both", share=2, nodes="yes")
    with pytest.raises(cf.InputError, match="needs bands='linear' or bands='profile'"):
        result.plot(noise=True)
    with pytest.raises(cf.InputError, match=r"cf.plots.fit has no argument 'colour'"):
        result.plot(colour="red")


def test_data_over_decades_have_logarithmic_axes():
    spread = decay(np.geomspace(1e-3, 12.0, 12), sigma=cf.relative(0.02))
    axes = spread.plot().axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "linear")
    times = max((line.get_xdata() for line in axes.lines), key=len)
    assert np.count_nonzero(times < 0.1) > 100  # the curve is fine there, too
    assert [spread.plot(log=choice).axes[0].get_yscale() for choice in ("y", True, False)] == ["log", "log", "linear"]
    assert spread.plot(log="y").axes[0].get_xscale() == "linear"


def test_log_spaced_needs_positive_values_over_decades():
    assert log_spaced([np.geomspace(1, 1e4, 9)])
    assert not log_spaced([np.linspace(1, 1e4, 99)])
    assert not log_spaced([np.array([0.0, 1.0, 10.0, 1e4])])
    assert not log_spaced([np.array([-1.0, 1.0, 10.0, 1e4])])
    assert not log_spaced([np.array([1.0, 1e5])])


def test_each_experiment_has_its_own_scale_where_one_would_look_flat():
    similar_sizes, different_sizes = (
        decay(np.linspace(0.5, 4, 8), sigma=cf.relative(0.02), several=s) for s in ((1, 2), (1, 100))
    )

    def shared(figure):
        first_axes, _, second_axes, _ = figure.axes
        return first_axes.get_shared_y_axes().joined(first_axes, second_axes)

    assert shared(similar_sizes.plot())
    assert not shared(different_sizes.plot())
    assert shared(different_sizes.plot(share=True))
    assert not shared(similar_sizes.plot(share=False))
    assert different_sizes.plot().axes[0].get_ylim()[1] < 5


def test_plots_ellipses_agree_with_covariance(result):
    axes = plots.ellipses(result).axes[0]
    inner, outer = (np.array([line.get_xdata(), line.get_ydata()]) for line in axes.lines[:2])
    centre = np.array([result.parameters["k"], np.log(result.parameters["m"])])
    C = np.diag([1.0, 1 / result.parameters["m"]]) @ result.covariance @ np.diag([1.0, 1 / result.parameters["m"]])
    for curve, squared in ((inner, special.ndtri(0.975) ** 2), (outer, special.chdtri(2, 0.05))):
        offsets = np.array([curve[0], np.log(curve[1])]) - centre[:, None]
        np.testing.assert_allclose(np.einsum("in,ij,jn->n", offsets, np.linalg.inv(C), offsets), squared, rtol=1e-4)
    for row, name in zip(inner, ("k", "m"), strict=True):
        np.testing.assert_allclose((row.min(), row.max()), result[name].interval, rtol=1e-3)


def test_contours_are_drawn_over_ellipses_whichever_way_their_pair_is_named(result):
    curve = np.array([[0.6, 1.9], [0.7, 2.1], [0.8, 2.0]])
    for pair, expected in ((("k", "m"), curve), (("m", "k"), curve[:, ::-1])):
        axes = plots.ellipses(result, contours={pair: [curve]}).axes[0]
        np.testing.assert_allclose(axes.lines[-1].get_xydata(), expected)


def test_contours_of_profiles_are_drawn_over_ellipses(result):
    contours = cf.contours(result, "k", "m", confidence_levels=0.95, slices=4)
    axes = plots.ellipses(result, contours=[contours]).axes[0]
    np.testing.assert_allclose(axes.lines[-1].get_xydata(), contours.lines[0.95])


def test_ellipses_ask_for_names_that_have_errors(result):
    with pytest.raises(cf.InputError, match="'q' was not estimated"):
        plots.ellipses(result, names=["k", "q"])
    assert "no pairs" in words(plots.ellipses(result, names=["k"]))


def test_directions_are_those_of_the_region(result):
    figure = plots.directions(result)
    region = result.confidence_region()
    assert [axes.get_title("left") for axes in figure.axes] == [a.sentence for a in region.axes[::-1]]
    for axes, axis in zip(figure.axes, region.axes[::-1], strict=True):
        assert [bar.get_width() for bar in axes.patches] == pytest.approx([axis.weights.get(n, 0) for n in ("k", "m")])
    assert len(plots.directions(result, most=1).axes) == 1
    with pytest.raises(cf.InputError, match="most is 0"):
        plots.directions(result, most=0)


def test_an_open_direction_is_marked():
    x, a, b = cf.symbols("x a b")
    model = cf.Model({x: -a * b * x}, parameters=[a, b], initial={x: 1})
    t = np.linspace(0.5, 3, 6)
    experiment = cf.Experiment({"x": np.exp(-t)}, time=t, sigma=0.1)
    result = cf.fit(cf.Problem(model, experiment, parameters={"a": 1.0, "b": 0.9}), cf.SingleShooting())
    axes = plots.directions(result).axes[0]
    assert "not determined" in axes.get_title("left")
    assert {bar.get_hatch() for bar in axes.patches} == {"////"}


def test_sensitivities_are_derivatives_of_the_prediction(result):
    figure = plots.sensitivities(result)
    lines = {line.get_color(): line for line in figure.axes[0].lines if len(line.get_xdata()) > 50}
    assert len(lines) == 2
    k, m = (result.parameters[n] for n in ("k", "m"))
    for line, expected in zip(lines.values(), (lambda t: -k * t * m * np.exp(-k * t), lambda t: m * np.exp(-k * t)),
                              strict=True):  # fmt: skip
        np.testing.assert_allclose(line.get_ydata(), expected(line.get_xdata()), rtol=1e-4, atol=1e-6)
    assert len({line.get_linestyle() for line in lines.values()}) == 2  # to be told apart in grey


@pytest.mark.slow
def test_names_are_shown_as_they_are(tmp_path):
    """Dollar signs would begin a formula, which need not be one."""
    result = decay(np.linspace(0.5, 4, 8), names=(HOSTILE, "m$"), several=(1.0, 2.0))
    for draw in (plots.fit, plots.residuals, plots.ellipses, plots.directions, plots.sensitivities, plots.correlation):
        draw(result, tmp_path / "picture.svg")
    assert escape_text(HOSTILE) in words(plots.correlation(result))


def test_the_tests_of_residuals_stand_beside_them(result):
    checks = result.diagnostics.outputs["y"].checks
    text = words(plots.residuals(result))
    for test in ("runs", "with_prediction", "normality", "autocorrelation"):
        assert f"p = {checks[test].p_value:.2g}" in text or np.isnan(checks[test].p_value)


def test_plots_many_experiments_predict_some_and_join_residuals(tmp_path, monkeypatch):
    """Of 1,000 a page took 40 s: a legend of 1,000 lines, bands of what nobody sees, and the same tests five times."""
    result = decay(np.linspace(0.5, 4, 8), several=np.linspace(1.0, 2.0, 60))
    requested_times = []
    predict = cf.Result.predict
    monkeypatch.setattr(
        cf.Result,
        "predict",
        lambda self, times, **options: requested_times.append(times) or predict(self, times, **options),
    )
    text = words(plots.fit(result, bands="linear"))
    assert "of 60 panels are shown" in text
    shown_names = {name for name in requested_times[-1] if name in text}
    assert shown_names == set(requested_times[-1]) == set(requested_times[-2])
    assert len(shown_names) < 60
    picture = plots.residuals(result)
    assert picture.series.keys() == {"residuals"}
    (series,) = (line for line in picture.axes[0].lines if len(line.get_xdata()) == 60 * 8)
    assert np.allclose(series.get_ydata(), result.normalised_residuals)
    result.report(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    suspected = sum(any(c.is_finding for c in s.checks.values()) for s in result.diagnostics.series.values())
    assert f"{suspected} of 60 outputs of single experiments have a shown or suspected deviation" in page


def test_plots_series_have_names_for_page(result):
    assert {"data", "model", "residuals"} <= result.plot().series.keys()
    assert {"k", "m"} <= plots.sensitivities(result).series.keys()


@pytest.mark.parametrize(
    ("low", "high", "log"),
    [(1.75, 2.65, False), (0.8, 1.3, True), (0.2, 9.0, True), (0.8, 20.0, True), (2e-4, 0.02, True), (1e-5, 1e4, True)],
)
def test_labels_below_profiles_have_room(low, high, log):
    from castfit.plots._canvas import tile_panels
    from castfit.plots.uncertainty import _label_few

    figure, panels = tile_panels(3, 3, (2.2, 1.9), (0.4, 0.4))
    axes = panels.ravel()[0]
    axes.set_xscale("log" if log else "linear")
    axes.set_xlim(low, high)
    _label_few(axes, log)
    figure.canvas.draw()
    extents = [label.get_window_extent() for label in axes.get_xticklabels(which="both") if label.get_text()]
    extents = sorted((box.x0, box.x1) for box in extents if axes.bbox.x0 <= (box.x0 + box.x1) / 2 <= axes.bbox.x1)
    assert len(extents) >= 2
    assert all(end + 3 < begin for (_, end), (begin, _) in pairwise(extents))


def test_dates_stand_below_every_row_of_individuals():
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 10.0})
    dates = np.datetime64("2026-03-02T08") + np.array([1, 12, 30]).astype("m8[h]")
    animals = [
        cf.Experiment({"x": values}, dates + np.timedelta64(i, "D"), sigma=0.2, time_unit="h", start=dates[0])
        for i, values in enumerate([[7.2, 5.1, 2.4], [6.1, 3.6, 1.4], [8.0, 6.7, 4.3], [7.5, 5.4, 3.0], [7, 5, 3.1]])
    ]
    problem = cf.Problem(model, animals, parameters={"k": cf.Parameter(0.03, local=True)})
    figure = plots.individuals(cf.mixed_effects(problem, cf.Population({"k": cf.Individual()}), max_iter=0))
    figure.canvas.draw()
    offset_texts = [axes.xaxis.get_offset_text() for axes in figure.axes]
    assert len(offset_texts) == 5
    assert all(text.get_visible() and "2026" in text.get_text() for text in offset_texts)


def test_values_beyond_a_limit_of_detection_are_no_values_with_errors():
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    data = {"x": [1.5, 1.2, 0.7, 0.45, 0.3, 0.2]}
    experiment = cf.Experiment(data, [1, 2, 3, 4, 5, 6], noise=cf.Gaussian(0.05, below=0.3, above=1.5))
    axes = cf.fit(cf.Problem(model, experiment, parameters={"k": 0.5})).plot().axes[0]
    marks = {line.get_marker(): line.get_xdata().tolist() for line in axes.lines if line.get_marker() in "o^v"}
    assert marks == {"o": [2, 3, 4], "^": [1], "v": [5, 6]}
    text = words(axes.figure)
    assert "below the limit of detection" in text
    assert "above the limit of detection" in text
