"""Optimal control: optima in closed form, both transcriptions, and what the integrated model says."""

from __future__ import annotations

import copy
import pickle

import casadi as ca
import numpy as np
import pytest

import castfit as cf
from tests.builders import refused

x, v, u, k, t = cf.symbols("x v u k t")
POINT = cf.Model({x: v, v: u}, inputs=[u], initial={x: 0, v: 0})
DECAY = cf.Model({x: -k * x + u}, inputs=[u], parameters=[k], initial={x: 1})
BOTH = pytest.mark.parametrize("transcription", ["collocation", "multiple"])


def free(pieces=10, kind="piecewise_constant", **options):
    return {"u": cf.Input.free(pieces, kind, **options)}


@BOTH
def test_double_integrator_minimal_time_is_two(transcription):
    plan = cf.control(
        POINT, horizon=cf.free(3.0, lower=0.1), inputs=free(bounds=(-1, 1)), minimise=cf.final_time(),
        constraints=[cf.at_end(x) == 1, cf.at_end(v) == 0], transcription=transcription,
    )  # fmt: skip
    assert plan.success, plan.message
    assert plan.horizon == pytest.approx(2.0, rel=1e-7)
    assert np.allclose(plan.inputs["u"].values, [1] * 5 + [-1] * 5, atol=1e-6)
    assert plan.states["x"][-1] == pytest.approx(1.0, abs=1e-7)


@BOTH
def test_double_integrator_least_energy_input_is_linear(transcription):
    """u = 6 - 12 t brings a point from rest to rest at 1: integral of u**2 is 12."""
    plan = cf.control(
        POINT, horizon=1, inputs=free(10, "linear"), minimise=cf.integral(u**2),
        constraints=[cf.at_end(x) == 1, cf.at_end(v) == 0], transcription=transcription,
    )  # fmt: skip
    assert plan.success, plan.message
    assert plan.objective == pytest.approx(12.0, rel=1e-7)
    assert np.allclose(plan.inputs["u"].values, 6 - 12 * np.linspace(0, 1, 11), atol=1e-5)


def test_control_in_other_units_has_the_same_optimum():
    """Bryson and Denham's problem in other units of length, time and objective."""
    objectives = []
    for length, second, price in ((1.0, 1.0, 1.0), (1e6, 1e-3, 1e-9), (1e-5, 1e4, 1e7)):
        speed = length / second
        model = cf.Model({x: v, v: u}, inputs=[u], initial={x: 0, v: speed})
        plan = cf.control(
            model, horizon=second, inputs=free(12, "linear"), minimise=price * cf.integral(u**2) / 2,
            constraints=[cf.along(x <= length / 9), cf.at_end(x) == 0, cf.at_end(v) == -speed],
        )  # fmt: skip
        assert plan.success, plan.message
        objectives.append(plan.objective / price / (length**2 / second**3))
    assert np.allclose(objectives, objectives[0], rtol=1e-6)
    assert objectives[0] == pytest.approx(4.0, rel=2e-2)


def test_objective_with_sqrt_and_log_of_integrals_has_the_same_optimum():
    """sqrt and log change the value, not the optimum; integrals in them are states."""
    plan = cf.control(POINT, horizon=1, inputs=free(), minimise=cf.integral(u**2), constraints=[cf.at_end(x) == 1])
    log_plan = cf.control(
        POINT, horizon=1, inputs=free(guess=1.0), minimise=cf.log(cf.integral(u**2)), constraints=[cf.at_end(x) == 1]
    )
    assert plan.success
    assert log_plan.success, log_plan.message
    assert np.exp(log_plan.objective) == pytest.approx(plan.objective, rel=1e-6)
    bounded_plan = cf.control(
        POINT, horizon=1, inputs=free(), minimise=-cf.at_end(x), constraints=[cf.integral(u**2) <= plan.objective]
    )
    assert bounded_plan.success, bounded_plan.message
    assert bounded_plan.objective == pytest.approx(-1.0, rel=1e-6)
    assert bounded_plan.constraints["integral(sq(u)) <= " + f"{plan.objective:.12g}"].active


def test_at_end_of_a_relation_equals_relation_of_end_values():
    for one, other in [
        (cf.at_end(x == 1), cf.at_end(x) == 1),
        (cf.at_end(x >= 100), cf.at_end(x) >= 100),
        (cf.at_end(x > v + 2), cf.at_end(x) > cf.at_end(v + 2)),
        (cf.at_end(x + v <= u), cf.at_end(x + v) <= cf.at_end(u)),
    ]:
        assert str(one) == str(other)
    options = {"horizon": 1, "inputs": free(), "minimise": cf.integral(u**2)}
    inside = cf.control(POINT, constraints=[cf.at_end(x == 1), cf.at_end(v <= 0.5)], **options)
    outside = cf.control(POINT, constraints=[cf.at_end(x) == 1, cf.at_end(v) <= 0.5], **options)
    assert inside.success, inside.message
    assert list(inside.constraints) == list(outside.constraints) == ["at_end(x) == 1", "at_end(v) <= 0.5"]
    assert inside.objective == outside.objective > 3.5  # 3 where v is free at the end
    assert inside.states["x"][-1] == pytest.approx(1.0, abs=1e-7)
    with refused("they cannot be nested"):
        cf.at_end(x >= cf.final_time())


def test_control_with_a_result_uses_estimates_and_fixed_parameters():
    a = cf.symbols("a")
    model = cf.Model({x: -k * x + a * u}, inputs=[u], parameters=[k, a], initial={x: 1})
    times = np.linspace(0, 2, 9)
    experiment = cf.Experiment({"x": np.exp(-0.7 * times)}, time=times, sigma=0.01, inputs={"u": 0.0})
    result = cf.fit(cf.Problem(model, experiment, parameters={"k": 0.5, "a": cf.Parameter(2.5, fixed=True)}))
    options = {"horizon": 1, "inputs": free(5, bounds=(-2, 2)), "minimise": cf.integral(x**2 + u**2)}
    fitted_plan = cf.control(model, parameters=result, **options)
    explicit_plan = cf.control(model, parameters={"k": result["k"].value, "a": 2.5}, **options)
    scenario_plan = cf.control(model, parameters=[result, {"k": 0.7, "a": 1.0}], **options)
    assert fitted_plan.success, fitted_plan.message
    assert fitted_plan.objective == explicit_plan.objective
    assert scenario_plan.success, scenario_plan.message
    assert scenario_plan.states["x"].shape[0] == 2
    assert scenario_plan.objective > explicit_plan.objective + 1e-3
    with refused("parameters is a Problem; give a mapping", "'k' has no value", "'a' has no value"):
        cf.control(model, parameters=result.problem, **options)


def test_control_optimises_parameters_and_initial_states():
    """x = a exp(-k) + c: only the product matters, so bounds decide."""
    plan = cf.control(
        DECAY, horizon=1, inputs={"u": 0.0}, parameters={"k": cf.Parameter(1.0, bounds=(0.5, 2.0))},
        initial={"x": cf.free(1.0, bounds=(0.0, 3.0))}, minimise=-cf.at_end(x) + (cf.quantity("x(0)") - 2) ** 2,
    )  # fmt: skip
    assert plan.success, plan.message
    assert plan.parameters["k"] == pytest.approx(0.5, abs=1e-6)
    assert plan.parameters["x(0)"] == pytest.approx(2 + np.exp(-0.5) / 2, abs=1e-6)


def test_control_with_log_det_of_end_states_matches_a_grid_search():
    """log det of the Gramian of a point, one integral for each entry; its optimum by a fine grid of one number."""
    g11, g12, g22 = cf.symbols("g11 g12 g22")
    a, b = ca.sin(u), ca.cos(u)
    model = cf.Model({g11: a * a, g12: a * b, g22: b * b}, inputs=[u], initial={g11: 1e-3, g12: 0, g22: 1e-3})
    det = cf.at_end(g11) * cf.at_end(g22) - cf.at_end(g12) ** 2
    plan = cf.control(model, horizon=1, inputs={"u": cf.Input.free(2, bounds=(0, 1))}, minimise=-cf.log(det), starts=3,
                      rng=0)  # fmt: skip
    assert plan.success, plan.message
    grid = np.linspace(0, 1, 201)
    s, t = np.meshgrid(grid, grid)
    mean = [(f(s) + f(t)) / 2 for f in (lambda w: np.sin(w) ** 2, lambda w: np.sin(w) * np.cos(w),
                                         lambda w: np.cos(w) ** 2)]  # fmt: skip
    best = np.max((mean[0] + 1e-3) * (mean[2] + 1e-3) - mean[1] ** 2)
    assert plan.objective == pytest.approx(-np.log(best), abs=1e-3)


def test_scenarios_share_the_input_and_cost_no_less_than_each_alone():
    """A mean over scenarios is no better than each alone; the worst case is better in the worst case."""
    options = {"horizon": 1, "inputs": free(5, bounds=(-2, 2)), "minimise": cf.integral(x**2 + 0.1 * u**2)}
    scenarios = [{"k": 0.5}, {"k": -0.5}]
    single_objectives = [cf.control(DECAY, parameters=p, **options).objective for p in scenarios]
    mean_plan = cf.control(DECAY, parameters=scenarios, **options)
    worst_plan = cf.control(DECAY, parameters=scenarios, scenarios="worst", **options)
    assert mean_plan.success, mean_plan.message
    assert worst_plan.success, worst_plan.message
    assert mean_plan.objective >= np.mean(single_objectives) - 1e-6
    assert worst_plan.objective >= max(single_objectives) - 1e-6
    assert mean_plan.states["x"].shape == (2, mean_plan.times.size)


def test_plan_again_from_other_states_equals_a_new_plan():
    plan = cf.control(
        DECAY, horizon=1, inputs=free(5, bounds=(-2, 2)), parameters={"k": 0.5}, minimise=cf.integral(x**2 + u**2)
    )
    next_plan = plan.again({"x": 0.5}, parameters={"k": 0.2}, shift=0.2)
    fresh_plan = cf.control(
        DECAY, horizon=1, inputs=free(5, bounds=(-2, 2)), parameters={"k": 0.2}, initial={"x": 0.5},
        minimise=cf.integral(x**2 + u**2),
    )  # fmt: skip
    assert next_plan.success, next_plan.message
    assert next_plan.objective == pytest.approx(fresh_plan.objective, rel=1e-7)
    assert np.allclose(next_plan.inputs["u"].values, fresh_plan.inputs["u"].values, atol=1e-5)
    with refused("shift is -1", "'y'"):
        plan.again({"y": 1.0}, shift=-1)


@BOTH
@pytest.mark.parametrize("offset", [0.0, 0.001])
def test_an_optimum_of_zero_is_compared_with_its_terms(transcription, offset):
    """Aly and Chan (1973): (v**2 - x**2) / 2 integrates to 0 on the singular arc x = sin(t), v = cos(t)."""
    cost = cf.symbols("cost")
    model = cf.Model({x: v, v: u, cost: (v**2 - x**2) / 2}, inputs=[u], initial={x: 0, v: 1, cost: offset})
    question = {"horizon": np.pi / 2, "inputs": free(40, bounds=(-1, 1)), "transcription": transcription}
    plan = cf.control(model, minimise=cf.at_end(cost), **question)
    assert plan.success, plan.message
    assert plan.objective == pytest.approx(offset, abs=1e-5)
    assert plan.stages <= 80
    integral_plan = cf.control(model, minimise=cf.integral((v**2 - x**2) / 2) + offset, **question)
    assert integral_plan.success, integral_plan.message
    assert integral_plan.objective == pytest.approx(offset, abs=1e-5)


def test_an_integrated_objective_that_differs_is_refined_even_if_the_guess_diverges():
    """The scale of the objective at a guess that grows by exp(16) allows any difference at the optimum."""
    model = cf.Model({x: x + u}, inputs=[u], initial={x: 1})
    plan = cf.control(model, horizon=16, inputs=free(32), minimise=cf.integral(x**2 + u**2))
    assert plan.success, plan.message
    assert plan.integrated == pytest.approx(2.49964497, rel=1e-6)


def test_advice_on_infeasible_constraints_names_what_helps():
    """A sine as the rate of a state reaches 2 within a time of 2 at most."""
    model = cf.Model({x: ca.sin(u)}, inputs=[u], initial={x: 0})
    plan = cf.control(model, horizon=2, inputs=free(), minimise=cf.integral(u**2), constraints=[cf.at_end(x) == 5])
    assert plan.status is cf.Status.INFEASIBLE
    assert "soft=" not in plan.message
    assert "starts=10, rng=0" in plan.message
    assert "2 starts: 0 found a plan" in plan.message
    # A constraint along the horizon can be soft; other starts cannot help where all rows are linear.
    limit = {"constraints": [cf.along(x <= 0.5)], "horizon": 2, "minimise": cf.integral(u**2)}
    linear_plan = cf.control(DECAY, inputs=free(bounds=(-1, 1)), parameters={"k": 1.0}, **limit)
    assert "soft=" in linear_plan.message
    assert "starts=" not in linear_plan.message
    assert cf.control(DECAY, inputs=free(bounds=(-1, 1)), parameters={"k": 1.0}, soft=10.0, **limit).success


@pytest.mark.parametrize("rate", [u**2, ca.sqrt(1 + u**2)], ids=str)
def test_objective_that_falls_with_a_nonlinear_input_is_unbounded(rate):
    model = cf.Model({x: rate - x}, inputs=[u], initial={x: 0})
    plan = cf.control(model, horizon=2, inputs=free(20, guess=1.0), minimise=-cf.at_end(x))
    assert plan.status is cf.Status.DIVERGING


@BOTH
def test_saturating_input_without_cost_stays_small(transcription):
    """The infimum 1 / e**2 - 1 is not reached; the preference for small inputs adds less than 1e-6."""
    model = cf.Model({x: ca.tanh(u) - x}, inputs=[u], initial={x: 0})
    plan = cf.control(
        model, horizon=2, inputs=free(20), minimise=-cf.at_end(x), transcription=transcription
    )  # fmt: skip
    assert plan.success, plan.message
    assert "Small values of 'u'" in plan.message
    assert plan.objective == pytest.approx(np.exp(-2) - 1, rel=1e-6)
    assert np.abs(plan.inputs["u"].values).max() < 20


def test_angle_without_bounds_keeps_its_optimum():
    """Constant heading, here pi / 4, at minimal time."""
    y, angle = cf.symbols("y angle")
    model = cf.Model({x: ca.cos(angle), y: ca.sin(angle)}, inputs=[angle], initial={x: 0, y: 0})
    plan = cf.control(
        model, horizon=cf.free(2.0, lower=0.1), inputs={"angle": cf.Input.free(10)}, minimise=cf.final_time(),
        constraints=[cf.at_end(x) == 1, cf.at_end(y) == 1],
    )  # fmt: skip
    assert plan.success, plan.message
    assert plan.objective == pytest.approx(np.sqrt(2), rel=1e-7)
    np.testing.assert_allclose(np.mod(plan.inputs["angle"].values, 2 * np.pi), np.pi / 4, atol=1e-4)


GUESSES = np.exp(np.random.default_rng(0).uniform(np.log(0.5), np.log(50), 25))


@BOTH
@pytest.mark.parametrize("guesses", [GUESSES[:5], pytest.param(GUESSES[5:], marks=pytest.mark.slow)], ids=len)
@pytest.mark.parametrize("limits", [[], [cf.along(cf.between(0, x, 5)), cf.along(cf.between(-2, v, 3))]], ids=len)
def test_minimal_time_is_found_from_any_guess_of_the_horizon(transcription, guesses, limits):
    """From velocity 2 at 1, the minimal time to rest at 0 is 2 + 2 sqrt(3)."""
    for guess in guesses:
        plan = cf.control(
            POINT, horizon=cf.free(float(guess), lower=0), inputs=free(20, bounds=(-1, 1)), minimise=cf.final_time(),
            constraints=[cf.at_end(x) == 0, cf.at_end(v) == 0, *limits], initial={x: 1, v: 2},
            transcription=transcription,
        )  # fmt: skip
        assert plan.success, plan.message
        assert plan.objective == pytest.approx(2 + 2 * np.sqrt(3), rel=2e-3)


@pytest.mark.parametrize("starts", [{}, {"starts": 3, "rng": 0}], ids=len)
def test_objective_that_diverges_by_the_discretization_only_is_refused(starts):
    """A batch fermentation: 2 of substrate make 1 of biomass, but long elements pass the pole at s = -0.05."""
    s = cf.symbols("s")
    rate = u * x * s / (0.05 + s)
    model = cf.Model({x: rate - 0.01 * x, s: -rate / 0.5}, inputs=[u], initial={x: 0.1, s: 2})
    plan = cf.control(
        model, horizon=20, inputs=free(4, bounds=(0, 1)), minimise=-cf.at_end(x),
        transcription=cf.Collocation(elements=4), **starts,
    )  # fmt: skip
    assert "unbounded" not in plan.message
    assert not plan.success
    assert plan.status is not cf.Status.DIVERGING
    assert plan.integrated >= -1.1
    limited = cf.control(
        model, horizon=20, inputs=free(10, bounds=(0, 1)), minimise=-cf.at_end(x), constraints=[cf.along(s >= 0)],
        **starts,
    )  # fmt: skip
    assert limited.success, limited.message
    assert limited.objective >= -1.1


@pytest.mark.parametrize("elements", [40, 160])
def test_elements_are_divided_until_the_integrated_model_keeps_end_constraints(elements):
    """A brake that switches with the speed: elements that contain the switch have large errors."""
    model = cf.Model({x: v, v: u - cf.if_else(v > 0.5, 0.3, 0.0)}, inputs=[u], initial={x: 0, v: 0})
    plan = cf.control(
        model, horizon=cf.free(4.0, lower=1), inputs=free(20, bounds=(-1, 1)), minimise=cf.final_time(),
        constraints=[cf.at_end(x) == 2, cf.at_end(v) == 0], transcription=cf.Collocation(elements=elements),
    )  # fmt: skip
    assert plan.success, plan.message
    assert plan.objective == pytest.approx(2.8849, rel=2e-4)


def test_advice_on_an_absolute_value_reaches_the_least_fuel():
    """Double integrator from 0 to 1 in time 4, bounds 1: 4 - sqrt(12)."""
    a, b = cf.symbols("a b")
    options = {"horizon": 4, "constraints": [cf.at_end(x) == 1, cf.at_end(v) == 0]}
    plan = cf.control(POINT, inputs=free(60, bounds=(-1, 1)), minimise=cf.integral(cf.fabs(u)), **options)
    assert plan.success or "as a - b" in plan.message
    assert "elements=" not in plan.message
    split = cf.Model({x: v, v: a - b}, inputs=[a, b], initial={x: 0, v: 0})
    inputs = {n: cf.Input.free(60, bounds=(0, 1)) for n in "ab"}
    split_plan = cf.control(split, inputs=inputs, minimise=cf.integral(a + b), **options)
    assert split_plan.success, split_plan.message
    assert split_plan.objective == pytest.approx(4 - np.sqrt(12), rel=1e-3)


def test_more_elements_are_advised_only_if_refinement_has_reduced_the_difference():
    model = cf.Model({x: x + u}, inputs=[u], initial={x: 1})
    plan = cf.control(model, horizon=20, inputs=free(40), minimise=cf.integral(x**2 + u**2))
    assert plan.status is cf.Status.INACCURATE
    assert "elements=" not in plan.message


def test_guesses_and_bounds_of_control_that_do_not_apply_are_explained():
    with pytest.raises(cf.InputError, match=r"cf\.Input\.free"):
        cf.control(POINT, horizon=1, inputs=free(), minimise=cf.at_end(x), guess={"x": [1, 0.5]})
    with refused("the bounds are [0, 0, 0] and [1, 2, 3]"):
        cf.Input.free(3, lower=[0, 0, 0], upper=[1, 2, 3])


PRICE = cf.symbols("price")
HEATED = cf.Model({x: -x / 4 + u}, inputs=[u, PRICE], initial={x: 2})


def heating_options(times, prices):
    return {
        "horizon": 8, "minimise": cf.integral(PRICE * u), "constraints": [cf.along(x >= 1)],
        "inputs": {"u": cf.Input.free(8, bounds=(0, 3)), "price": cf.Input.piecewise_constant(times, prices)},
    }  # fmt: skip


@pytest.mark.parametrize("shift", [2.0, 2.3])
def test_plan_again_sees_known_inputs_at_the_shifted_time(shift):
    options = heating_options([0, 5, 9, 12], [0.2, 1.0, 0.1, 0.7])
    next_plan = cf.control(HEATED, **options).again({"x": 1.5}, shift=shift)
    fresh_plan = cf.control(HEATED, start=shift, initial={"x": 1.5}, **options)
    assert next_plan.success, next_plan.message
    assert next_plan.objective == pytest.approx(fresh_plan.objective, rel=1e-5)
    assert next_plan.times[0] == next_plan.inputs["u"].times[0] == shift


def test_plan_again_with_new_forecasts_keeps_them_in_later_plans():
    options, forecast = heating_options([0, 5], [0.2, 1.0]), cf.Input.piecewise_constant([1, 4, 7], [0.5, 0.1, 0.9])
    later = cf.control(HEATED, **options).again({"x": 1.5}, inputs={"price": forecast}, shift=1).again(shift=2)
    options["inputs"]["price"] = forecast
    fresh_plan = cf.control(HEATED, start=3, initial={"x": 1.5}, **options)
    assert later.success, later.message
    assert later.objective == pytest.approx(fresh_plan.objective, rel=1e-5)
    with refused("'u', which this plan does not fix", "'price' is known from 0 to 9"):
        later.again(inputs={"price": cf.Input.linear([0, 9], [0, 1]), "u": 1.0})
    with refused("inputs gives 'price'"):
        later.again(inputs={"price": cf.Input.free(3)})


def test_plan_again_moves_the_clock_and_keeps_the_times_of_constraints():
    model, clock = cf.Model({x: u + cf.sin(t)}, inputs=[u], initial={x: 0}, time=t), cf.sin(t)
    options = {"horizon": 4, "inputs": free(16), "minimise": cf.integral((x - clock) ** 2 + u**2)}
    for constraints in (None, [cf.at(1, x == 0.5), cf.at(3, x == 1)]):
        next_plan = cf.control(model, constraints=constraints, **options).again({"x": 0.2}, shift=1.5)
        later_constraints = None if constraints is None else constraints[1:]
        fresh_plan = cf.control(model, constraints=later_constraints, initial={"x": 0.2}, start=1.5, **options)
        assert next_plan.success, next_plan.message
        assert next_plan.objective == pytest.approx(fresh_plan.objective, rel=1e-6)
        assert [*next_plan.constraints] == [*fresh_plan.constraints]


def test_plan_save_and_load_keep_everything_but_the_program(tmp_path):
    plan = cf.control(
        POINT, horizon=cf.free(3.0, lower=0.1), inputs=free(bounds=(-1, 1)), minimise=cf.final_time(),
        constraints=[cf.at_end(x == 1), cf.at_end(v == 0), cf.along(v <= 0.9)],
    )  # fmt: skip
    plan.save(tmp_path / "plan.json")
    loaded = cf.Plan.load(tmp_path / "plan.json")
    assert str(loaded) == str(plan)
    assert (loaded.success, loaded.horizon, loaded.question) == (plan.success, plan.horizon, plan.question)
    assert loaded.bounds_of("u") == plan.bounds_of("u") == (-1.0, 1.0)
    assert loaded.bounds_of("v") == (0.9,)
    assert loaded.constraints == plan.constraints
    assert np.array_equal(loaded.states["x"], plan.states["x"])
    under = cf.simulate(POINT, times=[1.0, plan.horizon], inputs=loaded.inputs)
    assert under["x"][-1] == pytest.approx(1.0, abs=1e-6)
    loaded.plot(tmp_path / "plan.png")
    with refused("the loaded plan has no program"):
        loaded.again({"x": 0.1})
    (tmp_path / "other.json").write_text('{"castfit_result": 2}')
    with refused("contains no Plan of format"):
        cf.Plan.load(tmp_path / "other.json")
    text = (tmp_path / "plan.json").read_text()
    (tmp_path / "other.json").write_text(text.replace('"seconds"', '"second"'))
    with refused("lacks seconds; it is damaged"):
        cf.Plan.load(tmp_path / "other.json")
    (tmp_path / "other.json").write_text(text.replace('"status": "', '"status": "not '))
    with refused("is damaged: 'not "):
        cf.Plan.load(tmp_path / "other.json")


def test_control_with_algebraic_states_equals_the_reduced_ode():
    z = cf.symbols("z")
    model = cf.Model({x: z}, algebraic={z: z - u + x}, inputs=[u], initial={x: 1})
    ode_model = cf.Model({x: u - x}, inputs=[u], initial={x: 1})
    options = {"horizon": 1, "inputs": free(5), "minimise": cf.integral(x**2 + u**2)}
    dae_plan, ode_plan = cf.control(model, **options), cf.control(ode_model, **options)
    assert dae_plan.success, dae_plan.message
    assert dae_plan.objective == pytest.approx(ode_plan.objective, rel=1e-7)
    with refused("algebraic states"):
        cf.control(model, transcription="multiple", **options)


def test_control_with_invalid_arguments_lists_all_mistakes():
    with refused("horizon", "'w' is no input", "input 'u' is missing", "'k' has no value", "'y'"):
        cf.control(DECAY, horizon=-1, inputs={"w": 1.0}, minimise=cf.integral(cf.symbols("y")))
    with refused("transcription is 'x'", "solver is 3", "starts is 0", "max_time is -1", "horizon is 0"):
        cf.control(
            POINT, horizon=0, inputs=free(), minimise=cf.integral(u**2), solver=3, starts=0, max_time=-1,
            transcription="x",
        )  # fmt: skip
    with refused("changes along the horizon"):
        cf.control(POINT, horizon=1, inputs=free(), minimise=x)
    with refused("nothing can be decided: the model has no inputs"):
        cf.control(cf.Model({x: -x}, initial={x: 1}), horizon=1, minimise=cf.at_end(x))
    with refused("pieces"):
        cf.control(POINT, horizon=1, inputs=free(20), minimise=cf.integral(u**2),
                   transcription=cf.Collocation(elements=10))  # fmt: skip


@pytest.mark.filterwarnings("ignore:'u' is unconstrained")
@pytest.mark.parametrize(
    "objective", [-cf.at_end(x), cf.integral(x), -cf.integral(u**2), -cf.at_end(x * v)], ids=["end", "way", "cost", "2"]
)
def test_control_with_unbounded_objective_fails_as_diverging(objective):
    """The third objective is stationary and maximal at the starting point, which is not an optimum either."""
    endless = cf.control(POINT, horizon=1, inputs=free(), minimise=objective)
    assert endless.status is cf.Status.DIVERGING
    assert "bounds=" in endless.message


def test_control_with_infeasible_constraints_names_the_largest_violation():
    for constraint in (cf.at_end(x) == 5, cf.along(x >= 1), cf.at(0.5, v >= 2)):
        plan = cf.control(
            POINT, horizon=1, inputs=free(bounds=(-1, 1)), minimise=cf.integral(u**2), constraints=[constraint]
        )
        assert plan.status is cf.Status.INFEASIBLE
        assert f"Largest violation: {next(iter(plan.constraints))}." in plan.message
    escaping = cf.Model({x: x**2 + u}, inputs=[u], initial={x: 3})
    plan = cf.control(escaping, horizon=1, inputs=free(bounds=(-1, 1)), minimise=cf.integral(u**2))
    assert not plan.success
    assert "the states diverge" in plan.message


def test_unconstrained_input_warns_before_solving():
    """Until it has bounds, or a cost on the way, or enters other than linearly."""
    with pytest.warns(UserWarning, match="'u' is unconstrained"):
        plan = cf.control(POINT, horizon=1, inputs=free(), minimise=(cf.at_end(x) - 1) ** 2)
    assert "'u' is unconstrained" in plan.message
    z = cf.symbols("z")
    dae = cf.Model({x: v, v: z}, algebraic={z: z - u}, inputs=[u], initial={x: 0, v: 0})
    nonlinear_model = cf.Model({x: v, v: u + u**3}, inputs=[u], initial={x: 0, v: 0})
    goal = (cf.at_end(x) - 1) ** 2
    for model, inputs, minimise in [
        (POINT, free(bounds=(-9, 9)), goal),
        (POINT, free(), goal + 1e-3 * cf.integral(u**2)),
        (nonlinear_model, free(), goal),
        (dae, free(), goal + 1e-3 * cf.integral(z**2)),
    ]:
        limited = cf.control(model, horizon=1, inputs=inputs, minimise=minimise)
        assert "unconstrained" not in limited.message
    with refused("input 'k' is free and enters no equation, objective or constraint; give it a number"):
        cf.control(
            cf.Model({x: -x + u}, inputs=[u, k], initial={x: 1}), horizon=1, minimise=cf.integral(x**2),
            inputs={"u": 1.0, "k": cf.Input.free(5)},
        )  # fmt: skip


def test_control_with_non_finite_start_reports_the_start():
    root = cf.Model({x: cf.sqrt(x - 2) + u}, inputs=[u], initial={x: 1})
    plan = cf.control(root, horizon=1, inputs=free(), minimise=cf.integral(u**2))
    assert not plan.success
    assert "The model cannot be integrated at the starting point" in plan.message
    plan = cf.control(POINT, horizon=1, inputs=free(), minimise=cf.log(cf.integral(u**2)))
    assert "The objective or a constraint is not finite at the starting point" in plan.message
    for guess in (lambda t: np.nan * t, lambda t: "a", lambda t: t[:2]):
        with refused("does not return one finite number for each"):
            cf.control(POINT, horizon=1, inputs=free(guess=guess), minimise=cf.integral(u**2))
    with refused("guess is nan"):
        free(guess=np.nan)


def test_soft_constraints_are_violated_only_if_infeasible():
    """From x = 1 a bound of 0.5 cannot hold; the price is for the largest violation, and a high one keeps it least."""
    options = {"horizon": 2, "inputs": free(20, bounds=(-1, 1)), "minimise": cf.integral(u**2)}
    limit = [cf.along(x <= 0.5), cf.at_end(v == 0)]
    hard = cf.control(POINT, constraints=limit, **options)
    same = cf.control(POINT, constraints=limit, soft=100.0, **options)
    assert hard.success, hard.message
    assert same.objective == pytest.approx(hard.objective, abs=1e-6)
    assert "satisfies the constraints" in same.message
    thrown = {"x": 0.4, "v": 0.6}
    assert not cf.control(POINT, constraints=limit, initial=thrown, **options).success
    greatest = []
    for price in (0.01, 100.0):
        plan = cf.control(POINT, constraints=limit, initial=thrown, soft=price, **options)
        assert plan.success, plan.message
        assert "Soft constraints are violated" in plan.message
        assert abs(plan.states["v"][-1]) < 1e-6  # the value at the end is as hard as before
        assert plan.objective == pytest.approx(plan.integrated, rel=1e-6)
        greatest.append(plan.constraints["x <= 0.5 along"].greatest)
    assert greatest[1] == pytest.approx(0.4 + 0.6**2 / 2, abs=2e-3)  # braking fully: v**2 / 2
    assert greatest[0] > greatest[1] + 0.01


def test_stages_are_divided_until_the_integrated_model_agrees():
    """An oscillation that is faster than the pieces, and damped by elements that are too long."""
    fast = cf.Model({x: v, v: -40000 * x + u}, inputs=[u], initial={x: 1, v: 0})
    options = {"horizon": 1, "inputs": free(30, bounds=(-900, 900)), "minimise": cf.integral(x**2 + 1e-6 * u**2)}
    plan = cf.control(fast, **options)
    assert plan.success, plan.message
    assert 160 < plan.stages <= 3000
    assert plan.objective == pytest.approx(plan.integrated, rel=1e-5)
    coarse = cf.control(fast, transcription=cf.Collocation(elements=30, tolerance=1.0), **options)
    assert coarse.status is cf.Status.INACCURATE
    assert "instead of" in coarse.message


def rod(cells):
    """A rod that is heated at one end, by the method of lines."""
    x, u = cf.symbols([f"x{i}" for i in range(cells)]), cf.symbols("u")
    rate = 0.1 * cells**2
    flows = {
        state: rate * ((x[i - 1] if i else u) - 2 * state + (x[i + 1] if i < cells - 1 else state))
        for i, state in enumerate(x)
    }
    question = {
        "horizon": 2.0, "inputs": free(20, bounds=(0, 3)), "initial": dict.fromkeys(map(str, x), 0.0),
        "minimise": cf.integral(0.01 * u**2 + (x[-1] - 1) ** 2),
    }  # fmt: skip
    return cf.Model(flows, inputs=[u]), question


@pytest.mark.slow
def test_multiple_shooting_of_a_stiff_rod_equals_collocation():
    """At rest every step is exact, however long; away from it errors grow by 4e6 in a stage of 4 steps."""
    model, question = rod(8)
    question["horizon"] = 20.0
    plan = cf.control(model, transcription="multiple", **question)
    assert plan.success, plan.message
    assert plan.objective == pytest.approx(cf.control(model, **question).objective, rel=1e-6)


def test_multiple_shooting_of_a_too_stiff_model_recommends_collocation():
    model, question = rod(60)
    with refused("would need 64 steps in a stage of length 0.1 (limit 4); choose transcription='collocation'"):
        cf.control(model, transcription="multiple", **question)


@pytest.mark.parametrize("rate", [1e4, 1e12])
def test_multiple_shooting_of_an_extremely_stiff_model_is_refused(rate):
    """Growth over a stage is no number any more: (rate / 640)^256 and more."""
    model = cf.Model({x: rate * (u - x)}, inputs=[u], initial={x: 0})
    with refused("the model is stiff"):
        cf.control(model, horizon=2.0, inputs=free(bounds=(0, 3)), minimise=cf.integral((x - 1) ** 2),
                   transcription="multiple")  # fmt: skip


@pytest.mark.parametrize("transcription", ["collocation", "multiple"])
def test_path_constraints_hold_at_a_free_initial_state(transcription):
    """x' = u - 5 x falls from x(0) on, which is as large as it may be: the integral of x is exact then."""
    x, u, top = cf.symbols("x u top")
    inputs = {"u": cf.Input.free(pieces=3, bounds=(0, 2))}
    model = cf.Model({x: u - 5 * x}, inputs=[u])
    plan = cf.control(
        model, horizon=3, inputs=inputs, minimise=-cf.integral(x), initial={"x": cf.free(0.5)},
        constraints=[cf.along(x <= 1)], transcription=transcription,
    )  # fmt: skip
    assert plan.success
    assert plan.parameters["x(0)"] == pytest.approx(1.0, abs=1e-6)
    assert plan.constraints["x <= 1 along"].greatest == pytest.approx(1.0, abs=1e-6)
    assert plan.objective == pytest.approx(-(3 * 0.4 + (1 - 0.4) / 5 * (1 - np.exp(-15))), rel=1e-5)
    limited = cf.Model({x: u - 5 * x}, inputs=[u], parameters=[top], initial={x: 1.5})
    plan = cf.control(
        limited, horizon=3, inputs=inputs, minimise=top + cf.integral(u), parameters={"top": cf.Parameter(3.0)},
        constraints=[cf.along(x <= top)], transcription=transcription,
    )  # fmt: skip
    assert plan.success
    assert plan.parameters["top"] == pytest.approx(1.5, abs=1e-6)


def test_plan_pickle_drops_the_program_and_copy_keeps_it():
    x, u = cf.symbols("x u")
    model = cf.Model({x: u - x}, inputs=[u], initial={x: 1})
    free = {"u": cf.Input.free(pieces=4, bounds=(-1, 1))}
    plan = cf.control(model, horizon=1, inputs=free, minimise=cf.integral(x**2 + u**2))
    back = pickle.loads(pickle.dumps(plan))
    assert (str(back), back.planner) == (str(plan), None)
    for same in (copy.copy(plan), copy.deepcopy(plan)):
        assert same.again({"x": 0.5}).objective == plan.again({"x": 0.5}).objective
