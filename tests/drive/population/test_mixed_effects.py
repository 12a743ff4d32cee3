"""Mixed effects: against closed forms, quadrature, differences; what goes wrong is said; what was found is kept."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.stats import multivariate_normal, norm

import castfit as cf
from castfit.drive.population.batched import BatchedCohort
from castfit.drive.population.compiled import ask
from castfit.drive.population.covariance import Covariance
from castfit.drive.population.distributed import cohort_of
from castfit.drive.population.laplace import LaplaceApproximation
from castfit.drive.population.likelihoods import SimulatedCohort
from castfit.integrate.distributed import lanes_divided
from castfit.integrate.esdirk_binding import obstacle


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
    given = cf.Parameter(10.0, local=True) if own_start else cf.Parameter(10.0, fixed=True)
    parameters = {"k": cf.Parameter(0.5, local=True), "dose": given}
    return model, [cf.Experiment({"x": y}, times, sigma=spread) for y in data], parameters


def scores_and_information(values, at):
    """Return the slopes of each individual's log density by mean, sigma and omega (n, 3), and minus its curvature."""
    repeats = values.shape[1]
    step = 1e-4 * at

    def log_densities(moved):
        mean, sigma, omega = at + step * moved
        covariance = sigma**2 * np.eye(repeats) + omega**2
        return multivariate_normal.logpdf(values, np.full(repeats, mean), covariance)

    unit = np.eye(3)
    scores = np.stack([(log_densities(e) - log_densities(-e)) / (2 * h) for e, h in zip(unit, step, strict=True)], 1)
    corners = [[(a + b, a - b, b - a, -a - b) for b in unit] for a in unit]
    sums = np.array([[[log_densities(c).sum() for c in own] for own in row] for row in corners])
    return scores, -(sums @ [1, -1, -1, 1]) / (4 * np.outer(step, step))


def test_a_linear_model_has_its_closed_form():
    values = draw_levels(np.random.default_rng(3))
    n, repeats = values.shape
    result = cf.mixed_effects(levels(values), cf.Population({"level": cf.Individual(distribution="normal", omega=1.0)}))
    means = values.mean(axis=1)
    within = ((values - means[:, None]) ** 2).sum() / (n * (repeats - 1))
    between = means.var() - within / repeats
    assert result.success
    assert result.names == ("level", "sigma(x)", "omega(level)")
    found = result.values
    np.testing.assert_allclose(found["level"], values.mean(), rtol=1e-5)
    np.testing.assert_allclose([found["sigma(x)"], found["omega(level)"]], np.sqrt([within, between]), rtol=1e-4)
    covariance = within * np.eye(repeats) + between
    log_density = multivariate_normal.logpdf(values, np.full(repeats, values.mean()), covariance).sum()
    np.testing.assert_allclose(result.neg2loglik, -2.0 * log_density, rtol=1e-9)
    # Standard errors from the information of the same density, by hand.
    total = within + repeats * between
    np.testing.assert_allclose(result.standard_errors["level"], np.sqrt(total / (n * repeats)), rtol=1e-3)
    variance_of_within = 2.0 * within**2 / (n * (repeats - 1))
    np.testing.assert_allclose(
        result.standard_errors["sigma(x)"], np.sqrt(variance_of_within) / (2 * np.sqrt(within)), rtol=1e-2
    )
    # The sandwich of the same density, by differences.
    scores, information = scores_and_information(values, np.array([found[name] for name in result.names]))
    bread = np.linalg.inv(information)
    sandwich = np.sqrt(np.diag(bread @ (scores.T @ scores) @ bread))
    np.testing.assert_allclose(list(result.robust_standard_errors.values()), sandwich, rtol=2e-3)
    assert not np.allclose(sandwich, list(result.standard_errors.values()), rtol=0.05)
    # The best linear unbiased predictions and their shrinkage.
    share = repeats * between / total
    own = [result.individuals[f"experiment {i + 1}"].parameters["level"] for i in range(n)]
    np.testing.assert_allclose(own, values.mean() + share * (means - values.mean()), rtol=1e-4)
    scatter = share * means.std(ddof=1)
    np.testing.assert_allclose(result.shrinkage["level"], 1 - scatter / found["omega(level)"], atol=1e-4)
    deviations = [f.deviations["level"] for f in result.individuals.values()]
    np.testing.assert_allclose(deviations, np.sqrt(between * within / total), rtol=1e-3)


def test_laplace_is_near_the_integral():
    rng = np.random.default_rng(5)
    model, animals, parameters = decays(6, rng)
    problem = cf.Problem(model, animals, parameters=parameters)
    question = ask(problem, cf.Population({"k": cf.Individual(omega=0.4)}))
    laplace = LaplaceApproximation(question, SimulatedCohort(question, cf.IntegratorOptions()))
    y = np.array([np.log(0.3), np.log(0.2), np.log(0.4)])
    at = laplace.value(y, question.means(y)[0])
    times = np.array([0.5, 1.0, 2.0, 4.0])

    def exact(data):
        def density(eta):
            curve = 10 * np.exp(-0.3 * np.exp(eta) * times)
            return np.exp(norm.logpdf(data, curve, 0.2).sum()) * norm.pdf(eta, 0.0, 0.4)

        mode = minimize(lambda eta: -np.log(density(eta[0])), [0.0], method="Nelder-Mead").x[0]
        return -np.log(quad(density, mode - 1.0, mode + 1.0, points=[mode], limit=200)[0])

    found = [exact(e.data["x"][1].ravel()) for e in animals]
    np.testing.assert_allclose(at.parts, found, atol=0.02)


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
    question = ask(cf.Problem(model, animals, parameters=parameters), population)
    laplace = LaplaceApproximation(question, SimulatedCohort(question, cf.IntegratorOptions()))
    y = question.guess + 0.1 * rng.standard_normal(question.n_y)
    at = laplace.value(y, question.means(y)[0])
    gradient = laplace.scores(at).gradient
    for j in range(y.size):
        step = np.zeros(y.size)
        step[j] = 2e-3 * max(abs(y[j]) if not question.log[j] else 1.0, 0.1)
        ends = [laplace.value(y + s * step, at.modes.phi).value for s in (1, -1)]
        difference = (ends[0] - ends[1]) / (2 * step[j])
        np.testing.assert_allclose(gradient[j], difference, rtol=2e-4, atol=2e-4 * np.abs(gradient).max())


def test_the_maximum_is_one_and_full_covariance_is_found():
    rng = np.random.default_rng(2)
    model, animals, parameters = decays(10, rng, own_start=True)
    problem = cf.Problem(model, animals, parameters=parameters)
    own = {"k": cf.Individual(omega=0.2), "dose": cf.Individual(omega=0.4)}
    full = cf.mixed_effects(problem, cf.Population(own, correlated=[("k", "dose")]))
    plain = cf.mixed_effects(problem, cf.Population(own), standard_errors=False)
    assert full.success
    assert "correlation(k, dose)" in full.names
    assert full.neg2loglik < plain.neg2loglik + 1e-6  # more freedom, no less likelihood
    correlation = full.omega[0, 1] / np.sqrt(full.omega[0, 0] * full.omega[1, 1])
    np.testing.assert_allclose(full.values["correlation(k, dose)"], correlation)
    low, high = full.confidence_intervals()["correlation(k, dose)"]
    assert -1 < low < correlation < high < 1
    # Nothing near is likelier.
    question = full.question
    laplace = LaplaceApproximation(question, SimulatedCohort(question, cf.IntegratorOptions()))
    for _ in range(4):
        y = full.y + 0.05 * rng.standard_normal(full.y.size)
        assert laplace.value(y, full.phi).value > 0.5 * full.neg2loglik


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


def test_no_variation_is_seen_where_there_is_none():
    rng = np.random.default_rng(1)
    values = draw_levels(rng, n=8, repeats=6, omega=0.0)
    values -= values.mean(axis=1, keepdims=True) - values.mean()  # individual means agree
    result = cf.mixed_effects(levels(values), cf.Population({"level": cf.Individual(distribution="normal", omega=1.0)}))
    assert result.at_bounds == ("omega(level)",)
    assert result["omega(level)"].at_bound
    assert np.isnan(result.standard_errors["omega(level)"])
    np.testing.assert_allclose(result.standard_errors["level"], values.std() / np.sqrt(values.size), rtol=1e-2)
    assert "at its bound" in result.summary()


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


def test_a_run_is_stopped_and_goes_on(tmp_path):
    model, animals, parameters = decays(8, np.random.default_rng(6))
    problem = cf.Problem(model, animals, parameters=parameters)
    population = cf.Population({"k": cf.Individual(omega=0.2)})
    whole = cf.mixed_effects(problem, population)
    file = tmp_path / "run.jsonl"
    stopped = cf.mixed_effects(problem, population, checkpoint=file, callback=lambda now: now.iteration == 2)
    assert stopped.status is cf.Status.STOPPED_BY_CALLBACK
    assert not stopped.success
    assert np.isnan(stopped.standard_errors["k"])
    assert stopped.iterations == 2
    again = cf.mixed_effects(problem, population, checkpoint=file, resume=True)
    assert again.success
    assert again.history[0] <= stopped.history[-1] + 1e-6
    for name, value in whole.values.items():
        np.testing.assert_allclose(again.values[name], value, rtol=1e-4)
    with pytest.raises(cf.InputError, match="was written for another population"):
        cf.mixed_effects(problem, cf.Population({"k": cf.Individual(omega=0.3)}), checkpoint=file, resume=True)
    late = cf.mixed_effects(problem, population, max_time=1e-3)
    assert late.status is cf.Status.MAX_TIME
    assert late.message.startswith("The time limit")


def test_theophylline_at_the_estimates_of_nlme():
    """R 4.2, nlme 3.1-162: its log-likelihood and its individual values, at its estimates."""
    benchmark = cf.problems.load("theophylline")
    start = {"ka": np.exp(0.465737), "CL": np.exp(-3.227223), "ke": np.exp(-2.454705)}
    start |= {"sigma(conc)": 0.70925455, "omega(ka)": 0.64357366, "omega(CL)": 0.16692823}
    result = cf.mixed_effects(benchmark.problem, benchmark.population, start=start, max_iter=0)
    assert result.status is cf.Status.MAX_ITERATIONS
    np.testing.assert_allclose(-0.5 * result.neg2loglik, -177.0214092, atol=2e-3)
    found = [f.eta for f in result.individuals.values()]
    of_ka = [-0.11925847, 0.28380757, 0.36481832, -0.27857497, -0.06587589, -0.23164674]
    of_cl = [-0.35424940, 0.01090200, 0.02721889, -0.06385611, 0.07299299, 0.14958984]
    np.testing.assert_allclose([eta["ka"] for eta in found[:6]], of_ka, atol=2e-4)
    np.testing.assert_allclose([eta["CL"] for eta in found[:6]], of_cl, atol=2e-4)


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
        name = next(n for n, own in zip(result.individuals, animals, strict=True) if own is e)
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
    own = np.repeat([f.parameters["k"] for f in result.individuals.values()], 4)
    np.testing.assert_allclose(table["individual"], 10 * np.exp(-own * times), rtol=1e-6)
    residual = (table["individual"] - table["value"]) / result.values["sigma(x)"]
    np.testing.assert_allclose(table["residual"], residual, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(result.residual_shrinkage, 1 - residual.std(ddof=1), rtol=1e-6)
    found = result.predict([0.0, 3.0], individuals="experiment 2")
    k2 = result.individuals["experiment 2"].parameters["k"]
    np.testing.assert_allclose(found["experiment 2"]["x"], 10 * np.exp(-k2 * np.array([0, 3])), rtol=1e-6)
    assert len(result.individual_table["individual"]) == 4
    assert len(result.plot().axes) == 4
    assert result["k"].interval[0] < result["k"].value < result["k"].interval[1]
    assert "omega(k)" in str(result)
    n = np.log(2 * np.pi) * 16
    np.testing.assert_allclose(result.objective_nonmem, result.neg2loglik - n)
    with pytest.raises(cf.InputError, match="is no individual"):
        result.predict(individuals="nobody")


def test_what_does_not_fit_is_listed():
    model, animals, parameters = decays(3, np.random.default_rng(0))
    problem = cf.Problem(model, animals, parameters=parameters)
    weight, k_pop = cf.symbols("weight k_pop")
    with pytest.raises(cf.InputError, match="is no own parameter: did you mean 'k'"):
        cf.mixed_effects(problem, cf.Population({"K": cf.Individual()}))
    with pytest.raises(cf.InputError, match="contains 'weight', which is unknown"):
        cf.mixed_effects(problem, cf.Population({"k": cf.Individual(k_pop * weight)}, parameters={"k_pop": 1.0}))
    with pytest.raises(cf.InputError, match="not known of 'experiment 2'"):
        cf.mixed_effects(
            problem, cf.Population({"k": cf.Individual(weight / 100)}, covariates={"weight": [70.0, np.nan, 60.0]})
        )
    with pytest.raises(cf.InputError, match="no positive number"):
        cf.mixed_effects(
            problem, cf.Population({"k": cf.Individual(weight)}, covariates={"weight": [70.0, -1.0, 60.0]})
        )
    both = cf.Problem(model, animals, parameters=parameters | {"dose": cf.Parameter(10.0, local=True)})
    with pytest.raises(cf.InputError, match="has no distribution"):
        cf.mixed_effects(both, cf.Population({"k": cf.Individual()}))
    alone = cf.Problem(model, animals[:1], parameters=parameters)
    with pytest.raises(cf.InputError, match="at least two"):
        cf.mixed_effects(alone, cf.Population({"k": cf.Individual()}))
    prior = parameters | {"k": cf.Parameter(0.5, local=True, prior=cf.Normal(0.5, 0.1))}
    informed = cf.Problem(model, animals, parameters=prior)
    with pytest.raises(cf.InputError, match="has a prior; its population is the prior"):
        cf.mixed_effects(informed, cf.Population({"k": cf.Individual()}))
    _, known, _ = decays(3, np.random.default_rng(0), noise=0.1)
    lossy = cf.Problem(model, known, parameters=parameters).robust("cauchy")
    with pytest.raises(cf.InputError, match="with f_scale up to 1 is no likelihood"):
        cf.mixed_effects(lossy, cf.Population({"k": cf.Individual()}))
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
        at = times if i < 3 else times[: 5 if i < 6 else 4] + 0.1 * i
        conc = np.maximum(2.0 * np.exp(-0.3 * at) + 0.1 * rng.standard_normal(at.size), 0.2)
        noise = {"conc": cf.Gaussian(sigma=a + b * cf.symbols("conc"), below=0.2), "left": cf.LogNormal(sigma=0.3)}
        data = {"conc": conc, "left": 10 * np.exp(-0.9 * at)} if i % 2 else {"conc": conc}
        return cf.Experiment(
            data,
            at,
            noise={n: noise[n] for n in data},
            initial={"gut": 10.0 + i, "blood": 0.1 * V},
            events=[cf.Doses("gut", amount=5.0, times=[1.5])] if i == 5 else (),
        )

    own = {n: cf.Parameter(v, local=True) for n, v in {"ka": 1.0, "k": 0.3}.items()}
    shared = {"V": cf.Parameter(3.0, scale="log"), "a": cf.Parameter(0.05, lower=0), "b": 0.1}
    problem = cf.Problem(model, [one(i) for i in range(7)], parameters={**own, **shared})
    population = cf.Population({"ka": cf.Individual(), "k": cf.Individual(distribution="normal", omega=0.1)})
    return ask(problem, population)


@pytest.mark.parametrize("method", ["cvodes", "esdirk"])
def test_blocks_of_individuals_cost_what_each_does_alone(method):
    if method == "esdirk" and obstacle():
        pytest.skip(obstacle())
    rng = np.random.default_rng(0)
    question = mixed_cohort(rng)
    options = cf.IntegratorOptions(method=method)
    alone, together = SimulatedCohort(question, options), cohort_of(question, options)
    assert not isinstance(together, BatchedCohort)  # one has a second dose
    phi = question.problem.guess[question.places] + 0.1 * rng.standard_normal((7, 2))
    s = question.problem.guess[question.shared]
    for who in (np.arange(7), np.array([1, 5, 6])):
        one, other = (cohort.curved(phi[who], s, who) for cohort in (alone, together))
        np.testing.assert_allclose(other.cost, one.cost, rtol=1e-6)
        size = np.abs(one.gradient).max()
        np.testing.assert_allclose(other.gradient, one.gradient, rtol=1e-5, atol=1e-6 * size)
        size = np.abs(one.curvature).max()
        np.testing.assert_allclose(other.curvature, one.curvature, rtol=1e-5, atol=1e-6 * size)
    for one, other in zip(alone.seen(phi, s), together.seen(phi, s), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-8)


def test_threads_change_nothing():
    model, animals, parameters = decays(40, np.random.default_rng(3))
    problem = cf.Problem(model, animals, parameters=parameters)
    population = cf.Population({"k": cf.Individual()})
    found = [cf.mixed_effects(problem, population, max_iter=2, standard_errors=False, workers=n) for n in (1, 2)]
    np.testing.assert_array_equal(found[0].y, found[1].y)
    np.testing.assert_array_equal(found[0].phi, found[1].phi)
    assert found[0].history == found[1].history
    with pytest.raises(cf.InputError, match="workers is 0; give a number of processes or"):
        cf.mixed_effects(problem, population, workers=0)


@pytest.mark.parametrize("method", ["esdirk", "cvodes"])
def test_workers_that_hold_individuals_change_nothing(method):
    """Individuals that are alike are held by workers, those with doses on the way have their lanes divided."""
    if method == "esdirk" and obstacle():
        pytest.skip(obstacle())
    rng = np.random.default_rng(0)
    question, options = mixed_cohort(rng), cf.IntegratorOptions(method=method)
    phi = question.problem.guess[question.places] + 0.1 * rng.standard_normal((7, 2))
    s = question.problem.guess[question.shared]
    here = cohort_of(question, options)
    with ThreadPoolExecutor(2) if method == "esdirk" else nullcontext(2) as workers, lanes_divided(workers):
        there = cohort_of(question, options)
        for who in (np.arange(7), np.array([1, 5, 6])):
            one, other = (cohort.curved(phi[who], s, who) for cohort in (here, there))
            for name in ("cost", "gradient", "curvature"):
                np.testing.assert_array_equal(getattr(other, name), getattr(one, name))
        for one, other in zip(here.seen(phi, s), there.seen(phi, s), strict=True):
            np.testing.assert_array_equal(other, one)
