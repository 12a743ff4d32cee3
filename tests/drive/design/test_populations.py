"""Designs of populations: PopED's warfarin, exact information of linear models, schedules, and refusals."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest

import castfit as cf
from castfit.drive.design import populations

TIMES = np.array([0.5, 1, 2, 6, 24, 36, 72, 120])
OMEGA = {"CL": 0.07**0.5, "V": 0.02**0.5, "ka": 0.6**0.5}
# PopED's vignette "intro-poped": 32 subjects, 8 times; relative standard errors in %, of variances
POPED = {
    "CL": 5.096246, "V": 3.031164, "ka": 14.260384, "omega(CL)": 29.761226, "omega(V)": 36.681388,
    "omega(ka)": 26.748640, "b": 32.011719, "a": 25.637971,
}  # fmt: skip


@cache
def warfarin(sigma="combined"):
    """One dose by mouth of 70 mg, clearance, volume and absorption differ between subjects."""
    gut, blood, conc, CL, V, ka, a, b = cf.symbols("gut blood conc CL V ka a b")
    rates = {gut: -ka * gut, blood: ka * gut - CL / V * blood}
    model = cf.Model(rates, parameters=[CL, V, ka], outputs={"conc": blood / V}, initial={gut: 70.0, blood: 0.0})
    spread = {"combined": {"conc": cf.sqrt(a**2 + (b * conc) ** 2)}, "unknown": None, "known": 0.5}[sigma]
    pilot = cf.Experiment({"conc": np.ones(8)}, TIMES, sigma=spread, name="pilot")
    guesses = {n: cf.Parameter(v, local=True) for n, v in {"CL": 0.15, "V": 8.0, "ka": 1.0}.items()}
    if sigma == "combined":
        guesses |= {n: cf.Parameter(v, lower=0, scale="log") for n, v in {"a": 0.5, "b": 0.1}.items()}
    return cf.Problem(model, pilot, parameters=guesses)


@cache
def varying(**options):
    return cf.Population({n: cf.Individual(omega=v) for n, v in OMEGA.items()}, **options)


def designed(*candidates, budget=32, problem=None, **options):
    return cf.design(problem or warfarin(), candidates, budget=budget, **{"population": varying(), **options})


def determinant(design):
    """Return det of the information by typical values and variances, as PopED prints it."""
    M = design.selection.pool.information(design.counts)[0]
    values = dict(
        zip(design.information.names, design.information.question.natural(design.information.estimate), strict=True)
    )
    unit = [values[n] if n in ("CL", "V", "ka") else 2 * values[n] ** 2 for n in design.information.names]
    return np.linalg.det(M) / np.prod(unit) ** 2


def test_population_design_of_warfarin_matches_poped():
    design = designed(cf.Candidate(TIMES, name="adults"))
    for name, right in POPED.items():
        of_variance = 1 if name in ("CL", "V", "ka") else 2  # twice the relative error of its root
        assert 100 * of_variance * design.after[name] == pytest.approx(right, abs=1e-5)
    assert determinant(design) == pytest.approx(1.143859e24, rel=1e-6)
    assert str(design).startswith("adults: measure conc of 32 subjects at t = 0.5, 1, 2, 6, 24, 36, 72, 120.\n")
    assert len(design.experiments) == 32
    assert design.experiments[2].name == "adults, subject 3"
    assert design.problem.n_data == 256


GRID = np.concatenate([np.arange(0.25, 3, 0.25), [4, 6, 8, 12, 24, 36, 48, 72, 96, 120]])


@pytest.mark.slow
def test_population_design_of_warfarin_improves_the_times():
    design = designed(cf.Candidate(GRID, per_subject=8, continuous_times=True, name="adults"))
    assert design.counts.sum() == 32
    assert design.table["time"].size == 8 * np.count_nonzero(design.counts)
    assert (determinant(design) / 1.143859e24) ** (1 / 8) > 1.18  # subjects that PopED's first schedule needs more
    assert design.efficiency > 0.9999
    names, _, worth = zip(
        *populations.schedule_time_gains(
            design.information, design.selection, design.design_goal, design.relaxed, design.counts
        ),
        strict=True,
    )
    assert set(names) == {n for n in design.information.labels if "#" not in n}
    assert 0.999 < max(w.max() for w in worth) < 1.001  # moved times and grid times
    assert len(design.plot().axes) >= 4
    assert "schedules compared within the budget is better" in str(design)


def test_few_samples_per_subject_give_several_schedules():
    grid = np.array([0.5, 1, 2, 6, 24, 48, 72, 120])
    candidate = cf.Candidate(grid, per_subject=3, spacing=0.6, name="adults")
    relaxed_design = designed(candidate, exact=False)
    assert relaxed_design.information.all_compared
    assert relaxed_design.information.n_compared < 56  # C(8, 3) = 56, fewer with the spacing
    assert all(np.diff(v.times).min() >= 0.6 for v in relaxed_design.selection.values[0])
    assert 2 <= np.count_nonzero(relaxed_design.counts) < 12  # weights that are nothing are not listed
    assert relaxed_design.counts.sum() == pytest.approx(32, rel=1e-5)
    exact_design = designed(candidate)
    assert exact_design.counts.sum() == 32
    assert relaxed_design.bound - 1e-9 <= relaxed_design.value <= exact_design.value
    assert exact_design.efficiency > 0.98


def test_population_design_has_simple_designs_and_an_optimal_size():
    grid = np.array([0.5, 1, 2, 6, 24, 48, 72, 120])
    design = designed(cf.Candidate(grid, per_subject=3, name="adults"), budget=None, price=0.2, exact=False)
    assert design.counts.sum() == pytest.approx(8 / 0.2, rel=1e-5)  # eight quantities
    text = str(designed(cf.Candidate(grid, per_subject=3, name="adults")))
    assert re.search(r"equidistant times reach [1-9]\d %, times in equal ratios 5\d %", text)
    assert "equal ratios, same cost" in text
    with pytest.raises(cf.InputError, match=r"adults: no 20 of its times are 2.5 apart"):
        designed(cf.Candidate(np.arange(40.0), per_subject=20, spacing=2.5, name="adults"))


def test_schedule_search_equals_full_enumeration(monkeypatch):
    grid = np.array([0.5, 1, 2, 4, 6, 24, 48, 72, 96, 120])
    for criterion in ("D", "A", cf.variance_of("omega(ka)")):
        candidate = cf.Candidate(grid, per_subject=3, name="adults")
        full_design = designed(candidate, exact=False, criterion=criterion)
        with monkeypatch.context() as patch:
            patch.setattr(populations, "_MAX_ENUMERATED_SCHEDULES", 0)
            search_design = designed(candidate, exact=False, criterion=criterion)
        assert full_design.information.all_compared
        assert not search_design.information.all_compared
        assert search_design.value == pytest.approx(full_design.value, rel=1e-5)
        assert search_design.information.n_compared <= full_design.information.n_compared


def linear(sigma):
    """y = x0 + eta_0 + (k + eta_k) t: the first order is exact."""
    x, k, x0 = cf.symbols("x k x0")
    model = cf.Model({x: k}, parameters=[k, x0], initial={x: x0})
    pilot = cf.Experiment({"x": np.ones(3)}, [0, 1, 2], sigma=cf.unknown(guess=sigma))
    parameters = {"k": cf.Parameter(2.0, local=True), "x0": cf.Parameter(1.0, local=True)}
    individuals = {
        "k": cf.Individual(omega=0.4, distribution="normal"),
        "x0": cf.Individual(omega=0.3, distribution="normal"),
    }
    return cf.Problem(model, pilot, parameters=parameters), cf.Population(individuals, correlated=True)


def test_population_information_of_a_linear_model_is_exact():
    times, sigma = np.array([0.0, 0.5, 2.0, 3.0]), 0.2
    problem, population = linear(sigma)
    design = cf.design(problem, cf.Candidate(times), budget=1, population=population, exact=False, over="k")
    information = design.selection.pool.J[0, 0].T @ design.selection.pool.J[0, 0]
    X = np.stack([times, np.ones(4)], -1)
    names = design.information.names
    assert set(names) == {"k", "x0", "sigma(x)", "omega(k)", "omega(x0)", "correlation(k, x0)"}
    values = dict(zip(("k", "x0", "sigma(x)", "omega(k)", "omega(x0)"), (2, 1, sigma, 0.4, 0.3), strict=True))

    def moments(u):
        point = {n: v * (1 + u[names.index(n)]) for n, v in values.items()}
        r = u[names.index("correlation(k, x0)")]
        w, v = point["omega(k)"], point["omega(x0)"]
        V = X @ np.array([[w * w, r * w * v], [r * w * v, v * v]]) @ X.T + point["sigma(x)"] ** 2 * np.eye(4)
        return X @ np.array([point["k"], point["x0"]]), V

    mean, V0 = moments(np.zeros(6))

    def expected(u):
        mu, V = moments(u)
        return 0.5 * (np.linalg.slogdet(V)[1] + np.trace(np.linalg.solve(V, V0 + np.outer(mu - mean, mu - mean))))

    h, eye = 1e-3, np.eye(6)
    hessian = [
        [sum(s * t * expected(h * (s * a + t * b)) for s in (1, -1) for t in (1, -1)) / (4 * h * h) for b in eye]
        for a in eye
    ]
    np.testing.assert_allclose(information, hessian, rtol=1e-4, atol=1e-4 * np.max(hessian))


def test_population_design_with_groups_costs_and_covariates():
    CL_pop, weight = cf.symbols("CL_pop weight")
    population = cf.Population(
        {"CL": cf.Individual(CL_pop * (weight / 70) ** 0.75, omega=0.3), "V": cf.Individual(), "ka": cf.Individual()},
        parameters={"CL_pop": cf.Parameter(0.15, lower=0, scale="log")},
        covariates={"weight": {"pilot": 70.0, "children": 20.0}},
    )
    adults = cf.Candidate(TIMES, name="adults", cost=2, at_most=9)
    children = cf.Candidate(TIMES[1:], per_subject=4, spacing=1, name="children", initial={"gut": 20.0})
    design = designed(adults, children, budget=40, population=population)
    counts_by_candidate = {
        n: design.table["count"][design.table["candidate"] == n].sum() for n in set(design.table["candidate"])
    }
    assert any(n.startswith("children") for n in counts_by_candidate)
    assert design.spent <= 40
    names = [e.name for e in design.experiments]
    assert sum(n.startswith("adults") for n in names) <= 9
    assert len(set(names)) == len(names)
    default_weight, child_weight = (design.information.question.covariates[i, 0] for i in (1, 2))
    assert (default_weight, child_weight) == (70.0, 20.0)
    limited_design = designed(adults, children, budget={"adults": 4, "all": 20}, population=population)
    assert sum(e.name.startswith("adults") for e in limited_design.experiments) <= 2
    fixed_design = designed(cf.Candidate(TIMES, name="first", fixed=True), children, budget=10, population=population)
    assert "Perform first (fixed)." in str(fixed_design)
    assert fixed_design.spent <= 10


@cache
def theophylline():
    """Twelve simulated subjects and their fit."""
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 10.0})
    rng, times = np.random.default_rng(1), np.array([1.0, 2.0, 4.0])
    rates = 0.3 * np.exp(0.4 * rng.standard_normal(12))
    subjects = [
        cf.Experiment({"x": 10 * np.exp(-r * times) + 0.2 * rng.standard_normal(3)}, times, sigma=cf.unknown())
        for r in rates
    ]
    problem = cf.Problem(model, subjects, parameters={"k": cf.Parameter(0.5, local=True)})
    return cf.mixed_effects(problem, cf.Population({"k": cf.Individual(omega=0.5)}))


def test_population_design_before_equals_errors_of_the_fit():
    result = theophylline()
    design = cf.design(result, cf.Candidate(np.arange(0.5, 10, 0.5), per_subject=2, name="next"), budget=20)
    for name, error in design.before.items():
        assert error == pytest.approx(result[name].relative_error, rel=1e-6)
        assert design.after[name] < error
    assert design.problem.n_data == 36 + 40
    assert cf.mixed_effects(design.problem, result.question.problem_and_population[1], max_iter=0).n_individuals == 32


@pytest.mark.parametrize(
    ("candidate", "options", "message"),
    [
        ({}, {"worst": True}, "worst=True is unsupported for populations"),
        ({}, {"criterion": cf.variance_of("k3")}, "of a population give a name"),
        ({"cost_unit": "time"}, {}, "a subject is measured as a whole"),
        ({"cost": {"conc": 1}}, {}, "a subject has one cost"),
        ({"spacing": 1.0}, {}, "a subject without per_subject is measured at all times"),
        ({"repeats": True}, {}, "remove repeats=True"),
        ({"per_subject": 2}, {"population": None}, "per_subject is for populations"),
        ({}, {"population": 3}, "takes a Problem and population=cf.Population"),
        ({}, {"problem": warfarin("unknown")}, "sigma of 'conc' is unknown"),
        ({"per_subject": 1}, {"budget": 2}, "not enough"),
    ],
)
def test_population_design_with_invalid_options_names_the_mistake(candidate, options, message):
    with pytest.raises(cf.InputError, match=message):
        designed(cf.Candidate(TIMES, **candidate), **options)


def test_candidate_with_invalid_per_subject_is_refused():
    with pytest.raises(cf.InputError, match="9 times cannot be selected from 8"):
        cf.Candidate(TIMES, per_subject=9)
    with pytest.raises(cf.InputError, match="per_subject is 0"):
        cf.Candidate(TIMES, per_subject=0)


def test_population_experiments_have_measurement_sigma_only():
    design = designed(cf.Candidate(TIMES), problem=warfarin("known"), budget=8)
    np.testing.assert_allclose(design.experiments[0].sigma["conc"], 0.5)
    assert design.table["deviation"].min() > 0.5  # includes the variation between subjects


@cache
def decaying(subjects, each):
    """Subjects of whom each has a rate of decay of its own, and the noise is estimated."""
    x, k, noise = cf.symbols("x k noise")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 10.0})
    pilot = cf.Experiment({"x": [7.0, 3.0]}, [1, 4], sigma={"x": noise + 0 * x})
    parameters = {"k": cf.Parameter(0.3, local=True), "noise": cf.Parameter(0.3, lower=0, scale="log")}
    problem, population = (
        cf.Problem(model, pilot, parameters=parameters),
        cf.Population({"k": cf.Individual(omega=0.3)}),
    )
    candidate = cf.Candidate(np.arange(0.5, 12, 0.5), per_subject=each)
    return cf.design(problem, candidate, budget=subjects, population=population)


def test_verify_population_simulates_and_fits_trials():
    design = decaying(10, 3)
    verification = design.verify(4, verbose=0)
    assert verification.fitted == 4
    assert verification.subjects == 10
    assert [*verification.quantities] == ["k", "noise", "omega(k)"]
    estimates = np.array([row.theta for row in verification.rows])
    for j, (name, quantity) in enumerate(verification.quantities.items()):
        assert quantity.predicted_sd == pytest.approx(design.after[name] * 0.3)
        assert quantity.scatter == pytest.approx(np.std(estimates[:, j], ddof=1))
        assert quantity.bias == pytest.approx(np.mean(estimates[:, j]) - 0.3)
        assert quantity.low < quantity.ratio < quantity.high
        assert quantity.verdict in ("too few trials", "less than promised", "more than promised")
    text = str(verification)
    assert "4 simulated trials with 10 subjects" in text
    assert "scatter / promised" in text
    repeated_verification = design.verify(2, verbose=0)
    np.testing.assert_array_equal(
        repeated_verification.rows[1].theta, verification.rows[1].theta
    )  # independent of the number of trials
    stopped_verification = design.verify(50, max_time=1e-6, verbose=0)
    assert "time limit was reached" in str(stopped_verification)
    assert stopped_verification.fitted == 0


def test_verify_population_includes_previous_subjects_and_covariates():
    design = cf.design(theophylline(), cf.Candidate(np.arange(0.5, 10, 0.5), per_subject=2), budget=3)
    assert design.verify(2, verbose=0).subjects == 15
    weight = cf.symbols("weight")
    individuals = {"CL": cf.Individual(0.15 * weight / 70), "V": cf.Individual(), "ka": cf.Individual()}
    population = cf.Population(individuals, covariates={"weight": {"pilot": 70.0, "children": 20.0}})
    young = cf.Candidate(TIMES, name="children")
    design = designed(cf.Candidate(TIMES, name="adults"), young, budget={"adults": 2, "children": 2},
                      population=population, criterion=cf.variance_of("V"))  # fmt: skip
    weights = design.population.covariates["weight"]
    assert set(weights) == {e.name for e in design.problem.experiments}
    assert all(w == (20.0 if name.startswith("children") else 70.0) for name, w in weights.items())


def test_verify_population_with_invalid_options_is_refused():
    design = decaying(10, 3)
    with pytest.raises(cf.InputError, match=r"(?s)samples is 1.*rng is 'x'.*'level' is no option for populations"):
        design.verify(1, rng="x", level=3)
    with pytest.raises(cf.InputError, match="max_time is -1"):
        design.verify(2, max_time=-1)


@pytest.mark.slow
def test_verify_population_scatter_matches_the_design():
    verification = decaying(50, 4).verify(200, verbose=0)
    assert verification.fitted == 200
    for quantity in verification.quantities.values():
        assert quantity.ratio == pytest.approx(1.0, abs=0.1)
        assert quantity.verdict == "as promised"


@pytest.mark.slow
def test_verify_population_on_processes_is_identical():
    design = decaying(10, 3)
    serial_trials, parallel_trials = (design.verify(6, workers=n, verbose=0) for n in (1, 2))
    for serial_row, parallel_row in zip(serial_trials.rows, parallel_trials.rows, strict=True):
        np.testing.assert_array_equal(serial_row.theta, parallel_row.theta)
