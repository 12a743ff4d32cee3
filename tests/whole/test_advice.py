"""Advised calls: a call in a message about a result must be accepted for that result."""

from __future__ import annotations

import re

import numpy as np
import pytest

import castfit as cf

TIMES = np.linspace(0, 5, 15)
DECAY = 10 * np.exp(-0.7 * TIMES)
NOISY = DECAY + 0.1 * np.random.default_rng(0).standard_normal(15)
WAVE = np.abs(DECAY + 0.5 * np.sin(1.3 * TIMES)) + 0.01
"""Data that a decay describes, with independent errors, and with a wave that no parameter explains."""


class Case:
    """A decay with variations; `with_process_noise` rebuilds the problem with a noise in the equation of x."""

    def __init__(
        self, values=NOISY, *, kind="plain", noise=None, sigma=None, parameter=0.5, options=None, **fit_options
    ):
        self.values, self.kind, self.noise, self.sigma = values, kind, noise, sigma
        self.parameters, self.options, self.fit_options = {"k": parameter}, options or {}, fit_options

    def problem(self, *, process_noise=False, sigma=None):
        x, y, k, a, w = cf.symbols("x y k a w")
        rates = {"delay": -k * cf.delay(x, 0.5), "dae": -k * y, "product": -k * a * x, "explosion": k * x * x}
        parameters = [k, a] if self.kind == "product" else [k]
        model = cf.Model(
            {x: rates.get(self.kind, -k * x) + (w if process_noise else 0)},
            algebraic={y: y - x} if self.kind == "dae" else None,
            parameters=parameters,
            initial={x: 10.0},
            **({"noises": [w]} if process_noise else {}),
        )
        events = [cf.Event(when=x < 2, changes={"x": x + 0.1})] if self.kind == "trigger" else []
        experiment = cf.Experiment(
            {"x": self.values}, time=TIMES, sigma=self.sigma if sigma is None else sigma, events=events,
            **({} if self.noise is None else {"noise": self.noise}),
        )  # fmt: skip
        options = {}
        if "constraint" in self.options:
            options["constraints"] = [self.options["constraint"](k, a)]
        guesses = {**self.parameters, **({"a": 1.0} if self.kind == "product" else {})}
        return cf.Problem(model, experiment, parameters=guesses, **options)


CASES = {
    "known sigma": Case(sigma=0.1),
    "unknown sigma": Case(),
    "time limit": Case(sigma=0.1, max_time=1e-9),
    "failed start": Case(sigma=0.1, kind="explosion", parameter=5.0, retry=False, transcription="single"),
    "active bound": Case(sigma=0.1, parameter=cf.Parameter(0.3, upper=0.5)),
    "nothing estimated": Case(WAVE, sigma=0.01, parameter=cf.Parameter(0.3, fixed=True)),
    "poor optimum": Case(10 * np.sin(3 * TIMES), sigma=0.01),
    "not identifiable": Case(sigma=0.1, kind="product"),
    "curved equation": Case(
        sigma=5.0, kind="product", options={"constraint": lambda k, a: cf.Constraint(k**2 + a**2, 1.5, 1.5)}
    ),
    "constraint": Case(WAVE, options={"constraint": lambda k, a: cf.Constraint(k + 0.0, lower=0.1)}),
    "incomplete": Case(WAVE),
    "incomplete, DAE": Case(WAVE, kind="dae"),
    "incomplete, delay": Case(WAVE, kind="delay"),
    "incomplete, trigger": Case(WAVE, kind="trigger"),
    "incomplete, Student": Case(WAVE, noise=cf.StudentT()),
    "incomplete, Laplace": Case(WAVE, noise=cf.Laplace()),
    "incomplete, logarithmic": Case(WAVE, noise=cf.LogNormal()),
    "incomplete, limit of detection": Case(WAVE, noise=cf.Gaussian(below=0.05)),
    "correlated errors": Case(WAVE, sigma=cf.correlated(time=0.05)),
}

CALL = re.compile(r"(?:cf|result)\.[a-z_]+\(|cf\.Model\(\.\.\., noises=|start='\w+'|scale='log'|cf\.Constraint")
PARTS = {"cf.Model(", "cf.Parameter(", "cf.unknown("}
"""Calls inside of other advice."""


def texts(result, problem):
    """Return everything that is printed about a result."""
    yield str(result)
    yield result.summary()
    for call in (
        lambda: cf.doctor(result, starts=0),
        lambda: cf.identifiability(result),
        lambda: cf.design(result, cf.Candidate(np.linspace(0.5, 5, 4)), budget=3),
    ):
        try:
            yield str(call())
        except cf.InputError as error:
            yield str(error)


def follow(advice, case, result, problem):
    """Follow an advised call; an InputError shows that it is not possible."""
    quick = {"max_time": 0.3}
    actions = {
        "cf.sample(": lambda: cf.sample(result, draws=40, chains=2, tune=2, rng=0),
        "cf.estimate(": lambda: cf.estimate(problem, rng=0, **quick),
        "cf.identifiability(": lambda: cf.identifiability(result),
        "cf.correlated(": lambda: cf.fit(case.problem(sigma=cf.correlated(time=cf.unknown())), **quick),
        "cf.Model(..., noises=": lambda: cf.fit(case.problem(process_noise=True), **quick),
        "result.plot(": result.plot,
        "result.summary(": result.summary,
        "result.with_problem(": lambda: result.with_problem(problem),
        "start='matching'": lambda: cf.fit(problem, start="matching", **quick),
        "scale='log'": lambda: None,
        "cf.Constraint": lambda: None,
    }
    actions[advice]()


@pytest.mark.parametrize("name", CASES)
def test_advised_calls_are_accepted(name):
    case = CASES[name]
    problem = case.problem()
    result = cf.fit(problem, **case.fit_options)
    advised = {call for text in texts(result, problem) for call in CALL.findall(text)} - PARTS
    if name == "correlated errors":  # the advice says that measurement errors are independent then
        case = Case(WAVE)
    for advice in sorted(advised):
        follow(advice, case, result, problem)


def test_advised_calls_of_a_loaded_result_are_accepted(tmp_path):
    problem = CASES["known sigma"].problem()
    cf.fit(problem).save(tmp_path / "result.json")
    loaded = cf.Result.load(tmp_path / "result.json")
    advised = {call for text in texts(loaded, problem) for call in CALL.findall(text)}
    assert advised == {"result.with_problem("}
    assert loaded.with_problem(problem).diagnostics.outliers == ()


@pytest.mark.parametrize("max_time", [np.inf, 1e-9])
def test_messages_of_a_path_result_advise_possible_calls(max_time):
    problem = CASES["known sigma"].problem(process_noise=True)
    result = cf.fit(problem, max_time=max_time)
    assert not {call for text in (str(result), result.message) for call in CALL.findall(text)}
