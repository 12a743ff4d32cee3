"""IPOPT on staged problems: assembly, optima, bounds, and every way in which a solve can end."""

from __future__ import annotations

import os
import signal
import threading
from types import SimpleNamespace

import casadi as ca
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import castfit.solve.ipopt as module
from castfit import problems
from castfit._support.status import Status
from castfit._support.time_limit import Deadline, Interrupt
from castfit.experiment.experiment import Experiment, free
from castfit.fit.fit import fit
from castfit.model.model import Model, symbols
from castfit.problem.problem import Constraint, Normal, Parameter, Problem
from castfit.solve.ipopt import Ipopt
from castfit.solve.solution import CountingProblem, Iteration, SolveControl, infeasibility
from castfit.solve.staged import (
    ChainValues,
    Evaluation,
    Failure,
    Linearization,
    StagedProblem,
    rows_in_units,
    weighted_squares,
)
from castfit.transcribe.collocation import Collocation
from castfit.transcribe.collocation_problem import collocation_problem
from castfit.transcribe.multiple_shooting import MultipleShooting
from castfit.transcribe.single_shooting import SingleShooting
from tests.builders import (
    LOTKA_VOLTERRA_POLE,
    LOTKA_VOLTERRA_SSE,
    decay_problem,
    everything,
    lotka_volterra,
    refused,
)
from tests.solve.blocks import dense, random_problem

OPTIMUM = [0.9837424, 0.9803890, 1.0169078, 1.0227137]  # Lotka-Volterra


class Affine(StagedProblem):
    """A staged problem whose functions are affine: the given linearization everywhere."""

    def __init__(self, layout, linearization: Linearization):
        self.layout, self.linearization = layout, linearization
        self.lower, self.upper = np.full(layout.n_v, -np.inf), np.full(layout.n_v, np.inf)
        self.start, self.scale = linearization.v.copy(), np.linspace(0.5, 2.0, layout.n_v)
        self.signal = tuple(np.ones(chain.row_mask.shape) for chain in layout.chains)

    def evaluate(self, v):
        linearization, dv = self.linearization, v - self.linearization.v
        values = []
        for chain, c, j in zip(self.layout.chains, linearization.values, linearization.jacobians, strict=True):
            q, s, w = chain.local(dv)

            def extrapolate(name, value, q=q, s=s, w=w, j=j):
                by_s, by_w, by_q = (getattr(j, f"{name}_{kind}") for kind in "swq")
                return value + np.einsum("krs,ks->kr", by_s, s) + np.einsum("krw,kw->kr", by_w, w) + by_q @ q

            moves = (extrapolate(name, value) for name, value in (("R", c.r), ("D", c.d), ("X", c.x), ("C", c.c)))
            r, d, x, path = moves
            values.append(ChainValues(r, c.a + j.A @ q, d, x, path))
        prior = linearization.prior + linearization.prior_jacobian @ self.layout.theta(dv)
        return Evaluation(v.copy(), tuple(values), prior, linearization.prior_jacobian)

    def linearize(self, v):
        evaluation = self.evaluate(v)
        return Linearization(
            evaluation.v,
            evaluation.values,
            evaluation.prior,
            evaluation.prior_jacobian,
            (),
            self.linearization.jacobians,
        )


def label(transcription) -> str:
    return transcription.label


def assemble(staged: StagedProblem, exact: bool) -> module._IpoptRun:
    return module._IpoptRun(Ipopt(), staged, CountingProblem(staged), Deadline(np.inf, Interrupt()), exact, [])


def full(sparsity: ca.Sparsity, nonzeros: np.ndarray) -> np.ndarray:
    return np.asarray(ca.DM(sparsity, nonzeros))


def solve(staged: StagedProblem, **options):
    return Ipopt(**options).solve(staged, SolveControl())


def transcribed(problem: Problem, transcription=None) -> StagedProblem:
    return (transcription or MultipleShooting(5)).transcribe(problem, problem.guess)


def collocated(problem: Problem, elements: int = 5, **options) -> StagedProblem:
    edges = [np.linspace(c.start, c.end, elements + 1) for c in problem.conditions]
    n_x, n_z = len(problem.model.states), len(problem.model.algebraic_states)
    trajectory = lambda t: (np.full((t.size, n_x), 0.7), np.full((t.size, n_z), 0.6))  # noqa: E731
    return collocation_problem(
        problem, edges, theta=problem.guess, trajectories=[trajectory] * len(edges), **{"degree": 2, **options}
    )


@given(seed=st.integers(0, 99), n_s=st.integers(0, 3), n_w=st.integers(0, 2), n_c=st.integers(0, 2))
def test_assembly_is_the_dense_problem(seed, n_s, n_w, n_c):
    rng = np.random.default_rng(seed)
    stages = (1, 1) if n_s == 0 else (4, 2)
    layout, linear = random_problem(rng, stages=stages, n_s=n_s, n_w=n_w, n_c=n_c, free_initial=n_s > 0, n_prior=2)
    staged, expected = Affine(layout, linear), dense(layout, linear)
    run = assemble(staged, exact=False)
    v, unit = linear.v, staged.scale
    cost, gradient = run._gradient(v / unit, np.empty(0))
    g, nonzeros = run._jacobian(v / unit, np.empty(0))
    jacobian = full(run.jacobian.sparsity, nonzeros)
    assert cost == pytest.approx(0.5 * expected.r @ expected.r)
    np.testing.assert_allclose(gradient, expected.J.T @ expected.r * unit, atol=1e-12)

    # Rows come chain by chain, so compare the two problems as sets of rows.
    bounds = np.column_stack([run.rows.lower, run.rows.upper])
    real = [np.isfinite(c.constraint_lower) | np.isfinite(c.constraint_upper) for c in layout.chains]
    chosen = np.concatenate([r.ravel() for r in real])
    limits = np.concatenate(
        [np.stack([c.constraint_lower, c.constraint_upper], -1).reshape(-1, 2) for c in layout.chains]
    )
    actual_rows = np.column_stack([bounds, g, jacobian])
    expected_rows = np.column_stack(
        [
            np.vstack([np.zeros((expected.e.size, 2)), limits[chosen]]),
            np.concatenate([expected.e, expected.c[chosen]]),
            np.vstack([expected.C, expected.P[chosen]]) * unit,
        ]
    )
    assert actual_rows.shape == expected_rows.shape
    for a, b in zip(
        actual_rows[np.lexsort(actual_rows.T[2:])], expected_rows[np.lexsort(expected_rows.T[2:])], strict=True
    ):
        np.testing.assert_allclose(a, b, atol=1e-12)

    (upper,) = run._hessian(v / unit, np.empty(0), np.array([2.0]), np.zeros(run.rows.count))
    hessian = full(run.hessian.sparsity, upper)
    np.testing.assert_allclose(hessian, np.triu(2.0 * expected.J.T @ expected.J * np.outer(unit, unit)), atol=1e-10)


@settings(max_examples=5)
@given(seed=st.integers(0, 99), factor=st.sampled_from([0.0, 1.0, 0.3]))
def test_the_exact_hessian_is_the_derivative_of_the_lagrangian_gradient(seed, factor):
    rng = np.random.default_rng(seed)
    problem = everything()
    parameters = {**problem.parameters, "k1": Parameter(0.8, scale="log"), "k2": Parameter(0.6, prior=Normal(1.0, 0.5))}
    staged = collocated(problem.replace(parameters=parameters), elements=2)
    run = assemble(staged, exact=True)
    x = (staged.start + 0.05 * rng.standard_normal(staged.layout.n_v)) / staged.scale
    lam = rng.standard_normal(run.rows.count)

    def gradient(x):
        _, f = run._gradient(x, np.empty(0))
        _, nonzeros = run._jacobian(x, np.empty(0))
        return factor * f + full(run.jacobian.sparsity, nonzeros).T @ lam

    (upper,) = run._hessian(x, np.empty(0), np.array([factor]), lam)
    hessian = full(run.hessian.sparsity, upper)
    hessian += np.triu(hessian, 1).T
    for direction in rng.standard_normal((3, x.size)):
        difference = (gradient(x + 1e-5 * direction) - gradient(x - 1e-5 * direction)) / 2e-5
        np.testing.assert_allclose(hessian @ direction, difference, rtol=1e-5, atol=1e-5 * np.abs(difference).max())


@settings(max_examples=12)
@given(seed=st.integers(0, 99))
def test_an_affine_problem_is_solved_exactly(seed):
    layout, linear = random_problem(np.random.default_rng(seed), n_w=1, n_prior=1, n_r=4)
    staged, d = Affine(layout, linear), dense(layout, linear)
    solution = solve(staged)
    assert solution.status is Status.CONVERGED
    n, m = layout.n_v, d.e.size
    kkt = np.block([[d.J.T @ d.J, d.C.T], [d.C, np.zeros((m, m))]])
    step = np.linalg.solve(kkt, -np.concatenate([d.J.T @ d.r, d.e]))[:n]
    np.testing.assert_allclose(solution.v, linear.v + step, rtol=1e-6, atol=1e-6)
    assert not solution.active.any()


@settings(max_examples=12)
@given(seed=st.integers(0, 99))
def test_path_constraints_and_bounds_are_honoured(seed):
    rng = np.random.default_rng(seed)
    layout, linear = random_problem(rng, n_c=2, n_r=4)
    staged = Affine(layout, linear)
    staged.lower = staged.start - rng.uniform(0.1, 1, layout.n_v)
    staged.upper = staged.start + rng.uniform(0.1, 1, layout.n_v)
    solution = solve(staged)
    if not solution.status.success:  # the random constraints may contradict each other
        assert solution.status is Status.INFEASIBLE
        return
    evaluation = staged.evaluate(solution.v)
    assert infeasibility(layout, staged.scale, evaluation) < 1e-6
    assert (solution.v >= staged.lower).all()
    assert (solution.v <= staged.upper).all()
    np.testing.assert_array_equal(solution.v[solution.active < 0], staged.lower[solution.active < 0])
    np.testing.assert_array_equal(solution.v[solution.active > 0], staged.upper[solution.active > 0])


@pytest.mark.parametrize(
    "transcription", [SingleShooting(), MultipleShooting(5), MultipleShooting("data"), MultipleShooting(7)], ids=label
)
def test_lotka_volterra(transcription):
    staged = transcribed(lotka_volterra(), transcription)
    solution = solve(staged)
    assert solution.status.success
    assert weighted_squares(staged.layout, staged.evaluate(solution.v)) == pytest.approx(LOTKA_VOLTERRA_SSE, rel=1e-5)
    np.testing.assert_allclose(solution.v[:4], OPTIMUM, rtol=1e-5)
    assert solution.iterations == len(solution.history) - 1
    assert solution.history[-1]["cost"] == pytest.approx(staged.evaluate(solution.v).cost)
    assert solution.evaluations["values"] >= solution.iterations
    assert solution.failures == {}


def test_exact_and_gauss_newton_hessian_agree_in_the_optimum():
    staged = collocated(lotka_volterra(), elements=20)
    exact, approximate = solve(staged), solve(staged, hessian="gauss-newton")
    assert exact.status is approximate.status is Status.CONVERGED
    np.testing.assert_allclose(exact.v, approximate.v, rtol=1e-6, atol=1e-8)
    assert exact.evaluations["hessians"] > 0
    assert "hessians" not in approximate.evaluations
    assert (Ipopt().label, Ipopt("exact").label) == ("IPOPT", "IPOPT (exact Hessian)")


@pytest.mark.parametrize("transcription", [SingleShooting(), MultipleShooting(5)], ids=label)
@pytest.mark.parametrize(
    ("bounded", "active", "value"),
    [
        ({"k1": Parameter(0.8, upper=0.9)}, [1, 0, 0, 0], 0.9),
        ({"k2": Parameter(0.8, upper=0.9, scale="log")}, [0, 1, 0, 0], np.log(0.9)),
        ({"k3": Parameter(1.5, lower=1.2, scale="log")}, [0, 0, -1, 0], np.log(1.2)),
        ({"k4": Parameter(1.5, lower=1.3)}, [0, 0, 0, -1], 1.3),
    ],
)
def test_active_bounds_of_parameters(transcription, bounded, active, value):
    parameters = {"k1": 0.8, "k2": 0.8, "k3": 1.5, "k4": 1.5, **bounded}
    staged = transcribed(lotka_volterra(parameters=parameters), transcription)
    solution = solve(staged)
    assert solution.status.success
    assert solution.active[:4].tolist() == active
    assert not solution.active[4:].any()
    assert solution.v[:4][np.array(active) != 0] == value
    if not staged.layout.chains[0].n_s:  # the cost falls towards the bound and in no other direction
        _, gradient = assemble(staged, exact=False)._gradient(solution.v / staged.scale, np.empty(0))
        gradient *= staged.evaluate(solution.v).sigma ** 2
        is_active = np.array(active) != 0
        assert (gradient[is_active] * np.array(active)[is_active] < -1e-4).all()
        np.testing.assert_allclose(gradient[~is_active], 0.0, atol=1e-5)


@pytest.mark.parametrize("transcription", [SingleShooting(), MultipleShooting("data")], ids=label)
def test_bounds_of_states(transcription):
    problem = lotka_volterra(state_bounds={"y": (0.0, 1.8)})
    staged = transcribed(problem, transcription)
    solution = solve(staged)
    assert solution.status.success
    y = (
        rows_in_units(staged.layout, staged.evaluate(solution.v))[0].reshape(-1, 2)[:, 1]
        + problem.conditions[0].points.values[:, 1]
    )
    assert y.max() == pytest.approx(1.8, abs=1e-6)
    assert weighted_squares(staged.layout, staged.evaluate(solution.v)) > 1.01 * LOTKA_VOLTERRA_SSE


@pytest.mark.parametrize("transcription", [SingleShooting(), MultipleShooting(3), Collocation(elements=20)], ids=label)
def test_path_constraints(transcription):
    x, y, k1, k3 = symbols("x y k1 k3")
    constraints = [Constraint(x + y, upper=3.0), Constraint(k1 - k3, lower=0.0, upper=0.0)]
    staged = transcribed(lotka_volterra(constraints=constraints), transcription)
    solution = solve(staged)
    assert solution.status.success
    assert solution.v[0] == pytest.approx(solution.v[2], abs=1e-7)
    assert staged.evaluate(solution.v).values[0].c.max() == pytest.approx(3.0, abs=1e-6)


def test_constraints_that_contradict_each_other():
    k = ca.SX.sym("k")
    constraints = (Constraint(k, upper=0.2, name="constraint 1"), Constraint(k, lower=0.4, name="constraint 2"))
    problem = decay_problem().posed.with_valid_constraints(constraints)  # what users say of this kind is refused before
    solution = solve(transcribed(problem, SingleShooting()))
    assert solution.status is Status.INFEASIBLE
    assert "'constraint 1' by" in solution.detail


def test_free_initial_states_and_priors():
    x, k = symbols("x k")
    data = Experiment({"x": [2.0, 1.0, 0.5]}, time=[0, 1, 2], initial={"x": free(1.0, scale="log")}, sigma=0.1)
    problem = Problem(Model({x: -k * x}, parameters=[k]), data, parameters={"k": 0.1})
    for transcription in (SingleShooting(), MultipleShooting(2)):
        staged = transcribed(problem, transcription)
        np.testing.assert_allclose(solve(staged).v[:2], [np.log(2), np.log(2)], rtol=1e-6)
    pulled = problem.replace(parameters={"k": Parameter(0.1, prior=Normal(0.0, 1e-6))})
    assert abs(solve(transcribed(pulled)).v[0]) < 1e-5


def test_ipopt_solves_a_problem_without_quantities():
    fixed = decay_problem(parameters={"k": Parameter(0.5, fixed=True)})
    for transcription in (SingleShooting(), MultipleShooting(3)):
        staged = transcribed(fixed, transcription)
        assert solve(staged).status is Status.CONVERGED
    bound_problem = decay_problem(parameters={"k": Parameter(0.5, 0.5, 0.5)})
    assert solve(transcribed(bound_problem, SingleShooting())).active.tolist() == [-1]


def test_iteration_limits():
    staged = transcribed(lotka_volterra())
    none = solve(staged, max_iter=0)
    assert none.status is Status.MAX_ITERATIONS
    np.testing.assert_array_equal(none.v, staged.start)
    assert "Largest violations: continuity of x at t = 8 (experiment 1)" in none.detail
    some = solve(staged, max_iter=4)
    assert some.status is Status.MAX_ITERATIONS
    grade = [infeasibility(staged.layout, staged.scale, staged.evaluate(s.v)) for s in (none, some)]
    assert grade[1] < 0.1 * grade[0]
    assert not some.active.any()


def test_time_limit():
    staged = transcribed(lotka_volterra())
    solution = Ipopt().solve(staged, SolveControl(max_time=1e-9))
    assert solution.status is Status.MAX_TIME
    assert np.isfinite(staged.evaluate(solution.v).cost)


def test_callback_sees_every_iteration_and_may_stop():
    iterations: list[Iteration] = []

    def stop(progress: Iteration) -> bool:
        iterations.append(progress)
        return progress.iteration == 2

    staged = transcribed(lotka_volterra())
    solution = Ipopt().solve(staged, SolveControl(callback=stop))
    assert solution.status is Status.STOPPED_BY_CALLBACK
    assert [progress.iteration for progress in iterations] == [0, 1, 2]
    assert len(solution.history) == 3
    assert iterations[0].cost == pytest.approx(staged.evaluate(staged.start).cost)
    assert iterations[-1].infeasibility < iterations[0].infeasibility
    assert all(progress.seconds > 0 for progress in iterations)
    assert "IPOPT returned" not in solution.detail


class Fault(Exception):
    pass


def test_an_exception_in_the_callback_propagates():
    def fail(progress: Iteration) -> None:
        if progress.iteration == 1:
            raise Fault("in the callback")

    with pytest.raises(Fault, match="in the callback"):
        Ipopt().solve(transcribed(lotka_volterra()), SolveControl(callback=fail))


@pytest.mark.parametrize("method", ["evaluate", "linearize"])
def test_an_exception_in_the_problem_propagates(method, monkeypatch):
    staged = transcribed(lotka_volterra())
    original, calls = getattr(staged, method), []

    def fail(v, **options):
        calls.append(v)
        if len(calls) == 3:
            raise Fault("in the problem")
        return original(v, **options)

    monkeypatch.setattr(staged, method, fail)
    with pytest.raises(Fault, match="in the problem"):
        Ipopt().solve(staged, SolveControl())
    assert len(calls) == 3


def interrupt(progress: Iteration) -> None:
    if progress.iteration == 2:
        os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_returns_the_best_point():
    staged = transcribed(lotka_volterra())
    previous = signal.getsignal(signal.SIGINT)
    solution = Ipopt().solve(staged, SolveControl(callback=interrupt))
    assert solution.status is Status.INTERRUPTED
    assert len(solution.history) == 3
    assert signal.getsignal(signal.SIGINT) is previous
    evaluation = staged.evaluate(solution.v)
    assert infeasibility(staged.layout, staged.scale, evaluation) <= 2 * min(
        h["infeasibility"] for h in solution.history
    )


def test_threads_other_than_the_main_one_may_solve():
    staged, solutions = transcribed(decay_problem(), SingleShooting()), []
    thread = threading.Thread(target=lambda: solutions.append(solve(staged)))
    thread.start()
    thread.join()
    assert solutions[0].status.success


def test_a_second_interrupt_is_an_interrupt():
    def twice(progress: Iteration) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    previous = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        Ipopt().solve(transcribed(lotka_volterra()), SolveControl(callback=twice))
    assert signal.getsignal(signal.SIGINT) is previous


def test_a_start_that_cannot_be_integrated():
    problem = lotka_volterra(LOTKA_VOLTERRA_POLE)
    solution = solve(transcribed(problem, SingleShooting()))
    assert solution.status is Status.START_FAILED
    assert solution.detail.startswith("experiment 1: Integration stopped at t = 3.306")
    assert "There x =" in solution.detail or "There y =" in solution.detail
    np.testing.assert_array_equal(solution.v, LOTKA_VOLTERRA_POLE)
    assert solution.iterations == 0
    assert sum(solution.failures.values()) >= 1


def test_a_start_that_cannot_be_differentiated():
    x, k = symbols("x k")
    model = Model({x: k}, parameters=[k], outputs={"root": ca.sqrt(x)})
    data = Experiment({"root": [0.0, 1.0]}, time=[0, 1], initial={"x": 0.0})
    solution = solve(transcribed(Problem(model, data, parameters={"k": 2.0}), SingleShooting()))
    assert solution.status is Status.START_FAILED
    assert solution.detail == "experiment 1: a derivative of root is not finite at t = 0"


def test_failures_on_the_way_are_survived_and_counted():
    """From k = 3 the first steps overshoot to k = -11, where nothing can be evaluated here."""
    staged = transcribed(decay_problem(parameters={"k": 3.0}), SingleShooting())
    original = staged.evaluate

    def evaluate(v, **options):
        evaluation = original(v, **options)
        if v[0] > -1:
            return evaluation
        return Evaluation(
            evaluation.v,
            evaluation.values,
            evaluation.prior,
            evaluation.prior_jacobian,
            (Failure("experiment 1", 0, "invented", ""),),
        )

    staged.evaluate = evaluate  # type: ignore[method-assign]
    solution = solve(staged)
    assert solution.status.success
    assert solution.failures["invented"] >= 1
    assert solution.v == pytest.approx([0.3781004923], rel=1e-6)


KNOWN = {  # what IPOPT can return, from its IpReturnCodes_inc.h
    "Solve_Succeeded",
    "Solved_To_Acceptable_Level",
    "Infeasible_Problem_Detected",
    "Search_Direction_Becomes_Too_Small",
    "Diverging_Iterates",
    "User_Requested_Stop",
    "Feasible_Point_Found",
    "Maximum_Iterations_Exceeded",
    "Restoration_Failed",
    "Error_In_Step_Computation",
    "Maximum_CpuTime_Exceeded",
    "Maximum_WallTime_Exceeded",
    "Not_Enough_Degrees_Of_Freedom",
    "Invalid_Problem_Definition",
    "Invalid_Option",
    "Invalid_Number_Detected",
    "Unrecoverable_Exception",
    "NonIpopt_Exception_Thrown",
    "Insufficient_Memory",
    "Internal_Error",
}


def test_every_return_code_is_known():
    assert set(module.IPOPT_STATUS) == KNOWN


@pytest.mark.parametrize("code", sorted((KNOWN | {"Something_New"}) - {"Invalid_Option"}))
def test_every_return_code_becomes_a_status(code, monkeypatch):
    staged = transcribed(decay_problem(), SingleShooting())

    class Solver:
        def __call__(self, x0, **bounds):
            return {"x": x0, "lam_x": np.zeros_like(x0)}

        def stats(self):
            return {"return_status": code, "iter_count": 7}

    monkeypatch.setattr(module.ca, "nlpsol", lambda *arguments: Solver())
    solution = solve(staged)
    expected = module.IPOPT_STATUS.get(code, Status.SOLVER_ERROR)
    assert solution.status is expected
    assert solution.iterations == 7
    assert solution.status.message
    assert solution.status.success == (expected in (Status.CONVERGED, Status.ACCEPTABLE))
    assert solution.detail == (f"IPOPT returned {code}." if expected is Status.SOLVER_ERROR else "")
    np.testing.assert_array_equal(solution.v, staged.start)


def test_a_solver_that_breaks_is_a_status(monkeypatch):
    def broken(**arguments):
        raise RuntimeError("casadi: out of luck")

    monkeypatch.setattr(module.ca, "nlpsol", lambda *arguments: broken)
    solution = solve(transcribed(decay_problem(), SingleShooting()))
    assert solution.status is Status.SOLVER_ERROR
    assert "out of luck" in solution.detail


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        ({"hessian": "exakt"}, "hessian is 'exakt'; choose 'auto', 'exact', 'gauss-newton' or 'limited-memory'"),
        ({"linear_solver": "ma57"}, "linear_solver is 'ma57'; choose 'mumps' or 'spral'"),
        ({"max_iter": -1}, "max_iter is -1"),
        ({"max_iter": 1.5}, "max_iter is 1.5"),
        ({"max_iter": True}, "max_iter is True"),
        ({"tolerance": 0.0}, "tolerance is 0.0; give a positive number"),
        ({"tolerance": "1e-8"}, "tolerance is '1e-8'"),
        ({"tolerance": np.nan}, "tolerance is nan"),
        ({"options": [1]}, "options is a list"),
        ({"options": {1: 2}}, "options has the key 1"),
    ],
)
def test_wrong_options(options, phrase):
    with refused(phrase):
        Ipopt(**options)


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        ({"mu_strateg": "adaptive"}, "IPOPT rejects an option: No such IPOPT option: mu_strateg"),
        ({"mu_strategy": "adaptve"}, "IPOPT rejects an option: Invalid options were detected"),
        ({"tol": -1.0}, "IPOPT rejects an option"),
        ({"tol": "small"}, "IPOPT rejects an option"),
        ({"linear_solver": "ma57"}, "IPOPT rejects its options {'linear_solver': 'ma57'}"),
    ],
)
def test_options_that_ipopt_refuses(options, phrase):
    with refused(phrase):
        solve(transcribed(decay_problem()), options=options)


def test_options_of_ipopt():
    staged = transcribed(lotka_volterra())
    assert solve(staged, options={"mu_strategy": "adaptive"}).status is Status.CONVERGED
    assert solve(staged, linear_solver="spral").status is Status.CONVERGED
    assert solve(staged, options={"max_iter": 1}).iterations == 1


def test_shooting_has_no_exact_hessian():
    with refused("this transcription has no exact Hessian; choose hessian='gauss-newton' or Collocation"):
        solve(transcribed(decay_problem()), hessian="exact")


def test_a_warm_start_needs_fewer_iterations():
    staged = transcribed(lotka_volterra())
    cold = solve(staged)
    staged.start = cold.v
    assert Ipopt().solve(staged, SolveControl(), warm=True).iterations < cold.iterations


def test_sqp_prints_nothing(capfd):
    print("before")  # noqa: T201
    staged = transcribed(lotka_volterra(LOTKA_VOLTERRA_POLE), MultipleShooting(3))
    solve(staged, options={"print_level": 5})
    solve(transcribed(lotka_volterra(LOTKA_VOLTERRA_POLE), SingleShooting()))
    print("after")  # noqa: T201
    out, err = capfd.readouterr()
    assert out == "before\nafter\n"
    assert err == ""


def test_the_callback_may_print(capfd):
    Ipopt().solve(transcribed(decay_problem()), SolveControl(callback=lambda progress: print(progress.iteration)))  # noqa: T201
    assert capfd.readouterr().out.startswith("0\n1\n")


def test_the_ledger_remembers_the_best_point():
    """First comes continuity, in factors of two; among points of one grade the cost decides."""
    layout, linear = random_problem(np.random.default_rng(0), stages=(2,), n_s=1, n_r=1)

    def point(gap: float, cost: float):
        values = linear.values[0]
        v = linear.v.copy()
        v[layout.chains[0].nodes[:, 0]] = [values.a[0], values.x[0, 0] - gap]
        part = ChainValues(np.array([[np.sqrt(2 * cost)], [0.0]]), values.a, values.d, values.x, values.c)
        return Evaluation(v, (part,), np.zeros(0), np.zeros((0, layout.n_theta)))

    staged = SimpleNamespace(layout=layout, scale=np.ones(layout.n_v), eliminated=np.empty(0))
    ledger = CountingProblem(staged)  # type: ignore[arg-type]
    sequence = [  # gap, cost, whether it becomes the best point
        (1.0, 5.0, True),
        (1.6, 1.0, False),  # a creep to ever larger gaps never pays
        (0.9, 4.0, True),
        (0.95, 3.0, True),
        (0.3, 100.0, True),
        (0.29, 101.0, False),
        (1e-7, 200.0, True),
        (1e-12, 200.5, False),
        (9e-7, 199.0, True),
        (2e-6, 1.0, False),
    ]
    for gap, cost, better in sequence:
        evaluation = point(gap, cost)
        staged.evaluate = lambda v, evaluation=evaluation: evaluation
        ledger.evaluate(evaluation.v)
        assert np.array_equal(ledger.best, evaluation.v) == better, (gap, cost)
    assert ledger.evaluations == {"values": len(sequence)}


@pytest.mark.parametrize("name", ["gasoil", "bellman"])
def test_steps_are_not_halved_because_of_the_integrators_errors(name):
    """Near the optimum the cost jumps by more than a step promises; rounding alone would be no excuse for that."""
    benchmark = problems.load(name)
    result = fit(benchmark.problem, SingleShooting(), Ipopt(), start=benchmark.starts["reference"])
    assert result.status is Status.CONVERGED
    assert benchmark.reference.is_reached(result.chi2)
    assert result.evaluations["values"] <= 2 * result.iterations
