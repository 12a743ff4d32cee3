"""Fingerprints tell problems apart, and nothing else."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

import castfit as cf
from castfit.problem.fingerprint import describe_differences, fingerprint, question
from castfit.problem.problem import Constraint, Normal, Parameter, Problem
from tests.builders import everything

START = "guess, bounds, scale and prior of 's'"


def chain(
    rate=2.0, data=(1.0, 0.5), times=(0.0, 1.0), initial=1.0, start=0.0, sigma=0.1, own=None, **changes
) -> Problem:
    x, k, s = cf.symbols("x k s")
    model = cf.Model({x: -rate * k * x}, parameters=[k])
    parameters = {"k": s * 2 if own is None else own(s)}
    data = cf.Experiment(
        {"x": list(data)}, time=times, initial={"x": initial}, start=start, sigma=sigma, parameters=parameters
    )
    return Problem(model, data, **{"parameters": {"s": Parameter(0.5, lower=0.1, upper=4.0)}, **changes})


def test_the_same_problem_has_the_same_fingerprint():
    for build in (chain, everything):
        reference = fingerprint(build())
        assert describe_differences(reference, fingerprint(build())) == []
        assert describe_differences(reference, fingerprint(build().posed)) == []
        assert describe_differences(reference, fingerprint(pickle.loads(pickle.dumps(build())))) == []
        assert describe_differences(reference, fingerprint(pickle.loads(pickle.dumps(build().posed)))) == []


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        pytest.param({"rate": 2.5}, ["model"], id="rate 1"),
        pytest.param({"data": (1.0, 0.51)}, ["data of 'experiment 1'"], id="values 2"),
        pytest.param({"times": (0.0, 1.01)}, ["data of 'experiment 1'"], id="times 3"),
        pytest.param({"sigma": 0.2}, ["data of 'experiment 1'"], id="sigma 4"),
        pytest.param({"sigma": None}, ["data of 'experiment 1'"], id="sigma 5"),
        pytest.param({"initial": 1.1}, ["inputs, initial and fixed values of 'experiment 1'"], id="initial 6"),
        pytest.param({"start": -1.0}, ["inputs, initial and fixed values of 'experiment 1'"], id="start 7"),
        pytest.param({"own": lambda s: s * 3}, ["inputs, initial and fixed values of 'experiment 1'"], id="own 8"),
        pytest.param({"own": lambda s: cf.exp(s)}, ["inputs, initial and fixed values of 'experiment 1'"], id="own 9"),
        pytest.param({"state_bounds": {"x": (0.0, 2.0)}}, ["state_bounds"], id="state_bounds 10"),
        pytest.param({"constraints": [Constraint(cf.symbols("x"), upper=2.0)]}, ["constraints"], id="constraints 11"),
        pytest.param(
            {"parameters": {"s": Parameter(0.6, lower=0.1, upper=4.0)}},
            [START],
            id="parameters 12",
        ),
        pytest.param(
            {"parameters": {"s": Parameter(0.5, 0.1, 4.0, scale="log")}},
            [START],
            id="parameters 13",
        ),
        (
            {"parameters": {"s": Parameter(0.5, 0.1, 4.0, prior=Normal(1, 1))}},
            [START],
        ),
    ],
)
def test_describe_differences_names_the_changed_part(changes, what):
    assert describe_differences(fingerprint(chain()), fingerprint(chain(**changes))) == what


def test_constraints_on_other_symbols_differ():
    x, k = cf.symbols("x k")
    one, two = (fingerprint(chain(constraints=[Constraint(s, upper=2.0)])) for s in (x, k))
    assert describe_differences(one, two) == ["constraints"]


def test_the_question_does_not_depend_on_where_the_search_starts():
    compiled_problem = everything().posed
    changed_problem = compiled_problem.with_bounds(
        compiled_problem.guess - 1, compiled_problem.guess + 1, compiled_problem.guess + 0.5
    )
    assert question(changed_problem) == question(compiled_problem)
    assert question(compiled_problem.with_absolute_sigma(absolute_sigma=False)) == question(compiled_problem)
    assert describe_differences(fingerprint(changed_problem), fingerprint(compiled_problem)) == [
        f"guess, bounds, scale and prior of '{n}'" for n in compiled_problem.names
    ]
    assert describe_differences(question(compiled_problem.with_horizon(1.0)), question(compiled_problem))
    assert np.all([isinstance(v, str) for v in question(compiled_problem).values()])


def test_another_question_is_told_after_json_too():
    saved_question = json.loads(json.dumps(question(chain())))
    assert describe_differences(saved_question, question(chain())) == []
    assert (
        describe_differences(saved_question, question(chain(parameters={"s": Parameter(0.6, lower=0.1, upper=4.0)})))
        == []
    )
    assert describe_differences(saved_question, question(chain(data=(1.0, 0.6)))) == ["data of 'experiment 1'"]
