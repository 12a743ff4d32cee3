"""SQP: vectors, scalars whose gradients vanish, and every way in which a solve can end."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import castfit as cf
from castfit._support.status import Status
from castfit.solve.assembly import ConstraintRows, JacobianMap
from castfit.solve.matching_jacobian_update import accumulate_products, products_along
from castfit.solve.solution import CountingProblem, SolveControl
from castfit.solve.staged import gaps
from tests.builders import decay_model, decay_problem, everything, lotka_volterra, refused

VECTOR = cf.MultipleShooting("data", derivatives="adjoint")
SCALAR = cf.MultipleShooting("data", derivatives="adjoint", matching="scalar")
POLE = (0.5, 0.5, 0.5, -0.2)

NONE = np.empty(0)  # no relations of quantities


def draw(seed: int = 0) -> cf.Problem:
    """Exponential decay with noise, initial value estimated."""
    rng = np.random.default_rng(seed)
    times = np.arange(0.0, 4.0)
    data = 2 * np.exp(-0.7 * times) + 0.05 * rng.standard_normal(times.size)
    experiment = cf.Experiment({"x": data}, time=times, sigma=0.05, initial={"x": cf.free(1.0)})
    return cf.Problem(decay_model(), experiment, parameters={"k": 0.2})


@pytest.mark.parametrize("solver", [cf.Sqp(), cf.Ipopt()], ids=lambda s: s.label)
def test_scalars_have_the_solution_of_vectors(solver):
    result, reference = cf.fit(draw(), SCALAR, solver, retry=False), cf.fit(draw(), VECTOR, cf.GaussNewton())
    assert result.success, result.message
    assert result.gaps < 1e-5
    for name, value in reference.values.items():
        assert result.values[name] == pytest.approx(value, abs=1e-4 * reference.standard_errors[name])
        assert result.standard_errors[name] == pytest.approx(reference.standard_errors[name], rel=1e-3)


def test_collected_rows_take_one_backward_integration_per_iteration_and_converge_fast():
    result = cf.fit(lotka_volterra(POLE), SCALAR, cf.Sqp(), retry=False)
    reference = cf.fit(lotka_volterra(POLE), VECTOR, cf.GaussNewton())
    assert result.success
    assert result.gaps < 1e-7
    assert result.iterations <= 20
    assert result.evaluations["jacobians"] <= 3  # at the start, at the end, and once in between at most
    assert result.evaluations["products"] == result.iterations
    for name, value in reference.parameters.items():
        assert result.parameters[name] == pytest.approx(value, rel=1e-6)


def test_vectors_by_sqp():
    result, reference = (cf.fit(lotka_volterra(POLE), VECTOR, solver) for solver in (cf.Sqp(), cf.GaussNewton()))
    assert result.success
    assert result.chi2 == pytest.approx(reference.chi2, rel=1e-8)


@pytest.mark.parametrize("transcription", [cf.SingleShooting(), cf.MultipleShooting(4), cf.Collocation()],
                         ids=lambda t: t.label)  # fmt: skip
def test_every_transcription_by_sqp(transcription):
    result = cf.fit(everything(), transcription, cf.Sqp())
    reference = cf.fit(everything(), transcription, cf.GaussNewton())
    assert result.success
    assert result.cost == pytest.approx(reference.cost, rel=1e-7)


def test_scalars_of_everything():
    """Two experiments, a DAE with jumping inputs, a bounded state, a constraint, a prior."""
    result, reference = cf.fit(everything(), SCALAR), cf.fit(everything(), VECTOR)
    assert result.solver == "SQP"  # Gauss-Newton cannot
    assert result.success
    assert result.cost == pytest.approx(reference.cost, rel=1e-7)


def test_the_gradient_of_the_scalar_vanishes_and_its_direction_does_not():
    staged = SCALAR.transcribe(lotka_volterra((1, 1, 1, 1)), lotka_volterra((1, 1, 1, 1)).guess)
    rows = ConstraintRows(staged.layout, staged.scale, scalar=True)
    place = JacobianMap(staged.layout, rows, staged.scale)
    v = staged.start.copy()
    for _ in range(11):  # the simulation
        evaluation = staged.evaluate(v)
        v[staged.layout.chains[0].nodes[0]], v[staged.layout.chains[0].nodes[1:]] = (
            evaluation.values[0].a,
            evaluation.values[0].x[:-1],
        )
    ends: list[float] = []
    lengths: list[float] = []
    for size in (1e-1, 1e-3, 1e-5):
        point = v + size * staged.scale * np.random.default_rng(0).standard_normal(v.size)
        evaluation = staged.evaluate(point)
        directions = rows.directions(evaluation)
        gradient = place.nonzeros(staged.linearize_along(point, directions).jacobians, NONE, directions)
        matching = np.isin(place.sparsity.row(), rows.matching[0])
        ends.append(float(np.abs(gaps(staged.layout, evaluation)[0]).max()))
        lengths.append(float(np.abs(gradient[matching]).max()))
    np.testing.assert_allclose(np.array(lengths) / lengths[0], np.array(ends) / ends[0], rtol=0.5)


def test_the_gradient_of_the_scalar_equals_finite_differences():
    staged = SCALAR.transcribe(lotka_volterra((1, 1, 1, 1)), lotka_volterra((1, 1, 1, 1)).guess)
    rows = ConstraintRows(staged.layout, staged.scale, scalar=True)
    place = JacobianMap(staged.layout, rows, staged.scale)
    directions = rows.directions(staged.evaluate(staged.start))
    dense = np.zeros((rows.count, staged.layout.n_v))
    nonzeros = place.nonzeros(staged.linearize_along(staged.start, directions).jacobians, NONE, directions)
    dense[place.sparsity.row(), place.sparsity.get_col()] = nonzeros
    assert (np.count_nonzero(dense[rows.matching[0][:, 0]], axis=1) <= 2 * 2 + 4).all()  # 2 d + n_p
    for i in range(staged.layout.n_v):
        h = 1e-4 * staged.scale[i] * np.eye(staged.layout.n_v)[i]
        evaluations = [staged.evaluate(staged.start + m * h) for m in (-2, -1, 1, 2)]
        g = [rows.values(evaluation.values, evaluation.v, NONE) for evaluation in evaluations]
        slope = (g[0] - 8 * g[1] + 8 * g[2] - g[3]) / 12e-4
        np.testing.assert_allclose(dense[:, i], slope, rtol=1e-6, atol=1e-6)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000))
def test_orthogonal_rows_make_the_jacobian(seed):
    """Whatever is known before."""
    rng = np.random.default_rng(seed)
    staged = SCALAR.transcribe(lotka_volterra(), lotka_volterra().guess)
    layout, exact = staged.layout, staged.linearize(staged.start)
    jacobians = [
        type(j)(**{**vars(j), "X_s": rng.standard_normal(j.X_s.shape), "X_q": rng.standard_normal(j.X_q.shape)})
        for j in exact.jacobians
    ]
    turns = np.linalg.qr(rng.standard_normal((11, 2, 2)))[0]
    for column in range(2):
        units = (turns[:, :, column],)
        products = staged.linearize_along(staged.start, products_along(layout, staged.scale, units))
        linear = accumulate_products(layout, staged.scale, jacobians, products, units)
        jacobians = list(linear.jacobians)
    np.testing.assert_allclose(jacobians[0].X_s[:-1], exact.jacobians[0].X_s[:-1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jacobians[0].X_q[:-1], exact.jacobians[0].X_q[:-1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("solver", [cf.Sqp(), cf.Ipopt()], ids=lambda s: s.label)
def test_active_bounds(solver):
    problem = cf.Problem(decay_model(), draw().experiments, parameters={"k": cf.Parameter(0.2, upper=0.5)})
    result = cf.fit(problem, SCALAR, solver, retry=False)
    assert result.success, result.message
    assert result.active == {"k": "upper"}
    assert result.parameters["k"] == 0.5


def test_limits():
    few = cf.fit(draw(), SCALAR, cf.Sqp(max_iter=2), retry=False)
    assert (few.success, few.status, few.iterations) == (False, Status.MAX_ITERATIONS, 2)
    late = cf.fit(draw(), SCALAR, cf.Sqp(), max_time=1e-9)
    assert (late.success, late.status) == (False, Status.MAX_TIME)
    iterations: list[int] = []

    def stop(progress: cf.Iteration) -> bool:
        iterations.append(progress.iteration)
        return len(iterations) == 3

    stopped_result = cf.fit(draw(), SCALAR, cf.Sqp(), callback=stop)
    assert stopped_result.status is Status.STOPPED_BY_CALLBACK
    assert len(iterations) == 3


def test_an_interrupt_returns_the_best_point():
    staged = SCALAR.transcribe(draw(), draw().guess)

    def press(_: cf.Iteration) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    solution = cf.Sqp().solve(staged, SolveControl(callback=press))
    assert solution.status is Status.INTERRUPTED
    assert np.isfinite(solution.v).all()


def test_an_exception_in_the_callback_propagates():
    def fail(_: cf.Iteration) -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        cf.fit(draw(), SCALAR, cf.Sqp(), callback=fail)


def test_a_start_that_cannot_be_integrated():
    result = cf.fit(lotka_volterra(POLE), cf.SingleShooting(), cf.Sqp())
    assert result.status is Status.START_FAILED
    assert "t = 3.3" in result.message


def test_sqp_prints_nothing(capfd):
    cf.fit(lotka_volterra(POLE), SCALAR, cf.Sqp())
    assert capfd.readouterr() == ("", "")


def test_unsupported_solver_and_matching_are_refused_before_solving():
    with refused("matching='scalar' gives one vanishing gradient per interval, which GaussNewton does not support"):
        cf.fit(decay_problem(), SCALAR, cf.GaussNewton())
    with refused("which GaussNewton does not support; use Sqp()"):
        cf.multistart(lotka_volterra(), SCALAR, cf.GaussNewton(), starts=2, rng=0)
    with refused("the method 'a': matching='scalar' gives one"):
        cf.compare(lotka_volterra(), {"a": (SCALAR, cf.GaussNewton())}, starts=1, rng=0)
    staged = SCALAR.transcribe(draw(), draw().guess)
    with refused("matching conditions are scalars"):
        cf.GaussNewton().init(CountingProblem(staged))


def test_wrong_options():
    with refused("scalar is 'root'", "max_iter is -1", "tolerance is 0"):
        cf.Sqp("root", max_iter=-1, tolerance=0)
    with refused("scalar='squares' is gone, as it hardly converged; write Sqp(), which collects rows"):
        cf.Sqp("squares")
