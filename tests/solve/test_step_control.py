"""Step controls: each lowers its own level function, none accepts a point that cannot be evaluated."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from castfit._support.status import InputError
from castfit.experiment.experiment import Experiment
from castfit.problem.problem import Problem
from castfit.solve.condensing import multipliers
from castfit.solve.gauss_newton import GaussNewton
from castfit.solve.solution import SolveControl
from castfit.solve.staged import gaps
from castfit.solve.step_control import (
    STEP_CONTROLS,
    ExactPenalty,
    Hemker,
    LevenbergMarquardt,
    NaturalLevel,
    TrustRegion,
)
from castfit.solve.step_control.common import outer, violation
from castfit.solve.step_control.exact_penalty import penalty
from castfit.transcribe.collocation import Collocation
from castfit.transcribe.multiple_shooting import MultipleShooting
from castfit.transcribe.single_shooting import SingleShooting
from tests.builders import decay_model, lotka_volterra
from tests.solve.blocks import problems
from tests.solve.toys import Affine, Faulty, Formula, search

CONTROLS = [NaturalLevel(), ExactPenalty(), LevenbergMarquardt(), Hemker(), TrustRegion()]
names = pytest.mark.parametrize("control", CONTROLS, ids=lambda c: type(c).__name__)


def parabola() -> Formula:
    """r(q) = 5 q^2 + 35, at q = 1: dv = -4, and Eq. 19 gives omega = 1 for every step."""
    return Formula(lambda q: 5 * q**2 + 35, lambda q: 10 * q[None], [1.0])


def saturated(start: float = 3.0) -> Formula:
    """r(q) = arctan q: from |q| > 1.39 full steps lead ever farther away."""
    return Formula(np.arctan, lambda q: np.diag(1 / (1 + q**2)), [start])


def rosenbrock(start=(-1.2, 1.0)) -> Formula:
    """A curved valley."""
    return Formula(
        lambda q: np.array([10 * (q[1] - q[0] ** 2), 1 - q[0]]),
        lambda q: np.array([[-20 * q[0], 10.0], [-1.0, 0.0]]),
        start,
    )


def shooting(intervals: int = 5):
    problem = lotka_volterra()
    return MultipleShooting(intervals).transcribe(problem, problem.guess)


# ------------------------------------------------------------------------------------------------- natural level


def test_estimate_of_the_curvature_and_the_corrected_damping():
    """Peifer and Timmer 2007, Eqs. 19-21: omega^ = 1, |dv| = 4; a full step is refused, 1 / (omega^ |dv|) taken."""
    step = NaturalLevel().advance(search(parabola()))
    assert np.isclose(step.report["omega"], 1.0)
    assert np.isclose(step.damping, 0.25)
    assert np.allclose(step.new_point.v, 0.0)
    # Simplified correction at q = 0: 35 / r'(1) = 3.5.
    assert np.isclose(step.report["level"], 3.5**2)
    assert step.memory == {"omega": step.report["omega"]}


@pytest.mark.parametrize(
    ("remembered", "damping"),
    [
        (1.0, 0.25),  # Eq. 20 as it stands
        (0.56, 1 / 2.24),  # accepted, as 4 / 2.24 <= 1.8 ...
        (0.51, 0.25),  # ... but 4 / 2.04 is more: corrected
        (0.4, 0.25),  # 1 / 1.6 > tau: a full step, corrected
        (100.0, 0.01),  # 1 / 400 < tau_min
    ],
)
def test_damping_is_predicted_from_the_last_curvature(remembered, damping):
    step = NaturalLevel().advance(search(parabola(), memory={"omega": remembered}))
    assert np.isclose(step.damping, damping)
    assert np.isclose(step.report["omega"], 1.0)


def test_a_good_prediction_costs_one_evaluation():
    line_search = search(parabola(), memory={"omega": 1.0})
    NaturalLevel().advance(line_search)
    assert line_search.ledger.evaluations == {"jacobians": 1, "values": 1}


def test_smallest_damping_is_taken_whatever_the_curvature():
    toy = Formula(lambda q: 5000 * q**2 - 15000 * q + 5, lambda q: (10000 * q - 15000)[None], [1.499])
    step = NaturalLevel(tau_min=0.02).advance(search(toy))
    assert step.damping == 0.02
    assert step.report["omega"] * 0.02 > 1.8


@given(problems(n_c=0, determined=True))
def test_linear_problems_need_no_damping(problem):
    line_search = search(Affine(*problem))
    step = NaturalLevel().advance(line_search)
    assert step.damping == 1.0
    assert step.report.get("omega", 0.0) * line_search.norm(line_search.step.dv) < 1e-6
    assert step.report["level"] < 1e-12


@pytest.mark.parametrize("staged", [shooting(), rosenbrock(), saturated(2.0), saturated(40.0)])
def test_accepted_steps_lower_the_natural_level_as_promised(staged):
    """Bound (16) with the estimated curvature: the triangle inequality makes it hold exactly."""
    v, memory = staged.start, {}
    for _ in range(5):
        line_search = search(staged, v, memory)
        length = line_search.norm(line_search.step.dv)
        if length == 0.0:
            break
        step = NaturalLevel().advance(line_search)
        lam, omega = step.damping, step.report["omega"]
        assert step.report["level"] <= (length * (1 - lam + 0.5 * lam**2 * omega * length)) ** 2 * (1 + 1e-9)
        if lam > 0.01:
            assert step.report["level"] < length**2
        v, memory = step.new_point.v, step.memory


def test_a_step_of_inner_variables_alone_is_taken():
    """Without any step of theta and nodes there is no length to measure damping by."""
    toy = Formula(lambda q: np.array([1.0]), lambda q: np.zeros((1, 1)), [2.0])
    line_search = search(toy)
    assert line_search.norm(line_search.step.dv) == 0.0
    step = NaturalLevel().advance(line_search)
    assert step.damping == 1.0
    assert step.new_point.v == 2.0


# ------------------------------------------------------------------------------------------------- exact penalty


def test_penalty_is_the_cost_plus_the_weighted_violations():
    staged = shooting()
    line_search = search(staged)
    chain, unit = staged.layout.chains[0], np.eye(staged.layout.n_v)
    step = line_search.step
    chain_multipliers = multipliers(line_search.local.condensed, step.residuals)[0]
    weights = 2 * np.abs(np.vstack([chain_multipliers.initial[None], chain_multipliers.matching])) + 1e-8
    merit = penalty(line_search, margin=2.0)
    for dv in (0 * step.dv, step.dv, 0.1 * unit[chain.nodes[3, 1]]):
        evaluation = staged.evaluate(staged.start + dv)
        expected = evaluation.cost + np.sum(weights * np.abs(gaps(staged.layout, evaluation)[0]))
        assert np.isclose(merit(evaluation), expected, rtol=1e-12)
    assert merit(Faulty(staged, lambda v: True).evaluate(staged.start)) == np.inf


@pytest.mark.parametrize("staged", [shooting(), shooting(10), rosenbrock(), saturated(2.0), saturated(40.0)])
def test_line_search_lowers_the_penalty_by_part_of_the_promise(staged):
    v = staged.start
    for _ in range(5):
        line_search = search(staged, v)
        merit = penalty(line_search, margin=2.0)
        step = ExactPenalty().advance(line_search)
        promise = merit(line_search.evaluation) - line_search.evaluation.excess - line_search.step.predicted
        assert promise >= 0
        assert step.report["level"] == merit(step.new_point)
        assert merit(step.new_point) <= merit(line_search.evaluation) - 1e-4 * step.damping * promise + 1e-9 * merit(
            line_search.evaluation
        )
        v = step.new_point.v


def test_violations_count_gaps_inner_equations_and_path_constraints():
    problem = lotka_volterra(state_bounds={"x": (0.4, 0.7)})
    staged = SingleShooting().transcribe(problem, problem.guess)
    evaluation = staged.evaluate(staged.start)
    gap, inner, outside, relations = violation(staged.layout, evaluation)
    assert gap.size == inner.size == relations.size == 0
    x = evaluation.values[0].c.ravel()
    assert np.allclose(outside.ravel(), np.maximum(0.4 - x, 0) + np.maximum(x - 0.7, 0))
    assert outside.max() > 0.1


# ------------------------------------------------------------------------------------------- Levenberg-Marquardt


@pytest.mark.parametrize("staged", [shooting(), rosenbrock(), saturated(2.0), saturated(40.0)])
def test_levenberg_marquardt_lowers_the_penalty_and_adapts(staged):
    v, memory = staged.start, {}
    for _ in range(5):
        line_search = search(staged, v, memory)
        merit = penalty(line_search, margin=2.0)
        step = LevenbergMarquardt().advance(line_search)
        mu = step.report["mu"]
        assert step.report["level"] == merit(step.new_point) <= merit(line_search.evaluation) * (1 + 1e-9)
        assert mu >= memory.get("mu", 1e-3)
        assert mu / 3 * (1 - 1e-9) <= step.memory["mu"] <= 2 * mu
        assert step.damping == 1 / (1 + mu)
        v, memory = step.new_point.v, step.memory


def test_gain_of_one_divides_mu_by_three():
    toy = Formula(lambda q: q - np.array([3.0, 5.0]), lambda q: np.eye(2), [0.0, 0.0])
    step = LevenbergMarquardt(initial_mu=1e-3).advance(search(toy))
    assert np.allclose(step.new_point.v, np.array([3.0, 5.0]) / 1.001)
    assert np.isclose(step.memory["mu"], 1e-3 / 3)


@pytest.mark.parametrize("control", [LevenbergMarquardt(), ExactPenalty()])
def test_changes_below_the_integration_error_are_accepted(control):
    """The promise drowns in rounding, and the trial is worse by far more than that."""
    toy = Formula(lambda q: np.array([1.0 + 1e-11 * (q[0] != 0), 1e-9 * (q[0] + 3)]), lambda q: [[0.0], [1e-9]], [0.0])
    step = control.advance(search(toy))
    assert np.isclose(step.new_point.v[0], -3.0, rtol=1e-2)


# ------------------------------------------------------------------------------------------------------- Hemker


def test_hemker_shortens_steepest_descent_by_his_factor():
    """The Gauss-Newton step is too long; in one dimension steepest descent is the same, and S / (S + S') follows."""
    toy = saturated(3.0)
    line_search = search(toy)
    start_cost, end_cost = line_search.evaluation.cost, toy.evaluate(toy.start + line_search.step.dv).cost
    assert end_cost > start_cost
    step = Hemker().advance(line_search)
    assert np.isclose(step.damping, start_cost / (start_cost + end_cost))
    assert np.allclose(step.new_point.v, toy.start + step.damping * line_search.step.dv)
    assert step.new_point.cost < start_cost


def test_hemker_descends_along_the_gradient_within_bounds():
    """A Gauss-Newton step that fails, along a valley, with the third quantity held at its bound."""
    toy = Formula(
        lambda q: np.array([10 * (q[1] - q[0] ** 2), 1 - q[0], q[2] + 2]),
        lambda q: np.array([[-20 * q[0], 10.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]),
        [-1.2, 1.0, 1.0],
    )
    toy.lower[2] = 1.0
    line_search = search(toy)
    J, r = toy.jacobian(toy.start), toy.residuals(toy.start)
    gradient = np.array([*(J.T @ r)[:2], 0.0])
    step = Hemker().advance(line_search)
    assert step.new_point.cost < line_search.evaluation.cost
    change = step.new_point.v - toy.start
    length = (gradient @ gradient) / np.sum((J @ gradient) ** 2)
    assert np.allclose(change, -step.damping * length * gradient)


def test_hemker_refuses_nodes_and_path_constraints():
    with pytest.raises(InputError, match="knows neither continuity nor path constraints; use it with SingleShooting"):
        GaussNewton("hemker").solve(shooting(), SolveControl())
    problem = lotka_volterra(state_bounds={"x": (0, 3)})
    with pytest.raises(InputError, match="neither continuity nor path constraints"):
        GaussNewton("hemker").solve(SingleShooting().transcribe(problem, problem.guess), SolveControl())


# ------------------------------------------------------------------------------------------------ what all share


@names
@pytest.mark.parametrize("sensitivities_only", [False, True])
@pytest.mark.parametrize("edge", [2.9, 1.5, 0.3])
def test_points_that_cannot_be_evaluated_are_never_accepted(control, sensitivities_only, edge):
    """From 1 to the solution at 3, everything beyond the edge fails; behind 0.3 nothing is left at all."""
    toy = Formula(lambda q: q - 3.0, lambda q: np.eye(1), [0.25])
    staged = Faulty(toy, lambda v: bool(v[0] > edge), sensitivities_only=sensitivities_only)
    solver = GaussNewton(control, homotopy="never")
    states = list(solver.iterate(staged))
    assert all(0.25 <= state.v[0] <= edge for state in states)
    assert states[-1].evaluation.cost < states[0].evaluation.cost or edge == 0.3
    solved = solver.solve(staged, SolveControl())
    assert not solved.status.success
    assert solved.failures["step_size"] > 0


@names
def test_a_region_that_fails_beside_the_way_does_no_harm(control):
    """Full steps of arctan from 2 end in the region; shorter ones reach the solution."""
    staged = Faulty(saturated(2.0), lambda v: bool(abs(v[0]) > 2.2))
    solved = GaussNewton(control, homotopy="never").solve(staged, SolveControl())
    assert solved.status.success
    assert abs(solved.v[0]) < 1e-6
    assert isinstance(control, TrustRegion) or solved.failures["step_size"] > 0  # which takes no such steps


@names
@pytest.mark.parametrize("toy", [rosenbrock, saturated, lambda: saturated(-30.0)], ids=["valley", "near", "far"])
def test_all_reach_the_solution(control, toy):
    staged = toy()
    solved = GaussNewton(control, homotopy="never", max_iter=2000).solve(staged, SolveControl())
    assert solved.status.success
    assert np.allclose(solved.v, 1.0 if staged.start.size == 2 else 0.0, atol=1e-5)


def test_trials_stay_within_the_bounds():
    toy = saturated(3.0)
    toy.lower[:] = 2.5
    line_search = search(toy)
    assert np.allclose(line_search.trial(np.array([-7.0])).v, 2.5)


def test_norm_measures_theta_and_nodes_in_their_units():
    staged = shooting()
    line_search = search(staged)
    unit = np.maximum(np.abs(line_search.evaluation.v), staged.scale)
    assert np.isclose(line_search.norm(0.1 * unit), 0.1)
    assert np.array_equal(np.sort(outer(staged.layout)), np.arange(staged.layout.n_v))
    experiment = Experiment({"x": [0.5, 0.3]}, time=[1.0, 2.0], initial={"x": 1.0})
    problem = Problem(decay_model(), experiment, parameters={"k": 1.0})
    collocated = Collocation(elements=4).transcribe(problem, problem.guess)
    inner = collocated.layout.chains[0].inner.ravel()
    assert not np.isin(inner, outer(collocated.layout)).any()


def test_step_control_names_select_their_classes():
    assert {name: type(rule()).__name__ for name, rule in STEP_CONTROLS.items()} == {
        "natural_level": "NaturalLevel",
        "exact_penalty": "ExactPenalty",
        "hemker": "Hemker",
        "levenberg_marquardt": "LevenbergMarquardt",
        "box": "TrustRegion",
    }
