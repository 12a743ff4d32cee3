"""All experiments at once is another way to the same numbers as one experiment after the other, in few calls."""

from __future__ import annotations

import numpy as np
import pytest

import castfit as cf
from castfit.integrate import IntegratorOptions
from castfit.integrate.esdirk_binding import PreparedTask, missing_integrator_reason
from castfit.problem.compiled_problem import CompiledProblem
from castfit.solve.subproblem import DenseProblem, LocalProblem, local_problem
from castfit.transcribe.shooting_problem import ShootingProblem
from castfit.transcribe.single_shooting import SingleShooting
from tests.builders import everything
from tests.calls import calls_of

pytestmark = pytest.mark.skipif(missing_integrator_reason() != "", reason="needs a C compiler")
COARSE = IntegratorOptions("esdirk", 1e-6, 1e-8, watch_sensitivities=False)


def staged_of(problem: cf.Problem | CompiledProblem) -> ShootingProblem:
    return SingleShooting(COARSE).transcribe(problem, problem.posed.guess)


def one_by_one(problem: cf.Problem | CompiledProblem) -> ShootingProblem:
    staged = staged_of(problem)
    staged._dense_cache = staged, None
    return staged


def several(**noise) -> cf.Problem:
    """Three experiments on two grids, of which each has another set of quantities; some expressions, and a prior."""
    x, y, k, b, a = cf.symbols("x y k b a")
    model = cf.Model({x: -k * x, y: k * x - b * y}, parameters=[k, b], outputs={"seen": x + 2 * y})
    rng = np.random.default_rng(3)

    def measured(time, **options):
        values = {"seen": 1 + 0.1 * rng.standard_normal(len(time)), "y": 0.3 + 0.05 * rng.standard_normal(len(time))}
        return cf.Experiment(values, time=time, **noise, **options)

    first_times, second_times = [0.0, 1.0, 2.0, 4.0], [0.5, 1.0, 3.0]
    return cf.Problem(
        model,
        [
            measured(first_times, initial={"x": a, "y": 0.1}, name="low"),
            measured(first_times, initial={"x": 3 * a**2, "y": cf.free(0.2, lower=0.01, upper=1.0)}, name="high"),
            measured(second_times, initial={"x": 1.0, "y": a / 10}, parameters={"k": 0.7}, name="short"),
        ],
        parameters={
            "k": cf.Parameter(0.5, 0.01, 10.0, scale="log"),
            "b": cf.Parameter(0.3, 0.01, 10.0, scale="log", prior=cf.Normal(0.4, 0.2)),
            "a": cf.Parameter(1.2, 0.1, 5.0),
        },
    )


def driven() -> cf.Problem:
    x, k, u = cf.symbols("x k u")
    model = cf.Model({x: u - k * x}, parameters=[k], inputs=[u])
    dose = cf.Input.piecewise_constant([0.0, 1.0, 2.5], [1.0, 0.0, 2.0])
    data = {"x": [0.5, 0.6, 0.3, 0.8]}
    return cf.Problem(
        model, cf.Experiment(data, time=[0.5, 1.0, 2.0, 3.0], sigma=0.1, initial={"x": 0.0}, inputs={"u": dose}),
        parameters={"k": 0.7},
    )  # fmt: skip


def algebraic() -> cf.Problem:
    x, z, k = cf.symbols("x z k")
    model = cf.Model({x: -k * z}, algebraic={z: z**3 + z - x}, parameters=[k])
    data = {"x": [0.8, 0.6, 0.5], "z": [0.5, 0.4, 0.38]}
    return cf.Problem(
        model, cf.Experiment(data, time=[1.0, 2.0, 3.0], sigma=0.05, initial={"x": 1.0}), parameters={"k": 0.4}
    )


CASES = {
    "known sigma": lambda: several(sigma=0.1),
    "one sigma": several,
    "sigmas of outputs": lambda: several(noise={"seen": cf.Gaussian(), "y": cf.LogNormal()}),
    "robust": lambda: several(noise={"seen": cf.StudentT(0.1), "y": cf.Gaussian(0.1)}),
    "driven": driven,
    "algebraic": algebraic,
    "one of each": lambda: everything(constraints=[], state_bounds={}),
}


@pytest.mark.parametrize("name", CASES)
def test_dense_single_shooting_agrees_with_the_general_evaluation(name: str) -> None:
    problem = CASES[name]()
    dense, staged, joint_problem = staged_of(problem).dense_evaluator, one_by_one(problem), staged_of(problem)
    assert dense is not None
    rng, n = np.random.default_rng(2), staged.layout.n_theta
    masks = [chain.row_mask.ravel() for chain in staged.layout.chains]
    for _ in range(4):
        v = np.clip(staged.start + 0.3 * rng.standard_normal(n), staged.lower, staged.upper)
        other, linearization = dense.cost(v), staged.linearize(v)
        assert linearization.ok
        assert other == pytest.approx(linearization.cost, rel=1e-12)
        dense.cost(v + 1e-3)  # another point between does not matter
        rows = dense.rows(v)
        assert rows is not None
        u = np.concatenate(
            [linearization.prior, *(c.r.ravel()[m] for c, m in zip(linearization.values, masks, strict=True))]
        )
        np.testing.assert_allclose(rows.u, u, rtol=1e-11, atol=1e-13)
        E = [np.asarray(getattr(linearization.prior_jacobian, "dense", linearization.prior_jacobian))]
        for chain, j, mask in zip(staged.layout.chains, linearization.jacobians, masks, strict=True):
            E.append(np.zeros((mask.sum(), n)))
            E[-1][:, chain.theta] = j.R_q.reshape(mask.size, -1)[mask]
        np.testing.assert_allclose(rows.E, np.concatenate(E), rtol=1e-11, atol=1e-12 * np.abs(rows.E).max())
        assert (rows.cost, rows.half_square) == pytest.approx(
            (linearization.cost, linearization.half_square), rel=1e-12
        )
        joint_linearization = joint_problem.linearize(v)
        for actual, expected in zip(
            (joint_linearization, *joint_linearization.values, *joint_linearization.jacobians),
            (linearization, *linearization.values, *linearization.jacobians),
            strict=True,
        ):
            for field, value in vars(expected).items():
                if isinstance(value, np.ndarray | float):
                    np.testing.assert_allclose(getattr(actual, field), value, rtol=1e-10, atol=1e-9, err_msg=field)
        for actual, expected in zip(joint_problem.standardised(v), staged.standardised(v), strict=True):
            for a, b in zip(actual, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
        assert (joint_linearization.information is None) == (linearization.information is None)


def held(*, path: bool) -> cf.Problem:
    """Two experiments whose outputs are states, with bounds of these, and a constraint that may hold along the path."""
    x, y, k, b = cf.symbols("x y k b")
    model = cf.Model({x: -k * x, y: k * x - b * y}, parameters=[k, b])
    data = [
        cf.Experiment({"y": [0.2, 0.3, 0.2]}, time=time, sigma=0.1, initial={"x": start, "y": 0.0}, name=name)
        for name, start, time in (("a", 1.0, [0.5, 1.0, 3.0]), ("b", 2.0, [1.0, 2.0, 2.5]))
    ]
    constraints = [cf.along(x + y**2 >= 0.1)] if path else []
    bounds = {"x": (0.1, 5.0)}
    return cf.Problem(model, data, parameters={"k": 0.7, "b": 0.4}, state_bounds=bounds, constraints=constraints)


@pytest.mark.parametrize("path", [False, True])
def test_path_constraints_are_values_of_the_same_moves(path: bool) -> None:
    problem = held(path=path)
    joint_problem, staged = staged_of(problem), one_by_one(problem)
    assert joint_problem.dense_evaluator is None
    assert joint_problem._arrays is not None
    assert (joint_problem._arrays._observed_states is None) == path
    rng = np.random.default_rng(4)
    for _ in range(3):
        v = joint_problem.start * np.exp(0.3 * rng.standard_normal(joint_problem.start.size))
        joint_linearization, linearization = joint_problem.linearize(v), staged.linearize(v)
        assert linearization.ok
        assert np.isfinite(linearization.values[0].c).all()
        for actual, expected in zip(
            (*joint_linearization.values, *joint_linearization.jacobians),
            (*linearization.values, *linearization.jacobians),
            strict=True,
        ):
            for field, value in vars(expected).items():
                np.testing.assert_allclose(getattr(actual, field), value, rtol=1e-10, atol=1e-10, err_msg=field)
    wild = np.array([-2000.0, 0.4])
    assert joint_problem.evaluate(wild).failures == staged.evaluate(wild).failures != ()


def test_a_linearization_and_a_fit_enter_few_functions() -> None:
    problem = cf.problems.load("lotka_volterra").problem
    staged = SingleShooting().transcribe(problem, problem.guess)
    staged.linearize(staged.start)
    assert calls_of(lambda: staged.linearize(staged.start * 1.0001), "call") < 150  # 581 one by one
    cf.fit(problem, SingleShooting())
    assert calls_of(lambda: cf.fit(problem, SingleShooting()), "call") < 6_600


def test_dense_cost_invalid_point_is_none() -> None:
    x, k, b = cf.symbols("x k b")
    model = cf.Model({x: x**2 - k}, parameters=[k])
    data = cf.Experiment({"x": [0.5, 0.4]}, time=[1.0, 2.0], sigma=0.1, initial={"x": np.sqrt(1) * b**0.5})
    staged = staged_of(cf.Problem(model, data, parameters={"k": 0.5, "b": 0.5}))
    dense = staged.dense_evaluator
    assert dense is not None
    assert dense.cost(staged.start) == pytest.approx(staged.evaluate(staged.start).cost, rel=1e-12)
    for theta in ([0.5, -1.0], [-20.0, 4.0]):  # no initial state; a pole
        v = np.array(theta)
        assert not staged.evaluate(v).ok
        assert dense.cost(v) is None
        assert dense.rows(v) is None


def test_copies_of_a_problem_have_their_own_evaluator() -> None:
    staged = staged_of(several())
    units = [10 * unit for unit in staged.units]
    other = staged.with_units(units)
    a, b = staged.dense_evaluator, other.dense_evaluator
    assert a is not None
    assert b is not None
    assert b.cost(staged.start) == pytest.approx(other.evaluate(staged.start).cost, rel=1e-12)
    assert b.cost(staged.start) != a.cost(staged.start)


def test_dense_evaluator_with_events_or_cvodes_is_none() -> None:
    assert staged_of(everything()).dense_evaluator is None
    assert (
        SingleShooting(IntegratorOptions("cvodes")).transcribe(several().posed, several().guess).dense_evaluator is None
    )


@pytest.mark.parametrize("room", [np.inf, 1e-3])
@pytest.mark.parametrize("name", CASES)
def test_dense_problem_steps_equal_condensed_steps(name: str, room: float) -> None:
    staged = staged_of(CASES[name]())
    start = staged.start
    staged = staged.restricted(
        lower=np.maximum(staged.lower, start - room), upper=np.minimum(staged.upper, start + room)
    )
    linear, evaluation = staged.linearize(start), staged.evaluate(np.clip(start + 1e-3, staged.lower, staged.upper))
    few = local_problem(staged, linear, regularisation=1e-9)
    condensed = LocalProblem(staged, linear, regularisation=1e-9)
    assert isinstance(few, DenseProblem) == (start.size <= 8)
    damping = np.full(start.size, 0.3)
    for step in (
        LocalProblem.direction, lambda local: local.direction(damping=damping),
        lambda local: local.compute_trust_region_step(0.1), lambda local: local.correction(evaluation),
    ):  # fmt: skip
        one, other = step(few), step(condensed)
        assert "condensed" not in vars(few) or start.size > 8
        for part in ("dv", "predicted", "decrease", "bound_multipliers", "residuals", "feasible"):
            np.testing.assert_allclose(getattr(one, part), getattr(other, part), rtol=1e-8, atol=1e-12, err_msg=part)
        assert (one.active.variables == other.active.variables).all()
    assert few.predicted_decrease == pytest.approx(condensed.predicted_decrease, rel=1e-9)
    assert few.condition == pytest.approx(condensed.condition, rel=1e-9)
    np.testing.assert_allclose(few.gradient, condensed.gradient, rtol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_a_step_that_its_box_does_not_hold_is_that_of_the_active_set_method(name: str, monkeypatch) -> None:
    staged = staged_of(CASES[name]())
    linear = staged.linearize(staged.start)
    for radius in (1.0, 1e6):
        quick = local_problem(staged, linear).compute_trust_region_step(radius)
        with monkeypatch.context() as patched:
            patched.setattr(LocalProblem, "_ridged", lambda *_: None)
            exact = local_problem(staged, linear).compute_trust_region_step(radius)
        np.testing.assert_allclose(quick.dv, exact.dv, rtol=1e-7, atol=1e-9 * np.abs(exact.dv).max())
        assert quick.decrease == pytest.approx(exact.decrease, rel=1e-9)
        assert (quick.active.variables == exact.active.variables).all()


@pytest.mark.parametrize("is_linearized", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_integrated_by_equals_transcription_with_those_options(name: str, is_linearized: bool) -> None:
    problem = CASES[name]()
    staged, finer = staged_of(problem), IntegratorOptions("esdirk", 1e-8, 1e-10)
    if is_linearized:
        staged.linearize(staged.start)
    other, reference = (
        staged.integrated_by(finer),
        SingleShooting(finer).transcribe(problem, staged.start, staged.units),
    )
    a, b = other.linearize(staged.start), reference.linearize(staged.start)
    assert a.cost == b.cost != staged.evaluate(staged.start).cost
    for actual, expected in zip(a.jacobians, b.jacobians, strict=True):
        np.testing.assert_array_equal(actual.R_q, expected.R_q)


@pytest.mark.parametrize("name", CASES)
def test_derivatives_of_a_new_point_take_one_integration(name: str, monkeypatch) -> None:
    problem, runs = CASES[name](), list[int]()
    first_staged, second_staged = (SingleShooting().transcribe(problem, problem.posed.guess) for _ in range(2))
    v, original_run = first_staged.start + 1e-3 * np.maximum(np.abs(first_staged.start), 0.1), PreparedTask.run

    def counted(self: PreparedTask, *arguments) -> bool:
        runs.append(self.counts.shape[0])
        return original_run(self, *arguments)

    monkeypatch.setattr(PreparedTask, "run", counted)
    a = first_staged.linearize(v)
    assert first_staged.evaluate(v).cost == a.cost
    n_runs = len(runs)
    second_staged.evaluate(v)
    b = second_staged.linearize(v)
    assert len(runs) == 3 * n_runs
    assert a.cost == b.cost
    for actual, expected in zip(a.jacobians, b.jacobians, strict=True):
        np.testing.assert_array_equal(actual.R_q, expected.R_q)


def test_states_are_kept_where_only_outputs_and_noise_move():
    x, k, scale, spread = cf.symbols("x k scale spread")
    model = cf.Model({x: -k * x}, parameters=[k, scale, spread], outputs={"y": scale * x}, initial={x: 2.0})
    times = np.array([0.5, 1.0, 2.0])
    experiments = [cf.Experiment({"y": np.exp(-times)}, time=times + shift, noise={"y": cf.Gaussian(spread)})
                   for shift in (0.0, 0.1)]  # fmt: skip
    parameters = {n: cf.Parameter(0.5, 0.01, 10.0, scale="log") for n in ("k", "scale", "spread")}
    problem = cf.Problem(model, experiments, parameters=parameters)
    staged = staged_of(problem)
    dense = staged.dense_evaluator
    assert dense is not None
    theta = np.log([0.5, 0.5, 0.5])
    staged.linearize(theta)
    count = dense.integrations
    for new_theta in theta + np.array([[0.0, 0.3, 0.0], [0.0, 0.3, -0.2], [0.1, 0.3, -0.2]]):
        actual, expected = staged.linearize(new_theta), one_by_one(problem).linearize(new_theta)
        assert dense.integrations == count + (new_theta[0] != theta[0])
        assert actual.cost == pytest.approx(expected.cost, rel=1e-13)
        for actual_jacobians, expected_jacobians in zip(
            actual.jacobians, staged_of(problem).linearize(new_theta).jacobians, strict=True
        ):
            np.testing.assert_array_equal(actual_jacobians.R_q, expected_jacobians.R_q)


def test_linearization_time_without_a_record_is_estimated_from_the_states():
    problem = several(sigma=0.1)
    staged = staged_of(problem)
    durations, key = staged._timing_record("values")
    durations[key] = 4.0, 3.0
    n = staged.layout.n_theta
    assert staged.seconds_to_linearize(staged.start) == pytest.approx(3.0 * (1 + 0.1 * n))
    assert staged.low_accuracy().seconds_to_linearize(staged.start) < 1.0  # another tolerance
    staged.linearize(staged.start + 1e-3)
    assert 0.0 < staged.seconds_to_linearize(staged.start) < 3.0
