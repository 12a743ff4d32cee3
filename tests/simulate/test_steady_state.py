"""Steady states: against long simulations, conserved sums, what has none, before experiments, and at infinity."""

from __future__ import annotations

import pickle

import casadi as ca
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import castfit as cf
from castfit.experiment.steady import conservation_laws, solver
from castfit.integrate.esdirk_binding import NativeModel, PreparedTask
from tests.builders import jacobian_error, refused

VALUES = {"on": 1.0, "off": 0.4, "k1": 0.8, "k2": 0.6, "d1": 0.5, "d2": 0.3, "km": 0.2, "make": 0.2, "lose": 0.25}
INPUT = {"u": 0.6}


def cascade(unit: float = 1.0) -> cf.Model:
    """A kinase that a signal activates phosphorylates a protein twice, which makes the phosphatase; two totals."""
    K, Ka, S, S1, S2, P = cf.symbols("K Ka S S1 S2 P")
    on, off, k1, k2, d1, d2, km, make, lose, u = cf.symbols("on off k1 k2 d1 d2 km make lose u")
    activation = on * u * K - off * Ka
    first_rate = k1 / unit * Ka * S / (km + S / unit) - d1 * P / unit * S1 / (km + S1 / unit)
    second_rate = k2 / unit * Ka * S1 / (km + S1 / unit) - d2 * P / unit * S2 / (km + S2 / unit)
    ode = {K: -activation, Ka: activation, S: -first_rate, S1: first_rate - second_rate, S2: second_rate,
           P: make * (1 * unit + S2) - lose * P}  # fmt: skip
    parameters = [on, off, k1, k2, d1, d2, km, make, lose]
    return cf.Model(ode, parameters=parameters, inputs=[u], outputs={"active": Ka / (K + Ka)},
                    initial={K: 1.0 * unit, Ka: 0, S: 2.0 * unit, S1: 0, S2: 0, P: 0.5 * unit})  # fmt: skip


LONG = cf.IntegratorOptions(relative_tolerance=1e-12, absolute_tolerance=1e-14)


def long_simulation(model, values, **options):
    end = cf.simulate(model, values, [0.0, 2000.0], integrator=LONG, **options)
    return np.array([end[n][-1] for n in (*model.states, *model.algebraic_states)])


def test_a_cascade_rests_where_a_long_simulation_ends():
    model = cascade()
    steady_state = cf.steady_state(model, VALUES, inputs=INPUT)
    assert np.allclose(list(steady_state.states.values()), long_simulation(model, VALUES, inputs=INPUT), rtol=1e-9)
    assert steady_state.conserved == {"K + Ka": 1.0, "S + S1 + S2": 2.0}
    assert np.isclose(steady_state.outputs["active"], 0.6 / (0.6 + 0.4))
    assert (np.abs(steady_state.eigenvalues[-2:]) < 1e-12).all()
    assert (steady_state.eigenvalues[:-2].real < 0).all()
    assert np.isclose(steady_state.time_constant, -1 / steady_state.eigenvalues[-3].real)
    assert "conserved: K + Ka = 1" in str(steady_state)


def test_steady_state_derivatives_agree_with_long_simulation():
    model = cascade()
    steady_state = cf.steady_state(model, VALUES, inputs=INPUT)
    for j, (name, value) in enumerate(VALUES.items()):
        h = 1e-3 * value
        ends = [long_simulation(model, {**VALUES, name: value + m * h}, inputs=INPUT) for m in (-2, -1, 1, 2)]
        slope = (ends[0] - 8 * ends[1] + 8 * ends[2] - ends[3]) / (12 * h)
        assert np.abs(steady_state.jacobian[:, j] - slope).max() < 1e-6 * np.abs(steady_state.jacobian).max()
    for i, name in enumerate(model.states):
        initial = {"K": 1.0, "Ka": 0.0, "S": 2.0, "S1": 0.0, "S2": 0.0, "P": 0.5}
        ends = [long_simulation(model, VALUES, inputs=INPUT, initial={**initial, name: initial[name] + m * 1e-3})
                for m in (1, 2)]  # fmt: skip
        base = long_simulation(model, VALUES, inputs=INPUT)
        slope = (4 * ends[0] - ends[1] - 3 * base) / 2e-3
        assert np.abs(steady_state.by_initial[:, i] - slope).max() < 1e-4


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=12)
def test_conserved_sums_of_random_reactions(seed):
    rng = np.random.default_rng(seed)
    n, m = rng.integers(2, 8), rng.integers(1, 7)
    stoichiometry = rng.integers(-2, 3, size=(n, m)).astype(float)
    unit = 10.0 ** rng.integers(-6, 7, size=n)
    x, p = ca.SX.sym("x", int(n)), ca.SX.sym("p", int(m))
    orders = rng.integers(0, 3, size=(n, m))
    flux = [p[j] * ca.exp(sum(int(orders[i, j]) * ca.log(x[i] / unit[i]) for i in range(n))) for j in range(m)]
    ode = ca.diag(ca.DM(unit)) @ ca.DM(stoichiometry) @ ca.vertcat(*flux)
    t, z, u = ca.SX.sym("t"), ca.SX(0, 1), ca.SX(0, 1)
    function = ca.Function("ode", [t, x, z, p, u], [ca.densify(ode)])
    rates = 10.0 ** rng.uniform(-3, 3, m)
    none = np.zeros(0)
    laws = conservation_laws(function, unit, none, rates, none, vary=np.ones(m, dtype=bool))
    # Two reactions may have the same flux law; then their sum counts.
    distinct = np.unique(orders, axis=1, return_inverse=True)
    assert laws.coefficients.shape[0] >= n - np.linalg.matrix_rank(stoichiometry)
    if distinct[0].shape[1] == m:
        assert laws.coefficients.shape[0] == n - np.linalg.matrix_rank(stoichiometry)
    scaled = laws.coefficients * unit
    if scaled.size:
        left = np.abs(scaled @ stoichiometry) / np.abs(scaled).max(axis=1, keepdims=True)
        assert laws.coefficients.shape[0] > n - np.linalg.matrix_rank(stoichiometry) or left.max() < 1e-6
    assert len(set(laws.pivots)) == len(laws.pivots)
    assert np.array_equal(laws.coefficients[:, list(laws.pivots)], np.eye(len(laws.pivots)))


def test_a_reaction_conserves_as_chemists_write_it():
    a, b, c, k = cf.symbols("a b c k")
    model = cf.Model({a: -2 * k * a**2 * b, b: -k * a**2 * b, c: k * a**2 * b}, parameters=[k],
                     initial={a: 3.0, b: 1.0, c: 0.0})  # fmt: skip
    steady_state = cf.steady_state(model, {"k": 0.7})
    assert np.allclose(list(steady_state.states.values()), [1, 0, 1])
    assert set(steady_state.conserved) == {"a + 2 c", "b + c"} or len(steady_state.conserved) == 2
    assert np.allclose(steady_state.by_initial @ [1.0, 0.0, 0.0], [1, 0, 0])


@pytest.mark.parametrize("unit", [1e-12, 1e9])
def test_units_of_states_do_not_matter(unit):
    one = cf.steady_state(cascade(), VALUES, inputs=INPUT)
    other = cf.steady_state(cascade(unit), VALUES, inputs=INPUT)
    assert np.allclose(np.array(list(other.states.values())) / unit, list(one.states.values()), rtol=1e-9)
    assert np.allclose(other.jacobian / unit, one.jacobian, rtol=1e-7, atol=1e-9)
    assert list(other.conserved) == list(one.conserved)


def test_algebraic_states_rest_too():
    x, z, k, b = cf.symbols("x z k b")
    model = cf.Model({x: b - k * z}, algebraic={z: z + z**3 == x}, parameters=[k, b], initial={x: 1.0})
    steady_state = cf.steady_state(model, {"k": 0.5, "b": 1.0})
    assert np.isclose(steady_state.states["z"], 2.0)
    assert np.isclose(steady_state.states["x"], 10.0)
    assert np.allclose(steady_state.jacobian, [[-4 * 13, 2 * 13], [-4, 2]])  # z = b / k, dx/dz = 1 + 3 z^2


def test_steady_state_two_stable_states_returns_reached_state():
    x = cf.symbols("x")
    model = cf.Model({x: x - x**3})
    for start in (-2.0, -1e-3, 1e-3, 0.5, 5.0):
        assert np.isclose(cf.steady_state(model, initial={"x": start}).states["x"], np.sign(start))


def test_delay_lines_rest():
    x, tau = cf.symbols("x tau")
    model = cf.Model({x: 1 - x * cf.delay(x, tau)}, parameters=[tau], initial={x: 0.5})
    steady_state = cf.steady_state(model, {"tau": 0.8})
    assert steady_state.states == pytest.approx({"x": 1.0})
    assert np.allclose(steady_state.jacobian, 0, atol=1e-9)


@pytest.mark.parametrize(
    ("rates", "start", "reason"),
    [
        (lambda x, y: (1 + 0 * x, -y), (0.0, 1.0), "grows"),
        (lambda x, y: (1 + 0 * x, 1 + 0 * y), (0.0, 1.0), "grows"),
        (lambda x, y: (x, -y), (1.0, 1.0), "grows"),
        (lambda x, y: (x**2, -y), (1.0, 1.0), "'x' grows|cannot be computed"),
        (lambda x, y: (1 + x**2 * y - 4 * x, 3 * x - x**2 * y), (1.0, 1.0), "grows without bound, oscillates"),
        (lambda x, y: (y, -x), (1.0, 0.0), "oscillates|not isolated"),
        (lambda x, y: (-x * y, -x * y), (1.0, 1.0), "settles too slowly|not isolated"),
    ],
)
def test_steady_state_missing_gives_reason(rates, start, reason):
    x, y = cf.symbols("x y")
    first_rate, second_rate = rates(x, y)
    model = cf.Model({x: first_rate, y: second_rate}, initial={x: start[0], y: start[1]})
    with pytest.raises(cf.SteadyStateError, match=reason):
        cf.steady_state(model)


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.floats(2.0, 5.0))
def test_rounding_moves_nothing(seed, decades):
    """A closed network whose rates lie decades apart is at rest where its last Newton step is rounding."""
    n, rng = 8, np.random.default_rng(seed)
    rates = 10.0 ** rng.uniform(0.0, decades, (n, n)) * (1 - np.eye(n))
    x = ca.SX.sym("x", n)
    states = [cf.symbols(f"x{i}") for i in range(n)]
    derivatives = ca.DM(rates - np.diag(rates.sum(axis=0))) @ ca.vertcat(*states)
    model = cf.Model(
        dict(zip(states, ca.vertsplit(derivatives), strict=True)),
        initial={states[0]: 1.0} | dict.fromkeys(states[1:], 0.0),
    )
    steady_state = cf.steady_state(model)
    _, _, null = np.linalg.svd(rates - np.diag(rates.sum(axis=0)))
    assert np.allclose(list(steady_state.states.values()), null[-1] / null[-1].sum(), rtol=1e-8, atol=0)
    assert len(steady_state.conserved) == 1
    assert x.numel() == n


def test_a_state_that_never_begins_is_at_rest_though_nothing_would_hold_it():
    """A complex of a drug that is not there yet neither forms nor decays: it rests at zero."""
    free, bound, sink, make, lose, bind, dose = cf.symbols("free bound sink make lose bind dose")
    model = cf.Model(
        {
            free: make - lose * free - bind * dose * free,
            bound: bind * dose * free - 0.3 * bound * free,
            sink: bound * free,
        },
        parameters=[make, lose, bind, dose],
        initial={free: 1.0, bound: 0.0, sink: 0.0},
    )
    values = {"make": 2.0, "lose": 0.5, "bind": 0.7}
    with pytest.raises(cf.SteadyStateError, match="stands still, but the steady state is not isolated"):
        cf.steady_state(model, {**values, "dose": 0.0})
    times = np.linspace(0.5, 6.0, 8)
    exact = cf.simulate(model, {**values, "dose": 1.0}, times, initial={"free": 4.0, "bound": 0.0, "sink": 0.0})
    initial_steady_state = cf.steady_state(parameters={"dose": 0.0})
    experiment = cf.Experiment({"bound": exact["bound"], "sink": exact["sink"]}, time=times, sigma=0.01,
                               initial=initial_steady_state, parameters={"dose": 1.0})  # fmt: skip
    problem = cf.Problem(model, experiment, parameters={n: cf.Parameter(1.3 * v, 0.01, 10) for n, v in values.items()})
    result = cf.fit(problem, "single")
    assert result.values == pytest.approx(values, rel=1e-4)
    compiled_problem = problem.posed
    assert (
        jacobian_error(cf.SingleShooting().transcribe(compiled_problem, compiled_problem.guess), compiled_problem.guess)
        < 1e-5
    )


def test_mistakes_are_listed_at_once():
    x, k, t = cf.symbols("x k t")
    moving = cf.Model({x: -k * x + t}, parameters=[k], time=t)
    with refused("replace has an effect only for experiments that start at steady state", "equations depend on time",
                 "'k' has no value", "unknown state 'y'", "'x' has no value"):  # fmt: skip
        cf.steady_state(moving, initial={"y": 1}, replace={"x": 2})
    with refused("input 'u' changes in time"):
        cf.steady_state(cascade(), VALUES, inputs={"u": cf.Input.linear([0, 1], [0, 1])})
    with refused("model is 3"):
        cf.steady_state(3)
    with refused("initial state 'K' is free; pass a parameter", "input 'u' changes"):
        cf.steady_state(initial={"K": cf.free(1)}, inputs={"u": cf.Input.linear([0, 1], [0, 1])})


# Before an experiment

TIMES = np.linspace(0.5, 20, 12)
FREE = {n: cf.Parameter(v, lower=1e-3, upper=30, scale="log") for n, v in VALUES.items() if n not in ("km", "make")}
FIXED = {n: cf.Parameter(VALUES[n], fixed=True) for n in ("km", "make")}


def stimulated(rng=3, **changes) -> cf.Problem:
    """A cascade at rest under little input, then stimulated; its second total is estimated, known before only."""
    model, total = cascade(), cf.symbols("total")
    initial_states = cf.steady_state(model, VALUES, inputs={"u": 0.05}, initial={"S": 1.7}).states
    exact = cf.simulate(model, VALUES, TIMES, inputs=INPUT, initial=initial_states)
    noise = np.random.default_rng(rng)
    data = {n: exact[n] + 0.01 * noise.standard_normal(TIMES.size) for n in ("Ka", "S1", "S2", "P")}
    initial_steady_state = cf.steady_state(inputs={"u": 0.05}, initial={"S": total})
    experiment = cf.Experiment(data, time=TIMES, sigma=0.01, initial=initial_steady_state, inputs=INPUT)
    return cf.Problem(model, experiment, parameters={**FREE, **FIXED, "total": cf.Parameter(1.5, lower=0.1)}, **changes)


def test_experiments_that_begin_at_rest_are_fitted_alike_by_all_transcriptions():
    results = [cf.fit(stimulated(), method) for method in ("single", "multiple", "collocation", "collocation/ipopt")]
    for result in results:
        assert result.success
        assert result.goodness.described
        assert np.isclose(result.chi2, results[0].chi2, rtol=1e-6)
        for name, error in results[0].standard_errors.items():
            assert abs(result.values[name] - results[0].values[name]) < 1e-3 * error
            assert np.isclose(result.standard_errors[name], error, rtol=1e-3)
    truth = {**VALUES, "total": 1.7}
    assert all(abs(v - truth[n]) < 4 * results[0].standard_errors[n] for n, v in results[0].values.items())


@pytest.mark.parametrize("transcription", [cf.SingleShooting(), cf.MultipleShooting(2), cf.Collocation(elements=4)])
def test_jacobians_through_the_rest(transcription):
    compiled_problem = stimulated().posed
    staged = transcription.transcribe(compiled_problem, compiled_problem.guess)
    assert jacobian_error(staged, staged.start) < 1e-5


def test_second_derivatives_of_the_rest():
    compiled_problem = stimulated().posed
    link = compiled_problem.conditions[0].link
    q = compiled_problem.guess[compiled_problem.conditions[0].theta] + 0.1
    weight = np.random.default_rng(0).standard_normal(link.base.size)
    on_p, on_a = weight[: link.n_p], weight[link.n_p :]

    def gradient(q):
        natural = link.natural(q)
        return on_p @ natural.dp + on_a @ natural.da

    exact = link.curvature(q, on_p, on_a)
    h, unit = 1e-4, np.eye(q.size)
    columns = [(gradient(q - 2 * h * e) - 8 * gradient(q - h * e) + 8 * gradient(q + h * e) - gradient(q + 2 * h * e))
               / (12 * h) for e in unit]  # fmt: skip
    assert np.abs(exact - np.array(columns)).max() < 1e-7 * max(1.0, np.abs(exact).max())
    assert np.allclose(exact, exact.T)


def test_parameters_may_differ_before_and_states_be_replaced():
    model = cascade()
    ref = cf.symbols("ref")
    initial_steady_state = cf.steady_state(parameters={"on": 0.5 * ref}, inputs={"u": 0.2}, replace={"P": 0.9})
    experiment = cf.Experiment(
        {"S2": [0.5]}, time=[2.0], initial=initial_steady_state, inputs=INPUT, parameters={"on": 2 * ref}
    )
    problem = cf.Problem(model, experiment, parameters={**{n: v for n, v in VALUES.items() if n != "on"}, "ref": 0.5})
    natural = problem.conditions[0].link.natural(problem.guess)
    expected = cf.steady_state(model, {**VALUES, "on": 0.25}, inputs={"u": 0.2}).states
    assert np.allclose(natural.a[:-1], list(expected.values())[:-1])
    assert natural.a[-1] == 0.9
    assert natural.p[0] == 1.0
    values = cf.simulate(problem)["experiment 1"]["S2"]
    reference = cf.simulate(model, VALUES, [2.0], inputs=INPUT, initial={**expected, "P": 0.9})["S2"]
    assert np.allclose(values, reference)


def test_an_input_that_is_left_out_stands_at_its_value_at_the_start():
    signal = cf.Input.linear([0, 30], [0.3, 2.0])
    experiment = cf.Experiment({"S2": [0.5]}, time=[2.0], initial=cf.steady_state(), inputs={"u": signal})
    problem = cf.Problem(cascade(), experiment, parameters=VALUES)
    expected = cf.steady_state(cascade(), VALUES, inputs={"u": 0.3}).states
    assert np.allclose(problem.conditions[0].link.natural(problem.guess).a, list(expected.values()))


def test_problems_at_rest_pickle_and_are_fixed_and_told_apart(tmp_path):
    problem = stimulated()
    copy = pickle.loads(pickle.dumps(problem))
    assert np.array_equal(cf.simulate(copy)["experiment 1"]["S2"], cf.simulate(problem)["experiment 1"]["S2"])
    fixed = problem.posed.fix({"total": 1.6, "on": 0.9})
    value = dict(zip(problem.names, problem.guess, strict=True)) | {"total": 1.6, "on": np.log(0.9)}
    theta = np.array([value[n] for n in problem.names])
    assert np.allclose(cf.simulate(fixed)["experiment 1"]["S2"], cf.simulate(problem, theta)["experiment 1"]["S2"])
    cf.fit(problem, "single").save(tmp_path / "fit.json")
    other = cf.Experiment(problem.experiments[0].data, sigma=0.01, inputs=INPUT,
                          initial=cf.steady_state(inputs={"u": 0.06}, initial={"S": cf.symbols("total")}))  # fmt: skip
    with refused("inputs, initial and fixed values of 'experiment 1'"):
        cf.Result.load(tmp_path / "fit.json").with_problem(problem.replace(experiments=other))


@pytest.mark.slow
def test_drivers_know_steady_states():
    problem, reference = stimulated(), cf.fit(stimulated(), "single")
    bounded = problem.replace(parameters={**FREE, **FIXED, "total": cf.Parameter(1.5, bounds=(0.1, 10))})
    # Without an upper bound the first horizons, which leave the total open, lead to another optimum, at infinity.
    assert np.isclose(cf.incremental(bounded).result.chi2, reference.chi2, rtol=1e-5)
    limits = {n: (0.8 * v, 1.25 * v) for n, v in reference.values.items()}
    search_result = cf.multistart(problem, starts=2, rng=1, limits=limits)
    assert np.isclose(search_result.best.chi2, reference.chi2, rtol=1e-5)


def test_fit_guess_without_steady_state_reports_reason():
    x, make, lose = cf.symbols("x make lose")
    model = cf.Model({x: make - lose * x}, parameters=[make, lose], initial={x: 0})
    experiment = cf.Experiment({"x": [1.0, 2.0]}, time=[1, 2], initial=cf.steady_state())
    with refused("the steady state of 'x' before the experiment is nan at make = 1, lose = -1 (after a time of"):
        cf.Problem(model, experiment, parameters={"make": 1.0, "lose": -1.0})
    problem = cf.Problem(model, experiment, parameters={"make": 1.0, "lose": 1.0})
    staged = cf.SingleShooting().transcribe(problem.posed, np.array([1.0, -1.0]))
    evaluation = staged.evaluate(np.array([1.0, -1.0]))
    assert not evaluation.ok
    assert "the steady state of 'x' before the experiment" in str(evaluation.failures)


def test_mistakes_about_the_time_before_are_listed_at_once():
    k, extra, t, x = cf.symbols("k extra t x")
    initial_steady_state = cf.steady_state(
        parameters={"kk": 1, "on": extra}, inputs={"v": 0}, initial={"Q": 1, "S": extra}
    )
    experiment = cf.Experiment({"S2": [0.5]}, time=[2.0], initial=initial_steady_state, inputs=INPUT)
    with refused("initial names 'Q'", "'v' is no input", "'kk' is no parameter", "parameter 'on' contains 'extra'",
                 "initial value of 'S' contains 'extra'"):  # fmt: skip
        cf.Problem(cascade(), experiment, parameters=VALUES)
    moving = cf.Model({x: -k * x + t}, parameters=[k], time=t)
    with refused("equations contain the time", "state 'x' has no value from which to come to rest"):
        cf.Problem(moving, cf.Experiment({"x": [1.0]}, time=[1.0], initial=cf.steady_state()), parameters={"k": 1})


# At infinity


@pytest.mark.parametrize("method", ["single", "multiple", "collocation"])
def test_data_at_infinity(method):
    """x' = make - lose x rests at make / lose: values at rest give the ratio, others the rate."""
    x, make, lose, u = cf.symbols("x make lose u")
    model = cf.Model({x: make * u - lose * x}, parameters=[make, lose], inputs=[u], initial={x: 0})
    course_experiment = cf.Experiment({"x": [0.6, 1.0, 1.4]}, time=[1, 2, 3], sigma=0.1, inputs={"u": 1}, name="course")
    rest_experiment = cf.Experiment({"x": [[2.01, 1.99]]}, time=[np.inf], sigma=0.01, inputs={"u": 1}, name="rest")
    double_experiment = cf.Experiment({"x": [4.02]}, time=[np.inf], sigma=0.02, inputs={"u": 2}, name="double")
    problem = cf.Problem(
        model, [course_experiment, rest_experiment, double_experiment], parameters={"make": 1.0, "lose": 0.4}
    )
    result = cf.fit(problem, method)
    assert result.success
    ratio = np.average([2.01, 1.99, 2.01], weights=[1, 1, 1])
    assert np.isclose(result.values["make"] / result.values["lose"], ratio, rtol=1e-3)
    table = result.residual_table()
    assert np.array_equal(table["time"], [1, 2, 3, np.inf, np.inf, np.inf])
    m, k = result.values["make"], result.values["lose"]
    expected = [*(m / k * (1 - np.exp(-k * np.array([1, 2, 3])))), m / k, m / k, 2 * m / k]
    assert np.allclose(table["prediction"], expected, rtol=1e-6)
    copy = pickle.loads(pickle.dumps(problem))
    assert [e.settled for e in copy.experiments] == [False, True, True]
    assert copy.experiments[1].with_values({"x": np.array([[1.0, 2.0]])}).settled


def test_a_model_comes_to_rest_again_from_where_it_rested():
    """With memory: of two stable states the one on whose side it rested before, and what that was is conserved.

    x' = k (x - 1)(2 - x)(x - 3) + u   rests at 1 or 3 for u = 0;   A <-> B   keeps A + B, of which A is doubled.
    """
    x, A, B, u, k, there, back = cf.symbols("x A B u k there back")
    rates = {x: k * (x - 1) * (2 - x) * (x - 3) + u, A: back * B - there * A, B: there * A - back * B}
    model = cf.Model(rates, parameters=[u, k, there, back], initial={x: 0.5, A: 1.0, B: 1.0})
    pushed = cf.steady_state(parameters={u: 5.0 * k, there: 0.3}, replace={A: 2 * there})
    values = {"x": 3.0, "A": 1.0, "B": 1.0}
    parameters = {"u": cf.Parameter(0.0, fixed=True), "k": 0.8, "there": 0.5, "back": 0.6}
    for initial, rests_at in ((pushed, 3.0), (None, 1.0)):
        end = cf.Experiment({n: [v] for n, v in values.items()}, time=[np.inf], sigma=0.1, initial=initial)
        problem = cf.Problem(model, [end], parameters=parameters)
        copy = pickle.loads(pickle.dumps(problem))
        for variant in (problem, copy, problem.replace(parameters={**parameters, "k": 0.9})):
            link = variant.posed.conditions[0].link
            a = link.natural(variant.guess).a
            total = 2.0 if initial is None else 2 * 0.5 + 2.0 * 0.3 / 0.9
            assert np.allclose(a, [rests_at, total * 0.6 / 1.1, total * 0.5 / 1.1], rtol=1e-7)
        natural, theta, h = link.natural(problem.guess), np.array(problem.guess), 1e-6
        for j in range(theta.size):
            step = np.where(np.arange(theta.size) == j, h, 0.0)
            slope = (link.natural(theta + step).a - link.natural(theta - step).a) / (2 * h)
            assert np.allclose(link.natural(theta).da[:, j], slope, atol=1e-6)
        assert natural.a[0] == pytest.approx(rests_at)


def test_mistakes_in_data_at_infinity():
    with refused("values at infinity stand beside others"):
        cf.Experiment({"x": [1.0, 2.0]}, time=[1.0, np.inf])
    with refused("initial state 'x' is free", "input 'u' changes in time, but the data are at infinity"):
        cf.Experiment({"x": [1.0]}, time=[np.inf], initial=cf.steady_state(replace={"x": cf.free(1.0)}),
                      inputs={"u": cf.Input.linear([0, 1], [0, 1])})  # fmt: skip
    with refused("initial state 'x' is free, but the data are at infinity"):
        cf.Experiment({"x": [1.0]}, time=[np.inf], initial={"x": cf.free(1.0)})


def test_steady_state_needs_fewer_evaluations_than_long_simulation(monkeypatch):
    """Counted in evaluations of the rates; the example prints the factor in seconds."""
    rest_counts, simulation_counts = [0], [0]

    def rates(self, w, original=solver._SteadyStateFunctions.evaluate):
        rest_counts[0] += 1
        return original(self, w)

    def on_the_way(*arguments, original=NativeModel.integrate, **options):
        result = original(*arguments, **options)
        rest_counts[0] += int(result.counts[:, 2].sum())
        return result

    monkeypatch.setattr(solver._SteadyStateFunctions, "evaluate", rates)
    monkeypatch.setattr(NativeModel, "integrate", on_the_way)

    def run(self, *arguments, original=PreparedTask.run):
        result = original(self, *arguments)
        simulation_counts[0] += int(self.counts[:, 2].sum())
        return result

    monkeypatch.setattr(PreparedTask, "run", run)
    problem = stimulated()
    link = problem.conditions[0].link
    q = problem.guess[problem.conditions[0].theta]
    rest_counts[0] = 0
    link.natural(q * (1 + 1e-9))
    model = cascade()
    long = cf.Experiment({"S2": [0.5]}, time=[2000.0], initial={"S": cf.symbols("total")}, inputs={"u": 0.05})
    simulated = cf.Problem(model, long, parameters={**FREE, **FIXED, "total": 1.5})
    staged = cf.SingleShooting().transcribe(simulated.posed, simulated.guess)
    simulation_counts[0] = 0
    staged.linearize(1.001 * simulated.guess)
    assert 0 < rest_counts[0] < 0.2 * simulation_counts[0]


def test_steady_state_growing_state_is_named():
    """A grows as its degradation is saturated; B and C follow it to where rates are rounding."""
    a, b, c = cf.symbols("a b c")
    model = cf.Model({a: 1.0 - 0.4 * a / (1 + a), b: 0.4 * a / (1 + a) - 0.3 * b, c: 0.534 * b - 0.222 * c})
    with pytest.raises(cf.SteadyStateError, match=r"'a' grows, by 0\.6 per unit of time"):
        cf.steady_state(model, {}, initial={"a": 1.0, "b": 0.5, "c": 0.1})


def test_a_scaled_output_that_nobody_measured_leaves_a_start_at_rest():
    x, k = cf.symbols("x k")
    model = cf.Model({x: 1.0 - k * x}, parameters=[k], outputs={"y": cf.scaled(x)})
    data = cf.Experiment({"x": [2.2, 1.8]}, time=[1.0, 2.0], sigma=0.1, initial=cf.steady_state(initial={x: 1.0}))
    result = cf.fit(cf.Problem(model, data, parameters={"k": 0.4}), "single")
    assert result.values["k"] == pytest.approx(0.5, rel=1e-6)  # x = 1 / k is the mean


@pytest.mark.parametrize(
    ("data", "options"),
    [
        ({"x": ([1.0, np.inf], [0.5, 1.0])}, {}),
        ({"x": ([7.0, 8.0], [1.0, 2.0]), "z": ([np.inf, np.inf], [1.0, 2.0])}, {"start": 5.0}),
        ({"x": ([-5.0, np.inf], [1.0, 2.0]), "z": ([np.inf], [1.0])}, {"start": -10.0}),
        ({"x": ([1.0, np.inf], [0.5, 1.0])}, {"initial": cf.steady_state()}),
    ],
)
def test_experiment_with_finite_and_infinite_times_is_refused_with_one_mistake(data, options):
    with pytest.raises(cf.InputError, match="values at infinity stand beside others") as caught:
        cf.Experiment(data, **options)
    assert len(caught.value.problems) == 1
