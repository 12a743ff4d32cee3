"""Single and multiple shooting: derivatives, agreement with each other, and failures that stay where they are."""

from __future__ import annotations

from itertools import pairwise

import casadi as ca
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from castfit.experiment.experiment import Experiment, free
from castfit.experiment.inputs import Input
from castfit.fit.fit import fit
from castfit.integrate import IntegratorOptions
from castfit.model.model import Model, symbols
from castfit.problem.problem import Constraint, Normal, Parameter, Problem
from castfit.solve.staged import StagedProblem, gaps, weighted_squares
from castfit.transcribe.multiple_shooting import MultipleShooting
from castfit.transcribe.single_shooting import SingleShooting
from tests.builders import (
    LOTKA_VOLTERRA_POLE,
    LOTKA_VOLTERRA_SSE,
    decay_problem,
    everything,
    jacobian_error,
    lotka_volterra,
)

TIGHT = IntegratorOptions(relative_tolerance=1e-11, absolute_tolerance=1e-13)


def rows(staged: StagedProblem, v: np.ndarray) -> np.ndarray:
    """Return the residuals of all measurements in the order of the data."""
    parts = zip(staged.layout.chains, staged.evaluate(v).values, strict=True)
    return np.concatenate([values.r[chain.row_mask] for chain, values in parts])


def consistent(staged: StagedProblem, theta: np.ndarray) -> np.ndarray:
    """Return v with nodes that continue each other, by passing the ends on from stage to stage."""
    v = staged.start.copy()
    v[: staged.layout.n_theta] = theta
    for _ in range(max(chain.n_stages for chain in staged.layout.chains)):
        for chain, values in zip(staged.layout.chains, staged.evaluate(v).values, strict=True):
            v[chain.nodes] = np.vstack([values.a, values.x[:-1]])
    return v


TRANSCRIPTIONS = [
    SingleShooting(TIGHT),
    MultipleShooting(1, integrator=TIGHT),
    MultipleShooting(4, integrator=TIGHT),
    MultipleShooting("data", integrator=TIGHT),
    MultipleShooting(np.array([0.3, 0.73, 1.0, 1.9]), integrator=TIGHT),
]
LABELS = [t.label for t in TRANSCRIPTIONS]


@pytest.mark.parametrize("transcription", TRANSCRIPTIONS, ids=LABELS)
def test_derivatives(transcription):
    """Everything at once: see `everything`; also breakpoints within stages, and stages without measurements."""
    problem = everything()
    staged = transcription.transcribe(problem, problem.guess)
    rng = np.random.default_rng(0)
    assert jacobian_error(staged, staged.start + 0.05 * rng.standard_normal(staged.layout.n_v)) < 1e-6


@pytest.mark.parametrize("method", ["rosenbrock", "idas"])
def test_derivatives_with_other_integrators(method):
    options = IntegratorOptions(method=method, relative_tolerance=1e-10, absolute_tolerance=1e-12)
    problem = everything()
    staged = MultipleShooting(1, integrator=options).transcribe(problem, problem.guess)
    assert jacobian_error(staged, staged.start) < 1e-5


@pytest.mark.parametrize("transcription", TRANSCRIPTIONS[1:], ids=LABELS[1:])
def test_consistent_nodes_give_the_residuals_of_single_shooting(transcription):
    problem = everything()
    theta = problem.guess + 0.1
    single = SingleShooting(TIGHT).transcribe(problem, theta)
    multiple = transcription.transcribe(problem, theta)
    v = consistent(multiple, theta)
    np.testing.assert_allclose(rows(multiple, v), rows(single, theta), rtol=1e-8, atol=1e-8)
    assert all(np.abs(gap).max() < 1e-12 for gap in gaps(multiple.layout, multiple.evaluate(v)))
    assert multiple.evaluate(v).cost == pytest.approx(single.evaluate(theta).cost, rel=1e-8)
    for a, b in zip(multiple.node_states(v), single.node_states(theta), strict=True):
        np.testing.assert_allclose(a[0], b[0])


@given(times=st.lists(st.integers(0, 40), min_size=1, max_size=8), jump=st.integers(1, 39), k=st.integers(1, 7))
@settings(max_examples=6)
def test_jumps_and_measurements_meet_in_the_same_way_everywhere(times, jump, k):
    """At a jump the value before counts, in outputs and algebraic states alike, however time is divided."""
    x, z, u, rate = symbols("x z u rate")
    model = Model(
        {x: -rate * x + u}, algebraic={z: z - x * u}, parameters=[rate], inputs=[u], outputs={"sum": x + z + 10 * u}
    )
    measured_times = np.sort([*times, 40.0]) * 0.1
    jump_time = jump * 0.1
    level = Input.piecewise_constant([0, jump_time], [1.0, 3.0])
    data = Experiment(
        {"sum": (measured_times, np.zeros(measured_times.size))},
        initial={"x": 0.5},
        start=0,
        inputs={"u": level},
        sigma=1.0,
    )
    problem = Problem(model, data, parameters={"rate": 0.7})

    def exact(t: float) -> float:
        u_t = 1.0 if t <= jump_time else 3.0
        state_before = lambda s: 1 / 0.7 + (0.5 - 1 / 0.7) * np.exp(-0.7 * s)  # noqa: E731
        state_after = 3 / 0.7 + (state_before(jump_time) - 3 / 0.7) * np.exp(-0.7 * (t - jump_time))
        state = state_before(t) if t <= jump_time else state_after
        return state * (1 + u_t) + 10 * u_t

    expected = [exact(t) for t in measured_times]
    for transcription in (
        SingleShooting(TIGHT),
        MultipleShooting(k, integrator=TIGHT),
        MultipleShooting("data", integrator=TIGHT),
    ):
        staged = transcription.transcribe(problem, problem.guess)
        v = consistent(staged, problem.guess) if staged.layout.chains[0].n_s else problem.guess
        np.testing.assert_allclose(rows(staged, v), expected, rtol=1e-8)


def test_residuals_follow_the_order_of_the_points():
    problem = everything()
    for transcription in (SingleShooting(), MultipleShooting(3)):
        staged = transcription.transcribe(problem, problem.guess)
        residuals = rows(staged, staged.start)
        assert residuals.size == problem.n_data
        begin = 0
        for i, condition in enumerate(problem.conditions):
            points, chain = condition.points, staged.layout.chains[i]
            count = int(points.mask.sum())
            model = residuals[begin : begin + count] * points.sigma[points.mask] + points.values[points.mask]
            times = np.broadcast_to(points.times[:, None], points.mask.shape)[points.mask]
            kinds = np.broadcast_to(np.arange(len(problem.outputs)), points.mask.shape)[points.mask]
            # Equal output and time means equal model value: that holds for replicates only if the order is right.
            for t, j in set(zip(times, kinds, strict=True)):
                same = model[(times == t) & (kinds == j)]
                np.testing.assert_allclose(same, same[0], rtol=1e-12)
            begin += count
            assert chain.row_mask.sum() == count


def test_padding_and_unmeasured_values_are_zero():
    problem = everything()
    staged = MultipleShooting(7).transcribe(problem, problem.guess)
    linear = staged.linearize(staged.start)
    for chain, values, j in zip(staged.layout.chains, linear.values, linear.jacobians, strict=True):
        assert not chain.row_mask.all()
        assert (values.r[~chain.row_mask] == 0).all()
        for block in (j.R_s, j.R_q):
            assert (block[~chain.row_mask] == 0).all()
        assert values.r.shape == (chain.n_stages, chain.n_r)
        assert j.R_w.shape == (chain.n_stages, chain.n_r, 0)
        assert j.X_w.shape == (chain.n_stages, chain.n_s, 0)


def test_sum_of_squares_of_the_benchmark():
    problem = lotka_volterra((0.98374238, 0.98038898, 1.01690786, 1.02271366))
    staged = SingleShooting(TIGHT).transcribe(problem, problem.guess)
    assert weighted_squares(staged.layout, staged.evaluate(staged.start)) == pytest.approx(LOTKA_VOLTERRA_SSE, rel=1e-6)


def test_priors_enter_the_cost():
    with_prior = everything()
    prior = with_prior.parameters["k1"].prior
    assert prior is not None
    without = with_prior.replace(parameters={**with_prior.parameters, "k1": Parameter(0.8, lower=0, scale="log")})
    theta = with_prior.guess
    costs = [SingleShooting(TIGHT).transcribe(p, theta).evaluate(theta).cost for p in (with_prior, without)]
    assert costs[0] - costs[1] == pytest.approx(0.5 * ((0.8 - prior.mean) / prior.deviation) ** 2)


def test_bounds_of_states_are_bounds_of_nodes_or_path_constraints():
    problem = everything(constraints=())
    single = SingleShooting().transcribe(problem, problem.guess)
    chain = single.layout.chains[0]
    points = len(np.unique(problem.conditions[0].points.times))
    bounded = np.isfinite(chain.constraint_lower)
    assert bounded.sum() == points  # replicates bound once
    assert (chain.constraint_lower[bounded] == 0.01).all()
    assert (chain.constraint_upper[bounded] == 10.0).all()
    values = single.evaluate(single.start).values[0]
    assert values.c[0, 0] == pytest.approx(0.8)  # the state x at t = 0
    assert np.isinf(single.lower[1])

    multiple = MultipleShooting(4).transcribe(problem, problem.guess)
    first_chain, second_chain = multiple.layout.chains
    assert np.isfinite(first_chain.constraint_lower).sum(axis=1).tolist() == [1, 1, 0, 1]  # not at 0 and 1.5: nodes
    assert (multiple.lower[first_chain.nodes[:, 0]] == 0.01).all()
    assert np.isinf(multiple.lower[first_chain.nodes[:, 1]]).all()
    assert np.isinf(multiple.lower[second_chain.nodes[0, 0]])  # x(0) is given there
    assert (multiple.upper[second_chain.nodes[1:, 0]] == 10.0).all()


def test_a_given_initial_state_on_its_bound_is_no_constraint():
    x, k = symbols("x k")
    model = Model({x: 1 - k * x}, parameters=[k])
    data = Experiment({"x": [0.0, 0.5, 0.8]}, time=[0, 1, 2], initial={"x": 0.0})
    problem = Problem(model, data, parameters={"k": 1.0}, state_bounds={"x": (0.0, 5.0)})
    chain = SingleShooting().transcribe(problem, problem.guess).layout.chains[0]
    assert np.isfinite(chain.constraint_lower).tolist() == [[False, True, True]]


@pytest.mark.parametrize("transcription", [None, "single", "multiple", "collocation", MultipleShooting(7)])
def test_every_way_keeps_a_bounded_state_within_its_bounds_to_the_end(transcription):
    x, k = symbols("x k")
    times = np.linspace(0.5, 5, 10)
    data = Experiment({"x": 10 * np.exp(-0.4 * times)}, time=times, initial={"x": 10})
    problem = Problem(Model({x: -k * x}, parameters=[k]), data, parameters={"k": 1.0}, state_bounds={"x": (3, 30)})
    assert fit(problem, transcription).parameters["k"] == pytest.approx(np.log(10 / 3) / 5, rel=1e-6)


def test_a_peak_between_nodes_is_bounded_where_it_is_measured():
    x, y, z, k = symbols("x y z k")
    model = Model({x: y - k * x, y: z - k * y, z: -k * z}, parameters=[k], initial={x: 0, y: 0, z: 40})
    times = np.array([0.5, 0.75, 1.0, 1.25, 2.0, 4.0])  # nodes lie at 0, 4/3 and 8/3, the peak at 2/3
    data = Experiment({"x": 20 * times**2 * np.exp(-3 * times)}, time=times, sigma=0.1)
    problem = Problem(model, data, parameters={"k": 3.5}, state_bounds={"x": (-1, 0.9)})
    single, multiple = fit(problem, "single"), fit(problem, MultipleShooting(3))
    assert multiple.chi2 == pytest.approx(single.chi2, rel=1e-6)
    assert multiple.predict(times)["x"].max() == pytest.approx(0.9, rel=1e-6)


def test_constraints_are_evaluated_at_the_measured_points():
    problem = everything(state_bounds=None)
    staged = SingleShooting(TIGHT).transcribe(problem, problem.guess)
    k1, k2, k3 = problem.conditions[1].link.natural(problem.guess[problem.conditions[1].theta]).p[:3]
    w = problem.conditions[1].inputs[1]

    def solve_z(x, y):
        return np.roots([0.1, 0, 1, -(k2 * x + y**2)])[-1].real

    def right(t, s):
        return [
            -k1 * s[0] * s[1] + 0.2 + 0.05 * t,
            k2 * s[0] - k3 * s[1] * solve_z(*s) + float(w(t)),
        ]

    times = problem.conditions[1].points.times
    solution = solve_ivp(right, (0.2, 1.6), [0.9, k1 / (1 + k2**2)], t_eval=np.unique(times), rtol=1e-10, atol=1e-12)
    expected = [x * y + solve_z(x, y) + 0.2 + 0.1 * t * k2 for t, x, y in zip(solution.t, *solution.y, strict=True)]
    chain, values = staged.layout.chains[1], staged.evaluate(staged.start).values[1]
    np.testing.assert_allclose(values.c[np.isfinite(chain.constraint_upper)], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("local", "expected"), [(False, ["constraint 1"]), (True, ["constraint 1 (a)", "constraint 1 (b)"])]
)
def test_a_constraint_of_parameters_alone_is_a_relation_of_quantities(local, expected):
    x, k, m = symbols("x k m")
    data = {"x": ([0.0, 0.0, 1.0, 2.0], [1, 1.1, 0.8, 0.5])}
    experiments = [Experiment(data, initial={"x": 1.0}, name=name) for name in "ab"]
    problem = Problem(
        Model({x: -k * x + m}, parameters=[k, m]),
        experiments,
        parameters={"k": 0.5, "m": Parameter(0.1, local=local)},
        constraints=[Constraint(k - m, lower=0.4, upper=0.4), Constraint(k * x, upper=9.0)],
    )
    for transcription in (SingleShooting(), MultipleShooting(2)):
        layout = transcription.transcribe(problem, problem.guess).layout
        chains = layout.chains
        assert list(layout.relations.names) == expected
        assert (layout.relations.lower == 0.4).all()
        assert [int((c.constraint_upper == 9.0).sum()) for c in chains] == [3, 3]


def test_stages_with_equal_grids_share_an_integrator():
    problem = lotka_volterra()
    staged = MultipleShooting(5).transcribe(problem, problem.guess)
    assert len(staged.groups) == 1
    jittered = problem.replace(
        experiments=Experiment(
            {n: (t * (1 + 1e-15), y) for n, (t, y) in problem.experiments[0].data.items()}, initial={"x": 0.4, "y": 1}
        )
    )
    assert len(MultipleShooting(5).transcribe(jittered, problem.guess).groups) == 1


def test_starts_respect_the_bounds():
    problem = lotka_volterra(state_bounds={"x": (0.0, 1.5)})
    staged = MultipleShooting("data").transcribe(problem, problem.guess)
    assert (staged.start >= staged.lower).all()
    assert (staged.start <= staged.upper).all()
    assert (staged.scale > 0).all()


def test_scales_of_parameters():
    problem = everything()
    staged = SingleShooting().transcribe(problem, np.array([-0.2, 0.0, -3.0, 0.5, 0.7]))
    np.testing.assert_array_equal(staged.scale, [1, 1, 3, 1, 0.7])


def test_a_failing_stage_takes_no_other_with_it():
    problem = lotka_volterra(LOTKA_VOLTERRA_POLE)
    staged = MultipleShooting(4, states={"x": ([0, 10], [0.4, 0.4]), "y": ([0, 10], [1.0, 1.0])}).transcribe(
        problem, problem.guess
    )
    v = staged.start.copy()
    v[staged.layout.chains[0].nodes[1:]] = 0.1  # only the first stage still grows beyond all bounds, if at all
    evaluation = staged.evaluate(v)
    assert evaluation.ok
    v[staged.layout.chains[0].nodes[2]] = [40.0, 40.0]
    evaluation = staged.evaluate(v)
    assert [(f.chain, f.stage) for f in evaluation.failures] == [("experiment 1", 2)]
    assert evaluation.cost == np.inf
    r = evaluation.values[0].r
    assert np.isnan(r[2][staged.layout.chains[0].row_mask[2]]).all()
    assert np.isfinite(np.delete(r, 2, axis=0)).all()
    linear = staged.linearize(v)
    assert [f.stage for f in linear.failures] == [2]  # reported once
    blocks = linear.jacobians[0]
    assert np.isfinite(np.delete(blocks.X_s, 2, axis=0)).all()


def test_a_pole_is_explained():
    problem = lotka_volterra(LOTKA_VOLTERRA_POLE)
    staged = SingleShooting().transcribe(problem, problem.guess)
    evaluation = staged.evaluate(staged.start)
    assert not evaluation.ok
    assert evaluation.failures[0].cause in ("step_size", "too_many_steps")
    sentence = staged.describe_failure(staged.start)
    assert sentence.startswith("experiment 1: Integration stopped at t = 3.306")
    assert "changes fastest" in sentence
    assert "There x =" in sentence or "There y =" in sentence
    good = lotka_volterra()
    assert SingleShooting().transcribe(good, good.guess).describe_failure(good.guess) == ""


def test_theta_out_of_range_is_a_failure_not_a_warning():
    problem = everything()
    staged = MultipleShooting(2).transcribe(problem, problem.guess)
    v = staged.start.copy()
    v[0] = 1e4  # k1 = exp(1e4)
    assert not staged.evaluate(v).ok
    assert not staged.linearize(v).ok
    assert staged.describe_failure(v)


def logarithm_problem(values, **changes) -> Problem:
    """Return growth from 0, whose logarithm is an output that does not exist at the start."""
    x, k = symbols("x k")
    model = Model({x: k}, parameters=[k], outputs={"log": ca.log(x), "root": ca.sqrt(x)})
    data = Experiment(values, time=[0, 1, 2], initial={"x": 0.0})
    return Problem(model, data, parameters={"k": 1.0}, **changes)


@pytest.mark.parametrize("transcription", [SingleShooting(), MultipleShooting(2)], ids=["single", "multiple"])
def test_outputs_that_are_not_finite(transcription):
    unmeasured = logarithm_problem({"log": [np.nan, 0.1, 0.7], "x": [0, 1, 2]})
    staged = transcription.transcribe(unmeasured, unmeasured.guess)
    assert staged.linearize(staged.start).ok
    assert jacobian_error(staged, staged.start) < 1e-6

    measured = logarithm_problem({"log": [1.0, 0.1, 0.7]})
    staged = transcription.transcribe(measured, measured.guess)
    assert [(f.stage, f.cause) for f in staged.evaluate(staged.start).failures] == [(0, "not_finite")]
    assert staged.describe_failure(staged.start) == "experiment 1: log is not finite at t = 0"

    slope = logarithm_problem({"root": [0.0, 1, 1.4]})
    staged = transcription.transcribe(slope, slope.guess)
    assert staged.evaluate(staged.start).ok
    assert not staged.linearize(staged.start).ok
    assert staged.describe_failure(staged.start) == "experiment 1: a derivative of root is not finite at t = 0"

    x = ca.SX.sym("x")
    bounded = logarithm_problem({"x": [0, 1, 2]}, constraints=[Constraint(1 / x, upper=9, name="cap")])
    staged = transcription.transcribe(bounded, bounded.guess)
    assert staged.describe_failure(staged.start) == "experiment 1: cap is not finite at t = 0"


def test_an_initial_value_that_is_not_finite_is_a_failure():
    x, k = symbols("x k")
    model = Model({x: -x}, parameters=[k], initial={x: ca.log(k)})
    problem = Problem(model, Experiment({"x": [1.0, 0.5]}, time=[0, 1]), parameters={"k": 2.0})
    for transcription in (SingleShooting(), MultipleShooting(2)):
        staged = transcription.transcribe(problem, np.array([-1.0]))
        assert not staged.evaluate(staged.start).ok
        assert staged.describe_failure(staged.start)


def test_evaluations_do_not_change_with_what_was_asked_before():
    problem = everything()
    staged = MultipleShooting(3).transcribe(problem, problem.guess)
    first_evaluation = staged.evaluate(staged.start)
    for step in (1e-3, 2e-3, 3e-3, 4e-3, 5e-3):
        staged.linearize(staged.start + step)
    repeated_evaluation = staged.evaluate(staged.start)
    v = staged.start.copy()
    fresh_evaluation = MultipleShooting(3).transcribe(problem, problem.guess).evaluate(v)
    v[:] = 0.0  # what was returned is not a view of the argument
    for a, b, c in zip(first_evaluation.values, repeated_evaluation.values, fresh_evaluation.values, strict=True):
        np.testing.assert_array_equal(a.r, b.r)
        np.testing.assert_array_equal(a.r, c.r)
    np.testing.assert_array_equal(fresh_evaluation.v, staged.start)


def test_experiments_with_different_numbers_of_quantities_share_an_integrator():
    x, k, m = symbols("x k m")
    model = Model({x: -k * x + m}, parameters=[k, m])
    times = [0.0, 1.0, 2.0]
    first_experiment = Experiment({"x": [1, 0.8, 0.5]}, time=times, initial={"x": free(1.0)}, name="a")
    second_experiment = Experiment({"x": [2, 1.8, 1.5]}, time=times, initial={"x": 2.0}, name="b")
    parameters = {"k": Parameter(0.5, local=True, scale="log"), "m": Parameter(0.1, prior=Normal(0, 1))}
    problem = Problem(model, [first_experiment, second_experiment], parameters=parameters)
    for transcription in (SingleShooting(TIGHT), MultipleShooting(2, integrator=TIGHT)):
        staged = transcription.transcribe(problem, problem.guess)
        assert len(staged.groups) <= 2
        assert jacobian_error(staged, staged.start) < 1e-7


def test_node_states_and_description():
    problem = decay_problem()
    staged = MultipleShooting(2).transcribe(problem, problem.guess)
    np.testing.assert_array_equal(staged.node_states(staged.start)[0].ravel(), staged.start[1:])
    assert staged.layout.describe(2) == "x at t = 2 (experiment 1)"
    single = SingleShooting().transcribe(problem, problem.guess)
    assert single.node_states(single.start)[0].tolist() == [[1.0]]
    assert single.layout.n_v == 1


def test_sensitivities_of_some_stages_to_their_nodes():
    staged = MultipleShooting(5, integrator=TIGHT).transcribe(everything(), everything().guess)
    linear = staged.linearize(staged.start)
    masks = [np.arange(chain.n_stages) % 2 == 1 for chain in staged.layout.chains]
    sensitivities = staged.node_sensitivities(staged.start, masks)
    assert sensitivities is not None
    for mask, X_s, blocks in zip(masks, sensitivities, linear.jacobians, strict=True):
        assert np.allclose(X_s[mask], blocks.X_s[mask], rtol=1e-6, atol=1e-9)
        assert not X_s[~mask].any()


@pytest.mark.parametrize("transcription", TRANSCRIPTIONS, ids=LABELS)
def test_lanes_of_grouped_pieces_equal_those_of_a_loop(transcription):
    problem = everything().posed
    staged = transcription.transcribe(problem, problem.guess)
    evaluation, sweep = staged._integrate_points(staged.start)
    assert evaluation.ok
    assert sum(len(run.members) for run in sweep.runs) == sum(
        len(chain.pieces) for chain in sweep.integration_plan.chains
    )
    for run in sweep.runs:
        assert [(p.condition, int(j)) for p in run.parts for j in p.pieces] == list(run.members)
        for lane, (i, j) in enumerate(run.members):
            piece = sweep.integration_plan.chains[i].pieces[j]
            assert np.array_equal(sweep.x[i][piece.stage, piece.points], run.trajectories.x[lane, piece.grid_index])
            assert np.array_equal(sweep.z[i][piece.stage, piece.points], run.trajectories.z[lane, piece.grid_index])
            assert np.array_equal(run.lanes.u[lane], piece.cubics)


def test_magnitudes_of_many_unmeasured_states_are_found_by_rough_simulations(monkeypatch):
    import castfit as cf
    from castfit.solve.staged import COARSE_RTOL
    from castfit.transcribe import shooting_problem
    from castfit.transcribe.single_shooting import SingleShooting

    *states, k = cf.symbols(" ".join([*(f"x{i}" for i in range(101)), "k"]))
    rates = {
        states[0]: -k * states[0],
        **{state: k * (previous_state - state) for previous_state, state in pairwise(states)},
    }
    initial = {f"x{i}": 100.0 * (i == 0) for i in range(101)}
    data = cf.Experiment({"x0": [60.0, 37.0]}, time=[0.5, 1.0], initial=initial)
    problem = cf.Problem(cf.Model(rates, parameters=[k]), data, parameters={"k": 1.0})
    tolerances: list[float] = []
    original = shooting_problem.ShootingProblem._magnitudes

    def magnitudes(self, v):
        tolerances.append(self.options.relative_tolerance)
        return original(self, v)

    monkeypatch.setattr(shooting_problem.ShootingProblem, "_magnitudes", magnitudes)
    single = SingleShooting(integrator=cf.IntegratorOptions(method="esdirk"))
    rough = single.transcribe(problem, problem.guess)
    assert len(tolerances) >= 2
    assert min(tolerances) == COARSE_RTOL
    monkeypatch.setattr(shooting_problem, "_MANY_STATES", 1000)
    exact = single.transcribe(problem, problem.guess)
    assert min(tolerances) < COARSE_RTOL
    large = exact.units[0] > 1e-6
    assert large.sum() > 4
    np.testing.assert_allclose(rough.units[0][large], exact.units[0][large], rtol=0.01)
    assert rough.evaluate(rough.start).cost == pytest.approx(exact.evaluate(exact.start).cost, rel=1e-6)
