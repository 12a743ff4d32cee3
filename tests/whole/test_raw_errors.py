"""What once ended in a traceback of NumPy's, CasADi's or Python's own: an answer, or a sentence that names the fix."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from typing import Any

import casadi as ca
import numpy as np
import pandas as pd
import pytest

import castfit as cf
from tests.builders import decay_model, decay_problem, refused
from tests.formats.petab.writing import write

TIMES = [0.0, 1.0, 2.0, 3.0, 4.0]
DATA = {"x": [1.0, 0.7, 0.5, 0.3, 0.2]}
TABLE = pd.DataFrame({"t": [0, 1], "what": ["x", "x"], "value": [1.0, 2.0]})


@pytest.mark.parametrize("method", ["single", "multiple", "collocation", "single/ipopt"])
def test_fit_of_student_scale_alone_succeeds(method):
    noise = {"x": cf.StudentT(sigma=cf.unknown(guess=0.1))}
    experiment = cf.Experiment(DATA, time=TIMES, initial={"x": 1.0}, noise=noise)
    result = cf.fit(
        decay_problem(parameters={"k": cf.Parameter(0.5, fixed=True)}).replace(experiments=experiment), method
    )
    assert result.success
    s, r = result["sigma(x)"].value, np.asarray(DATA["x"]) - np.exp(-0.5 * np.array(TIMES))
    df = noise["x"].df
    score = (df + 1) * np.sum((r / s) ** 2 / (df + (r / s) ** 2)) - r.size  # of log sigma
    assert score == pytest.approx(0.0, abs=1e-2)


AMBIGUOUS = [np.zeros((2, 2)), pd.NA, pd.Series([1, 2]), cf.symbols("x")]  # without a truth value


@pytest.mark.parametrize("value", AMBIGUOUS, ids=lambda value: type(value).__name__)
def test_argument_without_truth_value_is_refused(value):
    x = cf.symbols("x")
    with pytest.raises(cf.InputError, match=r"forbidden is .*; say in words"):
        cf.Event(when=x < 0.5, changes={x: 1.0}, forbidden=value)
    with pytest.raises(cf.InputError, match=r"method is .*choose from"):
        cf.IntegratorOptions(method=value)
    with pytest.raises(cf.InputError, match=r"unknown\(\) is named .*give text"):
        cf.Experiment(DATA, time=TIMES, sigma=cf.unknown(value))
    for penalty in (cf.lasso, cf.tikhonov):
        with pytest.raises(cf.InputError, match=r"on is .*; choose"):
            penalty("k", 1.0, towards=1.0, on=value)
    for relation in (cf.at(1.0, x >= 0, name=value), cf.along(x >= 0, name=value), cf.Constraint(x, of=value, lower=0)):
        with pytest.raises(cf.InputError, match=r"is named|has of="):
            decay_problem(constraints=relation)
    for argument in ("outputs", "at_most"):
        if not (argument == "outputs" and isinstance(value, ca.SX)):
            with pytest.raises(cf.InputError, match=f"{argument} (is|are)"):
                cf.Candidate([1.0, 2.0], **{argument: value})
    for remember in (cf.per_interval, cf.interval_mean, cf.relative_to_first):
        if not isinstance(value, ca.SX):
            with pytest.raises(cf.InputError, match=r"give a scalar SX expression"):
                remember(value)
    with pytest.raises(cf.InputError, match=r"guess"):
        cf.Problem(cf.Model({x: -x}, outputs={"y": cf.scaled(x, guess=value)}), cf.Experiment({"y": [1.0]}, time=[1.0]))


@pytest.mark.parametrize("number", [Decimal, Fraction, np.longdouble, np.array, np.float32])
def test_numbers_of_other_types_are_floats_in_priors_and_noise(number):
    """A Decimal does not mix with floats, and of long doubles CasADi dies."""
    priors = cf.priors
    for name, *arguments in (
        ("Normal", 0.5, 0.25), ("LogNormal", 0.5, 0.25), ("Laplace", 0.5, 0.25), ("Gamma", 2.0, 0.5),
        ("Beta", 2.0, 3.0), ("Uniform", 0.25, 0.75),
    ):  # fmt: skip
        prior, expected = (getattr(priors, name)(*map(kind, arguments)) for kind in (number, float))
        assert (prior, prior.row(0.5), prior.ppf(0.25)) == (expected, expected.row(0.5), expected.ppf(0.25))
    normal = priors.Normal(0.5, 0.25)
    assert priors.Truncated(normal, number(0.25)).ppf(0.5) == priors.Truncated(normal, 0.25).ppf(0.5)
    for noise in (cf.Gaussian(below=number(0.25)), cf.StudentT(number(0.125), df=number(4.0))):
        experiment = cf.Experiment(DATA, time=TIMES, initial={"x": 1.0}, noise={"x": noise})
        assert cf.fit(decay_problem().replace(experiments=experiment)).success
    assert cf.unknown(lower=number(0.25)) == cf.unknown(lower=0.25)
    for options in (cf.GaussNewton, cf.Sqp, cf.Ipopt, cf.Collocation):
        assert options(tolerance=number(2.0**-20)) == options(tolerance=2.0**-20)
    tight = {"relative_tolerance": number(2.0**-20), "absolute_tolerance": number(2.0**-30)}
    assert cf.IntegratorOptions(**tight) == cf.IntegratorOptions("auto", 2.0**-20, 2.0**-30)
    x = cf.symbols("x")
    assert cf.Input.free(2, lower=number(0.25), upper=1.0).lower == cf.Constraint(x, lower=number(0.25)).lower == 0.25
    assert float(cf.Model({x: -x}, initial={x: number(2.0)}).initial["x"]) == 2.0


@pytest.mark.parametrize("value", [5, "x", object()])
def test_a_correlation_is_no_argument_of_a_noise_model(value):
    """It was left out without a word."""
    with refused("noise of 'x': set correlated errors in sigma= of the experiment"):
        cf.Experiment(DATA, time=TIMES, sigma=0.1, noise={"x": cf.Gaussian(correlation=value)})


def test_complex_data_end_in_the_refusal_alone():
    with refused("'x' contains a value that is not a real number: array([1.+0.j"):
        cf.Experiment({"x": np.ones(5, dtype=complex)}, time=TIMES)
    stamps = np.array([np.datetime64(i, "ns") for i in range(5)] + [None])[:5]
    with refused("'x' contains a value that is not a real number"):  # nanoseconds were taken for values
        cf.Experiment({"x": stamps}, time=TIMES)


@pytest.mark.parametrize("sigma", [0.1, None])
def test_estimated_input_with_all_knots_at_bound_is_returned(sigma):
    x, k, u = cf.symbols("x k u")
    inputs = {"u": cf.Input.estimated([0, 1, 2, 3, 4], guess=0.5, lower=0.4, upper=1.0)}
    experiment = cf.Experiment(DATA, time=TIMES, initial={"x": 1.0}, sigma=sigma, inputs=inputs)
    model = cf.Model({x: -k * x + u}, parameters=[k], inputs=[u])
    result = cf.fit(cf.Problem(model, experiment, parameters={"k": cf.Parameter(0.5, fixed=True)}))
    assert result.success
    assert [result.values[name] for name in result.names] == pytest.approx([0.4] * 5)


def test_confidence_region_without_degrees_of_freedom_is_undefined():
    experiment = cf.Experiment({"x": [0.5]}, time=[1.0], initial={"x": 1.0})
    region = cf.fit(decay_problem().replace(experiments=experiment)).confidence_region()
    assert not region.axes
    assert np.isnan(region.intervals()["k"]).all()
    assert len(region.sentences) == 1
    assert "no degrees of freedom are left to estimate the noise" in region.sentences[0]
    assert "nan" not in str(region)


@pytest.mark.parametrize(("distribution", "power"), [("normal", 1.0), ("lognormal", 2.0)])
def test_a_negative_covariate_has_no_estimated_power(distribution, power):
    scale, weight, beta = cf.symbols("k_pop weight beta")
    experiments = [
        cf.Experiment(DATA, time=TIMES, initial={"x": 1.0}, sigma=0.1, name=name) for name in ("a", "b", "c")
    ]
    problem = cf.Problem(decay_model(), experiments, parameters={"k": cf.Parameter(0.5, local=True)})
    population = cf.Population(
        {"k": cf.Individual(scale * weight**beta, distribution=distribution)},
        parameters={"k_pop": 0.5, "beta": power},
        covariates={"weight": [1.0, -1.0, 2.0]},
    )
    with refused("the typical value of 'k' in 'b' has no derivative at the guess; powers that are estimated"):
        cf.mixed_effects(problem, population)


def test_priors_functions_and_names_of_another_type():
    with refused("sigma of 'x': unknown() has the prior 5; give Normal(mean, deviation)"):
        cf.Experiment(DATA, time=TIMES, sigma=cf.unknown(prior=5))
    with refused("name is 1.0; give the name of a problem"):
        cf.problems.load(1.0)  # type: ignore[arg-type]


def test_tables_are_asked_for_what_they_have():
    columns = {"value": "value", "output": "what", "time": "t"}
    with refused("each is 5; give a function of an experiment's name"):
        cf.experiments_from(TABLE, **columns, each=5)  # type: ignore[arg-type]
    with refused("each('') is a int; give a mapping from names"):
        cf.experiments_from(TABLE, **columns, each=lambda _: 5)  # type: ignore[arg-type,return-value]
    with refused("each('') has the key 5; give a name"):
        cf.experiments_from(TABLE, **columns, each=lambda _: {5: 6})  # type: ignore[arg-type,dict-item]
    with refused("value is 5; give the name of a column"):
        cf.experiments_from(TABLE, **{**columns, "value": 5})  # type: ignore[arg-type]


@pytest.mark.parametrize("times", ["a", "Along", ("a",), (), (np.nan,), {1: 2}])
def test_times_of_a_constraint_are_times(times):
    x = cf.symbols("x")
    with refused(f"constraint 1 has the times {times!r}; give None, 'along'"):
        decay_problem(constraints=[cf.Constraint(x, lower=0, times=times)])


def test_a_constraint_is_read_as_a_whole():
    x = cf.symbols("x")
    for options, message in (
        ({"of": "x"}, "constraint 1 has of='x': choose from value, rate, total"),
        ({"name": 5}, "constraint 1 is named 5; give text"),
        ({"experiments": 5}, "experiment is 5; give the name of an experiment"),
    ):
        with refused(message):
            decay_problem(constraints=[cf.Constraint(x, lower=0, **options)])
    problem = decay_problem(constraints=[cf.Constraint(x, lower=0.9, times=[1.0], experiments="experiment 1")])
    (constraint,) = problem.constraints
    assert constraint.times == (1.0,)
    assert constraint.experiments == ("experiment 1",)
    assert cf.fit(problem).predict([1.0])["experiment 1"]["x"][0] == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("format_version: 2024-13-45", "problem.yaml is no YAML: month must be in 1..12"),
        ("a: 2024-02-30 10:99:00", "problem.yaml is no YAML: day is out of range"),
        ("a: !!float x", "problem.yaml is no YAML: could not convert"),
        ("a: !!timestamp x", "problem.yaml is no YAML"),
        ("[" * 5000, "problem.yaml is nested too deeply"),
        ("{a: " * 3000, "problem.yaml is nested too deeply"),
    ],
)
def test_yaml_that_is_none(tmp_path, text, said):
    pytest.importorskip("yaml")
    (tmp_path / "problem.yaml").write_text(text)
    with refused(said):
        cf.petab.load(tmp_path / "problem.yaml")


def test_yaml_with_numbers_for_files(tmp_path):
    pytest.importorskip("yaml")
    path = tmp_path / "problem.yaml"
    path.write_text("format_version: 2.0.0\nmodel_files: 5\nextensions: 3\nparameter_files: 5\nmeasurement_files: [5]\n"
                    "observable_files: 1.5")  # fmt: skip
    with refused("the extension '3' is not supported", "no model is named"):
        cf.petab.load(path)
    with refused("there is no file"):
        cf.petab.load("a" * 5000)


def test_petab_condition_nan_of_parameter_is_refused(tmp_path):
    pytest.importorskip("petab")
    pytest.importorskip("antimony")
    with refused("conditions.tsv, line 2: 'dose' is NaN; only a species may be"):
        cf.petab.load(write(tmp_path, conditions=[{"conditionId": "c", "dose": "NaN", "B": 1.0}]))
    keeps = cf.petab.load(write(tmp_path, conditions=[{"conditionId": "c", "B": "NaN"}]))
    left_out = cf.petab.load(write(tmp_path, conditions=[{"conditionId": "c", "B": ""}]))
    assert keeps.experiments[0].initial.keys() == left_out.experiments[0].initial.keys()
    changes = [{"conditionId": "c", "targetId": "dose", "targetValue": "nan"}]
    with refused("conditions.tsv, line 2: targetValue is NaN, which is no value"):
        cf.petab.load(write(tmp_path, version=2, conditions=changes))


@pytest.mark.parametrize("depth", [1_000, 10_000])
def test_formulas_nested_too_deeply_are_counted_before_libsbml_reads_them(depth):
    pytest.importorskip("antimony")
    good = cf.sbml.load_antimony("A -> ; k * A; A = 2; k = 0.3").sbml
    deep = good.replace("<ci> k </ci>", "<apply><sin/>" * depth + "<ci> k </ci>" + "</apply>" * depth)
    with refused("deep, more than 300; give parts of formulas names, by assignment rules"):
        cf.sbml.load(deep)
    fine = good.replace("<ci> k </ci>", "<apply><sin/>" * 200 + "<ci> k </ci>" + "</apply>" * 200)
    assert cf.sbml.load(fine).model.states == ("A",)


def test_event_options_of_conditions_are_refused_with_time():
    x = cf.symbols("x")
    for options in ({"direction": "rising"}, {"count": 3}):
        with refused("direction and count apply only to when=; remove them for an event at a time"):
            cf.Event(1.0, {x: 1.0}, **options)  # type: ignore[arg-type]


def test_candidate_lists_one_line_per_mistake():
    result = cf.fit(decay_problem())
    with refused("candidate 1: events contains 5; give Event"):
        cf.design(result, cf.Candidate([1.0], "x", events=5), budget=1)


def test_a_guess_of_an_input_that_cannot_be_called_with_times():
    x, u = cf.symbols("x u")
    with refused("guess cannot be called with times"):
        cf.control(
            cf.Model({x: u - x}, inputs=[u]), horizon=1.0, minimise=cf.integral(x**2 + u**2), initial={"x": 1.0},
            inputs={"u": cf.Input.free(3, guess=float)},
        )  # fmt: skip


def test_mistakes_in_start_are_listed_with_others():
    start_message = "start: 'kk' is not estimated: did you mean 'k'?"
    with refused("max_time is -1", start_message):
        cf.fit(decay_problem(), start={"kk": 1.0}, max_time=-1)
    with refused("max_time is -1", start_message):
        cf.doctor(decay_problem(), start={"kk": 1.0}, max_time=-1)
    with refused("confidence_level is 95", "absolute_sigma is 'a'", "max_time is -1", start_message):
        cf.incremental(
            decay_problem(),
            start={"kk": 1.0},
            max_time=-1,
            confidence_level=95,
            absolute_sigma="a",  # type: ignore[arg-type]
        )
    result = cf.fit(decay_problem())
    with refused("start applies only to a Problem; remove it for a Result"):
        cf.doctor(result, start={"k": 1.0})
    with refused("limits is array"):
        cf.profile(result, limits=np.zeros(2))  # type: ignore[arg-type]
    with refused("slices is 1000"):
        cf.contours(result, "k", "k + 1", slices=10**400)
    with refused("slices is 0", "first is 'kk'", "second is 'm'"):
        cf.contours(result, "kk", "m", slices=0)
    with refused("resume is 'yes'", "checkpoint is 5"):
        cf.leave_out(result, "value", checkpoint=5, resume="yes")  # type: ignore[arg-type]
    with refused("candidates contain 5; give Candidate(...), or a list of them"):
        cf.design(result, [cf.Candidate([1.0]), 5], budget=1)  # type: ignore[list-item]
    with refused("path is 5; expected a file path"):
        result.save(5)  # type: ignore[arg-type]


def test_arguments_may_be_iterators():
    result = cf.fit(decay_problem())
    assert cf.profile(result, iter(["k"])).limits() == cf.profile(result, ["k"]).limits()
    x, k, m = cf.symbols("x k m")
    model = cf.Model({x: -k * x + m}, parameters=[k, m], initial={x: 1.0})
    two = cf.fit(cf.Problem(model, cf.Experiment(DATA, TIMES, sigma=0.1), parameters={"k": 0.3, "m": 0.01}))
    candidate = cf.Candidate(TIMES[1:])
    over_k, over_m = (cf.design(two, candidate, budget=3, over=[n]).summary() for n in "km")
    assert cf.design(two, candidate, budget=3, over=iter(["k"])).summary() == over_k != over_m
    assert len(cf.plots.pairs(cf.bootstrap(two, samples=5, rng=0), names=iter(["k", "m"])).axes) == 4
    experiments = [cf.Experiment(DATA, TIMES, name=n) for n in "ab"]
    several = cf.Problem(model, experiments, parameters={"k": 0.3, "m": 0.01})
    simulation = cf.simulate(several, times=iter(TIMES))
    assert simulation["a"]["x"].size == simulation["b"]["x"].size == len(TIMES)


@pytest.mark.parametrize("name", cf.plots.__all__)
@pytest.mark.parametrize(
    "given", [None, [1.0], {"a": 1.0}, "x", decay_problem()], ids=lambda value: type(value).__name__
)
def test_pictures_of_something_else_are_refused_by_name(name, given):
    with pytest.raises(cf.InputError, match=r"(is .*; (give|pass|expected) .*[A-Z]|missing a required argument)"):
        getattr(cf.plots, name)(given)


def test_an_error_of_a_users_function_stays_what_it_is():
    def callback(_):
        raise AttributeError("mine")

    with pytest.raises(AttributeError, match="mine"):
        cf.fit(decay_problem(), callback=callback)


def test_missing_directory_is_named(tmp_path):
    result, place = cf.fit(decay_problem()), tmp_path / "none"
    for put, end in ((result.save, "json"), (result.plot, "png"), (result.report, "html")):
        with refused(f"directory '{place}' does not exist"):
            put(place / f"fit.{end}")


def test_dates_of_what_happens_are_to_be_counted_from_the_start():
    dates = pd.to_datetime(["2026-01-01 08:00", "2026-01-01 20:00"])
    for times in (dates, list(dates), pd.Series(dates), dates.to_numpy()):
        with refused("count dates from the start of the experiment, such as"):
            cf.Doses("x", 1.0, times)
        with refused("count dates from the start of the experiment, such as"):
            cf.Input.linear(times, [1.0, 2.0])
    with refused("; count dates from the start"):
        cf.Event(dates[0], {cf.symbols("x"): 1.0})
    with refused("; divide by the model's unit of time"):
        cf.Doses("x", 1.0, 0.0, duration=dates[1] - dates[0])  # type: ignore[arg-type]


def test_search_result_instead_of_fit_suggests_best():
    problem = decay_problem(parameters={"k": cf.Parameter(0.5, bounds=(0.1, 2.0))})
    for search in (cf.multistart(problem, starts=2, rng=0), cf.incremental(problem)):
        assert search.best is not None
        for use in (
            lambda result: cf.profile(result, "k"),
            lambda result: cf.design(result, cf.Candidate([1.0]), budget=1),
            lambda result: cf.fit(problem, start=result),
            lambda result: cf.simulate(decay_model(), result, [1.0], initial={"x": 1.0}),
            cf.plots.ellipses,
        ):
            with pytest.raises(cf.InputError, match=r"(give|pass) its best fit, \.best"):
                use(search)


def test_odd_arguments_of_public_functions_are_named(tmp_path):
    """One call of each kind that ended in an error of Python, NumPy or CasADi, or was accepted."""
    result, x = cf.fit(decay_problem()), cf.symbols("x")
    array: Any = np.eye(2)
    with refused("the callback returned array([1, 2]); expected True to stop"):
        cf.fit(decay_problem(), callback=lambda _: np.array([1, 2]))
    with refused("time is nan; expected a finite number"):
        cf.OutputAt("x", np.nan)
    with refused("problem is 5; give a Problem"):
        result.with_problem(5)  # type: ignore[arg-type]
    for load in (cf.Result.load, cf.MultistartResult.load, cf.PathResult.load, cf.Plan.load):
        with refused("0 cannot be read: expected a file path"):
            load(0)  # type: ignore[arg-type]
        with refused("cannot be read: No such file"):
            load(tmp_path / "none.json")
    with refused("path is 1; expected a file path"):  # which closed the standard output
        cf.compare(decay_problem(), ["single"], starts=1).to_csv(1)  # type: ignore[arg-type]
    assert cf.fit(decay_problem(), "single", cf.Ipopt(options=None)).success  # type: ignore[arg-type]
    with refused("rng is array"):
        result.predict([1.0], rng=array)
    with refused("tolerance is 1e+300; give a positive number below 1"):
        cf.GaussNewton(tolerance=1e300)
    with refused("weight is 1e+300; give a positive number up to 1e+100"):
        cf.lasso("k", 1e300)
    assert cf.fit(decay_problem(priors=[cf.lasso("k", 1e100)])).values["k"] == pytest.approx(0.5)
    with refused("bioavailability is -1; it must not be negative"):
        cf.Doses("x", 1.0, 0.5, bioavailability=-1)
    experiment = cf.Experiment(DATA, TIMES, sigma=0.1, initial={"x": 1.0}, events=cf.Doses("x", 1e300, 0.5))
    assert not cf.fit(decay_problem().replace(experiments=experiment)).success
    with refused("title is nan; expected text"):
        result.report(tmp_path / "fit.html", title=np.nan)
    with refused("total is nan; give a number"):
        cf.conserved(x, np.nan)


def test_method_arguments_of_another_type_are_named_by_their_annotation():
    """The message has the documented type; an error without such a cause is passed on."""
    result = cf.fit(decay_problem())
    selection = cf.select(decay_problem(), "single", choices={"k": [0.5, cf.estimated]})
    with refused("unknown candidate 'absent': choose from"):
        selection.candidate("absent")
    with refused("'absent' is not a fitted candidate"):
        selection.size("absent")
    with refused("'k' is 'a'; expected a number"):
        result.confidence_region().contains({"k": "a"})  # type: ignore[dict-item]
    with refused("values is <object object"):
        cf.profile(result)["k"].at(object())  # type: ignore[arg-type]
    with refused("individuals is 1j; expected names"):
        x, k = cf.symbols("x k")
        model = cf.Model({x: -k * x}, parameters=[k], initial={x: 1.0})
        people = [cf.Experiment(DATA, TIMES, sigma=0.1, name=n) for n in "abc"]
        problem = cf.Problem(model, people, parameters={"k": cf.Parameter(0.5, local=True)})
        cf.mixed_effects(problem, cf.Population({"k": cf.Individual()})).plot(individuals=1j)  # type: ignore[arg-type]


@pytest.mark.parametrize("fixed", [False, True])
def test_one_datum_and_nothing_estimated(fixed, tmp_path):
    experiment = cf.Experiment({"x": [0.5]}, time=[1.0], initial={"x": 1.0}, sigma=0.1)
    problem = decay_problem(parameters={"k": cf.Parameter(0.5, fixed=fixed)}).replace(experiments=experiment)
    result = cf.fit(problem)
    assert result.success
    assert fixed or result.values["k"] == pytest.approx(np.log(2.0))
    assert result.report(tmp_path / "fit.html").exists()
    for figure in (cf.plots.fit, cf.plots.residuals, cf.plots.correlation, cf.plots.history):
        figure(result, tmp_path / "figure.png")
    uses = [cf.doctor, cf.profile, cf.plots.sensitivities, cf.plots.directions,
            lambda r: cf.design(r, cf.Candidate([2.0]), budget=2), lambda r: cf.bootstrap(r, samples=2)]  # fmt: skip
    for use in uses:
        with suppress(cf.InputError):
            use(result)
