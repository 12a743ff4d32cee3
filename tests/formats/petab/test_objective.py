"""The objective of small PEtab problems, against closed forms and the petab library's own formulas."""

from __future__ import annotations

import pickle
from math import exp, log, log10, pi, sqrt

import numpy as np
import pytest
from scipy import stats

import castfit as cf
from castfit._bench.gradients import SmoothObjective
from castfit.cli.source import load
from castfit.drive.search.multistart.sampling import draw
from castfit.drive.search.portfolio.limits import build_search_region
from castfit.formats.petab import observing
from castfit.formats.petab.likelihood import accurate
from tests.calls import calls_of
from tests.formats.petab.writing import DECAY, measured, parameter, write

pytest.importorskip("petab")
pytest.importorskip("antimony")

TIMES = (1.0, 2.0, 4.0)
VALUES = (1.3, 0.9, 0.5)
nllh = cf.petab.negative_log_likelihood


def normal(value: float, mean: float, sigma: float) -> float:
    return -float(stats.norm.logpdf(value, mean, sigma))


def gradient_agrees(problem: cf.Problem, tolerance: float = 1e-5) -> bool:
    """Compare the gradient of PEtab's objective with its central differences."""
    theta = np.asarray(problem.guess)
    objective = SmoothObjective(problem, theta)
    exact = objective.gradient(theta)
    numeric_gradient, _ = objective.differences(theta)
    return bool(np.abs(numeric_gradient - exact).max() <= tolerance * max(1.0, float(np.abs(exact).max())))


@pytest.mark.parametrize("axis", ["lin", "log", "log10"])
@pytest.mark.parametrize("distribution", ["normal", "laplace"])
def test_noise_of_every_kind(tmp_path, axis, distribution):
    from petab.v1.calculate import calculate_single_llh

    observable = {
        "observableId": "y",
        "observableFormula": "A",
        "noiseFormula": "s",
        "observableTransformation": axis,
        "noiseDistribution": distribution,
    }
    path = write(tmp_path, observables=[observable], parameters=[parameter("k", 0.4), parameter("s", 0.2)])
    problem = cf.petab.load(path)
    expected = -sum(
        calculate_single_llh(m, 2 * exp(-0.4 * t), axis, distribution, 0.2) for t, m in zip(TIMES, VALUES, strict=True)
    )
    assert nllh(problem) == pytest.approx(expected, abs=1e-7)
    assert gradient_agrees(problem)


def test_conditions_set_numbers_parameters_and_initial_values(tmp_path):
    conditions = [
        {"conditionId": "c", "k": 0.5, "A0": "start"},
        {"conditionId": "d", "k": "other", "A": 3.0, "A0": 1.0},
        {"conditionId": "e", "k": 0.7, "A0": ""},
    ]
    rows = [row for c in "cde" for row in measured(TIMES, VALUES, simulationConditionId=c)]
    path = write(
        tmp_path,
        conditions=conditions,
        measurements=rows,
        parameters=[parameter("start", 1.5), parameter("other", 0.2)],
    )
    problem = cf.petab.load(path)
    courses = {"c": (1.5, 0.5), "d": (3.0, 0.2), "e": (2.0, 0.7)}
    expected = sum(
        normal(m, a * exp(-k * t), 0.1) for a, k in courses.values() for t, m in zip(TIMES, VALUES, strict=True)
    )
    assert problem.names == ("start", "other")
    assert nllh(problem) == pytest.approx(expected, abs=1e-6)
    assert gradient_agrees(problem)


def test_a_condition_sets_the_size_of_a_compartment(tmp_path):
    model = """
    model sized
      compartment cell = 1; species A in cell, $S in cell
      S -> A; rate
      A = 1; rate = 0.5; S = 1
    end
    """
    conditions = [{"conditionId": "c", "cell": 1.0}, {"conditionId": "d", "cell": "size"}]
    rows = [row for c in "cd" for row in measured(TIMES, VALUES, simulationConditionId=c)]
    path = write(
        tmp_path,
        model,
        conditions=conditions,
        measurements=rows,
        parameters=[parameter("rate", 0.25), parameter("size", 2.0)],
    )
    expected = sum(normal(m, 1 + 0.25 * t / v, 0.1) for v in (1.0, 2.0) for t, m in zip(TIMES, VALUES, strict=True))
    assert nllh(cf.petab.load(path)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("is_within", [False, True], ids=["between experiments", "within an experiment"])
def test_placeholders_are_replaced_per_measurement(tmp_path, is_within):
    observable = {
        "observableId": "y",
        "observableFormula": "observableParameter1_y * A + observableParameter2_y",
        "noiseFormula": "noiseParameter1_y + noiseParameter2_y * y",
    }
    one = measured(TIMES, VALUES, observableParameters="scale;0.1", noiseParameters="0.1;rel")
    two = measured(
        TIMES,
        VALUES,
        observableParameters="2.5;offset",
        noiseParameters="noise;0",
        simulationConditionId="c" if is_within else "d",
    )
    path = write(
        tmp_path,
        observables=[observable],
        measurements=one + two,
        conditions=[{"conditionId": "c"}, {"conditionId": "d"}],
        parameters=[
            parameter("k", 0.4),
            parameter("scale", 1.5),
            parameter("offset", 0.2),
            parameter("rel", 0.05),
            parameter("noise", 0.3),
        ],
    )
    problem = cf.petab.load(path)
    expected = 0.0
    for t, m in zip(TIMES, VALUES, strict=True):
        a = 2 * exp(-0.4 * t)
        y1, y2 = 1.5 * a + 0.1, 2.5 * a + 0.2
        expected += normal(m, y1, 0.1 + 0.05 * y1) + normal(m, y2, 0.3)
    assert len(problem.outputs) == (2 if is_within else 1)
    assert nllh(problem) == pytest.approx(expected, abs=1e-6)
    assert gradient_agrees(problem)


def test_standard_deviations_as_numbers_per_measurement_and_replicates(tmp_path):
    observable = {"observableId": "y", "observableFormula": "A", "noiseFormula": "noiseParameter1_y"}
    rows = measured((2, 1, 1), (0.9, 1.3, 1.4), noiseParameters=0.1)
    rows[1]["noiseParameters"] = 0.3
    problem = cf.petab.load(write(tmp_path, observables=[observable], measurements=rows))
    a = {t: 2 * exp(-0.4 * t) for t in (1, 2)}
    expected = normal(0.9, a[2], 0.1) + normal(1.3, a[1], 0.3) + normal(1.4, a[1], 0.1)
    assert nllh(problem) == pytest.approx(expected, abs=1e-7)
    assert problem.absolute_sigma


def test_pre_equilibration_and_what_a_condition_replaces_after_it(tmp_path):
    model = """
    model cascade
      compartment cell = 1; species A in cell, B in cell
      -> A; make * u
      A -> B; k * A
      B -> ; d * B
      A = 0; B = 0; u = 1; make = 1; k = 0.5; d = 0.25
    end
    """
    conditions = [
        {"conditionId": "before", "u": 2.0},
        {"conditionId": "c", "u": 0.0, "B": 0.5},
        {"conditionId": "d", "u": 0.0, "B": ""},
    ]
    rows = measured(TIMES, VALUES, preequilibrationConditionId="before")
    rows += measured(TIMES, VALUES, preequilibrationConditionId="before", simulationConditionId="d")
    path = write(
        tmp_path,
        model,
        conditions=conditions,
        measurements=rows,
        observables=[{"observableId": "y", "observableFormula": "B", "noiseFormula": 0.1}],
        parameters=[parameter("make", 1.2), parameter("k", 0.5)],
    )
    problem = cf.petab.load(path)
    a0, d = 2.0 * 1.2 / 0.5, 0.25
    expected = 0.0
    for b0 in (0.5, 2.0 * 1.2 / d):
        for t, m in zip(TIMES, VALUES, strict=True):
            b = b0 * exp(-d * t) + 0.5 * a0 / (d - 0.5) * (exp(-0.5 * t) - exp(-d * t))
            expected += normal(m, b, 0.1)
    assert nllh(problem) == pytest.approx(expected, rel=1e-6)
    assert gradient_agrees(problem)


def test_steady_state_rows_and_conditions_measured_only_at_the_start(tmp_path):
    model = """
    model source
      compartment cell = 1; species A in cell
      -> A; make
      A -> ; d * A
      A = A0; A0 = 1; make = 1; d = 0.5
    end
    """
    conditions = [{"conditionId": "c", "A0": 1.0}, {"conditionId": "d", "A0": "first"}]
    rows = [*measured((1.0, "inf"), (1.3, 2.1)), *measured((0,), (0.4,), simulationConditionId="d")]
    path = write(
        tmp_path,
        model,
        conditions=conditions,
        measurements=rows,
        parameters=[parameter("make", 1.2), parameter("first", 0.5)],
    )
    problem = cf.petab.load(path)
    a = 2.4 + (1 - 2.4) * exp(-0.5)
    expected = normal(1.3, a, 0.1) + normal(2.1, 2.4, 0.1) + normal(0.4, 0.5, 0.1)
    assert nllh(problem) == pytest.approx(expected, abs=1e-6)
    result = cf.fit(problem, "single")
    assert result.success
    assert result.parameters["first"] == pytest.approx(0.4, rel=1e-6)
    assert nllh(result) < nllh(problem)


@pytest.mark.parametrize("version", [1, 2])
def test_steady_state_rows_after_a_pre_equilibration(tmp_path, version):
    """What is conserved was set before, and changed between."""
    text = "A' = k2 * B - k1 * A; B' = k1 * A - k2 * B; A = 1; B = 1; k1 = 1; k2 = 1"
    rows = [{"observableId": "y", "measurement": m, "time": t} for t, m in ((1, 1.3), ("inf", 0.8))]
    if version == 1:
        tables = {"conditions": [{"conditionId": "c", "k1": 0.3, "A": ""}, {"conditionId": "d", "k1": 0.8, "A": 3.0}]}
        measurements = [{**r, "preequilibrationConditionId": "c", "simulationConditionId": "d"} for r in rows]
    else:
        sets = (("c", "k1", 0.3), ("d", "k1", 0.8), ("d", "A", 3.0))
        periods = (("-inf", "c"), (0, "d"))
        tables = {
            "conditions": [{"conditionId": c, "targetId": t, "targetValue": v} for c, t, v in sets],
            "experiments": [{"experimentId": "e", "time": t, "conditionId": c} for t, c in periods],
        }
        measurements = [{**r, "experimentId": "e"} for r in rows]
    scale = {"parameterScale": "log10", "estimate": 1} if version == 1 else {"estimate": "true"}
    parameters = [{"parameterId": "k2", "lowerBound": 1e-3, "upperBound": 1e3, "nominalValue": 0.6, **scale}]
    problem = cf.petab.load(
        write(tmp_path, text, version=version, parameters=parameters, measurements=measurements, **tables)
    )
    b = 2 * 0.3 / 0.9
    steady_value = (3 + b) * 0.6 / 1.4
    expected = normal(1.3, steady_value + (3 - steady_value) * exp(-1.4), 0.1) + normal(0.8, steady_value, 0.1)
    assert nllh(problem) == pytest.approx(expected, abs=1e-5)
    assert gradient_agrees(problem)
    assert cf.fit(problem, "single").success
    saved_problem = cf.petab.load(cf.petab.save(problem, tmp_path / "saved"))
    assert nllh(saved_problem) == pytest.approx(nllh(problem), rel=1e-9)


def test_a_switch_at_an_estimated_time(tmp_path):
    model = """
    model switch
      compartment cell = 1; species A in cell
      -> A; piecewise(on, time >= when, 0)
      A = 1; on = 1; when = 1
    end
    """
    path = write(tmp_path, model, parameters=[parameter("on", 0.5), parameter("when", 1.7)])
    problem = cf.petab.load(path)
    expected = sum(normal(m, 1 + 0.5 * max(t - 1.7, 0), 0.1) for t, m in zip(TIMES, VALUES, strict=True))
    assert nllh(problem) == pytest.approx(expected, abs=1e-6)
    assert gradient_agrees(problem)


def test_an_event_of_the_model_and_constants_of_it(tmp_path):
    model = DECAY.replace("end", "at (time >= 1.5): A = A + 3 * dose\nend")
    path = write(tmp_path, model, conditions=[{"conditionId": "c", "dose": 0.5}])
    expected = sum(
        normal(m, 2 * exp(-0.4 * t) + (1.5 * exp(-0.4 * (t - 1.5)) if t > 1.5 else 0), 0.1)
        for t, m in zip(TIMES, VALUES, strict=True)
    )
    assert nllh(cf.petab.load(path)) == pytest.approx(expected, abs=1e-6)


PRIORS = {
    "uniform": ("0.1;5", lambda x: log(4.9)),
    "normal": ("0.5;0.2", lambda x: normal(x, 0.5, 0.2)),
    "laplace": ("0.5;0.2", lambda x: -stats.laplace.logpdf(x, 0.5, 0.2)),
    "logNormal": ("-1;0.5", lambda x: -stats.lognorm.logpdf(x, 0.5, scale=exp(-1))),
    "logLaplace": ("-1;0.5", lambda x: -stats.laplace.logpdf(log(x), -1, 0.5) + log(x)),
    "parameterScaleUniform": ("-2;2", lambda x: log(4)),
    "parameterScaleNormal": ("-0.3;0.2", lambda x: normal(log10(x), -0.3, 0.2)),
    "parameterScaleLaplace": ("-0.3;0.2", lambda x: -stats.laplace.logpdf(log10(x), -0.3, 0.2)),
}


@pytest.mark.parametrize("kind", PRIORS)
def test_objective_priors(tmp_path, kind):
    numbers, density = PRIORS[kind]
    row = parameter("k", 0.4, objectivePriorType=kind, objectivePriorParameters=numbers)
    problem = cf.petab.load(write(tmp_path, parameters=[row]))
    cost = problem.priors(problem.guess).cost + problem.posed.prior_constant
    assert cost == pytest.approx(density(0.4), abs=1e-9)
    theta = np.array(problem.guess)
    slope = [problem.priors(theta + h).cost for h in (1e-5, -1e-5)]
    rows = problem.priors(theta)
    exact = float(rows.rows @ rows.jacobian[:, 0]) if rows.rows.size else 0.0
    assert (slope[0] - slope[1]) / 2e-5 == pytest.approx(exact, abs=1e-5)
    assert nllh(problem) == pytest.approx(
        sum(normal(m, 2 * exp(-0.4 * t), 0.1) for t, m in zip(TIMES, VALUES, strict=True))
    )


def test_scales_bounds_and_fixed_parameters(tmp_path):
    rows = [
        parameter("k", 0.4),
        parameter("A0", 2.5, parameterScale="lin", lowerBound=-1),
        {**parameter("dose", 3.0), "estimate": 0, "lowerBound": "", "upperBound": ""},
    ]
    observables = [{"observableId": "y", "observableFormula": "A + dose", "noiseFormula": 0.1}]
    problem = cf.petab.load(write(tmp_path, parameters=rows, observables=observables))
    assert [(q.name, q.scale, q.lower, q.upper, q.guess) for q in problem.quantities] == [
        ("k", "log", 1e-4, 1e4, 0.4),
        ("A0", "linear", -1.0, 1e4, 2.5),
    ]
    assert problem.parameters["dose"].fixed
    expected = sum(normal(m, 2.5 * exp(-0.4 * t) + 3, 0.1) for t, m in zip(TIMES, VALUES, strict=True))
    assert nllh(problem) == pytest.approx(expected, abs=1e-6)


# Version 2


def test_starts_are_drawn_from_initialization_priors(tmp_path):
    """By estimate's field, by multistart, and on the command line; within the bounds, and nothing else changes."""
    priors = [
        ("k", "parameterScaleNormal", "-0.5;0.1"), ("A0", "uniform", "1.5;2.5"), ("dose", "parameterScaleUniform", ""),
    ]  # fmt: skip
    rows = [
        parameter(n, 2.0 if n != "k" else 0.4, initializationPriorType=kind, initializationPriorParameters=numbers)
        for n, kind, numbers in priors
    ]
    text = DECAY.replace("A = A0", "A = A0 + dose")
    problem = cf.petab.load(write(tmp_path, text, parameters=rows))
    assert problem.parameters["k"].starts == cf.Normal(-0.5, 0.1, on="log10")
    assert problem.parameters["A0"].starts == cf.priors.Uniform(1.5, 2.5)
    assert problem.parameters["dose"].starts is None
    field = build_search_region(problem.posed, None)
    rng = np.random.default_rng(3)
    samples = np.exp([field.draw(rng) for _ in range(400)])
    samples_by_name = {n: samples[:, problem.names.index(n)] for n in problem.names}
    assert np.log10(samples_by_name["k"]).mean() == pytest.approx(-0.5, abs=0.02)
    assert np.log10(samples_by_name["k"]).std() == pytest.approx(0.1, abs=0.02)
    assert samples_by_name["A0"].mean() == pytest.approx(2.0, abs=0.06)
    assert 1.5 <= samples_by_name["A0"].min() < samples_by_name["A0"].max() <= 2.5
    low, high = (np.log10(problem.parameters["dose"].bounds[j]) for j in range(2))
    assert np.log10(samples_by_name["dose"]).std() == pytest.approx((high - low) / np.sqrt(12), rel=0.1)
    starts = draw(problem, 64, None, None, 0, []).initial_starts
    assert np.mean([s["A0"] for s in starts]) == pytest.approx(2.0, abs=0.02)
    assert np.std([np.log10(s["k"]) for s in starts]) == pytest.approx(0.1, abs=0.02)
    limited = build_search_region(problem.posed, {"A0": (5.0, 6.0)}).draw(rng)
    assert 5.0 <= np.exp(limited[problem.names.index("A0")]) <= 6.0
    assert all(1.5 <= load(str(tmp_path / "problem.yaml"), []).draw_start(j)["A0"] <= 2.5 for j in range(5))


def test_version_2_agrees_with_version_1(tmp_path):
    conditions = [
        {"conditionId": "low", "targetId": "k", "targetValue": "0.5 * rate"},
        {"conditionId": "more", "targetId": "A", "targetValue": "2 + begin"},
    ]
    experiments = [{"experimentId": "e", "time": 0, "conditionId": c} for c in ("low", "more")]
    observables = [
        {
            "observableId": "y",
            "observableFormula": "s * A",
            "noiseFormula": "sd",
            "noiseDistribution": "log-normal",
            "observablePlaceholders": "s",
            "noisePlaceholders": "sd",
        }
    ]
    rows = [
        {
            "observableId": "y",
            "experimentId": "e",
            "measurement": m,
            "time": t,
            "observableParameters": "scale",
            "noiseParameters": "0.2",
        }
        for t, m in zip(TIMES, VALUES, strict=True)
    ]
    bounds = {"lowerBound": 1e-3, "upperBound": 1e3, "estimate": "true"}
    parameters = [
        {"parameterId": n, **bounds, "nominalValue": v} for n, v in (("rate", 0.6), ("begin", 1.0), ("scale", 0.8))
    ]
    problem = cf.petab.load(
        write(
            tmp_path,
            version=2,
            conditions=conditions,
            experiments=experiments,
            observables=observables,
            measurements=rows,
            parameters=parameters,
        )
    )
    expected = sum(
        normal(log(m), log(0.8 * 3.0 * exp(-0.3 * t)), 0.2) + log(m) for t, m in zip(TIMES, VALUES, strict=True)
    )
    assert nllh(problem) == pytest.approx(expected, abs=1e-6)
    assert gradient_agrees(problem)


def test_a_draft_of_version_2_has_the_tables_of_version_1(tmp_path):
    """`format_version` 2 with a list of problems, as the suite published in the package petabtests 0.0.1."""
    path = write(tmp_path)
    expected = cf.petab.negative_log_likelihood(cf.petab.load(path))
    text = path.read_text().replace("format_version: 1", "format_version: 2.0.0")
    path.write_text(text.replace("sbml_files: [model.xml]", "model_files: {m: {location: model.xml, language: sbml}}"))
    assert cf.petab.negative_log_likelihood(cf.petab.load(path)) == expected


def test_periods_change_parameters_and_states_at_their_times(tmp_path):
    conditions = [
        {"conditionId": "fast", "targetId": "k", "targetValue": "quick"},
        {"conditionId": "slow", "targetId": "k", "targetValue": 0.1},
        {"conditionId": "shot", "targetId": "A", "targetValue": "A + 1.5"},
    ]
    experiments = [
        {"experimentId": "e", "time": 0, "conditionId": "slow"},
        {"experimentId": "e", "time": 2, "conditionId": "fast"},
        {"experimentId": "e", "time": 2, "conditionId": "shot"},
    ]
    rows = [
        {"observableId": "y", "experimentId": "e", "measurement": m, "time": t}
        for t, m in zip(TIMES, VALUES, strict=True)
    ]
    bounds = {"lowerBound": 1e-3, "upperBound": 1e3, "estimate": "true"}
    problem = cf.petab.load(
        write(
            tmp_path,
            version=2,
            conditions=conditions,
            experiments=experiments,
            measurements=rows,
            parameters=[{"parameterId": "quick", **bounds, "nominalValue": 0.9}],
        )
    )
    at2 = 2 * exp(-0.2) + 1.5  # a value at the beginning of a period is measured after its changes
    courses = {1.0: 2 * exp(-0.1), 2.0: at2, 4.0: at2 * exp(-1.8)}
    expected = sum(normal(m, courses[t], 0.1) for t, m in zip(TIMES, VALUES, strict=True))
    assert nllh(problem) == pytest.approx(expected, abs=1e-6)
    assert gradient_agrees(problem)


@pytest.mark.parametrize("end", [2, 3])
def test_measurement_at_parameter_change_uses_new_parameters(tmp_path, end):
    """No state moves then, so nothing but the observable and its noise tell before from after."""
    rows = [(1, 1.4), (2, 1.1), (2, 1.3), (3, 0.6)]
    data = [{"observableId": "y", "experimentId": "e", "measurement": m, "time": t} for t, m in rows if t <= end]
    bounds = {"lowerBound": 1e-3, "upperBound": 1e3, "estimate": "true"}
    problem = cf.petab.load(
        write(
            tmp_path,
            "model m\n  species A\n  A -> ; k*gain*A\n  A = 2; k = 0.3; gain = 1\nend\n",
            version=2,
            parameters=[{"parameterId": n, "nominalValue": v, **bounds} for n, v in (("k", 0.4), ("g", 1.5))],
            observables=[{"observableId": "y", "observableFormula": "gain * A", "noiseFormula": "0.1 + 0.2 * gain"}],
            conditions=[{"conditionId": "c", "targetId": "gain", "targetValue": "g"}],
            experiments=[{"experimentId": "e", "time": t, "conditionId": c} for t, c in ((0, ""), (2, "c"))],
            measurements=data,
        )
    )

    def expected_objective(k: float, g: float) -> float:
        def level(t):
            return 2 * exp(-k * (min(t, 2) + g * max(t - 2, 0)))

        gains = {t: 1.0 if t < 2 else g for t, _ in rows}
        return sum(normal(m, gains[t] * level(t), 0.1 + 0.2 * gains[t]) for t, m in rows if t <= end)

    assert cf.petab.negative_log_likelihood(problem, {"k": 0.4, "g": 1.5}) == pytest.approx(
        expected_objective(0.4, 1.5), rel=1e-7
    )
    assert gradient_agrees(problem)
    for transcription in ("single", cf.MultipleShooting(3), "collocation"):
        result = cf.fit(problem, transcription)
        assert result.objective == pytest.approx(expected_objective(**result.values), rel=1e-6)


def test_pre_equilibration_and_mapping_of_version_2(tmp_path):
    model = """
    model source
      compartment cell = 1; species A in cell
      -> A; make * u
      A -> ; d * A
      A = 1; make = 1; d = 0.5; u = 1
    end
    """
    conditions = [
        {"conditionId": "off", "targetId": "light", "targetValue": 0},
        {"conditionId": "on", "targetId": "light", "targetValue": 2},
    ]
    experiments = [
        {"experimentId": "e", "time": "-inf", "conditionId": "on"},
        {"experimentId": "e", "time": 0, "conditionId": "off"},
    ]
    rows = [
        {"observableId": "y", "experimentId": "e", "measurement": m, "time": t}
        for t, m in zip(TIMES, VALUES, strict=True)
    ]
    bounds = {"lowerBound": 1e-3, "upperBound": 1e3, "estimate": "true"}
    problem = cf.petab.load(
        write(
            tmp_path,
            model,
            version=2,
            conditions=conditions,
            experiments=experiments,
            measurements=rows,
            parameters=[{"parameterId": "make", **bounds, "nominalValue": 0.9}],
            mapping=[{"petabEntityId": "light", "modelEntityId": "u"}],
        )
    )
    expected = sum(normal(m, 2 * 0.9 / 0.5 * exp(-0.5 * t), 0.1) for t, m in zip(TIMES, VALUES, strict=True))
    assert nllh(problem) == pytest.approx(expected, abs=1e-6)


PRIORS_2 = {
    "cauchy": ("0.5;0.2", stats.cauchy(0.5, 0.2)),
    "chisquare": ("3", stats.chi2(3)),
    "exponential": ("0.5", stats.expon(scale=0.5)),
    "gamma": ("2;0.5", stats.gamma(2, scale=0.5)),
    "laplace": ("0.5;0.2", stats.laplace(0.5, 0.2)),
    "log-laplace": ("-1;0.5", stats.loglaplace(2.0, scale=exp(-1))),
    "log-normal": ("-1;0.5", stats.lognorm(0.5, scale=exp(-1))),
    "log-uniform": ("0.1;5", stats.loguniform(0.1, 5)),
    "normal": ("0.5;0.2", stats.norm(0.5, 0.2)),
    "rayleigh": ("0.5", stats.rayleigh(scale=0.5)),
    "uniform": ("0.1;5", stats.uniform(0.1, 4.9)),
}


@pytest.mark.parametrize("kind", PRIORS_2)
def test_priors_of_version_2_are_truncated_at_the_bounds(tmp_path, kind):
    numbers, distribution = PRIORS_2[kind]
    low, high = (0.1, 5.0) if "uniform" in kind else (0.2, 2.0)
    row = {
        "parameterId": "k",
        "lowerBound": low,
        "upperBound": high,
        "nominalValue": 0.4,
        "estimate": "true",
        "priorDistribution": kind,
        "priorParameters": numbers,
    }
    problem = cf.petab.load(write(tmp_path, version=2, parameters=[row]))
    mass = distribution.cdf(high) - distribution.cdf(low)
    cost = problem.priors(problem.guess).cost + problem.posed.prior_constant
    assert cost == pytest.approx(-distribution.logpdf(0.4) + log(mass), abs=1e-8)
    theta = np.array(problem.guess)
    rows = problem.priors(theta)
    slope = (problem.priors(theta + 1e-5).cost - problem.priors(theta - 1e-5).cost) / 2e-5
    assert slope == pytest.approx(float(rows.rows @ rows.jacobian[:, 0]) if rows.rows.size else 0.0, abs=1e-5)
    prior = problem.quantities[0].prior
    assert [prior.cdf(prior.ppf(u)) for u in (0.1, 0.5, 0.9)] == pytest.approx([0.1, 0.5, 0.9], abs=1e-9)
    assert sqrt(2 * pi) > 0


def test_a_state_that_has_died_away_before_the_first_datum(tmp_path):
    """It is not followed down to exp(-10000), which takes more steps than there may be."""
    text = "B' = -gone * B; A' = gone * B - k * A; B = 100; A = 2; k = 0.3; gone = 1000"
    times = (10.0, 12.0, 15.0)
    path = write(tmp_path, text, measurements=measured(times, (1.3, 0.9, 0.5)))
    problem = cf.petab.load(path)
    objective = SmoothObjective(problem, np.asarray(problem.guess), accurate(1e-10))
    amount = 2 * np.exp(-0.4 * np.array(times)) + 100 * 1000 / (1000 - 0.4) * np.exp(-0.4 * np.array(times))
    expected = sum(normal(m, a, 0.1) for m, a in zip((1.3, 0.9, 0.5), amount, strict=True))
    assert objective.value(np.asarray(problem.guess)) == pytest.approx(expected, abs=1e-7)
    assert gradient_agrees(problem)


def test_an_event_of_the_model_acts_after_the_condition_of_the_same_time(tmp_path):
    """And a condition at the start may refer to the model's own initial values and to time (cases 0023, 0030)."""
    model = DECAY.replace("end", "at (time >= 2): A = 2 * A\nend")
    conditions = [
        {"conditionId": "first", "targetId": "A", "targetValue": "A + time + 0.5"},
        {"conditionId": "shot", "targetId": "A", "targetValue": "A + 1.5"},
    ]
    experiments = [
        {"experimentId": "e", "time": 1, "conditionId": "first"},
        {"experimentId": "e", "time": 2, "conditionId": "shot"},
    ]
    rows = [
        {"observableId": "y", "experimentId": "e", "measurement": m, "time": t}
        for t, m in zip(TIMES, VALUES, strict=True)
    ]
    problem = cf.petab.load(
        write(tmp_path, model, version=2, conditions=conditions, experiments=experiments, measurements=rows)
    )
    at2 = 2 * (3.5 * exp(-0.4) + 1.5)
    courses = {1.0: 3.5, 2.0: at2, 4.0: at2 * exp(-0.8)}
    expected = sum(normal(m, courses[t], 0.1) for t, m in zip(TIMES, VALUES, strict=True))
    assert nllh(problem) == pytest.approx(expected, abs=1e-5)
    assert gradient_agrees(problem)


def test_measurement_at_condition_change_follows_triggered_events(tmp_path):
    """The model's event, which states trigger, follows the condition's change at once (cases 0016, 0023)."""
    text = "A' = k; B' = 0; A = 1; B = 4; k = 0.3; at (A >= 6), fromTrigger=false: B = A * B, A = A / 2"
    conditions = [{"conditionId": "shot", "targetId": "A", "targetValue": "A + B"}]
    experiments = [
        {"experimentId": "e", "time": 0, "conditionId": ""},
        {"experimentId": "e", "time": 3, "conditionId": "shot"},
    ]
    observables = [
        {"observableId": n, "observableFormula": f, "noiseFormula": "1"} for n, f in (("y", "A"), ("z", "B"))
    ]
    rows = [
        {"observableId": o, "experimentId": "e", "measurement": 0, "time": t} for t in (1, 3, 5) for o in ("y", "z")
    ]
    tables = {"observables": observables, "conditions": conditions, "experiments": experiments, "measurements": rows}
    problem = cf.petab.load(write(tmp_path, text, version=2, **tables))
    k = 0.4
    at3 = 1 + 3 * k + 4
    courses = [1 + k, 4, at3 / 2, 4 * at3, at3 / 2 + 2 * k, 4 * at3]
    assert nllh(problem) == pytest.approx(sum(normal(0, y, 1.0) for y in courses), abs=1e-6)
    assert gradient_agrees(problem)


@pytest.mark.parametrize("version", [1, 2])
def test_formulas_may_contain_other_observables(tmp_path, version):
    observables = [
        {"observableId": "y", "observableFormula": "2 * z + A", "noiseFormula": "0.1 + 0.2 * z + 0.05 * y"},
        {"observableId": "z", "observableFormula": "B / 2", "noiseFormula": "0.1"},
    ]
    problem = cf.petab.load(write(tmp_path, version=version, observables=observables))
    expected = 0.0
    for t, m in zip(TIMES, VALUES, strict=True):
        z = 1 - exp(-0.4 * t)
        expected += normal(m, 2.0, 0.1 + 0.2 * z + 0.1)
    assert nllh(problem) == pytest.approx(expected, abs=1e-7)
    assert gradient_agrees(problem)


@pytest.mark.parametrize("sigma", ["0.2", "s"])
def test_fit_reports_petab_objective(tmp_path, sigma):
    """Whether sigma is a number or estimated; also of what was changed, pickled and found by searches."""
    observable = {"observableId": "y", "observableFormula": "A", "noiseFormula": sigma}
    parameters = [parameter("k", 0.4), *([parameter("s", 0.2)] if sigma == "s" else [])]
    problem = cf.petab.load(write(tmp_path, observables=[observable], parameters=parameters))
    best = cf.fit(problem, "single")
    assert best.measure == "PEtab's objective"
    assert best.objective == nllh(best) == pytest.approx(nllh(problem, best.values), abs=1e-7)
    assert f"PEtab's objective = {best.objective:.8g}, 3 measurements" in str(best)
    modified_problem = pickle.loads(pickle.dumps(problem)).replace(units={"k": "1/h"})
    assert modified_problem.posed.measure == "PEtab's objective"
    multistart_result = cf.multistart(modified_problem, "single", starts=5)
    assert multistart_result.optima[0].objective == pytest.approx(best.objective, abs=1e-6)
    assert f"PEtab's objective = {best.objective:.6g}" in repr(multistart_result)
    best.save(tmp_path / "best.json")
    assert cf.Result.load(tmp_path / "best.json").objective == best.objective


def test_the_work_of_loading_grows_as_the_tables(tmp_path):
    def calls(n):
        folder = tmp_path / str(n)
        folder.mkdir()
        observable = {"observableId": "y", "observableFormula": "observableParameter1_y * A"}
        rows = [
            {**row, "simulationConditionId": f"c{i}", "observableParameters": f"s{i % 2}", "noiseParameters": "sd"}
            for i in range(n)
            for row in measured((*range(1, 11),), (1.0,) * 10)
        ]
        path = write(
            folder,
            observables=[{**observable, "noiseFormula": "noiseParameter1_y"}],
            conditions=[{"conditionId": f"c{i}", "dose": i} for i in range(n)],
            measurements=rows,
            parameters=[parameter(name, 1.0) for name in ("k", "s0", "s1", "sd")],
        )
        loaded = list[cf.Problem]()
        count = calls_of(lambda: loaded.append(cf.petab.load(path)))
        assert len(loaded[0].experiments) == n
        return count

    calls(2)  # imports
    calls_4, calls_8, calls_16 = calls(4), calls(8), calls(16)
    assert calls_16 - calls_8 < 2.2 * (calls_8 - calls_4)


def test_spreads_and_overrides_are_worked_out_once_for_all_rows_that_share_them(tmp_path, monkeypatch):
    locations = list[str]()
    real = observing._spread
    monkeypatch.setattr(observing, "_spread", lambda row, m, reader: locations.append(m.where) or real(row, m, reader))
    rows = [m for s in ("s0", "s1") for m in measured((*range(1, 21),), (1.0,) * 20, noiseParameters=s)]
    path = write(
        tmp_path,
        observables=[{"observableId": "y", "observableFormula": "A", "noiseFormula": "noiseParameter1_y"}],
        measurements=rows,
        parameters=[parameter(name, 1.0) for name in ("k", "s0", "s1")],
    )
    cf.petab.load(path)
    assert len(locations) == 2


def test_quantity_without_measurements_is_omitted(tmp_path):
    """B is not observed, so that neither its decay nor its start is known; both stand at their nominal values."""
    model = "A' = -k * A; B' = k * A - d * B; A = 2; B = b; k = 0.3; d = 1; b = 0"
    rows = [parameter("k", 0.4), parameter("d", 0.7), parameter("b", 0.2)]
    path = write(tmp_path, model, parameters=rows)
    with pytest.warns(
        UserWarning, match="'d' is estimated, but no measurement depends on it; it is left out"
    ) as record:
        problem = cf.petab.load(path)
    assert "parameters.tsv, line 4: 'b' is estimated, but no measurement" in str(record[0].message)
    assert problem.names == ("k",)
    assert cf.simulate(problem, times=[0.0])["B"][0] == pytest.approx(0.2)
    expected = sum(normal(m, 2 * exp(-0.4 * t), 0.1) for t, m in zip((1, 2, 4), (1.3, 0.9, 0.5), strict=True))
    assert nllh(problem) == pytest.approx(expected, rel=1e-7)
