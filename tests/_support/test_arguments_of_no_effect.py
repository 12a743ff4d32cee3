"""Arguments that could do nothing are refused by name, and mistakes are told at once, by the names of arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import castfit as cf

x, k, u = cf.symbols("x k u")


@cache
def decay(local: bool = False) -> cf.Problem:
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    data = [cf.Experiment({"x": [1.2, 0.8, 0.4]}, [1, 2, 3], sigma=0.1) for _ in range(1 + local)]
    return cf.Problem(model, data, parameters={"k": cf.Parameter(0.5, lower=0, local=local)})


@cache
def fitted() -> cf.Result:
    return cf.fit(decay())


def planned(**options: Any) -> cf.Plan:
    model = cf.Model({x: -x + u}, inputs=[u], initial={x: 1.0})
    free = {"u": cf.Input.free(pieces=2, bounds=(0, 1))}
    return cf.control(model, horizon=1, inputs=free, minimise=cf.integral(x**2), **options)


def population() -> cf.Population:
    return cf.Population({"k": cf.Individual(omega=0.3)})


GRID = cf.Candidate([1, 2, 3])


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: cf.multistart(decay(), starts=[{"k": 1}], max_draws=3), "starts were passed.*remove max_draws="),
    (lambda: cf.multistart(decay(), starts=[{"k": 1}], screen=3), "starts were passed.*remove screen="),
    (lambda: cf.design(fitted(), GRID, budget=2, samples=5), "samples= has an effect only"),
    (lambda: cf.design(decay(), GRID, budget=2, samples=5), "samples= has an effect only"),
    (lambda: fitted().predict(confidence_level=0.5), "confidence_level applies to bands"),
    (lambda: fitted().plot(confidence_level=0.5), "confidence_level applies to bands"),
    (lambda: planned(soft=3.0), "soft= applies to constraints along the horizon"),
    (lambda: planned(scenarios="worst"), "scenarios=.worst. needs several scenarios"),
    (lambda: cf.Input.estimated([0, 1], guess=0, smoothness=None, order=1), "order is that of smoothness"),
    (
        lambda: cf.incremental(decay(), break_fraction=0.3),
        "break_fraction has an effect only with horizons='break time'",
    ),
    (
        lambda: cf.select(decay(), choices={"k": [0.5, cf.estimated]}).evidence(draws=500),
        "draws= has an effect only with sampling=True",
    ),
    (lambda: cf.Doses(x, 1, duration=2, measured="after"), "an infusion changes nothing at once"),
    (lambda: cf.Input("linear", [0, 1], [1, 2], measured="after"), "measured is for jumps"),
    (
        lambda: planned(transcription=cf.Collocation(states="smoothed")),
        r"Collocation\(states=...\) has an effect only in fits",
    ),
    (lambda: planned(rng=3), "rng is for several starts"),
    (
        lambda: cf.Candidate([1, 2], fixed=True, continuous_times=True),
        "measured once at all its times; remove continuous_times=",
    ),
    (lambda: cf.Candidate([1, 2], fixed=True, at_most=2), "measured once at all its times; remove at_most="),
    (lambda: cf.Candidate([1, 2], spacing=1, at_most=2), "at_most= counts repetitions, which spacing= excludes"),
    (lambda: cf.Candidate([1, 2], spacing=1, cost_unit="experiment"), "the times of a whole experiment are fixed"),
    (lambda: cf.Candidate([1], continuous_times=True), "continuous_times=True optimises times between grid points"),
    (lambda: cf.tikhonov(["k", "k"], 1.0), "names holds 'k' twice"),
    (lambda: cf.lasso("k", 1.0, towards={"k": 1, "q": 2}), "towards has a value for 'q', which is not in names"),
    (
        lambda: cf.plots.ellipses(fitted(), contours={("k", "q"): []}),
        "contours contains k and q, which are not in names",
    ),
    (lambda: fitted().report("a.html", foo=1), "report has no argument 'foo'"),
    (
        lambda: cf.design(decay(), GRID, budget=2, criterion=cf.discriminate(decay())),
        "a competing model predicts the same",
    ),
    (lambda: cf.Event(1, {x: 0}, rng=3), "priority, persistent, rng and forbidden apply only to a condition"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=range(len(REFUSED)))
def test_argument_without_effect_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(cf.InputError, match=message):
        call()


def test_multistart_invalid_sampling_gives_one_message() -> None:
    with pytest.raises(cf.InputError) as caught:
        cf.multistart(decay(), starts=3, screen=3, sampling="nonsense")
    assert len(caught.value.problems) == 1


def test_design_lists_mistakes_of_all_candidates() -> None:
    bad = [cf.Candidate([1], "y"), cf.Candidate([1], initial={"y": 1}), cf.Candidate([1], cost={"z": 1}),
           cf.Candidate([1], parameters={"q": 1}), cf.Candidate([1], sigma={"w": 1})]  # fmt: skip
    with pytest.raises(cf.InputError) as caught:
        cf.design(decay(), bad, budget=0)
    assert [p.split(":")[0] for p in caught.value.problems] == [f"candidate {i}" for i in (1, 3, 5, 2, 4)]
    relative = cf.relative(0.1)
    none = [cf.Candidate([t], initial={"x": 0.0}, sigma=relative) for t in (1, 2)]
    with pytest.raises(cf.InputError, match=r"candidate 1: sigma(?s:.)*candidate 2: sigma"):
        cf.design(decay(), none, budget=1)
    with pytest.raises(cf.InputError, match="candidates contain 3, 'x'"):
        cf.design(decay(), [3, GRID, "x"], budget=1)


def test_mixed_effects_lists_start_with_other_mistakes() -> None:
    with pytest.raises(cf.InputError, match="mixed_effects: 2 mistakes") as caught:
        cf.mixed_effects(decay(True), population(), start={"q": 1}, max_iter=-1)
    assert "'q' cannot be started" in str(caught.value)
    with pytest.raises(cf.InputError, match=r"problem is 1(?s:.)*population is 2"):
        cf.mixed_effects(1, 2)


def test_plot_lists_all_mistakes() -> None:
    with pytest.raises(cf.InputError) as caught:
        fitted().plot(log=3, bands="lines", nodes=2)
    assert [p.split()[0] for p in caught.value.problems] == ["log", "nodes", "bands"]
    with pytest.raises(cf.InputError, match="rng is 'x'"):
        fitted().plot(rng="x")


def test_names_of_arguments() -> None:
    calls_by_message = {
        "profile_limits: .*confidence_level is 3; ": lambda: cf.profile_limits(fitted(), 3),
        "second is 3; ": lambda: cf.contours(fitted(), "k", 3),
        "first is 'q .': ": lambda: cf.contours(fitted(), "q +", "k"),
        "first and second are both 'k'": lambda: cf.contours(fitted(), "k", "k"),
        "parameters is a int": lambda: cf.petab.negative_log_likelihood(decay(), 3),
        "parameters of 'k'": lambda: cf.petab.negative_log_likelihood(decay(), {"k": -1}),
        "integrator is 3.*'q' is not": lambda: cf.petab.negative_log_likelihood(decay(), {"q": 1}, integrator=3),
        "petab.save: 2 mistakes": lambda: cf.petab.save(1, 2),
        "file is 2.*like is 3": lambda: cf.petab.save_simulations(2, 3),
        "result is 1.*there is no file": lambda: cf.petab.save_parameters(1, "a.tsv", "none.yaml"),
        "eliminate is 3.*there is no file": lambda: cf.petab.to_pypesto("none.yaml", eliminate=3),
    }
    for sentence, call in calls_by_message.items():
        with pytest.raises(cf.InputError, match=f"(?s){sentence}"):
            call()
    assert not Path("a.tsv").exists()


def test_unknown_names_of_results() -> None:
    population_result = cf.mixed_effects(decay(True), population(), max_iter=0, standard_errors=False)
    for result in (
        fitted(),
        population_result,
        fitted().identifiability,
        cf.compare_models({"a": fitted(), "b": fitted()}),
    ):
        with pytest.raises(cf.InputError, match="'q'"):
            result["q"]
