"""Results as PEtab's tables, read back and judged by the petab library."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

import castfit as cf
from tests.builders import refused
from tests.formats.petab.writing import measured, parameter, write

pytest.importorskip("petab")
pytest.importorskip("antimony")


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines(), delimiter="\t"))


def test_estimates_become_nominal_values(tmp_path):
    table = [parameter("k", 0.6, note="kept"), {**parameter("dose", 3.0), "estimate": 0}]
    path = write(tmp_path, parameters=table)
    result = cf.fit(cf.petab.load(path), "single")
    assert result.success
    cf.petab.save_parameters(result, tmp_path / "parameters.tsv", like=path)
    saved_rows = rows(tmp_path / "parameters.tsv")
    assert [r["parameterId"] for r in saved_rows] == ["k", "dose"]
    assert saved_rows[0]["note"] == "kept"
    assert float(saved_rows[0]["nominalValue"]) == result.parameters["k"]
    assert saved_rows[1]["nominalValue"] == "3.0"
    loaded_problem = cf.petab.load(path)
    assert cf.petab.negative_log_likelihood(loaded_problem) == pytest.approx(
        cf.petab.negative_log_likelihood(result), abs=1e-6
    )


def test_a_table_of_any_result(tmp_path):
    result = cf.fit(cf.problems.load("bellman").problem)
    cf.petab.save_parameters(result, tmp_path / "p.tsv")
    saved_rows = rows(tmp_path / "p.tsv")
    assert {r["parameterId"]: float(r["nominalValue"]) for r in saved_rows} == result.values
    with refused("'k1' is not in the table", "'k2' is not in the table"):
        cf.petab.save_parameters(result, tmp_path / "q.tsv", like=write(tmp_path))
    with refused("result is 3; give a Result"):
        cf.petab.save_parameters(3, tmp_path / "q.tsv")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # pandas, of what the petab library does
def test_simulations_give_the_same_likelihood_by_the_petab_library(tmp_path):
    import pandas as pd
    import petab.v1 as library

    observable = {"observableId": "y", "observableFormula": "observableParameter1_y * A",
                  "noiseFormula": "noiseParameter1_y", "observableTransformation": "log10"}  # fmt: skip
    data = measured((2, 1, 4), (0.9, 1.3, 0.5), observableParameters="scale", noiseParameters="0.2")
    data += measured((2, 1), (0.3, 0.4), observableParameters="0.5", noiseParameters="sd")
    path = write(tmp_path, observables=[observable], measurements=data,
                 parameters=[parameter("k", 0.4), parameter("scale", 1.2), parameter("sd", 0.3)])  # fmt: skip
    cf.petab.save_simulations(tmp_path / "simulations.tsv", path)
    simulations = pd.read_csv(tmp_path / "simulations.tsv", sep="\t")
    exact = [s * 2 * np.exp(-0.4 * t) for s, t in ((1.2, 2), (1.2, 1), (1.2, 4), (0.5, 2), (0.5, 1))]
    np.testing.assert_allclose(simulations["simulation"], exact, rtol=1e-7)
    tables = (
        library.get_measurement_df(str(tmp_path / "measurements.tsv")),
        simulations,
        library.get_observable_df(str(tmp_path / "observables.tsv")),
        library.get_parameter_df(str(tmp_path / "parameters.tsv")),
    )
    library_nllh = -library.calculate.calculate_llh(*tables)
    assert cf.petab.negative_log_likelihood(cf.petab.load(path)) == pytest.approx(library_nllh, abs=1e-7)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Support for PEtab2.0:UserWarning")
def test_a_problem_goes_out_and_comes_back(tmp_path):
    import petab.v2 as library

    t = np.linspace(0, 5, 6)
    x, y, k, m, a, total, kref = cf.symbols("x y k m a total kref")
    rate = k * x * cf.if_else(y > 0.05, 1, 0.5)
    model = cf.Model(
        {x: -rate, y: rate - m * cf.fmax(y, 0.01) ** 1.5 / (1 + cf.exp(-y))},
        parameters=[k, m, a],
        outputs={"total": a * (x + y)},
        initial={x: 2.0 * a, y: 0.1},
    )
    values = {"total": np.exp(-0.3 * t) + 0.1, "y": np.exp(-0.2 * t) + 0.1}
    one = cf.Experiment(
        values, time=t, sigma={"total": 0.1 + 0.2 * total, "y": 0.05}, name="one", parameters={"m": 0.3}
    )
    two = cf.Experiment(
        {"total": values["total"]},
        time=t,
        sigma=0.1,
        noise={"total": cf.LogNormal(base=10)},
        initial={"y": cf.free(0.2, lower=0.01, upper=2)},
        name="second one",
        parameters={"k": 2 * kref},
    )
    problem = cf.Problem(
        model,
        [one, two],
        parameters={
            "k": cf.Parameter(0.4, 0.01, 5, scale="log"),
            "m": cf.Parameter({"second one": 0.25}, 0, 3, local=True),
            "a": cf.Parameter(1.1, 0.1, 9, prior=cf.Normal(1, 0.5)),
            "kref": cf.Parameter(0.3, 0.01, 5),
        },
    )
    path = cf.petab.save(problem, tmp_path / "saved")
    assert not library.Problem.from_yaml(str(path)).validate()
    loaded_problem = cf.petab.load(path)
    nllh = cf.petab.negative_log_likelihood
    assert nllh(loaded_problem) == pytest.approx(nllh(problem), abs=1e-8)
    expected = nllh(problem, {"k": 0.7, "a": 0.9, "y(0)[second one]": 0.4})
    assert nllh(loaded_problem, {"estimated_k": 0.7, "a": 0.9, "initial_y_second_one": 0.4}) == pytest.approx(
        expected, abs=1e-8
    )


def test_save_names_unsupported_parts(tmp_path):
    z, x, k, u = cf.symbols("z x k u")
    model = cf.Model({x: -k * z * u}, algebraic={z: z - cf.erf(x)}, parameters=[k], inputs=[u], initial={x: 2.0})
    experiment = cf.Experiment(
        {"x": [1.0, 0.5]},
        time=[1, 2],
        sigma=0.1,
        inputs={"u": 1.0},
        noise={"x": cf.StudentT()},
        events=cf.Event(1.5, {x: 1}),
    )
    parameter = cf.Parameter(0.5, lower=0, prior=cf.Normal(0, 1, on="log"))
    problem = cf.Problem(model, experiment, parameters={"k": parameter}, constraints=[k <= 3])
    with refused(
        "castfit does not write algebraic states",
        "inputs",
        "constraints",
        "events and doses",
        "the prior Normal",
        "StudentT errors",
    ):
        cf.petab.save(problem, tmp_path)
    with refused("give a Problem"):
        cf.petab.save(3, tmp_path)


def test_powers_with_estimated_exponents_and_truth_values_go_out_and_come_back(tmp_path):
    """What castfit makes of x^n compares and rounds; comparisons are no numbers in SBML."""
    model = "A' = -k * A^n * (1 + (A > 1)); A = 2; k = 0.3; n = 1.5"
    parameters = [parameter("k", 0.4), parameter("n", 1.3)]
    problem = cf.petab.load(write(tmp_path, model, parameters=parameters))
    loaded_problem = cf.petab.load(cf.petab.save(problem, tmp_path / "saved"))
    nllh = cf.petab.negative_log_likelihood
    for point in ({}, {"k": 0.2, "n": 2.0}):
        assert nllh(loaded_problem, point) == pytest.approx(nllh(problem, point), abs=1e-7)


def test_a_start_at_rest_in_which_nothing_else_differs_comes_back(tmp_path):
    x, k = cf.symbols("x k")
    model = cf.Model({x: 1.0 - k * x}, parameters=[k], outputs={"y": x + 0.1}, initial={x: 3.0})
    experiment = cf.Experiment({"y": [2.2, 2.0]}, time=[1.0, 2.0], sigma=0.1, initial=cf.steady_state(), start=0.0)
    problem = cf.Problem(model, experiment, parameters={"k": cf.Parameter(0.4, bounds=(0.1, 2.0))})
    loaded_problem = cf.petab.load(cf.petab.save(problem, tmp_path / "saved"))
    assert cf.fit(loaded_problem).values["k"] == pytest.approx(0.5, rel=1e-6)  # x = 1 / k = 2 is the mean of y - 0.1


def test_save_keeps_valid_identifiers(tmp_path):
    """Names that PEtab accepts come back unchanged, also beside a name that must be changed to look the same."""
    state, rate, other, third = cf.symbols("_x rate_ a_b a")
    model = cf.Model({state: -(rate + other + third) * state}, parameters=[rate, other, third], initial={state: 2.0})
    experiment = cf.Experiment({"_x": [1.2, 0.8, 0.5]}, time=[1, 2, 3], sigma=0.1, name="a-b")
    guesses = {name: cf.Parameter(0.1, lower=0, upper=10) for name in ("rate_", "a_b", "a")}
    problem = cf.Problem(model, experiment, parameters=guesses)
    assert cf.petab.load(cf.petab.save(problem, tmp_path)).names == ("rate_", "a_b", "a")
