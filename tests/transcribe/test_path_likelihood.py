"""The likelihood over paths: linear Gaussian models against an independent Kalman filter, smoothing, convergence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import casadi as ca
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import expm
from scipy.stats import multivariate_normal

import castfit as cf
from castfit.transcribe.path_likelihood import ChainLikelihood, PathEvaluation, PathLikelihood, marginal

if TYPE_CHECKING:
    from castfit._support.arrays import Array


@dataclass
class Kalman:
    """Filter in covariance form, and smoothing by conditioning all states at once: no line of it is castfit's."""

    A: list[Array]
    Q: list[Array]
    shift: list[Array]

    def run(self, a: Array, P: Array, C: Array, data: list[Array], sigma: Array) -> tuple[float, Array, Array]:
        """Return log L, smoothed means and covariances; data at each node, NaN where there is none."""
        m, P0, log_l, n = a, P, 0.0, a.size
        for k, y in enumerate(data):
            if k:
                m, P = self.A[k - 1] @ m + self.shift[k - 1], self.A[k - 1] @ P @ self.A[k - 1].T + self.Q[k - 1]
            is_measured = np.isfinite(y)
            if is_measured.any():
                H = C[is_measured]
                S = H @ P @ H.T + np.diag(sigma[is_measured] ** 2)
                v, gain = y[is_measured] - H @ m, P @ H.T @ np.linalg.inv(S)
                log_l -= 0.5 * (np.linalg.slogdet(2 * np.pi * S)[1] + v @ np.linalg.solve(S, v))
                m, P = m + gain @ v, P - gain @ S @ gain.T
        count = len(data)
        mean, joint = np.tile(a, (count, 1)), np.zeros((count, n, count, n))
        joint[0, :, 0] = P0
        for k, (A, Q, shift) in enumerate(zip(self.A, self.Q, self.shift, strict=True)):
            mean[k + 1] = A @ mean[k] + shift
            joint[k + 1] = np.einsum("ij,jlm->ilm", A, joint[k])
            joint[:, :, k + 1] = joint[k + 1].transpose(1, 2, 0)
            joint[k + 1, :, k + 1] = A @ joint[k, :, k] @ A.T + Q
        positions = [(k, j) for k, y in enumerate(data) for j in np.flatnonzero(np.isfinite(y))]
        H = np.zeros((len(positions), count, n))
        for row, (k, j) in enumerate(positions):
            H[row, k] = C[j]
        flat, H = joint.reshape(count * n, count * n), H.reshape(len(positions), count * n)
        R = np.diag([sigma[j] ** 2 for _, j in positions])
        gain = np.linalg.solve(H @ flat @ H.T + R, H @ flat).T
        mean = mean.ravel() + gain @ (np.array([data[k][j] for k, j in positions]) - H @ mean.ravel())
        posterior_covariance = (flat - gain @ H @ flat).reshape(count, n, count, n)
        return log_l, mean.reshape(count, n), np.einsum("kikj->kij", posterior_covariance)


@dataclass
class Linear:
    """A random linear model, x' = A x + b + G w, y = C x, with data that have gaps."""

    A: Array
    b: Array
    G: Array
    C: Array
    sigma: Array
    experiments: list[tuple[Array, Array, Array, Array]]  # times, values, means and deviations of initial states

    @classmethod
    def drawn(cls, seed: int, n: int, n_w: int, n_o: int, count: int) -> Linear:
        rng = np.random.default_rng(seed)
        experiments: list[tuple[Array, Array, Array, Array]] = []
        for _ in range(count):
            t = np.cumsum(rng.uniform(0.05, 0.6, rng.integers(3, 7)))
            values = rng.normal(size=(t.size, n_o))
            values[rng.random(values.shape) < 0.3] = np.nan
            values[np.isnan(values).all(axis=1), 0] = 0.3
            values[-1, :] = 0.1
            deviations = np.where(rng.random(n) < 0.5, rng.uniform(0.2, 1.0, n), 0.0)
            experiments.append((t, values, rng.normal(size=n), deviations))
        A = rng.normal(size=(n, n)) / np.sqrt(n)
        return cls(A, rng.normal(size=n), rng.normal(size=(n, n_w)), rng.normal(size=(n_o, n)),
                   rng.uniform(0.2, 0.6, n_o), experiments)  # fmt: skip

    def problem(self) -> cf.Problem:
        n, n_w = self.G.shape
        x, w = cf.symbols(f"x{i}" for i in range(n)), cf.symbols(f"w{i}" for i in range(n_w))
        k, s = cf.symbols("k s")
        column = ca.DM(self.A) @ ca.vertcat(*x) * k + ca.DM(self.b) + ca.DM(self.G) @ ca.vertcat(*w) * s
        right = ca.vertsplit(column)
        outputs = {f"y{j}": ca.dot(ca.SX(row), ca.vertcat(*x)) for j, row in enumerate(self.C)}
        model = cf.Model(dict(zip(x, right, strict=True)), parameters=[k, s], noises=w, outputs=outputs)
        experiments = [
            cf.Experiment(
                {f"y{j}": values[:, j] for j in range(self.C.shape[0]) if np.isfinite(values[:, j]).any()},
                time=t, start=0.0, sigma={f"y{j}": s for j, s in enumerate(self.sigma.tolist())
                                          if np.isfinite(values[:, j]).any()},
                initial={f"x{i}": cf.Normal(a, d) if d else a
                         for i, (a, d) in enumerate(zip(mean.tolist(), deviation.tolist(), strict=True))},
            )
            for t, values, mean, deviation in self.experiments
        ]  # fmt: skip
        return cf.Problem(model, experiments, parameters={"k": 1.0, "s": cf.Parameter(1.0, scale="log")})

    def kalman(self, likelihood: PathLikelihood, evaluation: PathEvaluation) -> list[tuple[float, Array, Array]]:
        """Return what the Kalman filter and smoother say, with the transitions of castfit's own stages."""
        out: list[tuple[float, Array, Array]] = []
        for each, mode, (t, values, mean, deviation) in zip(
            likelihood.chains, evaluation.modes, self.experiments, strict=True
        ):
            n, F, point = mean.size, mode.blocks.F, mode.point
            shift = mode.blocks.f - np.einsum("kij,kj->ki", F, np.concatenate([point.x[:-1], point.c], axis=1))
            filter_ = Kalman([f[:, :n] for f in F], [f[:, n:] @ f[:, n:].T for f in F], list(shift))
            row = {float(time): v for time, v in zip(t, values, strict=True)}
            data = [row.get(float(time), np.full(self.C.shape[0], np.nan)) for time in each.chain.times]
            out.append(filter_.run(mean, np.diag(deviation**2), self.C, data, self.sigma))
        return out


def likelihood_of(problem: cf.Problem, longest: float) -> PathLikelihood:
    inner, spreads = marginal(problem.posed)
    return PathLikelihood(inner, spreads, [longest] * len(spreads))


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    n=st.integers(1, 4),
    n_w=st.integers(1, 2),
    n_o=st.integers(1, 2),
    count=st.integers(1, 2),
)
def test_linear_gaussian_models_have_the_likelihood_and_the_path_of_kalman(seed, n, n_w, n_o, count):
    linear = Linear.drawn(seed, n, n_w, n_o, count)
    problem = linear.problem()
    likelihood = likelihood_of(problem, 0.4)
    y = likelihood.problem.guess
    evaluation = likelihood.evaluate(y, None)
    expected = linear.kalman(likelihood, evaluation)
    log_l = sum(e[0] for e in expected)
    assert -evaluation.value == pytest.approx(log_l, rel=1e-9, abs=1e-9)
    for mode, (_, means, covariances) in zip(evaluation.modes, expected, strict=True):
        assert mode.iterations <= 2
        np.testing.assert_allclose(mode.point.x, means, rtol=1e-9, atol=1e-8)
        np.testing.assert_allclose(mode.factor.covariances[1], covariances, rtol=1e-9, atol=1e-8)


def test_the_gradient_is_that_of_kalmans_likelihood():
    linear = Linear.drawn(5, 3, 1, 2, 2)  # noise in each equation, of one source: its covariance is singular
    likelihood = likelihood_of(linear.problem(), 0.3)
    y = likelihood.problem.guess

    def kalman(y: Array) -> float:
        return -sum(e[0] for e in linear.kalman(likelihood, likelihood.evaluate(y, None)))

    evaluation, h = likelihood.evaluate(y, None), 1e-3
    for j in range(y.size):
        d = h * np.eye(y.size)[j]
        slopes = 8 * (kalman(y + d) - kalman(y - d)) - (kalman(y + 2 * d) - kalman(y - 2 * d))  # fourth order
        sixth = 45 * (kalman(y + d) - kalman(y - d)) - 9 * (kalman(y + 2 * d) - kalman(y - 2 * d))
        sixth += kalman(y + 3 * d) - kalman(y - 3 * d)
        assert evaluation.gradient[j] == pytest.approx(slopes / (12 * h), rel=1e-7)
        assert evaluation.gradient[j] == pytest.approx(sixth / (60 * h), rel=1e-9)


def test_innovations_make_up_the_likelihood():
    linear = Linear.drawn(7, 3, 2, 2, 2)
    likelihood = likelihood_of(linear.problem(), 0.5)
    evaluation, total = likelihood.evaluate(likelihood.problem.guess, None), 0.0
    for each, mode in zip(likelihood.chains, evaluation.modes, strict=True):
        expected, deviation = each.innovations(mode)
        z = (each.chain.values - expected) / deviation
        total -= np.nansum(0.5 * z**2 + np.log(deviation) + 0.5 * np.log(2 * np.pi))
    assert total == pytest.approx(-evaluation.value, rel=1e-10)


def test_draws_about_the_path_of_a_linear_model_all_weigh_the_same():
    likelihood = likelihood_of(Linear.drawn(11, 2, 1, 1, 1).problem(), 0.5)
    evaluation = likelihood.evaluate(likelihood.problem.guess, None)
    weights = likelihood.chains[0].sample_weights(evaluation.modes[0], np.random.default_rng(0), 20)
    np.testing.assert_allclose(weights, 0.0, atol=1e-9)


def test_stages_converge_to_the_exact_covariance_with_order_four():
    x, v, w, k, s = cf.symbols("x v w k s")
    model = cf.Model({x: v, v: -k * x - 0.4 * v + s * w}, parameters=[k, s], noises=[w])
    values = [0.3, -0.2, 0.5, 0.1]
    times = np.array([0.7, 1.1, 2.0, 2.6])
    experiment = cf.Experiment({"x": values}, times, sigma=0.1, start=0, initial={"x": cf.Normal(0, 0.5), "v": 0.2})
    problem = cf.Problem(model, experiment, parameters={"k": 1.3, "s": 0.8})
    A, Q = np.array([[0, 1], [-1.3, -0.4]]), np.diag([0.0, 0.64])
    steps: list[tuple[Array, Array]] = []
    for h in np.diff(times, prepend=0.0):  # Van Loan (1978)
        exponential = expm(np.block([[-A, Q], [np.zeros((2, 2)), A.T]]) * h)
        steps.append((exponential[2:, 2:].T, exponential[2:, 2:].T @ exponential[:2, 2:]))
    exact = Kalman([a for a, _ in steps], [q for _, q in steps], [np.zeros(2)] * 4)
    data = [np.array([v]) for v in [np.nan, *values]]
    log_l = exact.run(np.array([0.0, 0.2]), np.diag([0.25, 0.0]), np.array([[1.0, 0.0]]), data, np.array([0.1]))[0]
    errors = []
    for longest in (0.3, 0.15, 0.075, 0.0375):
        likelihood = likelihood_of(problem, longest)
        errors.append(abs(-likelihood.evaluate(likelihood.problem.guess, None).value - log_l))
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert orders[-1] == pytest.approx(4.0, abs=0.4), (errors, orders)
    assert errors[-1] < 1e-5


def nonlinear(**options: object) -> cf.Problem:
    """Return a problem with everything at once: shared noise that multiplies a state, counts, doses, inputs, priors."""
    x, y, w, k, s, u, f = cf.symbols("x y w k s u f")
    model = cf.Model(
        {x: -k * x * (1 + 0.2 * x) + u + s * (1 + 0.3 * x) * w, y: k * x - 0.5 * y**2 + 0.2 * s * w},
        parameters=[k, s, f], inputs=[u], noises=[w], outputs={"sum": x + y},
    )  # fmt: skip
    time = np.array([0.5, 1.0, 1.0, 2.0, 2.7, 3.1])
    first_experiment = cf.Experiment(
        {"x": [1.9, 1.4, 1.5, np.nan, 2.0, 1.6], "sum": [2.1, 1.9, np.nan, 1.8, 2.4, 2.4]}, time, start=0,
        noise={"x": cf.LogNormal(cf.unknown("x")), "sum": cf.StudentT(0.2, df=4.0)},
        inputs={"u": cf.Input.linear([0, 2, 4], [0.1, 0.4, 0.0])},
        events=[cf.Doses(x, f, 1.0), cf.Doses(y, 0.5 * f, 0.3, duration=0.9), cf.Event(2.2, {y: 0.5 * y + f})],
        initial={"x": cf.Normal(2.0, 0.3), "y": cf.free(0.2)},
    )  # fmt: skip
    second_experiment = cf.Experiment(
        {"y": [1.0, 2.0, 0.0]}, [0.4, 1.2, 2.0], start=0, noise={"y": cf.Poisson()},
        inputs={"u": cf.Input.estimated([0, 1, 2], guess=0.3, smoothness=0.2, order=1)},
        initial={"x": 1.0, "y": 0.5},
    )  # fmt: skip
    parameters = {"k": cf.Parameter(0.8, scale="log", prior=cf.priors.LogNormal(0.0, 0.5)), "s": 0.3, "f": 0.6}
    return cf.Problem(model, [first_experiment, second_experiment], parameters=parameters)


def test_the_gradient_of_a_nonlinear_model_is_that_of_differences():
    inner, spreads = marginal(nonlinear().posed)
    likelihood = PathLikelihood(inner, spreads, [0.3, 0.3])
    y = np.append(inner.guess, np.log(0.15))
    evaluation = likelihood.evaluate(y, None)
    assert evaluation.modes
    starts = [mode.start for mode in evaluation.modes]
    for j in range(y.size):
        d = 1e-4 * np.eye(y.size)[j]
        slope = (likelihood.evaluate(y + d, starts).value - likelihood.evaluate(y - d, starts).value) / 2e-4
        assert evaluation.gradient[j] == pytest.approx(slope, rel=1e-5, abs=1e-6), j


@pytest.mark.parametrize("sigma", [1e-2, 1e-5, 1e-8, 1e-10, 1e-12])
def test_precise_measurements_of_a_walk_have_the_likelihood_of_independent_steps(sigma):
    x, w = cf.symbols("x w")
    values = np.array([0.0, 1.1, 1.9, 3.2])
    experiment = cf.Experiment({"x": values}, time=np.arange(4), sigma=sigma, initial={"x": cf.Normal(0, 1)})
    likelihood = likelihood_of(cf.Problem(cf.Model({x: 1 + 0.1 * w}, noises=[w]), experiment), 1.0)
    covariance = 1.0 + 0.01 * np.minimum.outer(np.arange(4), np.arange(4)) + sigma**2 * np.eye(4)
    exact = multivariate_normal.logpdf(values, np.arange(4.0), covariance)
    assert -likelihood.evaluate(np.empty(0), None).value == pytest.approx(exact, abs=1e-8)


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("rate", ["constant", "input"])
def test_a_linear_model_has_the_likelihood_that_it_has_as_a_nonlinear_one(rate, counts):
    x, y, v, w, k, s, u, f = cf.symbols("x y v w k s u f")
    decay = k * (1 + u) if rate == "input" else k
    model = cf.Model(
        {x: -decay * x + u + s * v, y: k * x - 0.5 * y + f + 0.2 * s * (v + w)},
        parameters=[k, s, f], inputs=[u], noises=[v, w],
    )  # fmt: skip
    experiment = cf.Experiment(
        {"x": [1.9, 1.4, 1.5, np.nan, 2.0, 1.6], "y": [2, 2, 1, 2, 2, 4]}, np.array([0.5, 1.0, 1.0, 2.0, 2.7, 3.1]),
        start=0, noise={"x": cf.Gaussian(0.2), "y": cf.Poisson() if counts else cf.Gaussian(0.3)},
        inputs={"u": cf.Input.linear([0, 2, 4], [0.1, 0.4, 0.0])},
        events=[cf.Doses(x, f, 1.0), cf.Doses(y, 0.5 * f, 0.3, duration=0.9), cf.Event(2.2, {y: 0.5 * y + f})],
        initial={"x": cf.Normal(2.0, 0.3), "y": cf.free(2.0)},
    )  # fmt: skip
    likelihood = likelihood_of(cf.Problem(model, experiment, parameters={"k": 0.8, "s": 0.3, "f": 0.6}), 0.3)
    linear = likelihood.evaluate(likelihood.problem.guess, None)
    functions = likelihood.chains[0].chain.functions
    assert (functions.linear, functions.time_invariant) == (True, rate == "constant")
    functions.linear = False
    general = likelihood.evaluate(likelihood.problem.guess, None)
    assert linear.value == pytest.approx(general.value, rel=1e-12)
    np.testing.assert_allclose(linear.gradient, general.gradient, rtol=1e-9)


COUNTS = [3, 9, 3, 6, 4, 5, 10, 4, 5, 8, 9, 3, 6, 3, 12, 5, 9, 16, 7, 5]


def log_growth(*, algebraic: bool) -> cf.Problem:
    x, z, w, r, s = cf.symbols("x z w r s")
    size = z if algebraic else cf.exp(x)
    equations = {"algebraic": {z: cf.log(z) - x}} if algebraic else {}
    model = cf.Model({x: r * (1 - size / 8) + s * w}, parameters=[r, s], noises=[w], outputs={"N": size}, **equations)
    initial = {"x": cf.Normal(np.log(2), 0.2)} | ({"z": 2.0} if algebraic else {})
    experiment = cf.Experiment({"N": COUNTS}, np.arange(1, 21), start=0, noise=cf.Poisson(), initial=initial)
    return cf.Problem(model, experiment, parameters={"r": 1.23, "s": 0.452})


def two_noises() -> cf.Problem:
    """Return a problem with two noises that do not commute: one multiplies what the other drives."""
    a, b, v, w = cf.symbols("a b v w")
    model = cf.Model({a: -a + v, b: -b + (0.3 + 0.5 * a) * w + cf.sin(a)}, noises=[v, w])
    data = 0.7 * np.random.default_rng(0).standard_normal((13, 2))[1:]
    initial = {"a": cf.Normal(0, 0.3), "b": cf.Normal(0, 0.3)}
    return cf.Problem(
        model, cf.Experiment({"a": data[:, 0], "b": data[:, 1]}, 0.5 * np.arange(1, 13), sigma=0.3, start=0,
                             initial=initial),
    )  # fmt: skip


def multiplied_growth() -> cf.Problem:
    """Return the model of `log_growth` with a fixed start, in X = e^x, with noise that multiplies X."""
    x, w, r, s = cf.symbols("x w r s")
    model = cf.Model({x: r * x * (1 - x / 8) + s * x * w}, parameters=[r, s], noises=[w], outputs={"N": x})
    experiment = cf.Experiment({"N": COUNTS}, np.arange(1, 21), start=0, noise=cf.Poisson(), initial={"x": 2.0})
    return cf.Problem(model, experiment, parameters={"r": 1.23, "s": 0.452})


# The limits are from collocation with three modes in a stage, which omits other modes.
@pytest.mark.parametrize(
    ("problem", "longest", "limit", "accuracy", "order"),
    [
        (log_growth(algebraic=False), 0.125, -51.400965, 2e-4, 3),
        (log_growth(algebraic=True), 0.125, -51.400965, 2e-4, 3),
        (multiplied_growth(), 0.125, -51.38026, 1e-3, 4),
        (two_noises(), 0.125, -30.3495 - 24 * np.log(0.3 * np.sqrt(2 * np.pi)), 1e-2, 2),
    ],
)
def test_stages_of_nonlinear_models_converge_with_at_least_order_two(problem, longest, limit, accuracy, order):
    values, starts, likelihood = [], None, likelihood_of(problem, longest)
    for _ in range(3):
        evaluation = likelihood.evaluate(likelihood.problem.guess, starts)
        values.append(-evaluation.value)
        finer = likelihood.with_shorter_stages(2.0)
        likelihood, starts = finer, finer.starts_from(likelihood, evaluation)
    assert abs(values[0] - limit) < accuracy
    assert np.log2((values[1] - values[0]) / (values[2] - values[1])) == pytest.approx(order, abs=0.35), values
    extrapolated = values[2] + (values[2] - values[1]) / (2**order - 1)
    assert extrapolated == pytest.approx(limit, abs=2e-4 if order == 2 else 1e-5)


def test_derivatives_cost_one_evaluation_however_many_quantities(monkeypatch):
    calls = {"blocks": 0}
    real = ChainLikelihood.find_mode

    def counted(self, *args):
        calls["blocks"] += 1
        return real(self, *args)

    monkeypatch.setattr(ChainLikelihood, "find_mode", counted)
    linear = Linear.drawn(3, 3, 1, 1, 1)
    likelihood = likelihood_of(linear.problem(), 0.5)
    likelihood.evaluate(likelihood.problem.guess, None)
    assert calls["blocks"] == 1
