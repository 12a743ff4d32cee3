"""Pictures of a solve: what they show is compared with closed forms and with the solver's own numbers."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest

import castfit as cf
from castfit import plots
from castfit.plots._canvas import BLUE, RED
from castfit.plots._course import StageIntegrator
from castfit.problems import load
from castfit.solve.solution import infeasibility
from castfit.solve.staged import gaps, weighted_squares

TIMES = np.arange(1.0, 7.0)


def decay(*, experiments=1, outputs=1):
    """x' = -k x, x(0) = 1, and as many outputs i x."""
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 1}, outputs={f"y{i}": i * x for i in range(1, outputs)})
    values = np.exp(-0.4 * TIMES) + 0.03 * np.cos(5 * TIMES)
    data = {"x": values, **{f"y{i}": i * values for i in range(1, outputs)}}
    runs = [cf.Experiment(data, time=TIMES, name=f"run {i + 1}") for i in range(experiments)]
    return cf.Problem(model, runs, parameters={"k": 1.0})


def exploding():
    """x' = k x^2 has a pole 1 / (k x(t)) after t; at the start k = 0.5 and the node at t = 2 is 2: pole at t = 3."""
    x, k = cf.symbols("x k")
    model = cf.Model({x: k * x**2}, parameters=[k], initial={x: 0.2})
    experiment = cf.Experiment({"x": [0.3, 2.0, 0.5, 0.4]}, time=[1, 2, 4, 6])
    return cf.Problem(model, experiment, parameters={"k": 0.5})


def course(problem, transcription, **options):
    return list(cf.GaussNewton(**options).iterate(problem, transcription))


@pytest.fixture(scope="module")
def lotka_volterra():
    """States of ten stages from a start with a pole, with the staged problem."""
    benchmark = load("lotka_volterra")
    theta = benchmark.problem.theta_from(benchmark.starts["pole"])
    staged = cf.MultipleShooting(10).transcribe(benchmark.problem, theta)
    return benchmark.problem, staged, list(cf.GaussNewton(homotopy="never").iterate(staged))


def lines(axes, colour):
    return [line for line in axes.lines if line.get_color() == colour and line.get_marker() == "None"]


def pieces(axes, colour=BLUE):
    """Split the line of a colour where it is interrupted: arrays (m, 2) of times and values."""
    line = max(lines(axes, colour), key=lambda line: len(line.get_xdata()))
    points = np.array(line.get_data(), dtype=float).T
    return [part for part in np.split(points, np.flatnonzero(np.isnan(points[:, 0]))) if len(part) > 1]


def ends(axes, colour=BLUE):
    return [part[~np.isnan(part[:, 0])] for part in pieces(axes, colour)]


def panels(figure):
    """Return the panels of the snapshots by column, and the curves below them by title."""
    above, *below = figure.subfigs
    columns = {}
    for axes in above.axes:
        columns.setdefault(axes.get_subplotspec().colspan.start, []).append(axes)
    return list(columns.values()), {axes.get_title("left"): axes for part in below for axes in part.axes}


def titles(figure):
    return [column[0].get_title("left") for column in panels(figure)[0]]


def test_stages_are_drawn_from_their_nodes_and_the_jumps_are_the_gaps(lotka_volterra):
    problem, staged, states = lotka_volterra
    columns, _ = panels(plots.iterations(states, problem, staged, choose=[0, 2]))
    (chain,) = staged.layout.chains
    for column, state in zip(columns, (states[0], states[2]), strict=True):
        (gap,) = gaps(staged.layout, state.evaluation)
        for j, axes in enumerate(column):
            curves = ends(axes)
            assert len(curves) == 10
            np.testing.assert_allclose(
                [part[0] for part in curves], np.column_stack([chain.times[:-1], state.v[chain.nodes[:, j]]])
            )
            np.testing.assert_allclose([part[-1, 0] for part in curves], chain.times[1:])
            jumps = ends(axes, RED)
            np.testing.assert_allclose([part[0, 0] for part in jumps], chain.times[1:-1])
            np.testing.assert_allclose([part[0, 1] - part[1, 1] for part in jumps], gap[1:, j], rtol=1e-3, atol=1e-5)


def test_pieces_follow_the_closed_form_of_every_experiment():
    problem = decay(experiments=2, outputs=3)
    edges = [np.array([0.0, 1.5, 6.0]), np.array([0.0, 6.0])]
    pieces_by_experiment = StageIntegrator(problem, edges).from_nodes(
        np.array([0.7]), [np.array([[1.0], [3.0]]), np.array([[2.0]])]
    )
    assert [len(experiment_pieces) for experiment_pieces in pieces_by_experiment] == [2, 1]
    for piece, start, x in zip(
        [*pieces_by_experiment[0], *pieces_by_experiment[1]], (0.0, 1.5, 0.0), (1.0, 3.0, 2.0), strict=True
    ):
        assert piece.complete
        expected = x * np.exp(-0.7 * (piece.times - start))
        np.testing.assert_allclose(piece.values, expected[:, None] * [1, 1, 2], rtol=1e-4)


def test_pieces_meet_jumps_of_inputs_and_keep_algebraic_states_consistent():
    x, z, u = cf.symbols("x z u")
    model = cf.Model({x: u}, algebraic={z: z**3 + z - x}, inputs=[u], outputs={"residual": z**3 + z - x, "both": x + u})
    jump = cf.Input.piecewise_constant([0.0, 0.3, 1.1], [1.0, -2.0, 5.0])
    experiment = cf.Experiment({"x": np.ones(2)}, [1.0, 2.0], initial={"x": cf.free(0.0)}, inputs={"u": jump})
    problem = cf.Problem(model, experiment)
    edges = np.array([0.0, 0.7, 2.0])
    ((first_piece, second_piece),) = StageIntegrator(problem, [edges]).from_nodes(
        np.array([0.0]), [np.array([[0.0], [4.0]])]
    )
    names = problem.model.output_names
    for piece, start, x0 in ((first_piece, 0.0, 0.0), (second_piece, 0.7, 4.0)):
        values = dict(zip(names, piece.values.T, strict=True))
        slope = np.interp(piece.times, [0, 0.3, 1.1, 2.0], [0, 0.3, -1.3, 3.2]) - np.interp(
            start, [0, 0.3, 1.1], [0, 0.3, -1.3]
        )
        np.testing.assert_allclose(values["x"], x0 + slope, atol=1e-6)
        np.testing.assert_allclose(values["residual"], 0.0, atol=1e-6)
        rates = values["both"] - values["x"]
        kink = 0.3 if piece is first_piece else 1.1
        at_kink = rates[piece.times == kink]
        assert at_kink.tolist() == pytest.approx([1.0, -2.0] if piece is first_piece else [-2.0, 5.0])  # both sides


def test_snapshots_are_the_first_the_last_and_two_between_unless_chosen(lotka_volterra):
    problem, staged, states = lotka_volterra
    default_titles = titles(plots.iterations(states, problem, staged))
    assert len(default_titles) == 4
    assert default_titles[0].startswith("start\n")
    assert default_titles[-1].startswith(f"after {states[-1].iteration} iterations, converged\n")
    chosen_titles = titles(plots.iterations(iter(states), problem, staged, choose=[3, 1]))
    assert [title.split("\n")[0] for title in chosen_titles] == ["after 3 iterations", "after 1 iteration"]
    assert f"cost {0.5 * weighted_squares(staged.layout, states[3].evaluation):.3g}" in chosen_titles[0]


def test_curves_show_every_iteration_once(lotka_volterra):
    problem, staged, states = lotka_volterra
    _, curves = panels(plots.iterations(states, problem, staged))
    steps = [state for state in states if state.status is None]
    assert states[-1].iteration == steps[-1].iteration  # the last state only says how it ended
    expected = {
        "cost, ½ Σ r²": [0.5 * weighted_squares(staged.layout, state.evaluation) for state in steps],
        "largest gap": [infeasibility(staged.layout, staged.scale, state.evaluation) for state in steps],
        "damping λ": [np.nan, *(state.damping for state in steps[1:])],
    }
    assert curves.keys() == expected.keys()
    for title, heights in expected.items():
        line = max(curves[title].lines, key=lambda line: len(line.get_xdata()))
        np.testing.assert_array_equal(line.get_xdata(), np.arange(len(steps)))
        np.testing.assert_allclose(line.get_ydata(), heights)
    assert curves["largest gap"].get_yscale() == "log"


def test_data_stay_visible_where_trajectories_leave_them(lotka_volterra):
    problem, staged, states = lotka_volterra
    columns, _ = panels(plots.iterations(states, problem, staged, choose=[0, 9]))
    points = problem.conditions[0].points
    for j, axes in enumerate(columns[0]):
        low, high = axes.get_ylim()
        data = points.values[:, j]
        assert max(part[:, 1].max() for part in ends(axes)) > high  # it does leave them
        assert low < data.min()
        assert data.max() < high < data.max() + 0.7 * np.ptp(data)
        assert axes.get_ylim() == columns[1][j].get_ylim()


def test_softened_problems_are_shaded():
    problem = decay()
    transcription = cf.MultipleShooting(3)
    states = course(problem, transcription, homotopy="always")
    soft = [state.iteration for state in states if state.is_relaxed]
    assert soft
    figure = plots.iterations(states, problem, transcription)
    _, curves = panels(figure)
    (band,) = curves["damping λ"].patches
    assert (band.get_x(), band.get_x() + band.get_width()) == (soft[0], soft[-1] + 1)
    hard_figure = plots.iterations(course(problem, transcription), problem, transcription)
    assert not panels(hard_figure)[1]["damping λ"].patches


def test_single_shooting_has_one_piece_and_no_gaps():
    problem = decay()
    states = course(problem, cf.SingleShooting())
    figure = plots.iterations(states, problem, cf.SingleShooting())
    columns, curves = panels(figure)
    assert curves.keys() == {"cost, ½ Σ r²", "damping λ"}
    for column, title in zip(columns, titles(figure), strict=True):
        (axes,) = column
        assert len(pieces(axes)) == 1
        assert not pieces(axes, RED)
        assert "gap" not in title
    times, heights = ends(columns[-1][0])[0].T
    np.testing.assert_allclose(heights, np.exp(-states[-1].v[0] * times), rtol=1e-4)


def test_collocation_is_drawn_by_integration_and_joins():
    problem = decay()
    transcription = cf.Collocation(elements=6)
    states = course(problem, transcription)
    columns, curves = panels(plots.iterations(states, problem, transcription))
    jumps = [max(abs(np.diff(part[:, 1]))[0] for part in ends(column[0], RED)) for column in (columns[0], columns[-1])]
    assert jumps[0] > 0.01
    assert jumps[1] < 1e-5
    assert "largest gap" in curves


def test_a_start_that_cannot_be_integrated_is_drawn_up_to_the_pole():
    problem = exploding()
    transcription = cf.SingleShooting()
    problem = problem.replace(parameters={"k": 1.0})  # 0.2 / (1 - 0.2 t): pole at t = 5
    states = course(problem, transcription, homotopy="never")
    assert states[-1].status is cf.Status.START_FAILED
    figure = plots.iterations(states, problem, transcription)
    ((axes,),), curves = panels(figure)
    assert not curves  # nothing to tell yet
    assert titles(figure) == ["start: cannot be integrated to the end"]
    (part,) = ends(axes)
    assert 4.9 < part[-1, 0] < 5.0
    inside = part[:, 0] < 4.5
    np.testing.assert_allclose(part[inside, 1], 0.2 / (1 - 0.2 * part[inside, 0]), rtol=1e-3)
    assert axes.get_ylim()[1] < 4


def test_a_stage_that_stops_leaves_the_others_whole():
    problem = exploding()
    pieces_by_experiment = StageIntegrator(problem, [np.array([0.0, 2.0, 4.0, 6.0])]).from_nodes(
        np.array([0.5]), [np.array([[0.2], [2.0], [0.5]])]
    )
    assert [piece.complete for piece in pieces_by_experiment[0]] == [True, False, True]
    assert 2.9 < pieces_by_experiment[0][1].times[-1] < 3.0
    transcription = cf.MultipleShooting([0.0, 2.0, 4.0, 6.0])
    states = course(problem, transcription, homotopy="never")
    assert states[0].status is cf.Status.START_FAILED
    ((axes,),), _ = panels(plots.iterations(states, problem, transcription))
    assert [part[0, 0] for part in ends(axes)] == [0.0, 2.0, 4.0]
    assert [part[0, 0] for part in ends(axes, RED)] == [2.0]  # from the whole stage before; not after the broken one


def test_several_experiments_have_rows_of_their_own_and_too_many_are_counted():
    problem = decay(experiments=4, outputs=2)
    transcription = cf.MultipleShooting(2)
    figure = plots.iterations(course(problem, transcription), problem, transcription)
    (column, *_), _ = panels(figure)
    assert [axes.get_ylabel() for axes in column] == [f"{name}, run {i}" for i in (1, 2, 3) for name in ("x", "y1")]
    assert figure.get_supxlabel() == "6 of 8 measured outputs are shown."


def test_pictures_are_written(tmp_path, lotka_volterra):
    problem, staged, states = lotka_volterra
    plots.iterations(states, problem, staged, path=tmp_path / "iterations.png")
    assert (tmp_path / "iterations.png").read_bytes().startswith(b"\x89PNG")


def test_an_animation_has_one_frame_per_iteration(tmp_path, lotka_volterra):
    from PIL import Image

    problem, staged, states = lotka_volterra
    path = tmp_path / "solve.gif"
    figure = plots.animate(states, problem, staged, path, frames_per_second=5)
    assert figure.get_suptitle().startswith(f"after {states[-1].iteration} iterations, converged")
    with Image.open(path) as animation:
        assert animation.n_frames == states[-1].iteration + 1
        assert animation.info["loop"] == 0
        durations, frames = [], []
        for k in range(animation.n_frames):
            animation.seek(k)
            durations.append(animation.info["duration"])
            frames.append(np.array(animation.convert("L"), dtype=int))
    assert set(durations[:-1]) == {200}
    assert durations[-1] > 1000
    changes = [np.count_nonzero(np.abs(b - a) > 60) for a, b in pairwise(frames)]
    assert min(changes) > 0
    assert changes[0] > 4 * changes[-1]  # in the end only the mark and the heading move


@pytest.mark.slow
def test_an_animation_of_one_state(tmp_path):
    problem = exploding().replace(parameters={"k": 1.0})
    states = course(problem, cf.SingleShooting(), homotopy="never")
    figure = plots.animate(states, problem, cf.SingleShooting(), tmp_path / "one.gif")
    assert figure.get_suptitle() == "start: cannot be integrated to the end"
    assert (tmp_path / "one.gif").read_bytes().startswith(b"GIF8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"choose": [0, 99]}, "unknown iteration 99; choose from 0 to 9"),
        ({"choose": []}, "0 iterations were passed; expected 1 to 8"),
        ({"choose": [0] * 9}, "9 iterations were passed"),
        ({"states": []}, r"states is empty; pass list\(GaussNewton\(\)\.iterate"),
        ({"transcription": cf.MultipleShooting(9)}, "states have 24 variables, the transcription has 22"),
    ],
)
def test_bad_input_is_named(lotka_volterra, options, message):
    problem, staged, states = lotka_volterra
    arguments = {"states": states, "transcription": staged, **options}
    with pytest.raises(cf.InputError, match=message):
        plots.iterations(arguments.pop("states"), problem, arguments.pop("transcription"), **arguments)


@pytest.mark.parametrize(
    ("path", "speed", "message"),
    [("solve.mp4", 4, "path is 'solve.mp4'; animations end in .gif"), ("solve.gif", 0, "frames_per_second is 0")],
)
def test_bad_animations_are_refused(lotka_volterra, path, speed, message):
    problem, staged, states = lotka_volterra
    with pytest.raises(cf.InputError, match=message):
        plots.animate(states, problem, staged, path, frames_per_second=speed)


@pytest.mark.slow
def test_animations_need_no_pyplot(tmp_path):
    code = """
import sys
import matplotlib
before = dict(matplotlib.rcParams)
import castfit as cf
from castfit import plots
x, k = cf.symbols("x k")
model = cf.Model({x: -k * x}, parameters=[k], initial={x: 1})
problem = cf.Problem(model, cf.Experiment({"x": [0.6, 0.4]}, time=[1, 2]), parameters={"k": 1})
states = list(cf.GaussNewton().iterate(problem, cf.MultipleShooting(2)))
plots.animate(states, problem, cf.MultipleShooting(2), sys.argv[1])
assert "matplotlib.pyplot" not in sys.modules
assert dict(matplotlib.rcParams) == before
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "solve.gif")], check=True)
