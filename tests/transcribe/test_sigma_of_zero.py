"""A sigma in proportion to a prediction of zero: which value it is, and what to do."""

from __future__ import annotations

import numpy as np
import pytest

import castfit as cf

TIMES = np.array([0.0, 0.5, 1.0, 2.0, 4.0, 8.0])


def asked(*, start: float = 0.0, subjects: int = 1) -> cf.Problem:
    """Absorption after a lag, with errors in proportion, measured at the start as well."""
    gut, c, ka, ke, lag, a = cf.symbols("gut c ka ke lag a")
    model = cf.Model({gut: -ka * gut, c: ka * gut - ke * c}, parameters=[ka, ke, lag, a], initial={gut: 0, c: start})
    dose = cf.Doses(into=gut, amount=10, times=0, lag=lag)
    data = {"c": [0.1, 1.8, 4.3, 6.3, 6.1, 3.4]}
    noise = {"c": cf.Gaussian(sigma=a * c)}
    experiments = [cf.Experiment(data, time=TIMES, events=[dose], noise=noise, name=f"s{n}") for n in range(subjects)]
    parameters = {
        "ka": cf.Parameter(1.0, local=subjects > 1),
        "ke": 0.1,
        "lag": cf.Parameter(0.3, bounds=(0, 0.45)),
        "a": 0.1,
    }
    return cf.Problem(model, experiments, parameters=parameters)


SAID = "at t = 0 sigma of c is 0, where c is 0: such a value has no probability; leave it out, or give sigma a floor"


@pytest.mark.parametrize("transcription", ["single", "multiple", "collocation"])
def test_a_fit_names_the_value_without_a_sigma(transcription: str) -> None:
    result = cf.fit(asked(), transcription)
    assert not result.success
    assert SAID in result.message


def test_mixed_effects_name_it_once_for_all_subjects() -> None:
    result = cf.mixed_effects(asked(subjects=3), cf.Population({"ka": cf.Individual(omega=0.3)}), standard_errors=False)
    assert not result.success
    assert result.message.count(SAID) == 1
    assert "'s0', 's1', 's2' (at t = 0" in result.message


def test_mixed_effects_of_subjects_measured_alike_name_it_too() -> None:
    x, k, a = cf.symbols("x k a")
    model = cf.Model({x: k}, parameters=[k, a], initial={x: 0.0})
    noise = {"x": cf.Gaussian(sigma=a * x)}
    animals = [cf.Experiment({"x": [0.1, 1.1, 2.0]}, [0.0, 1.0, 2.0], noise=noise, name=f"s{n}") for n in range(3)]
    problem = cf.Problem(model, animals, parameters={"k": cf.Parameter(1.0, local=True), "a": 0.1})
    result = cf.mixed_effects(problem, cf.Population({"k": cf.Individual(omega=0.3)}), standard_errors=False)
    assert "at t = 0 sigma of x is 0, where x is 0" in result.message


def test_a_sigma_that_is_positive_is_not_blamed() -> None:
    assert SAID not in cf.fit(asked(start=0.2), "single").message
