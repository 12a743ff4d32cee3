"""Direct collocation: order, derivatives, and what becomes of data, inputs, bounds and failures."""

from __future__ import annotations

import casadi as ca
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import castfit.transcribe.collocation_problem as module
from castfit._support.status import InputError
from castfit.experiment.experiment import Experiment, free
from castfit.experiment.inputs import Input
from castfit.model.model import Model, symbols
from castfit.problem.problem import Constraint, Normal, Parameter, Problem
from castfit.solve.staged import Linearization, Multipliers, rows_in_units
from castfit.transcribe.collocation_problem import CollocationProblem, collocation_problem
from tests.solve.blocks import dense
from tests.transcribe.newton import simulate


def constant(x, z=()):
    """Return a trajectory that stays where it is."""
    return lambda times: (np.tile(np.array(x, float), (times.size, 1)), np.tile(np.array(z, float), (times.size, 1)))


def transcribe(problem, elements, trajectory, **options) -> CollocationProblem:
    """Collocate every experiment on the same number of equal elements, from the same trajectory."""
    edges = [np.linspace(c.start, c.end, elements + 1) for c in problem.conditions]
    trajectories = [trajectory] * len(edges)
    return collocation_problem(problem, edges, theta=problem.guess, trajectories=trajectories, **options)


def rich_problem() -> Problem:
    """Everything at once: a DAE with time, inputs that jump, two experiments, log and local parameters, priors."""
    x, y, z, u, w, t = symbols("x y z u w t")
    k1, k2, k3, k4 = symbols("k1 k2 k3 k4")
    model = Model(
        {x: -k1 * x * y + u + 0.1 * t * k4, y: k2 * x - k3 * y * z + w},
        algebraic={z: z + 0.1 * z**3 - k2 * x - y**2},
        parameters=[k1, k2, k3, k4],
        inputs=[u, w],
        outputs={"product": k3 * x * y + z**2, "logarithm": ca.log(x)},
        time=t,
        initial={y: 0.5 * k1 * k2},
    )
    times = np.array([0.0, 0.4, 0.4, 0.9, 1.5, 2.0])
    first_experiment = Experiment(
        {"product": [0.5, 1.0, 1.1, np.nan, 0.8, 0.9], "logarithm": [np.nan, 0.1, 0.2, 0.3, np.nan, 0.0], "z": times},
        time=times,
        sigma={"product": 0.1, "logarithm": 0.2, "z": 0.3},
        initial={"x": free(0.8, lower=0.1, upper=5.0, scale="log")},
        inputs={"u": Input.piecewise_constant([0, 0.73], [0.3, 1.2]), "w": Input.linear([0, 1.1, 3], [0.1, 0.5, 0.2])},
    )
    second_experiment = Experiment(
        {"y": ([0.7, 1.0, 1.6], [0.4, 0.6, 0.5])}, sigma=0.1, initial={"x": 0.9}, inputs={"u": 0.2, "w": 0.0}, start=0.2
    )
    parameters = {
        "k1": Parameter(0.8, lower=0, scale="log", prior=Normal(1.0, 0.5)),
        "k2": 0.6,
        "k3": Parameter({"experiment 1": 0.5, "experiment 2": 0.7}, local=True, scale="log"),
        "k4": Parameter(0.2, fixed=True),
    }
    constraints = [Constraint(k2 * x * y + z, upper=4.0), Constraint(x - y, lower=0.1, upper=0.1)]
    return Problem(
        model,
        [first_experiment, second_experiment],
        parameters=parameters,
        constraints=constraints,
        state_bounds={"x": (0.01, 10)},
    )


def near_start(staged, seed, size=0.2):
    rng = np.random.default_rng(seed)
    return staged.start + size * staged.scale * rng.uniform(-1, 1, staged.layout.n_v)


def differentiate(function, v, step=1e-3):
    """Central differences of fourth order: function (m,) of v (n,) gives (m, n)."""
    columns = []
    for i in range(v.size):
        e = np.zeros(v.size)
        e[i] = step
        columns.append(
            (8 * (function(v + e) - function(v - e)) - (function(v + 2 * e) - function(v - 2 * e))) / (12 * step)
        )
    return np.array(columns).T


def blank(staged, evaluation):
    """Give an evaluation Jacobians of zeros, so that its functions can be stacked."""
    return Linearization(
        evaluation.v,
        evaluation.values,
        evaluation.prior,
        evaluation.prior_jacobian,
        evaluation.failures,
        tuple(j for j in staged.linearize(staged.start).jacobians),
    )


# ---------------------------------------------------------------------------------------------------- derivatives


@pytest.mark.parametrize(
    ("scheme", "degree", "seed"),
    [("radau", 1, 0), pytest.param("radau", 3, 1, marks=pytest.mark.slow), ("legendre", 2, 2)],
)
def test_jacobian_blocks_are_the_derivatives_of_the_values(scheme, degree, seed):
    staged = transcribe(rich_problem(), 2, constant([0.8, 0.5], [0.6]), scheme=scheme, degree=degree)
    v = near_start(staged, seed)

    def functions(v):
        parts = dense(staged.layout, blank(staged, staged.evaluate(v)))
        return np.concatenate([parts.r, parts.e, parts.c])

    parts = dense(staged.layout, staged.linearize(v))
    stacked = np.vstack([parts.J, parts.C, parts.P])
    np.testing.assert_allclose(stacked, differentiate(functions, v), rtol=1e-8, atol=1e-8 * np.abs(stacked).max())


def draw_multipliers(staged, rng):
    return tuple(
        Multipliers(
            rng.standard_normal(c.n_s),
            rng.standard_normal((c.n_stages, c.n_w)),
            rng.standard_normal((c.n_stages - 1, c.n_s)),
            rng.standard_normal((c.n_stages, c.n_c)),
        )
        for c in staged.layout.chains
    )


@pytest.mark.parametrize(
    ("scheme", "degree", "seed"),
    [
        pytest.param("radau", 2, 0, marks=pytest.mark.slow),
        pytest.param("legendre", 3, 1, marks=pytest.mark.slow),
        ("legendre", 2, 1),
        ("radau", 1, 2),
    ],
)
def test_hessian_blocks_are_the_derivatives_of_the_lagrangian_gradient(scheme, degree, seed):
    staged = transcribe(rich_problem(), 2, constant([0.8, 0.5], [0.6]), scheme=scheme, degree=degree)
    v, rng = near_start(staged, seed), np.random.default_rng(seed)
    multipliers = draw_multipliers(staged, rng)
    equalities, paths = [], []
    for m in multipliers:
        equalities.append(m.initial)
        for k, inner in enumerate(m.inner):
            equalities += [inner, m.matching[k]] if k < len(m.matching) else [inner]
        paths.append(m.path.ravel())
    n_prior = staged.evaluate(v).prior.size
    assert n_prior == 1

    def gradient(v):
        system = dense(staged.layout, staged.linearize(v))
        data = slice(0, system.r.size - n_prior)
        return (
            system.J[data].T @ system.r[data]
            + system.C.T @ np.concatenate(equalities)
            + system.P.T @ np.concatenate(paths)
        )

    total = np.zeros((v.size, v.size))
    for chain, (stages, initial) in zip(staged.layout.chains, staged.hessian(v, multipliers).chains, strict=True):
        total[np.ix_(chain.theta, chain.theta)] += initial
        for k, block in enumerate(stages):
            where = np.concatenate([chain.nodes[k], chain.inner[k], chain.theta])
            total[np.ix_(where, where)] += block
    np.testing.assert_allclose(total, total.T, atol=1e-12 * np.abs(total).max())
    np.testing.assert_allclose(total, differentiate(gradient, v), rtol=1e-7, atol=1e-8 * np.abs(total).max())


def test_measured_linear_outputs_need_no_second_derivatives():
    problem = lotka_volterra()
    staged = transcribe(problem, 3, constant([0.4, 1.0]))
    assert staged.equations.observed.is_linear
    assert not staged.equations.flow.is_linear


# ------------------------------------------------------------------------------------------------------- accuracy


def decay_problem(end: float = 1.0) -> Problem:
    """x' = -k x**2, y' = y cos(t) x (1 + t): x = 1 / (1 + t), y = exp(sin t) for k = 1."""
    x, y, t, k = symbols("x y t k")
    model = Model({x: -k * x**2, y: y * ca.cos(t) * x * (1 + t)}, parameters=[k], time=t)
    experiment = Experiment({"x": [1 / (1 + end)]}, time=[end], initial={"x": 1.0, "y": 1.0})
    return Problem(model, experiment, parameters={"k": 1.0})


def observed_order(elements, errors):
    """Return the order between the last two meshes whose errors rounding has not spoilt."""
    clean = [(n, e) for n, e in zip(elements, errors, strict=True) if e > 1e-13]
    (n, coarse_error), (m, fine_error) = clean[-2:]
    return np.log(coarse_error / fine_error) / np.log(m / n)


@pytest.mark.parametrize("scheme", ["radau", "legendre"])
@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_order_of_convergence_at_element_ends(scheme, degree):
    problem = decay_problem()
    elements = {1: (8, 16, 32), 2: (4, 8, 16), 3: (2, 4, 8), 4: (1, 2, 4)}[degree]
    errors = []
    for count in elements:
        staged = transcribe(problem, count, constant([1.0, 1.0]), scheme=scheme, degree=degree)
        end = staged.evaluate(simulate(staged, staged.start)).values[0].x[-1]
        errors.append(np.abs(end - [0.5, np.exp(np.sin(1.0))]).max())
    order = 2 * degree - 1 if scheme == "radau" else 2 * degree
    assert observed_order(elements, errors) == pytest.approx(order, abs=0.35)


def dae_problem() -> Problem:
    """x' = z, 0 = z + x - k sin(t)...: x = (k/2)(sin t - cos t + exp(-t)), z = k sin(t) - x."""
    x, z, t, k = symbols("x z t k")
    model = Model({x: z}, algebraic={z: 1e4 * (z + x - k * ca.sin(t))}, parameters=[k], time=t)
    return Problem(model, Experiment({"z": [0.0]}, time=[1.0], initial={"x": 0.0}), parameters={"k": 2.0})


@pytest.mark.parametrize("scheme", ["radau", "legendre"])
def test_order_of_convergence_of_a_dae(scheme):
    degree, elements = 2, (4, 8, 16)
    exact = np.sin(1.0) - np.cos(1.0) + np.exp(-1.0)
    ends, algebraic = [], []
    for count in elements:
        staged = transcribe(dae_problem(), count, constant([0.0], [0.0]), scheme=scheme, degree=degree)
        v = simulate(staged, staged.start)
        evaluation = staged.evaluate(v)
        ends.append(abs(evaluation.values[0].x[-1, 0] - exact))
        algebraic.append(abs(rows_in_units(staged.layout, evaluation)[0][-1, 0] - (2 * np.sin(1.0) - exact)))
    assert observed_order(elements, ends) == pytest.approx(3 if scheme == "radau" else 4, abs=0.2)
    # The last Radau point is the end, where z is as accurate as x; Legendre points extrapolate to it.
    assert observed_order(elements, algebraic) == pytest.approx(3 if scheme == "radau" else 2, abs=0.2)


def test_algebraic_equations_are_scaled_to_the_unit_of_their_state():
    staged = transcribe(dae_problem(), 3, constant([1.0], [5.0]))
    blocks = staged.linearize(staged.start).jacobians[0].D_w.reshape(3, 3, 2, 3, 2)
    for i in range(3):
        np.testing.assert_allclose(blocks[:, i, 1, i, 1], 1.0)


def lotka_volterra() -> Problem:
    x, y = symbols("x y")
    k = symbols("k1 k2 k3 k4")
    model = Model({x: -k[0] * x + k[1] * x * y, y: k[2] * y - k[3] * x * y}, parameters=k)
    times = np.linspace(1, 10, 10)
    data = {"x": np.cos(times), "y": (times[::2], np.sin(times[::2]))}
    experiment = Experiment(data, time=times, sigma={"x": 0.5, "y": 0.2}, initial={"x": 0.4, "y": free(1.0)})
    return Problem(
        model,
        experiment,
        parameters={f"k{i + 1}": Parameter(1.0, lower=0, upper=9) for i in range(4)},
        state_bounds={"x": (0.0, 20.0), "y": (0.1, np.inf)},
    )


@pytest.mark.parametrize(("scheme", "elements"), [("radau", 40), ("legendre", 37)])
def test_cost_is_that_of_the_simulation(scheme, elements):
    problem = lotka_volterra()
    experiment = problem.experiments[0]
    solution = solve_ivp(
        lambda t, x: [-x[0] + x[0] * x[1], x[1] - x[0] * x[1]],
        (0, 10),
        [0.4, 1.0],
        dense_output=True,
        rtol=1e-11,
        atol=1e-12,
    )
    cost = 0.0
    for i, name in enumerate(("x", "y")):
        times, values = experiment.data[name]
        sigma = {"x": 0.5, "y": 0.2}[name]
        cost += 0.5 * (((solution.sol(times)[i] - values[:, 0]) / sigma) ** 2).sum()
    staged = transcribe(
        problem, elements, lambda t: (solution.sol(t).T, np.zeros((t.size, 0))), scheme=scheme, degree=5
    )
    assert staged.evaluate(simulate(staged, staged.start)).cost == pytest.approx(cost, rel=1e-7)


def test_inputs_that_jump_inside_an_element_move_its_boundary():
    """x' = -x + u with u = 0 up to 1/3 and 3 afterwards; the output x + u sees the input's left value at the jump."""
    x, u, k = symbols("x u k")
    model = Model({x: -k * x + u}, parameters=[k], inputs=[u], outputs={"sum": x + u})
    signal = Input.piecewise_constant([0.0, 1 / 3], [0.0, 3.0])
    experiment = Experiment({"sum": [0.0, 0.0, 0.0]}, time=[1 / 3, 0.5, 1.0], initial={"x": 1.0}, inputs={"u": signal})
    problem = Problem(model, experiment, parameters={"k": 1.0})
    staged = transcribe(problem, 2, constant([1.0]), degree=7)
    np.testing.assert_allclose(staged.layout.chains[0].times, [0, 1 / 3, 0.5, 1])
    (r,) = rows_in_units(staged.layout, staged.evaluate(simulate(staged, staged.start)))
    at_jump = np.exp(-1 / 3)
    states_after_jump = [3 + (at_jump - 3) * np.exp(-(t - 1 / 3)) for t in (0.5, 1.0)]
    np.testing.assert_allclose(r[:, 0], [at_jump, states_after_jump[0] + 3, states_after_jump[1] + 3], atol=1e-12)


@pytest.mark.parametrize("kind", ["linear", "pchip", "cubic_spline"])
def test_smooth_inputs_are_followed(kind):
    """A cubic input is integrated exactly by three Gauss points: x' = u."""
    x, u, k = symbols("x u k")
    signal = getattr(Input, kind)([0.0, 0.3, 0.55, 0.8, 1.0], [1.0, 3.0, 2.0, 2.5, 0.0])
    experiment = Experiment({"x": [0.0]}, time=[1.0], initial={"x": 0.0}, inputs={"u": signal})
    problem = Problem(Model({x: k * u}, parameters=[k], inputs=[u]), experiment, parameters={"k": 1.0})
    staged = transcribe(problem, 3, constant([1.0]), scheme="legendre")
    end = staged.evaluate(simulate(staged, staged.start)).values[0].x[-1, 0]
    knots = staged.layout.chains[0].times
    tau, weight = np.polynomial.legendre.leggauss(3)
    middle, half = 0.5 * (knots[1:] + knots[:-1]), 0.5 * np.diff(knots)
    assert end == pytest.approx(
        (half[:, None] * weight * signal(middle[:, None] + half[:, None] * tau)).sum(), rel=1e-13
    )


# ------------------------------------------------------------------------------------------- layout, bounds, start


def test_start_is_the_trajectory_and_interpolants_give_it_back():
    problem = lotka_volterra()

    def cubic(t):
        return np.stack([1 + 0.1 * t**3, 2 + t], axis=1), np.zeros((t.size, 0))

    staged = transcribe(problem, 5, cubic, degree=3)
    chain = staged.layout.chains[0]
    theta, nodes, inner = staged.start[:5], staged.start[chain.nodes], staged.start[chain.inner]
    np.testing.assert_array_equal(theta, problem.guess)
    np.testing.assert_array_equal(nodes[0], [0.4, 1.0])  # the initial state itself
    np.testing.assert_allclose(nodes[1:, 1], 2 + chain.times[1:-1])
    np.testing.assert_allclose(inner.reshape(5, 3, 2)[:, -1, 0], np.minimum(1 + 0.1 * chain.times[1:] ** 3, 20))
    np.testing.assert_array_equal(staged.layout.pack(theta, (nodes,), (inner,)), staged.start)
    times = np.array([2.0, 2.7, 3.9, 4.0])  # before the upper bound clips the start
    np.testing.assert_allclose(staged.interpolants(staged.start)[0](times)[0], cubic(times)[0], rtol=1e-13)


def test_interpolants_of_algebraic_states_pass_through_collocation_points():
    staged = transcribe(dae_problem(), 2, lambda t: (t[:, None], 1 + t[:, None] ** 2), degree=3)
    times = np.array([0.0, 0.2, 0.5, 0.9, 1.0])
    x, z = staged.interpolants(staged.start)[0](times)
    np.testing.assert_allclose(x[:, 0], times, atol=1e-14)
    np.testing.assert_allclose(z[:, 0], 1 + times**2)


def test_an_interpolant_on_an_edge_is_that_of_the_element_that_ends_there():
    staged = transcribe(dae_problem(), 2, lambda t: (t[:, None], np.sign(t - 0.5)[:, None]), degree=3)
    (trajectory,) = staged.interpolants(staged.start)
    np.testing.assert_allclose(trajectory(np.array([0.4999, 0.5]))[1][:, 0], [0.0, 0.0], atol=0.01)


def test_bounds_hold_nodes_and_collocation_points():
    problem = lotka_volterra()
    staged = transcribe(problem, 4, constant([50.0, -1.0]))
    chain = staged.layout.chains[0]
    inner = chain.inner.reshape(4, 3, 2)
    assert (staged.lower[chain.nodes[1:, 0]] == 0).all()
    assert (staged.upper[inner[..., 0]] == 20).all()
    assert (staged.lower[inner[..., 1]] == 0.1).all()
    assert (staged.upper[chain.nodes[:, 1]] == np.inf).all()
    # x starts at a given value, y at an estimated one.
    assert staged.lower[chain.nodes[0, 0]] == -np.inf
    assert staged.lower[chain.nodes[0, 1]] == 0.1
    np.testing.assert_array_equal(staged.lower[:5], [0, 0, 0, 0, -np.inf])
    assert (staged.start >= staged.lower).all()
    assert (staged.start <= staged.upper).all()
    assert (staged.start[inner[..., 0]] == 20).all()


def test_scale_is_the_size_of_the_start():
    staged = transcribe(rich_problem(), 2, lambda t: (np.stack([2 + 0 * t, 0 * t], 1), -5 * np.ones((t.size, 1))))
    chain = staged.layout.chains[0]
    # y stays at zero but for its initial value 0.5 k1 k2.
    np.testing.assert_allclose(staged.scale[chain.nodes[1]], [2.0, 0.24])
    np.testing.assert_allclose(staged.scale[chain.inner[0]], np.tile([2.0, 0.24, 5.0], 3))
    names = staged.layout.names
    assert staged.scale[names.index("k1")] == 1
    assert staged.scale[names.index("k2")] == 0.6
    assert (staged.scale > 0).all()


def test_stages_without_measurements_are_padded():
    problem = lotka_volterra()
    edges = np.array([0.0, 0.5, 4.5, 5.5, 10.0])  # 0, 4, 1 and 5 measured times
    staged = collocation_problem(problem, [edges], theta=problem.guess, trajectories=[constant([0.4, 1.0])])
    chain, linearization = staged.layout.chains[0], staged.linearize(staged.start)
    assert chain.row_mask.shape == (4, 10)
    np.testing.assert_array_equal(chain.row_mask.sum(axis=1), [0, 6, 2, 7])
    assert chain.row_mask.sum() == problem.n_data
    values, jacobians = linearization.values[0], linearization.jacobians[0]
    for block in (values.r, jacobians.R_s, jacobians.R_w, jacobians.R_q):
        assert (block[~chain.row_mask] == 0).all()
    rows = values.r[chain.row_mask]
    times = np.linspace(1, 10, 10)
    expected = [
        r for i, t in enumerate(times) for r in [(0.4 - np.cos(t)) / 0.5] + [(1.0 - np.sin(t)) / 0.2] * (i % 2 == 0)
    ]
    np.testing.assert_allclose(rows, expected, atol=1e-12)


def test_experiments_share_what_is_shared():
    staged = transcribe(rich_problem(), 2, constant([0.8, 0.5], [0.6]))
    names = staged.layout.names
    first_names, second_names = (tuple(names[i] for i in chain.theta) for chain in staged.layout.chains)
    assert first_names == ("k1", "k2", "k3[experiment 1]", "x(0)[experiment 1]")
    assert second_names == ("k1", "k2", "k3[experiment 2]")
    used = np.concatenate([np.r_[c.nodes.ravel(), c.inner.ravel()] for c in staged.layout.chains])
    np.testing.assert_array_equal(np.sort(used), np.arange(len(names), staged.layout.n_v))


def test_path_constraints_hold_once_at_every_measured_time():
    staged = transcribe(rich_problem(), 2, constant([0.8, 0.5], [0.6]))
    first_chain, second_chain = staged.layout.chains
    count = [np.isfinite(c.constraint_upper).sum() for c in (first_chain, second_chain)]
    assert count == [2 * 5, 2 * 3]  # t = 0.4 is measured twice
    equal = (first_chain.constraint_lower == first_chain.constraint_upper).sum()
    assert equal == 5
    c = staged.evaluate(staged.start).values[0].c
    assert (c[np.isinf(first_chain.constraint_upper)] == 0).all()


def test_prior_rows_come_from_the_problem():
    staged = transcribe(rich_problem(), 2, constant([0.8, 0.5], [0.6]))
    linearization = staged.linearize(staged.start)
    np.testing.assert_allclose(linearization.prior, [(0.8 - 1.0) / 0.5])
    np.testing.assert_allclose(linearization.prior_jacobian[0, 0], 0.8 / 0.5)


@pytest.mark.parametrize(
    ("options", "message"), [({"scheme": "gauss"}, "scheme 'gauss'"), ({"degree": 12}, "degree is 12")]
)
def test_unknown_schemes_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        transcribe(lotka_volterra(), 2, constant([1.0, 1.0]), **options)


# ---------------------------------------------------------------------------------------------- failures and cache


def root_problem(**data) -> Problem:
    x, y, k = symbols("x y k")
    model = Model({x: -k, y: ca.sqrt(x)}, parameters=[k], outputs={"inverse": 1 / y})
    experiment = Experiment(data or {"x": ([1.0, 2.0], [1.0, 0.0])}, initial={"x": 1.0, "y": 0.0})
    return Problem(model, experiment, parameters={"k": 1.0})


def test_collocation_invalid_evaluation_fails_its_element():
    staged = transcribe(root_problem(), 4, constant([1.0, 1.0]))
    chain = staged.layout.chains[0]
    v = staged.start.copy()
    v[chain.inner.reshape(4, 3, 2)[2, 1, 0]] = -1.0
    evaluation = staged.evaluate(v)
    assert not evaluation.ok
    assert evaluation.cost == np.inf
    (failure,) = evaluation.failures
    assert (failure.chain, failure.stage, failure.cause) == ("experiment 1", 2, "not_finite")
    assert failure.detail.startswith("the right-hand side of y is not finite at t = 1.")
    values = evaluation.values[0]
    assert np.isnan(values.d[2]).all()
    assert np.isnan(values.r[2]).all()
    other_elements = [0, 1, 3]
    assert np.isfinite(values.d[other_elements]).all()
    assert np.isfinite(values.r[other_elements]).all()


def test_a_derivative_that_is_infinite_is_a_failure_of_the_linearization_only():
    staged = transcribe(root_problem(), 4, constant([1.0, 1.0]))
    v = staged.start.copy()
    v[staged.layout.chains[0].inner.reshape(4, 3, 2)[1, 0, 0]] = 0.0
    assert staged.evaluate(v).ok
    (failure,) = staged.linearize(v).failures
    assert (failure.stage, failure.cause) == (1, "not_finite")
    assert failure.detail.startswith("the derivative of the right-hand side of y")
    assert staged.evaluate(v).ok


def test_outputs_and_initial_values_that_are_not_finite_are_named():
    staged = transcribe(root_problem(inverse=([0.0, 2.0], [1.0, 1.0])), 2, constant([1.0, 1.0]))
    (failure,) = staged.evaluate(staged.start).failures
    assert failure.detail == "inverse is not finite at t = 0"
    x, k = symbols("x k")
    problem = Problem(
        Model({x: -k * x}, parameters=[k], initial={x: 1 / k}),
        Experiment({"x": [1.0]}, time=[1.0]),
        parameters={"k": 1.0},
    )
    staged = transcribe(problem, 2, constant([1.0]))
    v = staged.start.copy()
    v[0] = 0.0
    assert "initial value of 'x' = (1./k) is inf at k = 0" in staged.evaluate(v).failures[0].detail


def test_outputs_that_were_not_measured_may_be_infinite():
    """1/y is infinite at t = 0, where only x was measured."""
    data = {"x": ([0.0, 1.0], [1.0, 0.5]), "inverse": ([1.0], [1.0])}
    staged = transcribe(root_problem(**data), 2, constant([1.0, 1.0]))
    assert not staged.equations.observed.is_linear
    linearization = staged.linearize(staged.start)
    assert linearization.ok
    ((stages, _),) = staged.hessian(staged.start, draw_multipliers(staged, np.random.default_rng(0))).chains
    assert np.isfinite(stages).all()


def test_a_point_is_evaluated_once(monkeypatch):
    staged = transcribe(lotka_volterra(), 4, constant([0.4, 1.0]))
    v = staged.start.copy()
    evaluation, linearization = staged.evaluate(v), staged.linearize(v)
    calls = []
    monkeypatch.setattr(module.ElementConstants, "values", lambda *a: calls.append(a))
    monkeypatch.setattr(module.ElementConstants, "slopes", lambda *a: calls.append(a))
    assert staged.evaluate(v.copy()) is evaluation
    assert staged.linearize(v.copy()) is linearization
    assert not calls


def test_changing_v_in_place_is_noticed():
    staged = transcribe(lotka_volterra(), 4, constant([0.4, 1.0]))
    v = staged.start.copy()
    evaluation = staged.evaluate(v)
    cost = evaluation.cost
    v[-1] += 1.0
    assert staged.evaluate(v).cost != cost
    assert evaluation.v[-1] == staged.start[-1]
    v[-1] -= 1.0
    assert staged.evaluate(v).cost == cost
