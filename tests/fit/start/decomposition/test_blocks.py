"""Blocks: which equations belong together, and what each block's problem keeps of the whole."""

from __future__ import annotations

import numpy as np
import pytest

import castfit as cf
from castfit import problems
from castfit.fit.start.decomposition.blocks import decomposition_mistakes, find_blocks, pose

T = np.linspace(0, 4, 9)


def chain(measured=("x", "y", "w"), *, parameters=None, outputs=None, initial=None, experiments=None, **options):
    """Build w' = -a w, x' = -b x + w y, y' = -c y + d x, measured as told."""
    w, x, y, a, b, c, d, s = cf.symbols("w x y a b c d s")
    model = cf.Model(
        ode={w: -a * w, x: -b * x + w * y, y: -c * y + d * x},
        parameters=[a, b, c, d, s],
        outputs={"scaled": s * y, "same": y, **(outputs or {})},
        initial={w: 1, x: 2, y: 3, **(initial or {})},
    )
    data = {name: np.cos(T) + i for i, name in enumerate(measured)}
    all_experiments = experiments or [cf.Experiment(data, time=T, sigma=0.1)]
    default_parameters = {
        **dict.fromkeys("abcd", cf.Parameter(1.0, lower=0, upper=5)),
        "s": cf.Parameter(2.0, fixed=True),
    }
    return cf.Problem(model, all_experiments, parameters={**default_parameters, **(parameters or {})}, **options)


def states(problem):
    return [block.states for block in find_blocks(problem)]


def test_three_step_has_seven_blocks():
    blocks = find_blocks(problems.load("three_step").problem)
    assert [b.states for b in blocks] == [("G1",), ("G2",), ("G3",), ("E1",), ("E2",), ("E3",), ("M1", "M2")]
    assert [b.signals for b in blocks] == [(), ("M1",), ("M2",), ("G1",), ("G2",), ("G3",), ("E1", "E2", "E3")]
    assert blocks[3].parameters == ("V4", "K4", "k4")
    assert blocks[6].parameters == ("kcat1", "Km1", "Km2", "kcat2", "Km3", "Km4", "kcat3", "Km5", "Km6", "S", "P")


def test_measured_states_part_the_equations():
    problem = chain()
    assert states(problem) == [("w",), ("x",), ("y",)]
    assert [b.signals for b in find_blocks(problem)] == [(), ("w", "y"), ("x",)]
    assert decomposition_mistakes(problem) == []


def test_a_shared_free_parameter_joins_a_fixed_one_does_not():
    w, x, k = cf.symbols("w x k")
    model = cf.Model({w: -k * w, x: -k * x}, parameters=[k], initial={w: 1, x: 1})
    for fixed, expected in ((False, [("w", "x")]), (True, [("w",), ("x",)])):
        experiment = cf.Experiment(
            {"w": T, "x": T}, time=T, initial={"w": cf.free(1.0)}
        )  # so that something is estimated
        problem = cf.Problem(model, experiment, parameters={"k": cf.Parameter(1.0, fixed=fixed)})
        assert states(problem) == expected


@pytest.mark.parametrize("where", ["model", "experiment"])
def test_a_parameter_in_an_initial_value_joins_too(where):
    w, x, a, b = cf.symbols("w x a b")
    initial = {"w": 1, "x": 2 * a}
    model = cf.Model({w: -a * w, x: -b * x}, parameters=[a, b], initial=initial if where == "model" else {})
    data = {"w": np.cos(T), "x": np.cos(T)}
    experiment = cf.Experiment(data, time=T, initial=initial if where == "experiment" else {})
    assert states(cf.Problem(model, experiment, parameters={"a": 1.0, "b": 1.0})) == [("w", "x")]


def test_find_blocks_merges_equations_that_share_an_unmeasured_state():
    assert states(chain(measured=("w", "x"))) == [("w",), ("x", "y")]


def test_a_state_must_be_measured_in_every_experiment_and_three_times():
    full = cf.Experiment({n: np.cos(T) for n in "wxy"}, time=T)
    without = cf.Experiment({n: np.cos(T) for n in "wx"}, time=T)
    seldom = cf.Experiment({"w": np.cos(T), "x": np.cos(T), "y": ([1.0, 2.0], [1.0, 1.0])}, time=T)
    assert states(chain(experiments=[full, full])) == [("w",), ("x",), ("y",)]
    assert states(chain(experiments=[full, without])) == [("w",), ("x", "y")]
    assert states(chain(experiments=[full, seldom])) == [("w",), ("x", "y")]


def test_an_output_counts_only_if_it_is_the_state_itself():
    assert states(chain(measured=("w", "x", "same"))) == [("w",), ("x",), ("y",)]
    assert states(chain(measured=("w", "x", "scaled"))) == [("w",), ("x", "y")]


def test_algebraic_states_are_refused():
    w, x, z, a, b = cf.symbols("w x z a b")
    model = cf.Model({w: -a * w, x: -b * x + z}, algebraic={z: z == w}, parameters=[a, b], initial={w: 1, x: 1})
    experiment = cf.Experiment({n: np.cos(T) for n in "wx"}, time=T)
    (mistake,) = decomposition_mistakes(cf.Problem(model, experiment, parameters={"a": 1.0, "b": 1.0}))
    assert "it has algebraic states (z); start from 'matching' or from values" in mistake


def test_the_mistake_names_the_states_that_are_not_measured():
    w, x, y, a, b = cf.symbols("w x y a b")
    model = cf.Model({w: -a * w + y, x: -b * x + y, y: -y}, parameters=[a, b], initial={w: 1, x: 1, y: 1})
    experiment = cf.Experiment({"w": np.cos(T), "x": np.cos(T)}, time=T)
    (mistake,) = decomposition_mistakes(cf.Problem(model, experiment, parameters={"a": 1.0, "b": 1.0}))
    assert "the state 'y', which couples its equations, must be measured directly in every experiment" in mistake


def test_the_mistake_says_that_parameters_connect_everything():
    (mistake,) = decomposition_mistakes(problems.load("alpha_pinene").problem)
    assert "shared parameters connect all its equations" in mistake


def test_a_block_keeps_what_concerns_it():
    local = cf.Parameter({"one": 1.5, "two": 2.5}, lower=0, upper=5, local=True, prior=cf.Normal(1.0, 0.5))
    one = cf.Experiment(
        {n: np.cos(T) for n in "wxy"}, time=T, sigma=0.1, name="one", initial={"x": cf.free(0.7, lower=0)}
    )
    two = cf.Experiment({n: np.sin(T) + 2 for n in "wxy"}, time=T, sigma=0.2, name="two")
    problem = chain(parameters={"b": local}, experiments=[one, two], state_bounds={"x": (0, 9), "y": (0, 8)})
    piece = pose(problem, find_blocks(problem)[1])
    assert piece is not None
    assert piece.problem.model.states == ("x",)
    assert piece.problem.model.inputs == ("w", "y")
    assert [problem.names[j] for j in piece.positions] == ["b[one]", "x(0)[one]", "b[two]"]
    assert piece.problem.names == ("b[one]", "x(0)[one]", "b[two]")
    assert piece.problem.quantities[0].prior == cf.Normal(1.0, 0.5)
    assert piece.problem.state_bounds == {"x": (0, 9)}
    assert piece.problem.guess.tolist() == [1.5, 0.7, 2.5]
    assert piece.problem.conditions[1].points.sigma == pytest.approx(0.2)


def test_an_experiment_without_data_of_a_block_is_left_out_of_it():
    one = cf.Experiment({n: np.cos(T) for n in "wxy"}, time=T, name="one")
    two = cf.Experiment({"x": np.cos(T), "y": np.cos(T)}, time=T, name="two")
    local = cf.Parameter({"one": 1.5, "two": 2.5}, local=True)
    problem = chain(parameters={"b": local}, experiments=[one, two])
    blocks = find_blocks(problem)
    assert [b.states for b in blocks] == [("w", "x"), ("y",)]
    piece = pose(problem, blocks[1])
    assert piece is not None
    assert len(piece.problem.experiments) == 2


def test_a_block_with_nothing_to_estimate_is_no_problem():
    problem = chain(parameters={"a": cf.Parameter(1.0, fixed=True)})
    assert pose(problem, find_blocks(problem)[0]) is None


def test_signals_begin_at_the_known_initial_value_and_average_replicates():
    two = np.stack([np.cos(T), np.cos(T) + 2], axis=1)
    two[3, 1] = np.nan
    experiment = cf.Experiment({"w": (T[1:], two[1:]), "x": (T, np.cos(T)), "y": (T[1:-1], np.cos(T)[1:-1])})
    problem = chain(experiments=[experiment])
    piece = pose(problem, find_blocks(problem)[1])
    assert piece is not None
    w, y = piece.problem.conditions[0].inputs
    assert w(T[[0, 1, 3]]) == pytest.approx([1.0, np.cos(T[1]) + 1, np.cos(T[3])])
    assert y(T[[0, -2, -1]]) == pytest.approx([3.0, np.cos(T[-2]), np.cos(T[-2])])


def test_signals_of_a_free_initial_state_hold_the_first_measurement():
    experiment = cf.Experiment({n: (T[1:], np.cos(T[1:])) for n in "wxy"}, initial={"w": cf.free(5.0)})
    problem = chain(experiments=[experiment])
    piece = pose(problem, find_blocks(problem)[1])
    assert piece is not None
    assert piece.problem.conditions[0].inputs[0](0.0) == pytest.approx(np.cos(T[1]))


def test_a_block_that_its_own_data_cannot_determine_is_no_problem():
    """Here c moves y only, which is seen through an output."""
    w, x, y, a, b, c = cf.symbols("w x y a b c")
    model = cf.Model({w: -a * w, x: -b * x, y: b * x - c * y}, parameters=[a, b, c], outputs={"twice": 2 * y},
                     initial={w: 1, x: 1, y: 0})  # fmt: skip
    experiment = cf.Experiment({n: np.cos(T) for n in ("w", "x", "twice")}, time=T)
    problem = cf.Problem(model, experiment, parameters=dict.fromkeys("abc", 1.0))
    first_block, second_block = find_blocks(problem)
    assert second_block.states == ("x", "y")
    assert pose(problem, first_block) is not None
    assert pose(problem, second_block) is None
