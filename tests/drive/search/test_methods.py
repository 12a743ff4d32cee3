"""Methods by name, as pairs, and as functions."""

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import pytest

import castfit as cf
from castfit.drive.run.loop import read_answer
from castfit.drive.search.compare.methods import CustomMethod, FitMethod, Incremental, ScatterSearch, methods_from
from tests.builders import refused
from tests.drive.chores import STRAIGHT, pole


def read(spec, **options):
    mistakes = []
    methods = methods_from(spec, mistakes, **options)
    assert not mistakes
    return methods


def mistakes_in(spec):
    mistakes = []
    methods_from(spec, mistakes)
    return mistakes


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("single", FitMethod(cf.SingleShooting(), cf.GaussNewton())),
        ("multiple", FitMethod(cf.MultipleShooting(), cf.GaussNewton())),
        ("collocation", FitMethod(cf.Collocation(), cf.GaussNewton())),
        ("single/gauss_newton", FitMethod(cf.SingleShooting(), cf.GaussNewton())),
        ("multiple/gauss-newton", FitMethod(cf.MultipleShooting(), cf.GaussNewton())),
        ("collocation/ipopt", FitMethod(cf.Collocation(), cf.Ipopt())),
        ("incremental", Incremental(cf.SingleShooting())),
        ("incremental/multiple", Incremental(cf.MultipleShooting())),
        ("incremental/collocation/ipopt", Incremental(cf.Collocation(), cf.Ipopt())),
        ("scatter_search", ScatterSearch()),
        ("scatter-search/multiple", ScatterSearch(cf.MultipleShooting())),
    ],
)
def test_names(name, method):
    assert read([name]) == {name: method}
    assert read({"custom_method": name}) == {"custom_method": method}
    assert method.description


def test_transcriptions_take_settings():
    methods = read(["multiple", "incremental/multiple"], settings={"multiple": {"intervals": 7}})
    assert [m.transcription for m in methods.values()] == [cf.MultipleShooting(7)] * 2


def test_names_of_their_own_come_first():
    method = FitMethod(cf.SingleShooting(), STRAIGHT)
    assert read(["single", "iss"], also={"single": method, "iss": method}) == {"single": method, "iss": method}


def test_parts_and_functions():
    def custom_method(problem, *, start, max_time):
        """Do nothing."""

    methods = read(
        {
            "t": cf.Collocation(),
            "p": (cf.SingleShooting(), STRAIGHT),
            "n": ("multiple", STRAIGHT),
            "f": custom_method,
            "m": Incremental(),
        }
    )
    assert methods == {
        "n": FitMethod(cf.MultipleShooting(), STRAIGHT),
        "t": FitMethod(cf.Collocation()),
        "p": FitMethod(cf.SingleShooting(), STRAIGHT),
        "f": CustomMethod(custom_method),
        "m": Incremental(),
    }
    assert methods["f"].description == "custom_method"


def test_a_method_of_ones_own_is_told_the_seed():
    @dataclass
    class Random:
        seeds: list
        description: str = "random"

        def __call__(self, problem, *, start, max_time, seed):
            self.seeds.append(seed)
            return cf.fit(problem, cf.SingleShooting(), STRAIGHT, start=start)

    def seeds(rng):
        method = Random([])
        cf.compare(pole(), {"random": method}, starts=[{"k": 0.4}] * 3, rng=rng)
        return method.seeds[1:]  # the first is that of the warm-up

    assert len(set(seeds(0))) == 3
    assert seeds(0) == seeds(0)
    assert not set(seeds(0)) & set(seeds(1))


@pytest.mark.parametrize(
    ("spec", "phrase"),
    [
        ("single", "methods is 'single'; expected a list of names"),
        (3, "methods is 3; expected a list of names"),
        ([], "methods is empty"),
        ({}, "methods is empty"),
        ([3], "methods holds 3; give names"),
        (["single", "single"], "methods holds 'single' twice"),
        (["singel"], "the method 'singel': transcription is 'singel': did you mean 'single'?"),
        (["incremantal"], "did you mean 'incremental'?"),
        (["single/ipot"], "the method 'single/ipot': solver is 'ipot': did you mean 'ipopt'?"),
        (["incremental/singel"], "did you mean 'single'?"),
        (["incremental/incremental"], "transcription is 'incremental'"),
        (["single/ipopt/ipopt"], "solver is 'ipopt/ipopt': did you mean 'ipopt'?"),
        ([""], "transcription is ''"),
        ({"a": cf.SingleShooting}, "the method 'a' is <class"),
        ({"a": (cf.SingleShooting(),) * 2}, "the method 'a' is (SingleShooting"),
        ({"a": ("single", "ipot")}, "the method 'a' is ('single', 'ipot')"),
        ({"a": ()}, "the method 'a' is ()"),
        ({"a": None}, "the method 'a' is None"),
        ({1: "single"}, "methods has the key 1"),
    ],
)
def test_mistakes(spec, phrase):
    (mistake,) = mistakes_in(spec)
    assert phrase in mistake


def test_answers_are_read_wherever_the_result_is():
    result = cf.fit(pole(), cf.SingleShooting(), STRAIGHT)
    assert read_answer(result).result is result
    assert read_answer(result).iterations == result.iterations
    assert read_answer(SimpleNamespace(best=result, iterations=7)).iterations == 7
    assert read_answer(SimpleNamespace(result=result)).evaluations == result.evaluations
    with pytest.raises(TypeError, match=r"returned 3; expected a Result"):
        read_answer(3)


def test_a_scatter_search_begins_at_the_start_and_counts_its_simulations(monkeypatch):
    short = partial(cf.scatter_search, max_eval=150)
    monkeypatch.setattr("castfit.drive.search.compare.methods.scatter_search", short)
    problem = pole()
    outcome = ScatterSearch()(problem, start={"k": 0.4}, max_time=60, seed=3)
    problem_at_start = cf.Problem(
        problem.model, problem.experiments, parameters={"k": cf.Parameter(0.4, lower=0, upper=2)}
    )
    direct_result = short(problem_at_start, rng=3)
    assert outcome.result.values == direct_result.best.values
    assert outcome.iterations == direct_result.generations
    assert sum(outcome.evaluations.values()) == direct_result.simulations


def test_drivers_take_the_same_names():
    """A name means the same to every driver as to `fit`, and an unknown one is refused with the nearest."""
    problem = pole(upper=0.95)
    many = cf.multistart(problem, "multiple/ipopt", starts=1)
    assert (many.transcription, many.solver) == (cf.MultipleShooting().label, cf.Ipopt().label)
    assert cf.multistart(problem, "multiple", starts=1).solver == cf.GaussNewton().label
    grown = cf.incremental(problem, "multiple", "gauss-newton")
    assert grown.result.transcription == cf.MultipleShooting().label
    search = cf.scatter_search(problem, "single/ipopt", max_eval=30, dim_refset=3, n_diverse=3)
    assert (search.transcription, search.solver) == (cf.SingleShooting().label, cf.Ipopt().label)
    for driver in (cf.multistart, cf.incremental, cf.scatter_search):
        with refused("transcription is 'singel': did you mean 'single'?", "solver is 'ipot': did you mean 'ipopt'?"):
            driver(problem, "singel/ipot")
