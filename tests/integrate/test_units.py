"""Nothing depends on the units of states and time, and no two times are taken for one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import castfit as cf
from castfit.integrate import IntegratorOptions
from castfit.transcribe.experiment_trajectories import resolvable, units_of
from tests.crossed import crossed

TRANSCRIPTIONS = {
    "single": cf.SingleShooting(),
    "multiple": cf.MultipleShooting(6),
    "collocation": cf.Collocation(),
}


def chain(unit: float = 1.0, second: float = 1.0, log: bool = False, seed: int = 0) -> cf.Problem:
    """A -> B -> C with only C measured, which like B begins at zero."""
    A, B, C, k1, k2 = cf.symbols("A B C k1 k2")
    model = cf.Model({A: -k1 * A, B: k1 * A - k2 * B, C: k2 * B}, parameters=[k1, k2])
    t = np.linspace(0.5, 6, 12)
    b = 0.7 / (0.3 - 0.7) * (np.exp(-0.7 * t) - np.exp(-0.3 * t))
    c = 1 - np.exp(-0.7 * t) - b + 0.02 * np.random.default_rng(seed).standard_normal(t.size)
    data = cf.Experiment({"C": c * unit}, time=t * second, sigma=0.02 * unit, initial={"A": unit, "B": 0.0, "C": 0.0})
    scale = "log" if log else "linear"
    parameters = {n: cf.Parameter(v / second, scale=scale) for n, v in (("k1", 1.0), ("k2", 0.5))}
    return cf.Problem(model, data, parameters=parameters)


@pytest.mark.parametrize(
    ("name", "method"), crossed(list(TRANSCRIPTIONS), ["cvodes", "idas", "rosenbrock", "collocation"])
)
def test_estimates_do_not_depend_on_units(name, method):
    kind = type(TRANSCRIPTIONS[name])
    transcription = kind(integrator=IntegratorOptions(method))
    one = cf.fit(chain(), transcription)
    assert one.success
    for unit, second in ((1e-15, 1e9), (1e15, 1e-9), (1e-9, 1.0), (1e-12, 1e4)):
        other = cf.fit(chain(unit, second), transcription)
        assert other.success
        assert other.chi2 == pytest.approx(one.chi2, rel=1e-6)
        for k in ("k1", "k2"):
            assert other.parameters[k] * second == pytest.approx(one.parameters[k], rel=1e-6)
            assert other.standard_errors[k] * second == pytest.approx(one.standard_errors[k], rel=1e-6)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_refinement_makes_the_same_elements_in_other_units(scale):
    def elements(unit: float) -> list[int]:
        problem, transcription = chain(unit), cf.Collocation()
        staged, counts = transcription.transcribe(problem, problem.guess), []
        while staged is not None:
            counts.append(staged.layout.chains[0].n_stages)
            staged = transcription.refine(
                problem, staged, cf.GaussNewton().solve(staged, cf.solve.solution.SolveControl()).v
            )
        return counts

    assert elements(scale) == elements(1.0)


def test_states_that_begin_at_zero_get_units_from_their_rates():
    """B from A, then C from B: one after the other."""
    for unit, second in ((1.0, 1.0), (1e-9, 1e6)):
        model = chain(unit, second).model
        table = (np.array([0.0, 6.0 * second]), np.array([[unit, 0, 0]] * 2), np.zeros((2, 0)))
        units = units_of(model, (), np.array([1.0, 0.5]) / second, 6.0 * second, table)
        np.testing.assert_allclose(units / unit, [1.0, 2.0, 6.0])


def test_magnitudes_that_were_assumed_too_large_are_replaced():
    """With k = 1 x reaches 1e6 from 1, with k = -1 it decays: there an absolute tolerance for 1e6 is none."""
    x, k, y = cf.symbols("x k y")
    model = cf.Model({x: k * x, y: x - y}, parameters=[k])
    data = cf.Experiment({"y": np.ones(14)}, time=np.arange(1.0, 15.0), sigma=0.1, initial={"x": 1.0, "y": 0.0})
    problem = cf.Problem(model, data, parameters={"k": 1.0})
    staged = cf.SingleShooting().transcribe(problem, problem.guess)
    assert staged.rescaled(staged.start) is None
    other = staged.rescaled(np.array([-1.0]))
    assert other is not None
    np.testing.assert_array_equal(other.start, [-1.0])
    assert other.rescaled(other.start) is None


def robertson(n: int) -> cf.Problem:
    y1, y2, y3, k1, k2, k3 = cf.symbols("y1 y2 y3 k1 k2 k3")
    model = cf.Model(
        {y1: -k1 * y1 + k3 * y2 * y3, y2: k1 * y1 - k3 * y2 * y3 - k2 * y2**2, y3: k2 * y2**2}, parameters=[k1, k2, k3]
    )

    def rate(t, v):
        return [-0.04 * v[0] + 1e4 * v[1] * v[2], 0.04 * v[0] - 1e4 * v[1] * v[2] - 3e7 * v[1] ** 2, 3e7 * v[1] ** 2]

    t, sigma = np.logspace(-5, 5, n), np.array([0.01, 1e-6, 0.01])
    exact = solve_ivp(rate, [0, 1e5], [1, 0, 0], "LSODA", t, rtol=1e-12, atol=1e-16).y.T
    y = exact + sigma * np.random.default_rng(0).standard_normal(exact.shape)
    names = ("y1", "y2", "y3")
    data = cf.Experiment(
        dict(zip(names, y.T, strict=True)),
        time=t,
        sigma=dict(zip(names, sigma.tolist(), strict=True)),
        initial={"y1": 1.0, "y2": 0.0, "y3": 0.0},
    )
    guesses = (("k1", 0.04, 2.0), ("k2", 3e7, 0.5), ("k3", 1e4, 2.0))
    parameters = {k: cf.Parameter(f * v, 1e-3 * v, 1e3 * v, scale="log") for k, v, f in guesses}
    return cf.Problem(model, data, parameters=parameters)


@pytest.mark.parametrize("n", [11, 61])
def test_robertsons_problem_with_times_of_ten_decades(n):
    problem = robertson(n)
    results = [cf.fit(problem, t) for t in (cf.SingleShooting(), cf.MultipleShooting(), cf.Collocation())]
    for result in results:
        assert result.success
        assert result.chi2 == pytest.approx({11: 20.344121, 61: 168.239313}[n], rel=1e-6)
        assert result.parameters["k2"] == pytest.approx(3e7, rel=0.05)


def test_relative_errors_of_data_over_ten_decades():
    problem = robertson(41)
    (experiment,) = problem.experiments
    exact = cf.simulate(problem, {"k1": 0.04, "k2": 3e7, "k3": 1e4})["experiment 1"]
    noise = np.random.default_rng(1)
    data = {n: (exact["time"], exact[n] * (1 + 0.01 * noise.normal(size=41))) for n in ("y1", "y2", "y3")}
    relative = cf.Experiment(data, sigma=cf.relative(0.01), initial=experiment.initial)  # sigma from 1e-13 to 1e-2
    results = [cf.fit(problem.replace(experiments=relative), t) for t in TRANSCRIPTIONS.values()]
    for result in results:
        assert result.success
        assert result.goodness.described
        assert result.chi2 == pytest.approx(results[0].chi2, rel=1e-3)
        assert result.parameters["k3"] == pytest.approx(1e4, rel=0.02)


def test_a_decay_is_exact_at_times_of_ten_decades():
    x, k = cf.symbols("x k")
    t = np.array([1e-5, 2e-5, 1e5])
    data = cf.Experiment({"x": np.zeros(3)}, time=t, initial={"x": 1.0})
    problem = cf.Problem(cf.Model({x: -k * x}, parameters=[k]), data, parameters={"k": 1e4})
    np.testing.assert_allclose(cf.simulate(problem)["experiment 1"]["x"], np.exp(-1e4 * t), atol=1e-8)
    for transcription in (*TRANSCRIPTIONS.values(), cf.MultipleShooting("data")):
        staged = transcription.transcribe(problem, problem.guess)
        if not isinstance(transcription, cf.Collocation):
            (values,) = staged.evaluate(staged.start).values
            assert np.isfinite(values.r).all()


def test_far_cells_of_a_diffusion_have_magnitudes_that_can_be_integrated():
    """From zero every next cell counts as half of the one before, which no thousand cells may do."""
    n = 400
    u, k = list(cf.symbols(f"u{i}" for i in range(n))), cf.symbols("k")
    flows = [1.0, *(k * n * (left - right) for left, right in pairwise(u)), 0.0]
    model = cf.Model(
        {u[i]: n * (flows[i] - flows[i + 1]) for i in range(n)}, parameters=[k], initial=dict.fromkeys(u, 0)
    )
    table = np.array([0.0, 1.0]), np.zeros((2, n)), np.zeros((2, 0))
    size = units_of(model, (), np.array([1.0]), 1.0, table)
    assert size.min() > 1e-9
    problem = cf.Problem(model, cf.Experiment({"u0": [0.5]}, time=[1.0], sigma=0.1), parameters={"k": 1.0})
    staged = cf.SingleShooting().transcribe(problem, problem.posed.guess)
    assert staged.evaluate(staged.start).ok
    exact = cf.simulate(problem, times=[1.0])
    sizes = np.array([float(exact[f"u{i}"][0]) for i in range(n)])
    assert (staged.units[0] > 0.01 * sizes).all()
    assert (staged.units[0] < 100 * sizes).all()


def test_resolvable_raises_magnitudes_far_below_the_largest():
    """Products of products of what is hardly there: 1e-60 of the first state, which no step could follow from zero."""

    def sizes(n):
        x, k = cf.symbols(" ".join(f"s{i}" for i in range(n))), cf.symbols("k")
        rates = {x[0]: -k * x[0]} | {x[i]: k * x[i % 7 - 1 if i % 7 else 0] ** 2 / 1e9 - x[i] for i in range(1, n)}
        model = cf.Model(rates, parameters=[k], initial={x[0]: 1e3} | dict.fromkeys(x[1:], 0.0))
        start = np.array([1e3, *[0.0] * (n - 1)])
        table = np.array([0.0, 10.0]), np.repeat(start[None], 2, axis=0), np.zeros((2, 0))
        return units_of(model, [], np.ones(1), 10.0, table)

    units = sizes(120)
    assert units[0] == 1e3
    assert units.min() == pytest.approx(1e-12 * units.max())
    np.testing.assert_array_equal(resolvable(np.array([0.0, 1.0, 1e-3])), [0.0, 1.0, 1e-3])


def test_magnitudes_of_a_small_model_may_be_any_decades_apart():
    """Its states may have units of their own, which nothing may depend on."""
    np.testing.assert_array_equal(resolvable(np.array([1e13, 0.0, 1e-14])), [1e13, 0.0, 1e-14])
    np.testing.assert_allclose(resolvable(np.array([2.0, 0.0, 1e-80])), [2.0, 0.0, 2e-30])  # which no units explain
    for unit in (1.0, 1e-27):
        x, y, k = cf.symbols("x y k")
        model = cf.Model({x: -k * x, y: unit * k * x - y}, parameters=[k], initial={x: 1.0, y: 0.0})
        table = np.array([0.0, 1.0]), np.array([[1.0, 0.0], [1.0, 0.0]]), np.zeros((2, 0))
        units = units_of(model, [], np.ones(1), 1.0, table)
        assert units[1] == pytest.approx(unit * units[0])


@pytest.mark.parametrize("method", ["esdirk", "cvodes", "idas", "rosenbrock", "collocation"])
@pytest.mark.parametrize("tiny", [1e-12, 1e-20, 1e-50, 1e-200, 1e-307, 5e-320])
def test_simulate_tiny_initial_states_behave_as_zero(method, tiny):
    """A -> B -> C in closed form; C begins at the tiny value too, and gets its unit from that of B."""
    a, b, c, k = cf.symbols("a b c k")
    for unit, second in ((1.0, 1.0), (1e-9, 1e6)):
        model = cf.Model({a: -k * a, b: k * a - k * b, c: k * b}, parameters=[k])
        t = np.array([1e-3, 1.0, 2.0])
        out = cf.simulate(
            model,
            {"k": 0.7 / second},
            t * second,
            initial={"a": unit, "b": tiny * unit, "c": tiny * unit},
            integrator=IntegratorOptions(method),
        )
        decay = np.exp(-0.7 * t)
        np.testing.assert_allclose(out["b"] / unit, 0.7 * t * decay, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(out["c"] / unit, 1 - decay - 0.7 * t * decay, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("tiny", [1e-12, 1e-50, 1e-300])
def test_simulate_growth_from_tiny_state_is_relatively_accurate(tiny):
    """Nothing produces y but y itself: so it does not count as zero beside x."""
    x, y, k = cf.symbols("x y k")
    model = cf.Model({x: -0.1 * x, y: k * y * (1 - y)}, parameters=[k])
    out = cf.simulate(model, {"k": 2.0}, [3.0], initial={"x": 1.0, "y": tiny})
    assert out["y"][0] == pytest.approx(tiny * np.exp(6) / (1 + tiny * (np.exp(6) - 1)), rel=1e-7)


@pytest.mark.parametrize("name", list(TRANSCRIPTIONS))
def test_fit_tiny_initial_state_equals_fit_from_zero(name):
    x, y, k = cf.symbols("x y k")
    model = cf.Model({x: -k * x, y: k * (x - y)}, parameters=[k])
    t = np.linspace(0.5, 5, 10)
    values = 0.7 * t * np.exp(-0.7 * t) + 0.002 * np.cos(9 * t)
    for integrator in (IntegratorOptions("cvodes"), IntegratorOptions("rosenbrock")):
        transcription = type(TRANSCRIPTIONS[name])(integrator=integrator)
        chi2, tiny_chi2 = (
            cf.fit(
                cf.Problem(
                    model,
                    cf.Experiment({"y": values}, t, sigma=0.002, initial={"x": 1.0, "y": y0}),
                    parameters={"k": 1.0},
                ),
                transcription,
            ).chi2
            for y0 in (0.0, 1e-30)
        )
        assert tiny_chi2 == pytest.approx(chi2, rel=1e-6)


def test_simulate_idas_failure_of_an_ode_raises_simulation_error():
    """IDAS finds no derivatives at the start: the message names no algebraic states, of which there are none."""
    x, y = cf.symbols("x y")
    model = cf.Model({x: -x, y: x / y}, parameters=[])
    with pytest.raises(cf.SimulationError) as caught:
        cf.simulate(model, {}, [1.0], initial={"x": 1.0, "y": 1e-200}, integrator=IntegratorOptions("idas"))
    assert "algebraic" not in str(caught.value)
