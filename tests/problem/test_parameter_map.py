"""Parameters and initial states of an experiment that are expressions of what is estimated."""

from __future__ import annotations

import pickle

import casadi as ca
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import castfit as cf
from castfit.problem.problem import Constraint, Normal, Parameter, Problem
from castfit.solve.staged import Multipliers
from tests.builders import decay_model, jacobian_error, refused

TRANSCRIPTIONS = (cf.SingleShooting(), cf.MultipleShooting(3), cf.Collocation(elements=20))
K_REF, GAIN, DOSE = 0.6, 1.7, 0.8


def conversion(**changes) -> Problem:
    """A -> B -> nothing at three temperatures: rates by a law of their own, the amount given by a dose."""
    a, b, k, m = cf.symbols("a b k m")
    k_ref, gain, dose = cf.symbols("k_ref gain dose")
    model = cf.Model({a: -k * a, b: k * a - m * b}, parameters=[k, m])
    t = np.array([0.5, 1.0, 2.0, 3.5])
    laws = [{"k": k_ref}, {"k": k_ref * gain}, {"k": k_ref * gain**2, "m": 0.5}]
    experiments = []
    for i, law in enumerate(laws):
        x0 = DOSE * (i + 1)
        rate, loss = K_REF * GAIN**i, 0.5 if i == 2 else 0.3
        y = x0 * rate / (loss - rate) * (np.exp(-rate * t) - np.exp(-loss * t))
        experiments.append(
            cf.Experiment(
                {"b": y}, time=t, sigma=0.01, parameters=law, initial={"a": dose * (i + 1), "b": 0.0}, name=f"T{i}"
            )
        )
    parameters = {
        "m": Parameter(0.4, lower=0.0, upper=2.0),
        "k_ref": Parameter(0.8, lower=0.01, upper=5.0, scale="log"),
        "gain": Parameter(1.2, lower=0.5, upper=3.0, prior=Normal(1.7, 0.5)),
        "dose": Parameter(1.0, lower=0.1, upper=5.0),
    }
    return Problem(model, experiments, **{"parameters": parameters, **changes})


@pytest.mark.parametrize("solver", [cf.GaussNewton(), cf.Ipopt()], ids=["Gauss-Newton", "IPOPT"])
@pytest.mark.parametrize("transcription", [*TRANSCRIPTIONS[:2], cf.Collocation()], ids=lambda t: t.label)
def test_expressions_are_estimated_by_every_method(transcription, solver):
    result = cf.fit(conversion(), transcription, solver)
    assert result.success, result.message
    truth = {"m": 0.3, "k_ref": K_REF, "gain": GAIN, "dose": DOSE}
    assert result.parameters == pytest.approx(truth, rel=1e-5)
    assert result.standard_errors["gain"] < 0.1
    assert np.allclose(result.predict()["T2"]["b"], conversion().experiments[2].data["b"][1][:, 0], atol=1e-5)


@pytest.mark.parametrize("transcription", TRANSCRIPTIONS, ids=lambda t: t.label)
def test_jacobians_through_expressions(transcription):
    problem = conversion()
    staged = transcription.transcribe(problem, problem.guess + 0.02)
    assert jacobian_error(staged, staged.start) < 1e-5


def test_the_exact_hessian_through_expressions():
    """The Hessian of the Lagrangian equals differences of its gradient, in every direction of theta."""
    problem = conversion(constraints=[Constraint(ca.SX.sym("k") * ca.SX.sym("a"), upper=50.0)])
    staged = cf.Collocation(elements=3).transcribe(problem, problem.guess)
    rng = np.random.default_rng(1)
    multipliers = tuple(
        Multipliers(
            rng.normal(size=values.a.shape),
            rng.normal(size=values.d.shape),
            rng.normal(size=values.x[:-1].shape),
            rng.normal(size=values.c.shape),
        )
        for values in staged.evaluate(staged.start).values
    )
    n = staged.layout.n_theta

    def gradient(v: np.ndarray) -> np.ndarray:
        linear, out = staged.linearize(v), np.zeros(n)
        for chain, values, j, chain_multipliers in zip(
            staged.layout.chains, linear.values, linear.jacobians, multipliers, strict=True
        ):
            slope = np.einsum("kr,krq->q", values.r, j.R_q) + np.einsum("kr,krq->q", chain_multipliers.inner, j.D_q)
            slope += np.einsum("kr,krq->q", chain_multipliers.path, j.C_q) + chain_multipliers.initial @ j.A
            out[chain.theta] += slope
        return out

    hessian = np.zeros((n, n))
    for chain, (blocks, theta_block) in zip(
        staged.layout.chains, staged.hessian(staged.start, multipliers).chains, strict=True
    ):
        n_q = chain.theta.size
        hessian[np.ix_(chain.theta, chain.theta)] += blocks[:, -n_q:, -n_q:].sum(axis=0) + theta_block
    h = 1e-5
    for j in range(n):
        step = h * np.eye(staged.layout.n_v)[j]
        difference = (gradient(staged.start + step) - gradient(staged.start - step)) / (2 * h)
        assert hessian[:, j] == pytest.approx(difference, rel=1e-5, abs=1e-5 * np.abs(hessian).max())


@given(
    theta=st.lists(st.floats(-1, 1), min_size=4, max_size=4), weights=st.lists(st.floats(-2, 2), min_size=4, max_size=4)
)
def test_values_slopes_and_curvature_of_expressions(theta, weights):
    weight_p, weight_a = np.array(weights[:2]), np.array(weights[2:])
    for condition in conversion().conditions:
        link, q, h = condition.link, np.array(theta)[condition.theta], 1e-5
        natural = link.natural(q)
        for j, e in enumerate(np.eye(q.size)):
            ahead, behind = link.natural(q + h * e), link.natural(q - h * e)
            np.testing.assert_allclose(natural.dp[:, j], (ahead.p - behind.p) / (2 * h), atol=1e-7)
            np.testing.assert_allclose(natural.da[:, j], (ahead.a - behind.a) / (2 * h), atol=1e-7)
            slope = weight_p @ (ahead.dp - behind.dp) + weight_a @ (ahead.da - behind.da)
            np.testing.assert_allclose(link.curvature(q, weight_p, weight_a)[:, j], slope / (2 * h), atol=1e-6)


def test_each_experiment_depends_on_what_it_uses():
    problem = conversion()
    assert problem.names == ("m", "k_ref", "gain", "dose")
    assert [c.theta.tolist() for c in problem.conditions] == [[0, 1, 3], [0, 1, 2, 3], [1, 2, 3]]
    assert problem.free_parameters.tolist() == [0, 1]
    natural = problem.conditions[2].link.natural(np.array([np.log(2.0), 3.0, 0.5]))
    assert natural.p == pytest.approx([2 * 9, 0.5])
    assert natural.a == pytest.approx([1.5, 0.0])
    assert [c.link.is_initial_fixed.tolist() for c in problem.conditions] == [[False, True]] * 3


def test_names_in_expressions_mean_values_in_the_experiment():
    x, k, d = cf.symbols("x k d")
    model = cf.Model({x: -k * x}, parameters=[k, d], initial={x: 2 * d})
    experiment = cf.Experiment({"x": [1.0, 0.5]}, time=[0, 1], parameters={"k": 3 * d, "d": cf.symbols("e") ** 2})
    problem = Problem(model, experiment, parameters={"e": 0.5})
    natural = problem.conditions[0].link.natural(problem.guess)
    assert natural.p == pytest.approx([0.75, 0.25])
    assert natural.a == pytest.approx([0.5])
    assert natural.dp[:, 0] == pytest.approx([3.0, 1.0])


def test_local_and_fixed_quantities_in_expressions():
    c, s = cf.symbols("c s")
    experiments = [
        cf.Experiment({"x": [1.0, 0.5]}, time=[0, 1], parameters={"k": c * s}, initial={"x": 1.0}, name=name)
        for name in ("one", "two")
    ]
    parameters = {"c": Parameter({"one": 0.5, "two": 0.7}, local=True), "s": Parameter(2.0, fixed=True)}
    problem = Problem(decay_model(), experiments, parameters=parameters)
    assert problem.names == ("c[one]", "c[two]")
    assert [c.link.natural(problem.guess[c.theta]).p[0] for c in problem.conditions] == [1.0, 1.4]
    assert cf.fit(problem).success


def test_posed_problems_with_expressions():
    problem = conversion()
    theta = problem.guess
    for compiled_problem in (
        problem.posed,
        problem.posed.with_horizon(1.5),
        problem.posed.fix({"gain": 1.5}),
        problem.posed.with_experiments(["T1"]),
    ):
        copy = pickle.loads(pickle.dumps(compiled_problem))
        staged, staged_copy = (cf.MultipleShooting(2).transcribe(p, p.guess) for p in (compiled_problem, copy))
        np.testing.assert_array_equal(
            staged.linearize(staged.start).jacobians[0].A, staged_copy.linearize(staged_copy.start).jacobians[0].A
        )
        for a, b in zip(
            staged.evaluate(staged.start).values, staged_copy.evaluate(staged_copy.start).values, strict=True
        ):
            np.testing.assert_allclose(a.r, b.r, rtol=1e-9)
    fixed = problem.posed.fix({"gain": 1.5})
    assert fixed.names == ("m", "k_ref", "dose")
    q = fixed.conditions[2].link.natural(fixed.guess[fixed.conditions[2].theta])
    assert q.p == pytest.approx([0.8 * 1.5**2, 0.5])
    log = problem.posed.with_bounds(theta - 0.1, theta + 0.1)
    assert log.conditions[0].link.parts


def test_problems_with_expressions_survive_pickling_and_drivers():
    problem = pickle.loads(pickle.dumps(conversion()))
    assert problem.names == conversion().names
    result = cf.fit(conversion())
    assert cf.fit(problem).cost == pytest.approx(result.cost, abs=1e-9)
    assert cf.incremental(conversion()).result.parameters == pytest.approx(result.parameters, rel=1e-4)
    assert cf.multistart(conversion(), starts=2, rng=0).best.cost == pytest.approx(result.cost, abs=1e-6)


def test_a_decomposition_knows_expressions():
    """Each state's equation has a parameter of its own, but the expressions of both contain the same quantity."""
    x, y, k, m, s, r = cf.symbols("x y k m s r")
    model = cf.Model({x: -k * x, y: x - m * y}, parameters=[k, m], initial={x: 1.0, y: 0.0})
    t = np.linspace(0.2, 3, 12)
    data = {"x": np.exp(-t), "y": t * np.exp(-t)}
    separate_experiment = cf.Experiment(data, time=t, sigma=0.01, parameters={"k": 2 * s})
    problem = Problem(
        model,
        separate_experiment,
        parameters={"s": Parameter(0.3, lower=0.01, upper=5), "m": Parameter(0.4, lower=0.01, upper=5)},
    )
    result = cf.fit(problem, start=cf.Decomposed())
    assert result.parameters == pytest.approx({"m": 1.0, "s": 0.5}, rel=1e-4)
    joined_experiment = cf.Experiment(data, time=t, sigma=0.01, parameters={"k": 2 * s, "m": r * s})
    connected_problem = Problem(model, joined_experiment, parameters={"s": 0.3, "r": 1.0})
    with refused("shared parameters connect all its equations"):
        cf.fit(connected_problem, start=cf.Decomposed())


def test_failed_expression_names_itself_and_its_values():
    s = cf.symbols("s")
    experiment = cf.Experiment({"x": [1.0, 0.5]}, time=[0, 1], parameters={"k": ca.sqrt(s - 1)}, initial={"x": 1.0})
    with refused("experiment 1: parameter 'k' = sqrt((s-1)) is nan at s = 0.5, the guess; change expression or guess"):
        Problem(decay_model(), experiment, parameters={"s": 0.5})
    problem = Problem(decay_model(), experiment, parameters={"s": 2.0})
    for transcription in TRANSCRIPTIONS:
        staged = transcription.transcribe(problem, problem.guess)
        v = staged.start.copy()
        v[0] = 0.75
        evaluation = staged.evaluate(v)
        assert evaluation.failures[0].detail == "parameter 'k' = sqrt((s-1)) is nan at s = 0.75"
        v[0] = 1.0
        assert staged.evaluate(v).ok
        details = [f.detail for f in staged.linearize(v).failures]
        assert "the derivative of parameter 'k' = sqrt((s-1)) is not finite at s = 1" in details


def test_mistakes_in_expressions_are_listed_at_once():
    x, k, m, s = cf.symbols("x k m s")
    model = cf.Model({x: -k * x - m}, parameters=[k, m])
    one = cf.Experiment(
        {"x": [1.0, 0.5]}, time=[0, 1], initial={"x": 1.0}, parameters={"k": 2 * m, "m": k + x, "kk": 1.0}, name="a"
    )
    with refused(
        "'q' is no parameter of the model",
        "'x' is no parameter but a state of the model; choose another name",
        "every experiment has its own value of 'k'; leave it out of the problem's parameters",
        "a: 'kk' has its own value but is no parameter",
        "a: parameter 'k' depends on itself (k -> m -> k)",
    ):
        Problem(model, one, parameters={"k": 1.0, "q": 1.0, "x": 2.0})
    two = cf.Experiment({"x": [1.0, 0.5]}, time=[0, 1], initial={"x": s}, parameters={"k": 2 * k}, name="a")
    with refused(
        "parameter 'm' has no guess",
        "a: parameter 'k' depends on itself (k -> k), since names mean values in this experiment",
        "a: the initial value of 'x' contains 's', which is no parameter",
    ):
        Problem(model, two)


@pytest.mark.parametrize(
    ("value", "phrase"),
    [
        (None, "parameter 'k' is None; give a finite number or a scalar SX expression of other parameters"),
        (np.nan, "parameter 'k' is nan"),
        ("1", "parameter 'k' is '1'"),
        (ca.SX.sym("v", 2), "parameter 'k' is SX([v_0, v_1])"),
        (ca.MX.sym("k"), "parameter 'k' is MX(k)"),
        (cf.free(1.0), "declare it as Parameter(guess, local=True) in the problem"),
    ],
)
def test_wrong_values_of_parameters_are_refused(value, phrase):
    with refused(phrase):
        cf.Experiment({"x": [1.0]}, time=[1.0], parameters={"k": value})


def test_a_quantity_that_no_experiment_uses_is_found():
    x, k, s, r = cf.symbols("x k s r")
    model = cf.Model({x: -k * x}, parameters=[k])
    experiment = cf.Experiment({"x": [1.0]}, time=[1.0], initial={"x": 1.0}, parameters={"k": s + 0 * r})
    with refused("'r' is no parameter of the model"):
        Problem(model, experiment, parameters={"s": 1.0, "r": 1.0})
    y = cf.symbols("y")
    pair = cf.Model({x: -k * x, y: -y}, parameters=[k])
    hidden = cf.Experiment({"x": [1.0]}, time=[1.0], initial={"x": 1.0, "y": r}, parameters={"k": s})
    with refused("no measurement depends on the free parameter 'r'; fix it"):
        Problem(pair, hidden, parameters={"s": 1.0, "r": 1.0})


def test_a_value_of_its_own_may_be_local_elsewhere():
    experiments = [
        cf.Experiment({"x": [1.0, 0.5]}, time=[0, 1], parameters=values, initial={"x": 1.0}, name=name)
        for name, values in (("one", {"k": 0.3}), ("two", {}))
    ]
    problem = Problem(decay_model(), experiments, parameters={"k": Parameter(0.5, local=True)})
    assert problem.names == ("k[two]",)
    with refused("parameter 'k' has a value for 'one', which has its own or does not use it; leave one of them out"):
        Problem(decay_model(), experiments, parameters={"k": Parameter({"one": 1.0, "two": 1.0}, local=True)})


def test_many_experiments_share_the_functions_of_an_expression():
    s, r = cf.symbols("s r")
    law = s * ca.exp(-r)
    experiments = [
        cf.Experiment({"x": [0.5]}, time=[1.0], parameters={"k": law}, initial={"x": 1.0}) for _ in range(300)
    ]
    problem = Problem(decay_model(), experiments, parameters={"s": 1.0, "r": Parameter(0.1, fixed=True)})
    assert len({id(c.link.parts[0].jacobian_function) for c in problem.conditions}) == 1
