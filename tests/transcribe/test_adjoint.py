"""Multiple shooting by adjoint states: data at nodes, the same rows and derivatives as by forward sensitivities."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import castfit as cf
from castfit._bench.adjoint_scaling import network
from castfit.integrate import Integrator, IntegratorOptions
from castfit.integrate.esdirk_binding import missing_integrator_reason
from castfit.solve.assembly import cost_gradient
from castfit.solve.solution import SolveControl
from castfit.solve.staged import GradientEvaluation, Linearization, gaps, rows_in_units
from tests.builders import LOTKA_VOLTERRA_SSE, everything, lotka_volterra, refused
from tests.experiment.test_events import eventful, oral

TIGHT = IntegratorOptions(relative_tolerance=1e-11, absolute_tolerance=1e-13)
ADJOINT = cf.MultipleShooting("data", derivatives="adjoint", integrator=TIGHT)
FORWARD = cf.MultipleShooting("data", derivatives="forward", integrator=TIGHT)


def consistent(problem: cf.Problem, transcription: cf.MultipleShooting):
    """Transcribe, and return a point at which all pieces join."""
    staged = transcription.transcribe(problem, problem.guess)
    v = staged.start.copy()
    for _ in range(max(c.n_stages for c in staged.layout.chains) + 1):
        evaluation = staged.evaluate(v)
        for chain, values in zip(staged.layout.chains, evaluation.values, strict=True):
            v[chain.nodes[0]] = values.a
            v[chain.nodes[1:]] = values.x[:-1]
    assert max(float(np.abs(g).max()) for g in gaps(staged.layout, staged.evaluate(v))) < 1e-12
    return staged, v


PROBLEMS = [lotka_volterra, everything, eventful, oral]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.__name__)
def test_rows_are_those_of_forward_multiple_shooting(problem):
    """Data at jumps of inputs and at events are read where they are without nodes there."""
    (one, v), (other, w) = (consistent(problem(), t) for t in (ADJOINT, FORWARD))
    rows = [
        np.concatenate(
            [values.r[c.row_mask] for c, values in zip(s.layout.chains, s.evaluate(point).values, strict=True)]
        )
        for s, point in ((one, v), (other, w))
    ]
    np.testing.assert_allclose(*rows, rtol=1e-7, atol=2e-8)  # two integrators, each at 1e-9
    limits = [
        [(c.constraint_lower[np.isfinite(c.constraint_upper)], values.c[np.isfinite(c.constraint_upper)])
         for c, values in zip(s.layout.chains, s.evaluate(point).values, strict=True)]
        for s, point in ((one, v), (other, w))
    ]  # fmt: skip
    for adjoint_limits, forward_limits in zip(*limits, strict=True):
        for adjoint_limit, forward_limit in zip(adjoint_limits, forward_limits, strict=True):
            np.testing.assert_allclose(np.sort(adjoint_limit), np.sort(forward_limit), rtol=1e-8)


def along(staged, linear, dv):
    """Return how rows, initial values, ends of stages and constraints move along dv, per chain."""
    for chain, j in zip(staged.layout.chains, linear.jacobians, strict=True):
        dq, ds, _ = chain.local(dv)
        yield {name: np.einsum("krs,ks->kr", getattr(j, f"{name.upper()}_s"), ds) + getattr(j, f"{name.upper()}_q") @ dq
               for name in "rxc"} | {"a": j.A @ dq}  # fmt: skip


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.__name__)
def test_adjoint_blocks_equal_finite_differences(problem):
    staged = ADJOINT.transcribe(problem(), problem().guess)
    rng = np.random.default_rng(1)
    v = staged.start + 0.01 * staged.scale * rng.standard_normal(staged.layout.n_v)
    linear, h = staged.linearize(v), 2e-3
    for _ in range(2):
        dv = staged.scale * rng.standard_normal(v.size)
        evaluations = [staged.evaluate(v + m * h * dv) for m in (-2, -1, 1, 2)]
        for c, changes in enumerate(along(staged, linear, dv)):
            for name, exact in changes.items():
                # Derivatives of rows are those with unknown sigmas held.
                g = [rows_in_units(staged.layout, e, linear.sigma)[c] if name == "r" else getattr(e.values[c], name)
                     for e in evaluations]  # fmt: skip
                slope = (g[0] - 8 * g[1] + 8 * g[2] - g[3]) / (12 * h)
                np.testing.assert_allclose(slope, exact, rtol=1e-6, atol=1e-6 * max(np.abs(exact).max(initial=0), 1))


def test_rows_depend_on_no_integration():
    staged = ADJOINT.transcribe(lotka_volterra(), lotka_volterra().guess)
    linear = staged.linearize(staged.start)
    (chain,), (j,) = staged.layout.chains, linear.jacobians
    np.testing.assert_array_equal(chain.times, [0, *range(1, 11), 10])
    assert not j.R_q.any()
    np.testing.assert_allclose(j.R_s[1:] * linear.sigma[0], np.broadcast_to(np.eye(2), (10, 2, 2)))
    assert not j.R_s[0].any()


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.__name__)
def test_one_direction_is_a_product_of_all(problem):
    staged = ADJOINT.transcribe(problem(), problem().guess)
    rng = np.random.default_rng(2)
    directions = [rng.standard_normal(chain.nodes.shape) for chain in staged.layout.chains]
    full, products = staged.linearize(staged.start), staged.linearize_along(staged.start, directions)
    for d, all_, one in zip(directions, full.jacobians, products.jacobians, strict=True):
        np.testing.assert_allclose(one.X_s, d[:, None] @ all_.X_s, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(one.X_q, d[:, None] @ all_.X_q, rtol=1e-6, atol=1e-8)
        np.testing.assert_array_equal(one.R_s, all_.R_s)


def in_units(unit: float, scale: float, second: float, residual: float | None = None) -> cf.Problem:
    """A decay with the parameter, states and time in other units, and its equation if it is a DAE multiplied."""
    a, b, k, z, u = cf.symbols("a b k z u")
    rate = k / (unit * second) * a
    if residual is None:
        model = cf.Model({a: 0.1 / second * u - rate, b: rate - 0.3 / second * b}, parameters=[k], inputs=[u])
        options = {"inputs": {"u": cf.Input.linear([0, 1.5 * second, 4 * second], [scale, 2 * scale, 0])}}
    else:
        model = cf.Model({a: -z, b: z - 0.3 / second * b}, algebraic={z: residual * (z - rate)}, parameters=[k])
        options = {}
    data = cf.Experiment({"b": scale * np.array([0.3, 0.4, 0.2])}, time=second * np.array([1, 2, 4]),
                         sigma=0.1 * scale, initial={"a": scale, "b": 0}, **options)  # fmt: skip
    return cf.Problem(model, data, parameters={"k": 0.8 * unit})


def blocks_in_units(unit: float, scale: float, second: float, residual: float | None = None, derivatives="adjoint"):
    """Return d x+ / d s and d x+ / d k of the three pieces, in units that make the states and k about 1."""
    problem = in_units(unit, scale, second, residual)
    staged = cf.MultipleShooting("data", derivatives=derivatives).transcribe(problem, problem.guess)
    linear = staged.linearize(staged.start)
    assert linear.failures == ()
    return linear.jacobians[0].X_s[:3], linear.jacobians[0].X_q[:3] * unit / scale


@pytest.mark.parametrize("residual", [None, 1e-9, 1e9], ids=str)
def test_adjoint_derivatives_do_not_depend_on_units(residual):
    """The whole domain: what fails, does so here and there (rounding errors that look like errors of a step)."""
    expected = blocks_in_units(1, 1, 1, residual and 1.0, derivatives="forward")
    some = (-12, 10) if residual else (-12, -5, 0, 10, 12)
    for unit, scale, second in product(some, (-9, 9) if residual else (-9, -8, 5), (-9, 9)):
        for actual, expected_block in zip(
            blocks_in_units(10.0**unit, 10.0**scale, 10.0**second, residual), expected, strict=True
        ):
            np.testing.assert_allclose(actual, expected_block, atol=2e-8, err_msg=f"{unit} {scale} {second}")


@settings(max_examples=8)
@given(unit=st.floats(-12, 12), scale=st.floats(-9, 9), second=st.floats(-9, 9))
def test_adjoint_derivatives_do_not_depend_on_units_anywhere(unit, scale, second):
    x_s, x_k = blocks_in_units(10.0**unit, 10.0**scale, 10.0**second, 1.0)
    t = np.array([1.0, 1.0, 2.0])
    np.testing.assert_allclose(x_s[:, 0, 0], np.exp(-0.8 * t), rtol=1e-6)
    np.testing.assert_allclose(x_k[:, 0, 0], -t * [1, np.exp(-0.8), np.exp(-1.6)] * np.exp(-0.8 * t), rtol=1e-6)


@pytest.mark.parametrize("residual", [None, 1e9], ids=str)
def test_fits_by_gradients_do_not_depend_on_units(residual):
    fits = {}
    for unit, scale, second in [(1, 1, 1), (1e10, 1e-8, 1), (1e-9, 1e-9, 1e6), (1e8, 1e5, 1e-6)]:
        result = cf.fit(in_units(unit, scale, second, residual), cf.SingleShooting(derivatives="adjoint"))
        assert result.success
        fits[unit] = [result.parameters["k"] / unit, result.standard_errors["k"] / unit, result.chi2]
    for fit_values in fits.values():
        np.testing.assert_allclose(fit_values, fits[1], rtol=1e-6)


@pytest.mark.parametrize("solver", [cf.GaussNewton(), cf.Ipopt()], ids=lambda s: s.label)
def test_fits_agree_with_forward_sensitivities(solver):
    problem = lotka_volterra((0.5, 0.5, 0.5, -0.2))
    adjoint_result, forward_result = (cf.fit(problem, t, solver) for t in (ADJOINT, FORWARD))
    assert adjoint_result.success
    assert adjoint_result.chi2 == pytest.approx(forward_result.chi2, rel=1e-8)
    for name, value in forward_result.parameters.items():
        assert adjoint_result.parameters[name] == pytest.approx(value, rel=1e-6)
        assert adjoint_result.standard_errors[name] == pytest.approx(forward_result.standard_errors[name], rel=1e-5)
    np.testing.assert_allclose(adjoint_result.residuals, forward_result.residuals, atol=1e-5)


def test_estimated_times_of_events_by_adjoint():
    guess = {"tlag": 0.25}
    adjoint_result, forward_result = (cf.fit(oral(), t, start=guess) for t in (ADJOINT, FORWARD))
    assert adjoint_result.success
    for name, value in forward_result.parameters.items():
        assert adjoint_result.parameters[name] == pytest.approx(value, rel=1e-6)
        assert adjoint_result.standard_errors[name] == pytest.approx(forward_result.standard_errors[name], rel=1e-4)


def test_options_that_do_not_go_together_are_refused():
    with refused("derivatives is 'backward'; choose"):
        cf.MultipleShooting("data", derivatives="backward")
    with refused("intervals='data'"):
        cf.MultipleShooting(10, derivatives="adjoint")
    with refused("matching is 'norm'"):
        cf.MultipleShooting("data", derivatives="adjoint", matching="norm")
    with refused("derivatives='adjoint' as well"):
        cf.MultipleShooting("data", matching="scalar")
    with refused("intervals is 'dta'", "intervals='data'"):
        cf.MultipleShooting("dta", derivatives="adjoint", matching="scalar")


# Single shooting: the gradient of the cost


def unconstrained() -> cf.Problem:
    return everything(constraints=[], state_bounds={})


def counts() -> cf.Problem:
    """Poisson counts, whose cost is no sum of squares, with a replicate and an input that jumps at data."""
    x, k, u = cf.symbols("x k u")
    model = cf.Model({x: u - k * x}, parameters=[k], inputs=[u], outputs={"n": 20 * x})
    data = cf.Experiment(
        {"n": [20, 31, 30, 8, 3]},
        time=[0, 1, 1, 2, 4],
        noise=cf.Poisson(),
        initial={"x": cf.free(1.0)},
        inputs={"u": cf.Input.piecewise_constant([0, 1], [1.5, 0.0])},
    )
    return cf.Problem(model, data, parameters={"k": cf.Parameter(0.6, scale="log", prior=cf.Normal(0.8, 0.3))})


def outliers() -> cf.Problem:
    """A DAE with Laplace's errors of one output and Gaussian ones, whose law is estimated, of the other."""
    a, b, k, z, s = cf.symbols("a b k z s")
    model = cf.Model({a: -z, b: z - 0.3 * b}, algebraic={z: z + 0.1 * z**3 - k * a}, parameters=[k],
                     outputs={"y": a + z})  # fmt: skip
    data = cf.Experiment({"y": [1.3, 0.2, 0.3], "b": [0.3, 0.4, 0.2]}, time=[0.5, 1, 3],
                         noise={"y": cf.Laplace(0.1), "b": cf.Gaussian(0.02 + s * b)},
                         initial={"a": cf.free(1.1), "b": 0})  # fmt: skip
    return cf.Problem(model, data, parameters={"k": 0.8, "s": 0.1})


SUMS = [lotka_volterra, unconstrained, eventful, oral, counts, outliers]
GRADIENT = cf.SingleShooting(TIGHT, derivatives="adjoint")


@pytest.mark.parametrize("problem", SUMS, ids=lambda p: p.__name__)
def test_the_gradient_of_the_cost_equals_finite_differences_and_that_of_the_jacobian(problem):
    staged = GRADIENT.transcribe(problem(), problem().guess)
    rng = np.random.default_rng(4)
    v = staged.start + 0.02 * staged.scale * rng.standard_normal(staged.layout.n_v)
    evaluation, linear = staged.gradient(v), staged.linearize(v)
    by_rows = cost_gradient(staged.layout, linear, np.ones(staged.layout.n_groups + 1))
    size = np.abs(by_rows).max()
    np.testing.assert_allclose(evaluation.gradient, by_rows, atol=1e-6 * size)
    assert evaluation.cost == linear.cost
    for _ in range(2):
        dv = staged.scale * rng.standard_normal(v.size)
        costs = [staged.evaluate(v + m * 1e-3 * dv).cost for m in (-2, -1, 1, 2)]
        slope = (costs[0] - 8 * costs[1] + 8 * costs[2] - costs[3]) / 12e-3
        assert evaluation.gradient @ dv == pytest.approx(slope, rel=1e-6, abs=1e-6 * size)


@pytest.mark.skipif(missing_integrator_reason() != "", reason="needs a C compiler")
@pytest.mark.parametrize("problem", SUMS, ids=lambda p: p.__name__)
def test_the_gradient_of_the_esdirk_method_is_that_of_its_own_steps(problem):
    options = IntegratorOptions("esdirk", 1e-5, 1e-7, watch_sensitivities=False)
    staged = cf.SingleShooting(options, derivatives="adjoint").transcribe(problem(), problem().guess)
    evaluation, linear = staged.gradient(staged.start), staged.linearize(staged.start)
    by_rows = cost_gradient(staged.layout, linear, np.ones(staged.layout.n_groups + 1))
    np.testing.assert_allclose(evaluation.gradient, by_rows, rtol=1e-10, atol=1e-10 * np.abs(by_rows).max())


def test_weights_of_groups_multiply_their_squares():
    staged = GRADIENT.transcribe(lotka_volterra(), lotka_volterra().guess)
    weight = np.array([0.3, 2.0])
    evaluation, linear = staged.gradient(staged.start, weight), staged.linearize(staged.start)
    np.testing.assert_allclose(evaluation.gradient, cost_gradient(staged.layout, linear, weight), rtol=1e-5)


@pytest.mark.parametrize("problem", [lotka_volterra, oral, counts], ids=lambda p: p.__name__)
def test_fits_by_gradients_have_the_statistics_of_others(problem):
    adjoint_result, forward_result = (
        cf.fit(problem(), cf.SingleShooting(derivatives="adjoint")),
        cf.fit(problem(), cf.SingleShooting()),
    )
    assert adjoint_result.success
    assert adjoint_result.solver == "IPOPT"  # Gauss-Newton cannot
    assert adjoint_result.evaluations["gradients"] > adjoint_result.evaluations["jacobians"]
    assert adjoint_result.cost == pytest.approx(forward_result.cost, rel=1e-7, abs=1e-9)
    for name, value in forward_result.values.items():
        assert adjoint_result.values[name] == pytest.approx(value, abs=1e-3 * forward_result.standard_errors[name])
        assert adjoint_result.standard_errors[name] == pytest.approx(forward_result.standard_errors[name], rel=1e-4)


def test_bounds_by_gradients():
    problem = lotka_volterra((0.8, 0.8, 0.9, 0.9), upper=1.0)
    adjoint_result = cf.fit(problem, cf.SingleShooting(derivatives="adjoint"))
    forward_result = cf.fit(problem, cf.SingleShooting(), cf.GaussNewton())
    assert adjoint_result.success
    assert adjoint_result.active == forward_result.active
    assert adjoint_result.cost == pytest.approx(forward_result.cost, rel=1e-7)


def test_a_gradient_takes_no_forward_sensitivities(monkeypatch):
    """However many parameters there are; the forward sweep comes once, at the end."""
    problem = network_problem(3, 40)
    sweeps: list[int] = []
    forward = Integrator.sensitivities
    monkeypatch.setattr(Integrator, "sensitivities", lambda *a, **k: (sweeps.append(1), forward(*a, **k))[1])
    result = cf.fit(problem, cf.SingleShooting(derivatives="adjoint"))
    assert result.success
    assert len(sweeps) == result.evaluations["jacobians"] <= 4
    assert np.isfinite(list(result.standard_errors.values())).all()


def network_problem(n_x: int, n_p: int) -> cf.Problem:
    model, rng = network(n_x, n_p), np.random.default_rng(0)
    times, initial = np.linspace(0.5, 4, 8), dict.fromkeys(model.states, 1.0)
    truth = dict(zip(model.parameters, rng.uniform(0.2, 1, n_p), strict=True))
    exact = cf.simulate(model, truth, times, initial=initial)
    data = {n: exact[n] + 0.02 * rng.standard_normal(times.size) for n in model.states}
    experiment = cf.Experiment(data, time=times, sigma=0.02, initial=initial)
    priors = {n: cf.Parameter(0.6, prior=cf.Normal(0.6, 0.3)) for n in model.parameters}
    return cf.Problem(model, experiment, parameters=priors)


def spread() -> cf.Problem:
    x, k = cf.symbols("x k")
    data = [cf.Experiment({"x": [1.0, 0.5]}, time=[1, 2], initial={"x": cf.free(2.0)}) for _ in range(500)]
    return cf.Problem(cf.Model({x: -k * x}, parameters=[k]), data, parameters={"k": 0.5})


def test_auto_takes_what_is_faster():
    few, many = network_problem(2, 3), network_problem(2, 500)
    cvodes = cf.IntegratorOptions(method="cvodes")
    fast = cf.IntegratorOptions()  # one factorization for all directions, where it is compiled
    rows, gradients_and_rows = (Linearization,), (GradientEvaluation, Linearization)
    # Experiments with five hundred quantities of their own in all have few directions each.
    for problem, options, expected in (
        (few, cvodes, rows), (many, cvodes, gradients_and_rows),
        (many, fast, gradients_and_rows if missing_integrator_reason() else rows), (spread(), cvodes, rows),
    ):  # fmt: skip
        staged = cf.SingleShooting(options).transcribe(problem, problem.guess)
        assert staged.capabilities == expected
        assert staged.options == options
    some = network_problem(2, 30)
    quick = 9 if missing_integrator_reason() else 8
    for problem, stages, options in ((few, 8, cvodes), (some, 9, cvodes), (some, quick, fast)):  # 9: nodes of their own
        staged = cf.MultipleShooting("data", integrator=options).transcribe(problem, problem.guess)
        assert staged.layout.chains[0].n_stages == stages


def test_adjoint_derivatives_unsupported_option_is_refused():
    with refused("constraints and bounds of states have derivatives of their own"):
        cf.fit(everything(), cf.SingleShooting(derivatives="adjoint"))
    with refused("derivatives='adjoint' gives the gradient of the cost alone, which GaussNewton does not support"):
        cf.fit(lotka_volterra(), cf.SingleShooting(derivatives="adjoint"), cf.GaussNewton())
    with refused("does not support; use Ipopt(), or derivatives='forward'"):
        cf.fit(lotka_volterra(), cf.SingleShooting(derivatives="adjoint"), cf.Ipopt(hessian="gauss-newton"))
    staged = GRADIENT.transcribe(lotka_volterra(), lotka_volterra().guess)
    with refused("hessian='limited-memory'"):
        cf.Ipopt(hessian="gauss-newton").solve(staged, SolveControl())
    with refused("derivatives is 'reverse'"):
        cf.SingleShooting(derivatives="reverse")
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k])
    data = cf.Experiment(
        {"x": [1.0, 0.5]}, time=[1, 2], initial={"x": 2}, events=[cf.Event(changes={x: 2}, when=x - 0.7)]
    )
    with refused("states trigger events"):
        cf.fit(cf.Problem(model, data, parameters={"k": 0.5}), cf.SingleShooting(derivatives="adjoint"))


def test_an_approximated_hessian_with_any_transcription():
    result = cf.fit(lotka_volterra(), cf.MultipleShooting(5), cf.Ipopt(hessian="limited-memory"))
    assert result.chi2 == pytest.approx(LOTKA_VOLTERRA_SSE, rel=1e-4)
