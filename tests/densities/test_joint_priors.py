"""Priors on expressions and on several quantities: earlier results, penalties, and what is refused."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy import optimize, stats

import castfit as cf
from castfit.densities.priors import LogNormalPrior, Normal, Truncated, UniformPrior, multivariate_normal
from castfit.problem.fingerprint import fingerprint
from tests.builders import refused

FITS = [(t, s) for t in ("single", "multiple", "collocation") for s in (cf.GaussNewton(tolerance=1e-14), cf.Ipopt())]
GUESS = {"k": 1.0, "m": 0.5}


def shown(part) -> str:
    return part if isinstance(part, str) else part.label


def times(n: int) -> np.ndarray:
    return np.linspace(0.5, 3.0, n)


def straight(seed: int, n: int, name: str, *, sigma: float | None = 0.1) -> cf.Experiment:
    """Measurements of y = m + k t, with k = 2 and m = 1."""
    y = 1 + 2 * times(n) + 0.1 * np.random.default_rng(seed).standard_normal(n)
    m = cf.symbols("m")
    return cf.Experiment({"y": y}, time=times(n), sigma=sigma, initial={"x": m}, name=name)


def line(*experiments: cf.Experiment, parameters=None, **changes) -> cf.Problem:
    """x' = k from m: linear in both, and exact in every transcription."""
    x, k, m = cf.symbols("x k m")
    model = cf.Model({x: k + 0 * m}, parameters=[k, m], outputs={"y": x})
    return cf.Problem(model, experiments, parameters=GUESS | (parameters or {}), **changes)


FIRST, SECOND = straight(1, 6, "first"), straight(2, 9, "second")


def same_as(actual: cf.Result, expected: cf.Result, names=("k", "m")) -> None:
    for name in names:
        assert actual.parameters[name] == pytest.approx(expected.parameters[name], rel=1e-6)
        assert actual.standard_errors[name] == pytest.approx(expected.standard_errors[name], rel=1e-6)


# ------------------------------------------------------------------------------------------------- earlier results


@pytest.mark.parametrize(("transcription", "solver"), FITS, ids=shown)
def test_an_earlier_result_as_prior_gives_the_joint_fit(transcription, solver):
    earlier_result = cf.fit(line(FIRST), transcription, solver)
    updated_result = cf.fit(line(SECOND, priors=cf.Prior(earlier_result)), transcription, solver)
    joint_result = cf.fit(line(FIRST, SECOND), transcription, solver)
    same_as(updated_result, joint_result)
    np.testing.assert_allclose(updated_result.covariance, joint_result.covariance, rtol=1e-6)
    assert updated_result.correlation[0, 1] == pytest.approx(joint_result.correlation[0, 1], rel=1e-6)


def test_results_follow_each_other_by_way_of_files(tmp_path):
    third = straight(3, 5, "third")
    first_result = cf.fit(line(FIRST))
    first_result.save(tmp_path / "first.json")
    second_result = cf.fit(line(SECOND, priors=cf.Prior(cf.Result.load(tmp_path / "first.json"))))
    third_result = cf.fit(line(third, priors=[cf.Prior(second_result)]))
    same_as(third_result, cf.fit(line(FIRST, SECOND, third)))


def test_prior_from_unidentifiable_fit_keeps_directions_free():
    """At one time only m + k t is known: neither k nor m, and the prior keeps just that."""
    experiment = cf.Experiment(
        {"y": [3.1, 2.9]}, time=[1.0, 1.0], sigma=0.1, initial={"x": cf.symbols("m")}, name="one"
    )
    earlier_result = cf.fit(line(experiment))
    assert earlier_result.standard_errors["k"] == np.inf
    prior = cf.Prior(earlier_result)
    assert prior.root.shape == (1, 2)
    same_as(cf.fit(line(SECOND, priors=prior)), cf.fit(line(experiment, SECOND)))


@pytest.mark.parametrize("equal", [False, True], ids=["limit", "equation"])
def test_a_constraint_that_held_quantities_counts(equal):
    k, m = cf.symbols("k m")
    first_experiment, second_experiment = straight(1, 6, "first"), straight(2, 4, "second")
    constraint = k + m == 2.5 if equal else k + m <= 2.5
    constrained_result = cf.fit(line(first_experiment, constraints=[constraint]), "single")
    values = cf.fit(line(second_experiment, priors=cf.Prior(constrained_result)), "single").values
    T = np.concatenate([times(6), times(4)])
    y = np.concatenate([e.data["y"][1].ravel() for e in (first_experiment, second_experiment)])
    assert [values["k"], values["m"]] == pytest.approx(np.polyfit(T, y, 1), rel=1e-7)


@pytest.mark.slow
def test_a_bound_that_held_a_quantity_counts():
    parameters = {"k": cf.Parameter(1.0, upper=1.5)}
    earlier_result = cf.fit(line(FIRST, parameters=parameters))
    assert earlier_result.active == {"k": "upper"}
    same_as(cf.fit(line(SECOND, priors=cf.Prior(earlier_result))), cf.fit(line(FIRST, SECOND)))


def test_the_noise_of_an_earlier_fit_is_its_estimate():
    """Data of unknown sigma weigh as with the sigma that was found."""
    earlier_result = cf.fit(line(straight(1, 6, "first", sigma=None)))
    known_sigma_experiment = straight(1, 6, "first", sigma=earlier_result.noise)
    same_as(cf.fit(line(SECOND, priors=cf.Prior(earlier_result))), cf.fit(line(known_sigma_experiment, SECOND)))


def test_several_unknown_sigmas_of_an_earlier_fit():
    experiments = [straight(i, 6, name, sigma=cf.unknown(name)) for i, name in ((1, "a"), (2, "b"))]
    earlier_result = cf.fit(line(*experiments))
    prior = cf.Prior(earlier_result)
    np.testing.assert_allclose(np.linalg.inv(prior.root.T @ prior.root), earlier_result.covariance, rtol=1e-6)


def test_other_quantities_are_integrated_out():
    earlier_result = cf.fit(line(FIRST))
    prior = cf.Prior(earlier_result, names=["k"])
    assert prior.names == ("k",)
    assert prior.root[0, 0] ** -2 == pytest.approx(earlier_result.covariance[0, 0], rel=1e-6)


def test_initial_states_and_local_parameters_stay_with_their_experiment():
    x, k, s = cf.symbols("x k s")
    model = cf.Model({x: -k * x}, parameters=[k, s], outputs={"y": s * x})
    experiments = [
        cf.Experiment({"x": x0 * np.exp(-0.5 * times(5)), "y": s0 * x0 * np.exp(-0.5 * times(5))}, time=times(5),
                      sigma=0.1, initial={"x": cf.free(1.0)}, name=name)
        for name, x0, s0 in (("a", 1.0, 2.0), ("b", 1.5, 3.0))
    ]  # fmt: skip
    problem = cf.Problem(model, experiments, parameters={"k": 0.4, "s": cf.Parameter(1.0, local=True)})
    result = cf.fit(problem, "single")
    assert cf.Prior(result).names == ("k",)
    assert cf.Prior(result, names=["x(0)[a]", "s[b]"]).names == ("x(0)[a]", "s[b]")


def test_on_a_logarithmic_scale_the_logarithm_is_normal():
    parameters = {"k": cf.Parameter(1.0, scale="log")}
    earlier_result = cf.fit(line(FIRST, parameters=parameters))
    prior = cf.Prior(earlier_result)
    assert prior.log.tolist() == [True, False]
    assert prior.mean[0] == pytest.approx(np.log(earlier_result.parameters["k"]))
    log_result, linear_result = (cf.fit(line(SECOND, parameters=p, priors=prior)) for p in (parameters, {}))
    assert log_result.parameters["k"] == pytest.approx(linear_result.parameters["k"], rel=1e-6)


# ------------------------------------------------------------------------------------------- expressions, normals


@pytest.mark.parametrize(("transcription", "solver"), FITS, ids=shown)
def test_a_prior_on_an_expression_is_its_density(transcription, solver):
    """A product, log-normal, and a ratio, normal; against SciPy's optimiser."""
    k, m = cf.symbols("k m")
    product, ratio = stats.lognorm(0.05, scale=1.6), stats.norm(1.8, 0.1)
    t, y = times(6), FIRST.data["y"][1][:, 0]

    def cost(point: np.ndarray) -> float:
        misfit = 0.5 * np.sum(((point[1] + point[0] * t - y) / 0.1) ** 2)
        return misfit - product.logpdf(point[0] * point[1]) - ratio.logpdf(point[0] / point[1])

    best = optimize.minimize(cost, [2.0, 1.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14})
    priors = {k * m: LogNormalPrior(np.log(1.6), 0.05), k / m: Normal(1.8, 0.1)}
    result = cf.fit(line(FIRST, priors=priors), transcription, solver)
    np.testing.assert_allclose(list(result.parameters.values()), best.x, rtol=1e-6)
    assert result.neg2loglik == pytest.approx(2 * best.fun + 6 * np.log(2 * np.pi * 0.01), abs=1e-6)
    assert result.dof == 6


@pytest.mark.parametrize("transcription", ["single", "multiple", "collocation"])
@pytest.mark.parametrize("solver", ["gauss_newton", "ipopt"])
def test_sigmas_have_priors(transcription, solver):
    prior = stats.lognorm(0.2, scale=0.1)
    t, y = times(6), FIRST.data["y"][1][:, 0]

    def cost(point: np.ndarray) -> float:
        sigma = np.exp(point[2])
        return -stats.norm(point[1] + point[0] * t, sigma).logpdf(y).sum() - prior.logpdf(sigma)

    options = {"xatol": 1e-9, "fatol": 1e-13, "maxiter": 5000}
    best = optimize.minimize(cost, [2.0, 1.0, -2.3], method="Nelder-Mead", options=options)
    data = straight(1, 6, "first", sigma=cf.unknown(prior=LogNormalPrior(np.log(0.1), 0.2)))
    result = cf.fit(line(data), transcription, solver)
    assert result.parameters["sigma(y)"] == pytest.approx(np.exp(best.x[2]), rel=1e-4)
    assert result.neg2loglik == pytest.approx(2 * best.fun, abs=1e-7)


def test_a_prior_by_name_is_that_of_the_parameter():
    by_name = line(FIRST, priors={"k": Normal(1.5, 0.1)})
    of_parameter = line(FIRST, parameters={"k": cf.Parameter(1.0, prior=Normal(1.5, 0.1))})
    assert by_name.quantities == of_parameter.quantities
    assert fingerprint(by_name) == fingerprint(of_parameter)
    assert line(FIRST, priors={cf.symbols("k"): UniformPrior(0, 3)}).quantities[0].upper == 3


def test_symbols_of_local_parameters_and_initial_states_mean_every_experiment():
    x, k, s = cf.symbols("x k s")
    model = cf.Model({x: -k * x}, parameters=[k, s], outputs={"y": s * x})
    experiments = [
        cf.Experiment({"y": np.exp(-times(5))}, time=times(5), sigma=0.1, initial={"x": cf.free(g)}, name=name)
        for name, g in (("a", 1.0), ("b", 2.0))
    ]
    parameters = {"k": cf.Parameter({"a": 0.4, "b": 0.5}, local=True), "s": cf.Parameter(3.0, fixed=True)}
    priors = {k * x * s: Normal(1.0, 0.1), "x": Normal(1.0, 0.5)}
    problem = cf.Problem(model, experiments, parameters=parameters, priors=priors)
    assert problem.names == ("k[a]", "x(0)[a]", "k[b]", "x(0)[b]")
    evaluation = problem.priors(problem.guess)
    np.testing.assert_allclose(evaluation.rows, [0.0, 2.0, (0.4 * 1 * 3 - 1) / 0.1, (0.5 * 2 * 3 - 1) / 0.1])
    np.testing.assert_allclose(evaluation.jacobian[2], [30.0, 12.0, 0.0, 0.0])


def test_several_quantities_are_normal_together():
    covariance = np.array([[0.04, 0.01], [0.01, 0.09]])
    prior = multivariate_normal({"k": 1.8, "m": 1.1}, covariance)
    problem = line(FIRST, priors=[prior])
    evaluation = problem.priors(np.array([2.0, 0.7]))
    expected = stats.multivariate_normal([1.8, 1.1], covariance)
    assert evaluation.cost + problem.posed.prior_constant == pytest.approx(-expected.logpdf([2.0, 0.7]))
    logarithm = line(FIRST, priors=multivariate_normal({"k": 0.5, "m": -0.1}, covariance, on="log"))
    expected = stats.multivariate_normal([0.5, -0.1], covariance)
    cost = logarithm.priors(np.array([2.0, 0.7])).cost + logarithm.posed.prior_constant
    assert cost == pytest.approx(-expected.logpdf(np.log([2.0, 0.7])))


def test_a_quantity_that_is_fixed_leaves_the_distribution_of_the_others_given_it():
    covariance = np.array([[0.04, 0.03], [0.03, 0.09]])
    k, m = cf.symbols("k m")
    problem = line(FIRST, priors=[multivariate_normal({"k": 1.8, "m": 1.1}, covariance), {k * m: Normal(2.0, 0.1)}])
    fixed = problem.posed.fix({"m": 0.7})
    point = np.array([2.1])
    full_evaluation, reduced_evaluation = problem.priors(np.array([2.1, 0.7])), fixed.priors(point)
    np.testing.assert_allclose(reduced_evaluation.rows, full_evaluation.rows)
    np.testing.assert_allclose(reduced_evaluation.jacobian[:, 0], full_evaluation.jacobian[:, 0])
    assert fixed.fix(["k"]).prior_terms == ()
    assert pickle.loads(pickle.dumps(fixed)).priors(point).cost == pytest.approx(reduced_evaluation.cost)
    assert pickle.loads(pickle.dumps(problem)).priors(np.array([2.1, 0.7])).cost == pytest.approx(full_evaluation.cost)


def test_quantities_that_only_a_prior_on_an_expression_determines_may_be_estimated():
    k, w = cf.symbols("k w")
    result = cf.fit(_extra(w, k))
    assert result.parameters["w"] == pytest.approx(result.parameters["k"] + 0.5, rel=1e-7)
    assert result.standard_errors["w"] == pytest.approx(np.hypot(result.standard_errors["k"], 0.1), rel=1e-6)


def _extra(w, k) -> cf.Problem:
    """A model with a parameter that does nothing."""
    x, m = cf.symbols("x m")
    model = cf.Model({x: k + 0 * m}, parameters=[k, m, w], outputs={"y": x})
    return cf.Problem(model, [FIRST], parameters={**GUESS, "w": 1.0}, priors={w - k: Normal(0.5, 0.1)})


# -------------------------------------------------------------------------------------------------------- penalties


def test_tikhonov_adds_half_the_weighted_squares():
    problem = line(FIRST, priors=cf.tikhonov(["k", "m"], 4.0, towards={"k": 1.5, "m": 1.0}))
    assert problem.priors(np.array([2.0, 0.7])).cost == pytest.approx(2.0 * (0.5**2 + 0.3**2))
    assert line(FIRST, priors=cf.tikhonov("k", 4.0)).priors(np.array([2.0, 0.7])).cost == pytest.approx(2.0)
    logs = line(FIRST, priors=cf.tikhonov("k", 4.0, towards=1.5, on="log")).priors(np.array([2.0, 0.7]))
    assert logs.cost == pytest.approx(2.0 * np.log(2 / 1.5) ** 2)


def test_tikhonov_pulls_local_parameters_together():
    """Two slopes of equal precision: their mean stays, and their difference shrinks by 1 / (1 + weight variance)."""
    experiments = [
        cf.Experiment({"y": s * times(6)}, time=times(6), sigma=0.1, initial={"x": 0.0}, name=name)
        for name, s in (("a", 1.9), ("b", 2.1))
    ]
    x, k = cf.symbols("x k")
    model = cf.Model({x: k}, parameters=[k], outputs={"y": x})
    variance = 0.01 / float(times(6) @ times(6))
    weight = 1 / variance
    local = {"k": cf.Parameter(1.0, local=True)}
    problem = cf.Problem(model, experiments, parameters=local, priors=cf.tikhonov("k", weight, towards="equal"))
    result = cf.fit(problem)
    assert list(result.parameters.values()) == pytest.approx([1.95, 2.05], rel=1e-7)
    assert problem.priors(problem.guess).rows.size == 1


def test_fingerprint_differs_between_joint_priors():
    k, m = cf.symbols("k m")
    priors = [None, {k * m: Normal(1, 1)}, {k * m: Normal(1, 2)}, {k / m: Normal(1, 1)}, cf.tikhonov("k", 1.0)]
    priors += [multivariate_normal({"k": 1, "m": 1}, c * np.eye(2)) for c in (1, 2)]
    fingerprints = [fingerprint(line(FIRST, priors=p)) for p in priors]
    assert all(a != b for i, a in enumerate(fingerprints) for b in fingerprints[:i])


# ---------------------------------------------------------------------------------------------------------- refused

K, M, Q = cf.symbols("k m q")


@pytest.mark.parametrize(
    ("priors", "phrases"),
    [
        ({"kk": Normal(1, 1)}, ["priors names 'kk', which is not estimated: did you mean 'k'?"]),
        ({K * Q: Normal(1, 1)}, ["the prior on (k*q) contains 'q', which is not estimated"]),
        ({3: Normal(1, 1), "k": 3}, ["priors has the key 3", "'k' has the prior 3"]),
        ([3, {"k": Normal(1, 0)}], ["priors contains 3", "deviation positive"]),
        (7, ["priors is 7; give {name or expression: prior}"]),
        ({K * M: UniformPrior(0, 1)}, ["means bounds of an expression; give Constraint"]),
        ({K * M: Truncated(Normal(0, 1), 0, 1)}, ["means bounds of an expression"]),
        ([{"k": Normal(1, 1)}, {"k": Normal(2, 1)}], ["'k' has two priors"]),
        ({K - 10: LogNormalPrior(0, 1)}, ["the prior's density of (k-10) = -9 is 0, or cannot be computed, at k = 1"]),
        ({"k": UniformPrior(2, 3)}, ["'k': the guess 1 is impossible by its prior"]),
        (cf.tikhonov("kk", 1.0), ["the penalty on kk names 'kk', which is not estimated"]),
        (cf.tikhonov("k", 1.0, towards="equal"), ["'k' has one value only"]),
        (multivariate_normal({"q": 1.0}, [[1.0]]), ["names 'q', which is not estimated"]),
    ],
)
def test_priors_that_make_no_sense_are_refused(priors, phrases):
    with refused(*phrases):
        line(FIRST, priors=priors)


def test_arguments_that_make_no_sense_are_refused():
    with refused("weight is -1", "on is 'ln'", "towards is 'zero'"):
        cf.tikhonov("k", -1, on="ln", towards="zero")
    with refused("towards has no value for 'm'"):
        cf.tikhonov(["k", "m"], 1, towards={"k": 1})
    with refused("names is []"):
        cf.tikhonov([], 1)
    with refused("give finite numbers of shape (2, 2)"):
        multivariate_normal({"k": 1, "m": 2}, np.eye(3))
    with refused("not symmetric and positive definite"):
        multivariate_normal({"k": 1, "m": 2}, [[1, 2], [2, 1]])
    with refused("the mean of 'k' is 'a'"):
        multivariate_normal({"k": "a"}, [[1]])
    result = cf.fit(line(FIRST))
    with refused("unknown quantity 'kk': did you mean 'k'?"):
        cf.Prior(result, names=["kk"])
    with refused("pass the result of a fit"):
        cf.Prior(result.parameters)  # type: ignore[arg-type]
    with refused("result is not a solution"):
        cf.Prior(cf.fit(line(FIRST), callback=lambda _: True))


def test_prior_from_fit_without_degrees_of_freedom_is_refused():
    x, a, b = cf.symbols("x a b")
    model = cf.Model({x: b - a * x}, parameters=[a, b], initial={x: 1.0})
    data = cf.Experiment({"x": [0.8, 0.7]}, time=[0.5, 1.0])
    exact = cf.fit(cf.Problem(model, data, parameters={"a": 1.0, "b": 0.3}))
    assert exact.dof == 0
    with refused("as many estimates as measurements, so the noise is unknown; pass sigma"):
        cf.Prior(exact)
