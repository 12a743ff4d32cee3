"""Every public object shows itself in a line that says the most important."""

from __future__ import annotations

import dataclasses
import inspect

import numpy as np
import pytest

import castfit as cf
from castfit import problems
from castfit._support.reprs import MAX_LINE_WIDTH, add_brief_repr, format_value, join_limited, one_line

LONG = " ".join(f"a_rather_long_name_{i}" for i in range(40))


@pytest.fixture(scope="module")
def result():
    """A model of many quantities with long names."""
    names = cf.symbols(LONG)
    x = cf.symbols("x")
    model = cf.Model({x: -sum(names[1:], names[0]) * x}, parameters=names, initial={x: 1})
    experiment = cf.Experiment({"x": np.exp(-np.arange(5.0))}, time=np.arange(5.0), sigma=0.1)
    problem = cf.Problem(
        model, experiment, parameters={n.name(): cf.Parameter(0.02, lower=0.0, upper=1.0) for n in names}
    )
    return cf.fit(problem, cf.SingleShooting(), cf.GaussNewton(max_iter=3))


def reached(thing, depth=3):
    """Everything of castfit that can be reached from a thing by its attributes."""
    if depth < 0 or thing is None:
        return
    module = type(thing).__module__.split(".")
    if module[0] == "castfit":
        yield thing
        parts = vars(thing).values() if hasattr(thing, "__dict__") else ()
        for part in list(parts):
            yield from reached(part, depth - 1)
    elif isinstance(thing, (tuple, list)):
        for part in thing[:2]:
            yield from reached(part, depth - 1)
    elif isinstance(thing, dict):
        for part in list(thing.values())[:2]:
            yield from reached(part, depth - 1)


def public(thing):
    """Whether a user meets it: parts of posed problems and graphs are for us."""
    private = (
        "castfit.problem.parameter_map",
        "castfit.problem.event_schedule",
        "castfit.problem.observables",
        "castfit.problem.prior_rows",
        "castfit.solve.staged",
        "castfit.model.delay",
        "castfit.problem.linear_scales",
    )
    return not type(thing).__name__.startswith("_") and not type(thing).__module__.startswith(private)


def test_reprs_of_public_objects_fit_one_line(result):
    x, k = cf.symbols("x k")
    benchmark = problems.load("hiv_proteinase")
    instances = [
        result, result.diagnostics, result["a_rather_long_name_3"], result.problem, result.problem.posed, benchmark,
        cf.MultipleShooting(10), cf.Collocation(degree=4), cf.SingleShooting(), cf.GaussNewton(), cf.Ipopt(max_iter=3),
        cf.IntegratorOptions(relative_tolerance=1e-5), cf.Decomposed(), cf.relative(0.1), cf.unknown(), cf.free(2.0),
        cf.StudentT(df=7), cf.Constraint(x * k, 0, 1), cf.Event(3, {x: x + k}), cf.steady_state(), cf.scaled(x),
        cf.Input.linear(np.arange(50.0), np.arange(50.0)), cf.stiffness(result)["experiment 1"],
    ]  # fmt: skip
    reached_objects = [thing for one in instances for thing in reached(one) if public(thing)]
    assert len({type(thing) for thing in reached_objects}) > 25
    faulty_reprs = {
        type(t): repr(t)[:200]
        for t in reached_objects
        if "\n" in repr(t) or len(repr(t)) > MAX_LINE_WIDTH or " at 0x" in repr(t)
    }
    assert faulty_reprs == {}


def test_repr_shows_main_fields(result):
    assert repr(cf.MultipleShooting(10)) == "MultipleShooting(intervals=10)"
    assert repr(cf.GaussNewton()) == "GaussNewton()"
    assert repr(cf.Parameter(0.5, lower=0, scale="log")) == "Parameter(value=0.5, lower=0, scale='log')"
    assert repr(result).startswith(f"Result({result.status.value}: {result.measure} = ")
    assert "36 more" in repr(result.problem) or "more)" in repr(result.problem)
    experiment = cf.Experiment({"x": [1.0, np.nan, 3.0], "y": [2.0, 3.0, 4.0]}, time=[1, 2, 5], name="dose")
    assert repr(experiment) == "Experiment('dose': 5 values of x, y, times 1 to 5)"


def test_no_public_dataclass_shows_arrays_in_full():
    """What is exported and holds arrays goes through `add_brief_repr`, or says something of its own."""
    for name in cf.__all__:
        thing = getattr(cf, name)
        if not (inspect.isclass(thing) and dataclasses.is_dataclass(thing)):
            continue
        source = thing.__repr__.__qualname__
        assert "__create_fn__" not in source, name  # what dataclasses write by themselves


def test_the_parts_of_a_repr():
    assert format_value(np.arange(3.0)) == "[0.0, 1.0, 2.0]"
    assert format_value(np.zeros((20, 2))) == "array(20, 2)"
    assert format_value({"a": 1.0}) == "{'a': 1}"
    assert format_value(list(range(9))) == "(9 entries)"
    assert join_limited(["a", "b"]) == "a, b"
    assert join_limited([f"k{i}" for i in range(100)], 12) == "k0, k1, k2 and 97 more"
    assert one_line("a\nb") == "a b"
    assert len(one_line("x" * 500)) == MAX_LINE_WIDTH

    @add_brief_repr
    @dataclasses.dataclass
    class Thing:
        a: object
        b: float = 2.0
        c: tuple = ()

    assert repr(Thing(np.zeros(9))) == "Thing(a=array(9,))"
    assert repr(Thing(1, 3.0, (1,))) == "Thing(a=1, b=3, c=(1,))"
    assert repr(Thing("x", c=np.zeros(2))) == "Thing(a='x', c=[0.0, 0.0])"
