"""What of a problem's files does not matter, or is no mistake: it loads, and says so where asked."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import castfit as cf
from castfit import cli
from tests.formats.petab.writing import DECAY, parameter, write

pytest.importorskip("petab")
pytest.importorskip("antimony")
LATE = DECAY.replace("end\n", "  at (time >= 3): k = 5 * k\n  at (time >= 50): A = 9\nend\n")


def test_events_after_the_last_measurement_do_not_matter(tmp_path, capsys):
    path = write(tmp_path, LATE, parameters=[parameter("A0", 2.0)])
    problem = cf.petab.load(path)
    assert capsys.readouterr().out == ""
    cf.petab.load(path, verbose=1)
    assert "c: the event at 50 comes after the last measurement, at 4; it does not matter" in capsys.readouterr().out
    (condition,) = problem.conditions
    assert len(condition.schedule.instants) == 1
    values_before, value_after = 2 * np.exp(-0.3 * np.array([1.0, 2.0])), 2 * np.exp(-0.3 * 3 - 1.5)
    expected = np.array([*values_before, value_after])
    values = np.array([1.3, 0.9, 0.5])
    density = 0.5 * ((values - expected) / 0.1) ** 2 + 0.5 * np.log(2 * np.pi * 0.01)
    assert cf.petab.negative_log_likelihood(problem) == pytest.approx(density.sum(), abs=1e-6)


def test_periods_after_the_last_measurement_do_not_matter(tmp_path, capsys):
    rows = [{"observableId": "y", "experimentId": "e", "measurement": 1.3, "time": t} for t in (1, 2)]
    path = write(
        tmp_path,
        version=2,
        conditions=[{"conditionId": "late", "targetId": "A", "targetValue": 7}],
        experiments=[
            {"experimentId": "e", "time": 0, "conditionId": ""},
            {"experimentId": "e", "time": 9, "conditionId": "late"},
        ],
        measurements=rows,
    )
    problem = cf.petab.load(path, verbose=1)
    assert "e: its period at 9 begins after the last measurement, at 2" in capsys.readouterr().out
    assert not problem.conditions[0].schedule.instants


def test_nominal_values_outside_their_bounds_are_a_warning(tmp_path, capsys):
    path = write(tmp_path, parameters=[parameter("k", 0.4, upperBound=0.39), parameter("A0", 2.0)])
    message = r"parameters.tsv, line 2: 'k' has the nominalValue 0.4 outside of its bounds, 0.0001 to 0.39"
    with pytest.warns(UserWarning, match=message):
        problem = cf.petab.load(path)
    assert problem.to_natural(problem.guess).tolist() == pytest.approx([0.39, 2.0])
    assert cli.main(["fit", str(path)]) == 0
    assert "castfit: parameters.tsv, line 2: 'k' has the nominalValue 0.4" in capsys.readouterr().err


def test_a_placeholder_is_one_of_an_observable_that_exists(tmp_path):
    """Else it is a parameter with a strange name."""
    observables = [{"observableId": "y", "observableFormula": "A", "noiseFormula": "noiseParameter2_other"}]
    problem = cf.petab.load(
        write(
            tmp_path, observables=observables, parameters=[parameter("k", 0.4), parameter("noiseParameter2_other", 0.1)]
        )
    )
    assert problem.names == ("k", "noiseParameter2_other")


def test_parameter_without_effect_is_omitted(tmp_path):
    """Its nominal value changes nothing."""
    path = write(tmp_path, parameters=[parameter("k", 0.4), parameter("idle", 3.0)])
    with pytest.warns(UserWarning, match="line 3: 'idle' is estimated, but nothing depends on it; it is left out"):
        problem = cf.petab.load(path)
    assert problem.names == ("k",)
    reduced_path = write(tmp_path, parameters=[parameter("k", 0.4)])
    assert cf.petab.negative_log_likelihood(problem) == cf.petab.negative_log_likelihood(cf.petab.load(reduced_path))


def _of_constants(folder, kind, numbers):
    """Write a problem like cases 0024 and 0025 of the test suite: constants, one measured, at the start only."""
    bounds = {"lowerBound": 0, "estimate": "true"}
    prior = {"priorDistribution": kind, "priorParameters": numbers}
    return write(
        folder,
        "model m\n  p_prior = 5\nend\n",
        version=2,
        parameters=[
            {"parameterId": "p_prior", "upperBound": 10, "nominalValue": 5, **bounds, **prior},
            {"parameterId": "p1", "upperBound": 2, "nominalValue": 1, **bounds},
            {"parameterId": "p_fixed", "nominalValue": 1, "estimate": "false"},
        ],
        observables=[{"observableId": "obs_p1", "observableFormula": "p1", "noiseFormula": "p_fixed"}],
        measurements=[{"observableId": "obs_p1", "experimentId": "", "measurement": 1, "time": 0}],
    )


PRIORS = {
    "normal": ("4;2", stats.norm(4, 2), 4.0),
    "cauchy": ("3;5", stats.cauchy(3, 5), 3.0),
    "rayleigh": ("3", stats.rayleigh(scale=3), 3.0),
    "gamma": ("3;2", stats.gamma(3, scale=2), 4.0),
}


@pytest.mark.parametrize("kind", PRIORS)
def test_parameter_with_prior_only_is_estimated(tmp_path, kind):
    """Its prior counts, cut off at the bounds; where one parameter has a prior, the others have even ones."""
    numbers, distribution, mode = PRIORS[kind]
    problem = cf.petab.load(_of_constants(tmp_path, kind, numbers))
    assert {*problem.names} == {"p_prior", "p1"}
    assert cf.petab.negative_log_likelihood(problem) == pytest.approx(0.5 * np.log(2 * np.pi))
    priors = problem.priors(problem.guess).cost + problem.posed.prior_constant
    mass = distribution.cdf(10) - distribution.cdf(0)
    assert priors == pytest.approx(-distribution.logpdf(5) + np.log(mass) + np.log(2.0), abs=1e-8)
    result = cf.fit(problem)
    assert result.success
    assert [result.values[n] for n in ("p_prior", "p1")] == pytest.approx([mode, 1.0], abs=1e-4)


def test_an_even_prior_informs_of_nothing(tmp_path):
    """What no measurement depends on is left out then, as without a prior."""
    with pytest.warns(UserWarning, match="'p_prior' is estimated, but no measurement depends on it; it is left out"):
        problem = cf.petab.load(_of_constants(tmp_path, "uniform", "2;8"))
    assert problem.names == ("p1",)
    assert cf.petab.negative_log_likelihood(problem) == pytest.approx(0.5 * np.log(2 * np.pi))
    assert cf.fit(problem, "single").values["p1"] == pytest.approx(1.0)
