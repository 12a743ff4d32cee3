"""Mixed effects: against closed forms, quadrature, differences; what goes wrong is said; what was found is kept."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.stats import multivariate_normal, norm

import castfit as cf
from castfit.drive.population.batched import BatchedCohort
from castfit.drive.population.compiled import compile_population
from castfit.drive.population.covariance import Covariance
from castfit.drive.population.distributed import build_cohort
from castfit.drive.population.laplace import LaplaceApproximation
from castfit.drive.population.likelihoods import SimulatedCohort
from castfit.integrate.distributed import lanes_divided
from castfit.integrate.esdirk_binding import missing_integrator_reason
from tests.builders import refused


def levels(values, **options):
    """Individuals with a constant level of their own, measured several times: a linear model."""
    x, level = cf.symbols("x level")
    model = cf.Model({x: 0 * x}, parameters=[level], initial={x: level})
    times = np.arange(1.0, values.shape[1] + 1)
    experiments = [cf.Experiment({"x": row}, times, sigma=cf.unknown()) for row in values]
    return cf.Problem(model, experiments, parameters={"level": cf.Parameter(options.pop("guess", 5.0), local=True)})


def draw_levels(rng, n=12, repeats=4, mean=6.0, omega=1.5, sigma=0.7):
    return mean + omega * rng.standard_normal((n, 1)) + sigma * rng.standard_normal((n, repeats))


def decays(n, rng, *, omega=0.4, sigma=0.2, noise=None, times=(0.5, 1.0, 2.0, 4.0), weights=None, own_start=False):
    """Individuals that eliminate a dose at a rate of their own."""
    x, k, dose = cf.symbols("x k dose")
    model = cf.Model({x: -k * x}, parameters=[k, dose], initial={x: dose})
    times = np.array(times)
    rates = 0.3 * np.exp(omega * rng.standard_normal(n)) * (1.0 if weights is None else (weights / 70.0) ** 0.75)
    doses = 10.0 * np.exp(0.2 * rng.standard_normal(n)) if own_start else np.full(n, 10.0)
    spread = cf.unknown() if noise is None else noise
    data = [a * np.exp(-r * times) for a, r in zip(doses, rates, strict=True)]
    data = [y + (sigma if noise is None else 0.03 + 0.08 * y) * rng.standard_normal(times.size) for y in data]
    dose_parameter = cf.Parameter(10.0, local=True) if own_start else cf.Parameter(10.0, fixed=True)
    parameters = {"k": cf.Parameter(0.5, local=True), "dose": dose_parameter}
    return model, [cf.Experiment({"x": y}, times, sigma=spread) for y in data], parameters


def scores_and_information(values, theta):
    """Return the slopes of each individual's log density by mean, sigma and omega (n, 3), and minus its curvature."""
    repeats = values.shape[1]
    step = 1e-4 * theta

    def log_densities(offsets):
        mean, sigma, omega = theta + step * offsets
        covariance = sigma**2 * np.eye(repeats) + omega**2
        return multivariate_normal.logpdf(values, np.full(repeats, mean), covariance)

    unit = np.eye(3)
    scores = np.stack([(log_densities(e) - log_densities(-e)) / (2 * h) for e, h in zip(unit, step, strict=True)], 1)
    corners = [[(a + b, a - b, b - a, -a - b) for b in unit] for a in unit]
    sums = np.array([[[log_densities(c).sum() for c in cell] for cell in row] for row in corners])
    return scores, -(sums @ [1, -1, -1, 1]) / (4 * np.outer(step, step))


def test_a_linear_model_has_its_closed_form():
    values = draw_levels(np.random.default_rng(3))
    n, repeats = values.shape
    result = cf.mixed_effects(levels(values), cf.Population({"level": cf.Individual(distribution="normal", omega=1.0)}))
    means = values.mean(axis=1)
    within_variance = ((values - means[:, None]) ** 2).sum() / (n * (repeats - 1))
    between_variance = means.var() - within_variance / repeats
    assert result.success
    assert result.names == ("level", "sigma(x)", "omega(level)")
    estimates = result.values
    np.testing.assert_allclose(estimates["level"], values.mean(), rtol=1e-5)
    np.testing.assert_allclose(
        [estimates["sigma(x)"], estimates["omega(level)"]], np.sqrt([within_variance, between_variance]), rtol=1e-4
    )
    covariance = within_variance * np.eye(repeats) + between_variance
    log_density = multivariate_normal.logpdf(values, np.full(repeats, values.mean()), covariance).sum()
    np.testing.assert_allclose(result.neg2loglik, -2.0 * log_density, rtol=1e-9)
    # Standard errors from the information of the same density, by hand.
    total = within_variance + repeats * between_variance
    np.testing.assert_allclose(result.standard_errors["level"], np.sqrt(total / (n * repeats)), rtol=1e-3)
    variance_of_within = 2.0 * within_variance**2 / (n * (repeats - 1))
    np.testing.assert_allclose(
        result.standard_errors["sigma(x)"], np.sqrt(variance_of_within) / (2 * np.sqrt(within_variance)), rtol=1e-2
    )
    # The sandwich of the same density, by differences.
    scores, information = scores_and_information(values, np.array([estimates[name] for name in result.names]))
    bread = np.linalg.inv(information)
    sandwich = np.sqrt(np.diag(bread @ (scores.T @ scores) @ bread))
    np.testing.assert_allclose(list(result.robust_standard_errors.values()), sandwich, rtol=2e-3)
    assert not np.allclose(sandwich, list(result.standard_errors.values()), rtol=0.05)
    # The best linear unbiased predictions and their shrinkage.
    share = repeats * between_variance / total
    individual_levels = [result.individuals[f"experiment {i + 1}"].parameters["level"] for i in range(n)]
    np.testing.assert_allclose(individual_levels, values.mean() + share * (means - values.mean()), rtol=1e-4)
    scatter = share * means.std(ddof=1)
    np.testing.assert_allclose(result.shrinkage["level"], 1 - scatter / estimates["omega(level)"], atol=1e-4)
    deviations = [f.deviations["level"] for f in result.individuals.values()]
    np.testing.assert_allclose(deviations, np.sqrt(between_variance * within_variance / total), rtol=1e-3)


def test_laplace_is_near_the_integral():
    rng = np.random.default_rng(5)
    model, animals, parameters = decays(6, rng)
    problem = cf.Problem(model, animals, parameters=parameters)
    question = compile_population(problem, cf.Population({"k": cf.Individual(omega=0.4)}))
    laplace = LaplaceApproximation(question, SimulatedCohort(question, cf.IntegratorOptions()))
    y = np.array([np.log(0.3), np.log(0.2), np.log(0.4)])
    evaluation = laplace.value(y, question.means(y)[0])
    times = np.array([0.5, 1.0, 2.0, 4.0])

    def exact(data):
        def density(eta):
            curve = 10 * np.exp(-0.3 * np.exp(eta) * times)
            return np.exp(norm.logpdf(data, curve, 0.2).sum()) * norm.pdf(eta, 0.0, 0.4)

        mode = minimize(lambda eta: -np.log(density(eta[0])), [0.0], method="Nelder-Mead").x[0]
        return -np.log(quad(density, mode - 1.0, mode + 1.0, points=[mode], limit=200)[0])

    expected = [exact(e.data["x"][1].ravel()) for e in animals]
    np.testing.assert_allclose(evaluation.parts, expected, atol=0.02)


@pytest.mark.parametrize("case", ["combined noise and covariate", "full covariance", "prior and normal"])
def test_gradients_are_exact(case):
    rng = np.random.default_rng(8)
    if case == "combined noise and covariate":
        _, a, b, k_pop, beta, weight = cf.symbols("x a b k_pop beta weight")
        weights = np.array([55.0, 80.0, 62.0, 95.0, 71.0])
        model, animals, parameters = decays(5, rng, weights=weights)
        animals = [e.with_changes(noise={"x": cf.Gaussian(sigma=a + b * cf.symbols("x"))}) for e in animals]
        parameters |= {"a": cf.Parameter(0.05, lower=0), "b": cf.Parameter(0.1, lower=0)}
        population = cf.Population(
            {"k": cf.Individual(k_pop * (weight / 70) ** beta, omega=0.5)},
            parameters={"k_pop": cf.Parameter(0.4, scale="log", lower=0), "beta": 0.5},
            covariates={"weight": weights},
        )
    elif case == "full covariance":
        model, animals, parameters = decays(5, rng, own_start=True)
        population = cf.Population({"k": cf.Individual(omega=0.4), "dose": cf.Individual(omega=0.2)}, correlated=True)
    else:
        model, animals, parameters = decays(5, rng, own_start=True)
        dose_pop = cf.symbols("dose_pop")
        prior = cf.Parameter(9.0, prior=cf.Normal(9.0, 0.5))
        population = cf.Population(
            {"k": cf.Individual(), "dose": cf.Individual(dose_pop, omega=1.0, distribution="normal")},
            parameters={"dose_pop": prior},
        )
    question = compile_population(cf.Problem(model, animals, parameters=parameters), population)
    laplace = LaplaceApproximation(question, SimulatedCohort(question, cf.IntegratorOptions()))
    y = question.guess + 0.1 * rng.standard_normal(question.n_y)
    evaluation = laplace.value(y, question.means(y)[0])
    gradient = laplace.scores(evaluation).gradient
    for j in range(y.size):
        step = np.zeros(y.size)
        step[j] = 2e-3 * max(abs(y[j]) if not question.log[j] else 1.0, 0.1)
        ends = [laplace.value(y + s * step, evaluation.modes.phi).value for s in (1, -1)]
        difference = (ends[0] - ends[1]) / (2 * step[j])
        np.testing.assert_allclose(gradient[j], difference, rtol=2e-4, atol=2e-4 * np.abs(gradient).max())


def test_mixed_effects_recovers_full_covariance_at_a_maximum():
    rng = np.random.default_rng(2)
    model, animals, parameters = decays(10, rng, own_start=True)
    problem = cf.Problem(model, animals, parameters=parameters)
    individuals = {"k": cf.Individual(omega=0.2), "dose": cf.Individual(omega=0.4)}
    full_result = cf.mixed_effects(problem, cf.Population(individuals, correlated=[("k", "dose")]))
    diagonal_result = cf.mixed_effects(problem, cf.Population(individuals), standard_errors=False)
    assert full_result.success
    assert "correlation(k, dose)" in full_result.names
    assert full_result.neg2loglik < diagonal_result.neg2loglik + 1e-6  # more freedom, no less likelihood
    correlation = full_result.omega[0, 1] / np.sqrt(full_result.omega[0, 0] * full_result.omega[1, 1])
    np.testing.assert_allclose(full_result.values["correlation(k, dose)"], correlation)
    low, high = full_result.confidence_intervals()["correlation(k, dose)"]
    assert -1 < low < correlation < high < 1
    # Nothing near is likelier.
    question = full_result.question
    laplace = LaplaceApproximation(question, SimulatedCohort(question, cf.IntegratorOptions()))
    for _ in range(4):
        y = full_result.y + 0.05 * rng.standard_normal(full_result.y.size)
        assert laplace.value(y, full_result.phi).value > 0.5 * full_result.neg2loglik


def test_units_do_not_matter():
    values = draw_levels(np.random.default_rng(4), n=6, repeats=3)
    normal = cf.Population({"level": cf.Individual(distribution="normal", omega=1.0)})
    one = cf.mixed_effects(levels(values), normal)
    small = cf.Population({"level": cf.Individual(distribution="normal", omega=1e-6)})
    other = cf.mixed_effects(levels(1e-6 * values, guess=5e-6), small)
    for name, value in one.values.items():
        np.testing.assert_allclose(other.values[name], 1e-6 * value, rtol=1e-4)
        np.testing.assert_allclose(other.standard_errors[name], 1e-6 * one.standard_errors[name], rtol=1e-2)
    np.testing.assert_allclose(other.neg2loglik, one.neg2loglik + 2 * values.size * np.log(1e-6), rtol=1e-8)


def test_omega_without_variation_is_at_its_bound():
    rng = np.random.default_rng(1)
    values = draw_levels(rng, n=8, repeats=6, omega=0.0)
    values -= values.mean(axis=1, keepdims=True) - values.mean()  # individual means agree
    result = cf.mixed_effects(levels(values), cf.Population({"level": cf.Individual(distribution="normal", omega=1.0)}))
    assert result.at_bounds == ("omega(level)",)
    assert result["omega(level)"].at_bound
    assert np.isnan(result.standard_errors["omega(level)"])
    np.testing.assert_allclose(result.standard_errors["level"], values.std() / np.sqrt(values.size), rtol=1e-2)
    assert "at its bound" in result.summary()
    assert len(result.names) == 3
    assert result.aic == pytest.approx(result.neg2loglik + 2 * 2)
    assert result.bic == pytest.approx(result.neg2loglik + 2 * np.log(values.size))


def test_an_individual_that_cannot_be_predicted_is_named():
    x, k = cf.symbols("x k")
    model = cf.Model({x: k * x**2}, parameters=[k], initial={})  # has a pole at 1 / (k x0)
    rng = np.random.default_rng(0)
    times, starts = np.array([0.5, 1.0, 1.5]), [0.5, 0.4, 0.6, 0.5, 50.0]
    animals = [
        cf.Experiment(
            {"x": a / (1 - 0.5 * np.exp(0.1 * rng.standard_normal()) * min(a, 1) * times)},
            times,
            sigma=0.02,
            initial={"x": a},
            name=f"animal {i}",
        )
        for i, a in enumerate(starts)
    ]
    result = cf.mixed_effects(
        cf.Problem(model, animals, parameters={"k": cf.Parameter(0.5, local=True)}),
        cf.Population({"k": cf.Individual(omega=0.1)}),
    )
    assert not result.success
    assert set(result.left_out) == {"animal 4"}
    assert "1 of 5 individuals" in result.message
    assert "animal 4" in result.message
    assert result.n_individuals == 4
    assert not result.individuals["animal 4"].success
    assert 0.3 < result.values["k"] < 0.7


def test_mixed_effects_resumed_after_callback_reaches_the_same_estimates(tmp_path):
    model, animals, parameters = decays(8, np.random.default_rng(6))
    problem = cf.Problem(model, animals, parameters=parameters)
    population = cf.Population({"k": cf.Individual(omega=0.2)})
    full_result = cf.mixed_effects(problem, population)
    file = tmp_path / "run.jsonl"
    stopped_result = cf.mixed_effects(
        problem, population, checkpoint=file, callback=lambda iteration: iteration.iteration == 2
    )
    assert stopped_result.status is cf.Status.STOPPED_BY_CALLBACK
    assert not stopped_result.success
    assert np.isnan(stopped_result.standard_errors["k"])
    assert stopped_result.iterations == 2
    resumed_result = cf.mixed_effects(problem, population, checkpoint=file, resume=True)
    assert resumed_result.success
    assert resumed_result.history[0] <= stopped_result.history[-1] + 1e-6
    for name, value in full_result.values.items():
        np.testing.assert_allclose(resumed_result.values[name], value, rtol=1e-4)
    with pytest.raises(cf.InputError, match="differs from this run in the population"):
        cf.mixed_effects(problem, cf.Population({"k": cf.Individual(omega=0.3)}), checkpoint=file, resume=True)
    late_result = cf.mixed_effects(problem, population, max_time=1e-3)
    assert late_result.status is cf.Status.MAX_TIME
    assert late_result.message.startswith("The time limit")


def test_theophylline_at_the_estimates_of_nlme():
    """R 4.2, nlme 3.1-162: its log-likelihood and its individual values, at its estimates."""
    benchmark = cf.problems.load("theophylline")
    start = {"ka": np.exp(0.465737), "CL": np.exp(-3.227223), "ke": np.exp(-2.454705)}
    start |= {"sigma(conc)": 0.70925455, "omega(ka)": 0.64357366, "omega(CL)": 0.16692823}
    result = cf.mixed_effects(benchmark.problem, benchmark.population, start=start, max_iter=0)
    assert result.status is cf.Status.MAX_ITERATIONS
    np.testing.assert_allclose(-0.5 * result.neg2loglik, -177.0214092, atol=2e-3)
    etas = [f.eta for f in result.individuals.values()]
    of_ka = [-0.11925847, 0.28380757, 0.36481832, -0.27857497, -0.06587589, -0.23164674]
    of_cl = [-0.35424940, 0.01090200, 0.02721889, -0.06385611, 0.07299299, 0.14958984]
    np.testing.assert_allclose([eta["ka"] for eta in etas[:6]], of_ka, atol=2e-4)
    np.testing.assert_allclose([eta["CL"] for eta in etas[:6]], of_cl, atol=2e-4)


def test_individual_fits_for_a_known_population():
    model, animals, parameters = decays(5, np.random.default_rng(7))
    problem = cf.Problem(model, animals, parameters=parameters)
    start = {"k": 0.3, "sigma(x)": 0.2, "omega(k)": 0.4}
    result = cf.mixed_effects(problem, cf.Population({"k": cf.Individual()}), start=start, max_iter=0)
    assert result.values == pytest.approx(start)
    times = np.array([0.5, 1.0, 2.0, 4.0])
    for e in animals:
        data = e.data["x"][1].ravel()

        def cost(eta, data=data):
            return 0.5 * (((data - 10 * np.exp(-0.3 * np.exp(eta[0]) * times)) / 0.2) ** 2).sum() + eta[0] ** 2 / 0.32

        eta = minimize(cost, [0.0], tol=1e-10).x[0]
        name = next(n for n, experiment in zip(result.individuals, animals, strict=True) if experiment is e)
        np.testing.assert_allclose(result.individuals[name].eta["k"], eta, atol=1e-5)


def test_tables_predictions_and_pictures():
    model, animals, parameters = decays(4, np.random.default_rng(9))
    problem = cf.Problem(model, animals, parameters=parameters)
    result = cf.mixed_effects(problem, cf.Population({"k": cf.Individual(0.4)}))
    table = result.table
    assert {len(column) for column in table.values()} == {16}
    times = table["time"]
    typical = 10 * np.exp(-result.values["k"] * times)
    np.testing.assert_allclose(table["population"], typical, rtol=1e-6)
    individual_rates = np.repeat([f.parameters["k"] for f in result.individuals.values()], 4)
    np.testing.assert_allclose(table["individual"], 10 * np.exp(-individual_rates * times), rtol=1e-6)
    residual = (table["value"] - table["individual"]) / result.values["sigma(x)"]
    np.testing.assert_allclose(table["residual"], residual, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(result.residual_shrinkage, 1 - residual.std(ddof=1), rtol=1e-6)
    predictions = result.predict([0.0, 3.0], individuals="experiment 2")
    k2 = result.individuals["experiment 2"].parameters["k"]
    np.testing.assert_allclose(predictions["experiment 2"]["x"], 10 * np.exp(-k2 * np.array([0, 3])), rtol=1e-6)
    assert len(result.individual_table["individual"]) == 4
    assert len(result.plot().axes) == 4
    assert result["k"].interval[0] < result["k"].value < result["k"].interval[1]
    assert "omega(k)" in str(result)
    n = np.log(2 * np.pi) * 16
    np.testing.assert_allclose(result.objective_nonmem, result.neg2loglik - n)
    with pytest.raises(cf.InputError, match="is no individual"):
        result.predict(individuals="nobody")


def test_mixed_effects_with_inconsistent_population_raises():
    model, animals, parameters = decays(3, np.random.default_rng(0))
    problem = cf.Problem(model, animals, parameters=parameters)
    weight, k_pop = cf.symbols("weight k_pop")
    with pytest.raises(cf.InputError, match="is not a local parameter: did you mean 'k'"):
        cf.mixed_effects(problem, cf.Population({"K": cf.Individual()}))
    with pytest.raises(cf.InputError, match="contains the unknown name 'weight'"):
        cf.mixed_effects(problem, cf.Population({"k": cf.Individual(k_pop * weight)}, parameters={"k_pop": 1.0}))
    with pytest.raises(cf.InputError, match="missing for 'experiment 2'"):
        cf.mixed_effects(
            problem, cf.Population({"k": cf.Individual(weight / 100)}, covariates={"weight": [70.0, np.nan, 60.0]})
        )
    with pytest.raises(cf.InputError, match="not a positive number"):
        cf.mixed_effects(
            problem, cf.Population({"k": cf.Individual(weight)}, covariates={"weight": [70.0, -1.0, 60.0]})
        )
    two_local_problem = cf.Problem(model, animals, parameters=parameters | {"dose": cf.Parameter(10.0, local=True)})
    with pytest.raises(cf.InputError, match="has no distribution"):
        cf.mixed_effects(two_local_problem, cf.Population({"k": cf.Individual()}))
    single_problem = cf.Problem(model, animals[:1], parameters=parameters)
    with pytest.raises(cf.InputError, match="at least two"):
        cf.mixed_effects(single_problem, cf.Population({"k": cf.Individual()}))
    prior = parameters | {"k": cf.Parameter(0.5, local=True, prior=cf.Normal(0.5, 0.1))}
    informed_problem = cf.Problem(model, animals, parameters=prior)
    with pytest.raises(cf.InputError, match="has a prior; remove it"):
        cf.mixed_effects(informed_problem, cf.Population({"k": cf.Individual()}))
    _, known_sigma_experiments, _ = decays(3, np.random.default_rng(0), noise=0.1)
    robust_problem = cf.Problem(model, known_sigma_experiments, parameters=parameters).robust("cauchy")
    with pytest.raises(cf.InputError, match="with f_scale up to 1 is no likelihood"):
        cf.mixed_effects(robust_problem, cf.Population({"k": cf.Individual()}))
    with pytest.raises(cf.InputError, match=r"(?s)omega is -1.*distribution is 'gamma'"):
        cf.Individual(omega=-1, distribution="gamma")
    with pytest.raises(cf.InputError, match="correlated names 'V'"):
        cf.Population({"k": cf.Individual()}, correlated=[("k", "V")])
    with pytest.raises(cf.InputError, match=r"'omega\(V\)' cannot be started"):
        cf.mixed_effects(problem, cf.Population({"k": cf.Individual()}), start={"omega(V)": 1.0})


def test_covariances_have_coordinates():
    rng = np.random.default_rng(0)
    covariance = Covariance(("a", "b", "c"), ((0, 2), (1,)))
    x = rng.standard_normal(covariance.size)
    matrix = covariance.matrix(x)
    assert matrix[0, 1] == matrix[1, 2] == 0.0
    np.testing.assert_allclose(covariance.coordinates(matrix), x)
    values, slopes = covariance.report(x)
    np.testing.assert_allclose(values[:3], np.sqrt(np.diag(matrix)))
    for j in range(x.size):
        step = np.zeros(x.size)
        step[j] = 1e-6
        d_matrix = (covariance.matrix(x + step) - covariance.matrix(x - step)) / 2e-6
        np.testing.assert_allclose(covariance.slopes(x)[..., j], d_matrix, atol=1e-8)
        d_values = (covariance.report(x + step)[0] - covariance.report(x - step)[0]) / 2e-6
        np.testing.assert_allclose(slopes[:, j], d_values, atol=1e-8)


def mixed_cohort(rng):
    """Individuals that are measured alike, differently, with two outputs, below a limit, and after a second dose."""
    gut, blood, ka, k, V, a, b = cf.symbols("gut blood ka k V a b")
    concentration = blood / V
    model = cf.Model(
        {gut: -ka * gut, blood: ka * gut - k * blood},
        parameters=[ka, k, V],
        outputs={"conc": concentration, "left": gut},
        initial={gut: 10.0, blood: 0.0},
    )
    times = np.array([0.0, 0.5, 1.0, 2.0, 4.0])

    def one(i):
        measurement_times = times if i < 3 else times[: 5 if i < 6 else 4] + 0.1 * i
        conc = np.maximum(
            2.0 * np.exp(-0.3 * measurement_times) + 0.1 * rng.standard_normal(measurement_times.size), 0.2
        )
        noise = {"conc": cf.Gaussian(sigma=a + b * cf.symbols("conc"), below=0.2), "left": cf.LogNormal(sigma=0.3)}
        data = {"conc": conc, "left": 10 * np.exp(-0.9 * measurement_times)} if i % 2 else {"conc": conc}
        return cf.Experiment(
            data,
            measurement_times,
            noise={n: noise[n] for n in data},
            initial={"gut": 10.0 + i, "blood": 0.1 * V},
            events=[cf.Doses("gut", amount=5.0, times=[1.5])] if i == 5 else (),
        )

    local_parameters = {n: cf.Parameter(v, local=True) for n, v in {"ka": 1.0, "k": 0.3}.items()}
    shared_parameters = {"V": cf.Parameter(3.0, scale="log"), "a": cf.Parameter(0.05, lower=0), "b": 0.1}
    problem = cf.Problem(model, [one(i) for i in range(7)], parameters={**local_parameters, **shared_parameters})
    population = cf.Population({"ka": cf.Individual(), "k": cf.Individual(distribution="normal", omega=0.1)})
    return compile_population(problem, population)


@pytest.mark.parametrize("method", ["cvodes", "esdirk"])
def test_batched_cohort_agrees_with_single_individuals(method):
    if method == "esdirk" and missing_integrator_reason():
        pytest.skip(missing_integrator_reason())
    rng = np.random.default_rng(0)
    question = mixed_cohort(rng)
    options = cf.IntegratorOptions(method=method)
    single_cohort, joint_cohort = SimulatedCohort(question, options), build_cohort(question, options)
    assert not isinstance(joint_cohort, BatchedCohort)  # one has a second dose
    phi = question.problem.guess[question.places] + 0.1 * rng.standard_normal((7, 2))
    s = question.problem.guess[question.shared]
    for indices in (np.arange(7), np.array([1, 5, 6])):
        expected, actual = (cohort.curved(phi[indices], s, indices) for cohort in (single_cohort, joint_cohort))
        np.testing.assert_allclose(actual.cost, expected.cost, rtol=1e-6)
        size = np.abs(expected.gradient).max()
        np.testing.assert_allclose(actual.gradient, expected.gradient, rtol=1e-5, atol=1e-6 * size)
        size = np.abs(expected.curvature).max()
        np.testing.assert_allclose(actual.curvature, expected.curvature, rtol=1e-5, atol=1e-6 * size)
    for expected, actual in zip(single_cohort.evaluate_data(phi, s), joint_cohort.evaluate_data(phi, s), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-8)


def test_mixed_effects_with_threads_gives_the_same_numbers():
    model, animals, parameters = decays(40, np.random.default_rng(3))
    problem = cf.Problem(model, animals, parameters=parameters)
    population = cf.Population({"k": cf.Individual()})
    results = [cf.mixed_effects(problem, population, max_iter=2, standard_errors=False, workers=n) for n in (1, 2)]
    np.testing.assert_array_equal(results[0].y, results[1].y)
    np.testing.assert_array_equal(results[0].phi, results[1].phi)
    assert results[0].history == results[1].history
    with pytest.raises(cf.InputError, match="workers is 0"):
        cf.mixed_effects(problem, population, workers=0)


@pytest.mark.parametrize("method", ["esdirk", "cvodes"])
def test_mixed_effects_with_workers_gives_the_same_numbers(method):
    """Individuals that are alike are held by workers, those with doses on the way have their lanes divided."""
    if method == "esdirk" and missing_integrator_reason():
        pytest.skip(missing_integrator_reason())
    rng = np.random.default_rng(0)
    question, options = mixed_cohort(rng), cf.IntegratorOptions(method=method)
    phi = question.problem.guess[question.places] + 0.1 * rng.standard_normal((7, 2))
    s = question.problem.guess[question.shared]
    local_cohort = build_cohort(question, options)
    with ThreadPoolExecutor(2) if method == "esdirk" else nullcontext(2) as workers, lanes_divided(workers):
        worker_cohort = build_cohort(question, options)
        for indices in (np.arange(7), np.array([1, 5, 6])):
            expected, actual = (cohort.curved(phi[indices], s, indices) for cohort in (local_cohort, worker_cohort))
            for name in ("cost", "gradient", "curvature"):
                np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name))
        for expected, actual in zip(
            local_cohort.evaluate_data(phi, s), worker_cohort.evaluate_data(phi, s), strict=True
        ):
            np.testing.assert_array_equal(actual, expected)


def test_saved_and_pickled_results_are_equal(tmp_path):
    """Also with a typical value that is an expression, with an individual that is left out, and after pickling."""
    typical, weight, x, k = cf.symbols("typical weight x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 1.0})
    times = np.array([0.5, 1.0, 2.0, 4.0])
    animals = [
        cf.Experiment({"x": np.exp(-rate * times)}, times, sigma=0.05, name=f"animal {i}")
        for i, rate in enumerate([0.3, 0.4, 0.55, 0.7])
    ]
    problem = cf.Problem(model, animals, parameters={"k": cf.Parameter(0.5, local=True)})
    population = cf.Population(
        {"k": cf.Individual(typical * weight**0.1)},
        parameters={"typical": 0.5},
        covariates={"weight": [1.0, 2.0, 3.0, 4.0]},
    )
    result = cf.mixed_effects(problem, population)
    copy = pickle.loads(pickle.dumps(result))
    result.save(tmp_path / "population.json")
    copy.save(tmp_path / "copy.json")
    assert (tmp_path / "copy.json").read_bytes() == (tmp_path / "population.json").read_bytes()
    loaded = cf.MixedEffectsResult.load(tmp_path / "population.json", problem, population)
    for other in (copy, loaded):
        assert other.summary() == result.summary()
        assert other.values == result.values
        assert other.predict([1.0, 3.0])["animal 1"]["x"] == pytest.approx(result.predict([1.0, 3.0])["animal 1"]["x"])
    frame = loaded.to_frame()
    assert frame.loc["typical", "estimate"] == result.values["typical"]
    assert tuple(frame.loc["typical", ["lower", "upper"]]) == result["typical"].interval
    assert "animal 3" in loaded.report(tmp_path / "population.html").read_text(encoding="utf-8")
    other_population = cf.Population({"k": cf.Individual()})
    other_data = problem.replace(experiments=[a.with_values({"x": 1.1 * a.data["x"][1]}) for a in animals])
    with refused("the population differs from the saved one"):
        cf.MixedEffectsResult.load(tmp_path / "population.json", problem, other_population)
    with refused("the problem differs from the saved one"):
        cf.MixedEffectsResult.load(tmp_path / "population.json", other_data, population)
