"""Bad inputs to every public callable: valid calls, and what careless or hostile users pass in place of an argument.

`CALLS` has a valid call for each public function, class and method of a result.  `cases` replaces one argument, or one
entry of an argument that is a mapping or a list, by a bad value.  `verdict` makes the call and names the fault.
"""

from __future__ import annotations

import inspect
import math
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import casadi as ca
import numpy as np
import pandas as pd

import castfit as cf

LIMIT_SECONDS = 20  # a longer call hangs
_MAX_DIFFERENCE_SE = 0.01  # largest difference between fits of one problem, in standard errors
SINGLE, SHORT = cf.SingleShooting(), {"max_time": 2.0}
x, y, k, m, u, w, s = cf.symbols("x y k m u w s")
TIMES = [0.5, 1.0, 2.0, 3.0, 4.0, 5.0]
DATA = [0.802, 0.645, 0.431, 0.302, 0.221, 0.174]
TABLE = pd.DataFrame({"t": TIMES, "what": ["x"] * 6, "value": DATA, "who": ["a"] * 3 + ["b"] * 3, "sd": 0.02})


def experiment(**changes: Any) -> cf.Experiment:
    return cf.Experiment(**{"data": {"x": DATA}, "time": TIMES, "sigma": 0.02, **changes})


def model() -> cf.Model:
    return cf.Model({x: -k * x + m}, parameters=[k, m], initial={x: 1.0})


GUESSES = {"k": cf.Parameter(0.4, lower=0.05, upper=3.0), "m": cf.Parameter(0.02, lower=0.0, upper=1.0)}


@cache
def problem() -> cf.Problem:
    return cf.Problem(model(), experiment(name="a"), parameters=GUESSES)


@cache
def result() -> cf.Result:
    return cf.fit(problem(), SINGLE)


@cache
def two_blocks() -> cf.Problem:
    return cf.Problem(
        cf.Model({x: -k * x, y: m * x - y}, parameters=[k, m], initial={x: 1.0, y: 0.0}),
        experiment(data={"x": DATA, "y": DATA[::-1]}), parameters=GUESSES,
    )  # fmt: skip


@cache
def smaller() -> cf.Result:
    return cf.fit(problem().replace(parameters={**GUESSES, "m": cf.Parameter(0.0, fixed=True)}), SINGLE)


@cache
def noisy() -> cf.PathResult:
    walk = cf.Model({x: -0.5 * x + s * w}, parameters=[s], noises=[w])
    data = cf.Experiment({"x": DATA}, time=TIMES, sigma=0.05, start=0.0, initial={"x": cf.Normal(1.0, 0.1)})
    return cf.fit(cf.Problem(walk, data, parameters={"s": cf.Parameter(0.1, scale="log")}))


@cache
def crowd() -> cf.Problem:
    growth = [0.3, 0.4, 0.5, 0.7]
    people = [experiment(data={"x": np.exp(-g * np.array(TIMES))}, name=f"p{i}") for i, g in enumerate(growth)]
    return cf.Problem(
        cf.Model({x: -k * x}, parameters=[k], initial={x: 1.0}), people, parameters={"k": cf.Parameter(0.4, local=True)}
    )


def control(**changes: Any) -> cf.Plan:
    drive = cf.Model({x: u - x}, inputs=[u], initial={x: 1.0})
    question = {"model": drive, "horizon": 1.0, "minimise": cf.integral(x**2 + u**2),
                "inputs": {"u": cf.Input.free(4, bounds=(-1, 1))}}  # fmt: skip
    return cf.control(**{**question, **changes})


@cache
def result_of(name: str) -> Any:
    """Return a result whose methods are called."""
    makers: dict[str, Callable[[], Any]] = {
        "mixed_effects": lambda: cf.mixed_effects(crowd(), cf.Population({"k": cf.Individual()})),
        "plan": control,
        "multistart": lambda: cf.multistart(problem(), SINGLE, starts=2, rng=0),
        "profiles": lambda: cf.profile(result(), transcription=SINGLE),
        "contours": lambda: cf.contours(result(), "k", "m", SINGLE, slices=4),
        "sample": lambda: cf.sample(result(), draws=30, tune=30, chains=2, rng=0),
        "bootstrap": lambda: cf.bootstrap(result(), samples=4, rng=0, transcription=SINGLE),
        "leave_out": lambda: cf.leave_out(result(), "value", transcription=SINGLE),
        "coverage": lambda: cf.coverage(problem(), {"k": 0.5, "m": 0.01}, samples=2, transcription=SINGLE),
        "compare": lambda: cf.compare(problem(), ["single"], starts=1),
        "incremental": lambda: cf.incremental(problem(), SINGLE, coarse=False),
        "scatter": lambda: cf.scatter_search(problem(), SINGLE, max_eval=60, rng=0),
        "estimate": lambda: cf.estimate(problem(), max_time=1.0, rng=0),
        "select": lambda: cf.select(problem(), SINGLE, choices={"m": [0.0, cf.estimated]}),
        "design": lambda: cf.design(result(), cf.Candidate([1.0, 2.0, 6.0]), budget=2),
        "identifiability": lambda: cf.identifiability(result(), max_time=2.0),
        "region": lambda: result().confidence_region(),
        "kalman": lambda: cf.kalman(noisy()),
        "horizon": lambda: cf.moving_horizon(noisy(), horizon=3),
        "models": lambda: cf.compare_models({"a": result(), "b": smaller()}),
        "stiffness": lambda: cf.stiffness(result())["a"],
        "prior_influence": lambda: cf.prior_influence(
            cf.fit(problem().replace(priors={"k": cf.Normal(0.4, 0.2)}), SINGLE)
        ),
    }
    return makers[name]()


@cache
def folder() -> Path:
    """Return a folder with a file of garbage, a table, and a saved result."""
    place = Path(tempfile.mkdtemp(prefix="bad_inputs_"))
    (place / "garbage.json").write_text('{"castfit_result": 4, "names": 5}')
    TABLE.to_csv(place / "table.csv")
    result().save(place / "result.json")
    result_of("plan").save(place / "plan.json")
    noisy().save(place / "path.json")
    cf.moving_horizon(noisy(), 3).save(place / "horizon.json")
    result_of("mixed_effects").save(place / "population.json")
    result_of("multistart").save(place / "multistart.json")
    result_of("profiles").save(place / "profiles.json")
    result_of("bootstrap").save(place / "bootstrap.json")
    return place


@dataclass(frozen=True)
class Call:
    """Valid call with the function, its arguments, and the use of its answer, such as a fit."""

    name: str
    function: Callable[[], Callable[..., Any]]
    arguments: Callable[[], dict[str, Any]]
    use: Callable[[Any], Any] = lambda answer: answer


CALLS: dict[str, Call] = {}


def add(name: str, arguments: Callable[[], dict[str, Any]] = dict, use: Callable[[Any], Any] | None = None) -> None:
    """Add a call of a public function or class, by its address in castfit."""

    def function() -> Any:
        member: Any = cf
        for part in name.split("."):
            member = getattr(member, part)
        return member

    CALLS[name] = Call(name, function, arguments, use or (lambda answer: answer))


def add_methods(owner: str, get: Callable[[], Any], /, **methods: Any) -> None:
    """Add calls of methods of one object."""
    for name, arguments in methods.items():
        call = arguments if callable(arguments) else lambda arguments=arguments: arguments
        CALLS[f"{owner}.{name}"] = Call(f"{owner}.{name}", lambda name=name: getattr(get(), name), call)


def _fit_with(**changes: Any) -> Any:
    return cf.fit(problem().replace(**changes), SINGLE, **SHORT)


# Models, data, problems.  Arguments that a problem reads are passed to a problem.
add("symbols", lambda: {"names": "a b"})
add("Model", lambda: {"ode": {x: -k * x}, "parameters": [k], "outputs": {"y": 2 * x}, "initial": {x: 1.0}})
add("Model.from_function", lambda: {"function": lambda t, state, p: [-p[0] * state[0]], "states": ["x"],
                                    "parameters": ["k"]})  # fmt: skip
add("Model.from_dae", lambda: {"dae": {"x": x, "p": k, "ode": -k * x}})
add("Experiment", lambda: {"data": {"x": DATA}, "time": TIMES, "sigma": 0.02, "initial": {"x": 1.0}},
    lambda e: _fit_with(experiments=e))  # fmt: skip
add("experiments_from", lambda: {"table": TABLE, "value": "value", "output": "what", "time": "t", "experiment": "who",
                                 "sigma": "sd", "initial": {"x": 1.0}})  # fmt: skip
add(
    "Parameter",
    lambda: {"value": 0.4, "lower": 0.05, "upper": 3.0},
    lambda p: _fit_with(parameters={**GUESSES, "k": p}),
)
add("Problem", lambda: {"model": model(), "experiments": experiment(), "parameters": dict(GUESSES)},
    lambda p: cf.fit(p, SINGLE, **SHORT))  # fmt: skip
add("Constraint", lambda: {"expression": x, "lower": 0.0}, lambda c: _fit_with(constraints=[c]))
for name in ("along", "monotone", "conserved", "at", "between"):
    base_arguments = {"along": {"relation": x >= 0.0}, "monotone": {"what": x, "increasing": False},
             "conserved": {"what": k + m}, "at": {"time": 2.0, "relation": x >= 0.1},
             "between": {"lower": 0.0, "expression": k + m, "upper": 4.0}}[name]  # fmt: skip
    add(name, lambda base_arguments=base_arguments: dict(base_arguments), lambda c: problem().replace(constraints=[c]))
add("quantity", lambda: {"name": "k"}, lambda q: problem().replace(constraints=[q >= 0.0]))
add("free", lambda: {"guess": 1.0, "lower": 0.5}, lambda f: _fit_with(experiments=experiment(initial={"x": f})))
add("consistent", lambda: {"guess": 1.0}, lambda c: experiment(initial={"z": c}))
add("relative", lambda: {"fraction": 0.1, "floor": 0.01}, lambda r: _fit_with(experiments=experiment(sigma=r)))
add("Event", lambda: {"time": 1.5, "changes": {x: x + 0.1}}, lambda e: _fit_with(experiments=experiment(events=[e])))
add("Doses", lambda: {"into": "x", "amount": 0.1, "times": [1.5, 2.5]},
    lambda e: _fit_with(experiments=experiment(events=[e])))  # fmt: skip
add("Input.constant", lambda: {"value": 1.0})
for name in ("linear", "pchip", "cubic_spline", "piecewise_constant"):
    add(f"Input.{name}", lambda: {"times": [0.0, 1.0, 2.0, 3.0], "values": [0.0, 1.0, 0.5, 0.2]})
add("Input.free", lambda: {"pieces": 4, "bounds": (-1, 1)}, lambda i: control(inputs={"u": i}))
add("Input.estimated", lambda: {"knots": [0.0, 2.0, 5.0], "guess": 0.5, "lower": 0.0, "upper": 1.0},
    lambda i: cf.Experiment({"x": DATA}, TIMES, inputs={"u": i}))  # fmt: skip
add("delay", lambda: {"expression": x, "tau": 0.5},
    lambda d: cf.Model({x: -k * d}, parameters=[k], initial={x: 1.0}))  # fmt: skip
add("scaled", lambda: {"expression": x},
    lambda o: cf.Problem(cf.Model({x: -k * x}, parameters=[k], initial={x: 1.0}, outputs={"o": o}),
                         experiment(data={"o": DATA}), parameters={"k": 0.5}))  # fmt: skip
for name in ("per_interval", "interval_mean", "relative_to_first"):
    add(name, lambda name=name: {("rate" if name == "per_interval" else "expression"): x})
add("estimated.__class__")
del CALLS["estimated.__class__"]

# Noise and priors
SIGMA = {"Gaussian": {"below": 0.01}, "LogNormal": {"below": 0.01}, "StudentT": {"df": 4.0}, "Huber": {}, "Cauchy": {},
         "SoftL1": {}, "Laplace": {}}  # fmt: skip
for name, noise_options in SIGMA.items():
    add(f"noise.{name}", lambda noise_options=noise_options: {"sigma": 0.1, **noise_options},
        lambda n: _fit_with(experiments=experiment(sigma=None, noise={"x": n})))  # fmt: skip
for name in ("Poisson", "NegativeBinomial"):
    add(f"noise.{name}", lambda: {"sigma": None},
        lambda n: _fit_with(experiments=experiment(data={"x": [9, 7, 4, 3, 2, 2]}, sigma=None, initial={"x": 10.0},
                                                noise={"x": n})))  # fmt: skip
add("noise.Likelihood", lambda: {"cost": lambda predicted, measured: 500 * (predicted - measured) ** 2},
    lambda n: _fit_with(experiments=experiment(sigma=None, noise={"x": n})))  # fmt: skip
add("noise.unknown", lambda: {"guess": 0.1}, lambda sigma: _fit_with(experiments=experiment(sigma=sigma)))
add(
    "noise.correlated",
    lambda: {"sigma": 0.1, "time": 1.0},
    lambda sigma: _fit_with(experiments=experiment(sigma=sigma)),
)
add("noise.covariance", lambda: {"matrix": 0.01 * np.eye(6)},
    lambda sigma: _fit_with(experiments=experiment(sigma={"x": sigma})))  # fmt: skip
PRIORS = {"Normal": (0.5, 0.2), "LogNormal": (0.5, 0.2), "Laplace": (0.5, 0.2), "Gamma": (2.0, 0.3), "Beta": (2.0, 3.0),
          "Uniform": (0.1, 1.0)}  # fmt: skip
for name, values in PRIORS.items():
    add(f"priors.{name}",
        lambda name=name, values=values: dict(
            zip(inspect.signature(getattr(cf.priors, name)).parameters, values, strict=False)),
        lambda prior: _fit_with(priors={"k": prior}))  # fmt: skip
add("priors.Truncated", lambda: {"prior": cf.Normal(0.5, 0.2), "lower": 0.1, "upper": 1.0},
    lambda prior: _fit_with(priors={"k": prior}))  # fmt: skip
for name in ("lasso", "tikhonov"):
    add(name, lambda: {"names": "k", "weight": 1.0}, lambda prior: _fit_with(priors=[prior]))
add("priors.multivariate_normal", lambda: {"mean": {"k": 0.5, "m": 0.01}, "covariance": [[0.01, 0.0], [0.0, 0.01]]},
    lambda prior: _fit_with(priors=[prior]))  # fmt: skip
add("Prior", lambda: {"result": result()}, lambda prior: _fit_with(priors=[prior]))

# Options of methods
add("IntegratorOptions", lambda: {"method": "auto"}, lambda o: cf.simulate(problem(), integrator=o))
add("GaussNewton", lambda: {"max_iter": 20}, lambda o: cf.fit(problem(), SINGLE, o, **SHORT))
add("Sqp", lambda: {"max_iter": 20}, lambda o: cf.fit(problem(), SINGLE, o, **SHORT))
add("Ipopt", lambda: {"max_iter": 20}, lambda o: cf.fit(problem(), SINGLE, o, **SHORT))
add("SingleShooting", lambda: {"derivatives": "auto"}, lambda o: cf.fit(problem(), o, **SHORT))
add("MultipleShooting", lambda: {"intervals": 3}, lambda o: cf.fit(problem(), o, **SHORT))
add("Collocation", lambda: {"degree": 3, "elements": 4}, lambda o: cf.fit(problem(), o, **SHORT))
add("SoftStart", lambda: {"start": {"k": 0.3}}, lambda o: cf.fit(problem(), "multiple", start=o, **SHORT))
add("Decomposed", lambda: {"start": {"k": 0.3}}, lambda o: cf.fit(two_blocks(), start=o, **SHORT))

# Drivers
METHOD = {"transcription": SINGLE}
add("fit", lambda: {"problem": problem(), **METHOD, "start": {"k": 0.3}, **SHORT})
add("simulate", lambda: {"problem": model(), "parameters": {"k": 0.5, "m": 0.1}, "times": [0.0, 1.0, 2.0],
                         "initial": {"x": 1.0}})  # fmt: skip
add("stiffness", lambda: {"problem": model(), "parameters": {"k": 0.5, "m": 0.1}, "times": [0.0, 1.0, 2.0],
                          "initial": {"x": 1.0}})  # fmt: skip
add("steady_state", lambda: {"model": model(), "parameters": {"k": 0.5, "m": 0.1}})
add("doctor", lambda: {"problem": problem(), **METHOD, "starts": 1, **SHORT})
add("multistart", lambda: {"problem": problem(), **METHOD, "starts": 2, "limits": {"k": (0.1, 2.0)}, **SHORT})
add("incremental", lambda: {"problem": problem(), **METHOD, "horizons": [2.0, 5.0], **SHORT})
add("scatter_search", lambda: {"problem": problem(), **METHOD, "max_eval": 50, **SHORT})
add("estimate", lambda: {"problem": problem(), "max_time": 1.0, "limits": {"k": (0.1, 2.0)}})
add("compare", lambda: {"problem": problem(), "methods": ["single"], "starts": 1, **SHORT})
add("compare_models", lambda: {"results": {"a": result(), "b": smaller()}})
add("likelihood_ratio", lambda: {"smaller": smaller(), "larger": result()})
add("select", lambda: {"problems": problem(), **METHOD, "choices": {"m": [0.0, cf.estimated]}, **SHORT})
add("profile", lambda: {"result": result(), "names": ["k"], **METHOD, **SHORT})
add("profile_limits", lambda: {"result": result()})
add("contours", lambda: {"result": result(), "first": "k", "second": "m", **METHOD, "slices": 4, **SHORT})
add("OutputAt", lambda: {"output": "x", "time": 1.0}, lambda o: cf.profile(result(), o, SINGLE, **SHORT))
add("bootstrap", lambda: {"result": result(), "samples": 3, **METHOD, **SHORT})
add("leave_out", lambda: {"result": result(), "each": "value", **METHOD, **SHORT})
add("coverage", lambda: {"problem": problem(), "truth": {"k": 0.5, "m": 0.01}, "samples": 2, **METHOD, **SHORT})
add("sample", lambda: {"result": result(), "draws": 20, "tune": 20, "chains": 2, **SHORT})
add("identifiability", lambda: {"problem": result(), **SHORT})
add("prior_influence", lambda: {"result": result_of("prior_influence").posterior, **METHOD})
add("Candidate", lambda: {"times": [1.0, 2.0, 6.0], "outputs": "x"}, lambda c: cf.design(result(), c, budget=2))
add("design", lambda: {"known": result(), "candidates": cf.Candidate([1.0, 2.0, 6.0]), "budget": 2.0})
add("choose", lambda: {"low": 0.5, "high": 2.0})
add("variance_of", lambda: {"what": "k"})
add("discriminate", lambda: {"rivals": result()})
del CALLS["variance_of"], CALLS["discriminate"]  # which take any number of arguments
CALLS["variance_of"] = Call(
    "variance_of",
    lambda: lambda target: cf.variance_of(target),
    lambda: {"target": "k"},
    lambda v: cf.design(result(), cf.Candidate([1.0, 2.0, 6.0]), budget=2, criterion=v),
)
CALLS["discriminate"] = Call(
    "discriminate",
    lambda: lambda rival: cf.discriminate(rival),
    lambda: {"rival": smaller()},
    lambda v: cf.design(result(), cf.Candidate([1.0, 2.0, 6.0]), budget=2, criterion=v),
)
add("Individual", lambda: {"omega": 0.3}, lambda i: cf.mixed_effects(crowd(), cf.Population({"k": i}), **SHORT))
add("Population", lambda: {"individual": {"k": cf.Individual()}}, lambda p: cf.mixed_effects(crowd(), p, **SHORT))
add("mixed_effects", lambda: {"problem": crowd(), "population": cf.Population({"k": cf.Individual()}), **SHORT})
add("kalman", lambda: {"result": noisy()})
add("moving_horizon", lambda: {"result": noisy(), "horizon": 3}, lambda h: h.step(1.0, {"x": 0.5}))
CALLS["control"] = Call(
    "control",
    lambda: cf.control,
    lambda: {"model": cf.Model({x: u - x}, inputs=[u], initial={x: 1.0}), "horizon": 1.0,
             "minimise": cf.integral(x**2 + u**2), "inputs": {"u": cf.Input.free(4, bounds=(-1, 1))},
             "constraints": [cf.at_end(x) >= 0.0], **SHORT},
)  # fmt: skip
for name in ("at_end", "integral"):
    add(name, lambda: {"expression": x})
add("explore", lambda: {"found": problem(), "path": folder() / "page.html", "title": "t"})

# Files of other formats, and the library
add("problems.load", lambda: {"name": "bellman"})
add("petab.save", lambda: {"problem": problem(), "folder": folder() / "petab"})
add("petab.load", lambda: {"file": cf.petab.save(problem(), folder() / "petab_load")})
add("petab.negative_log_likelihood", lambda: {"of": result()})
add("sbml.load_antimony", lambda: {"source": "A -> ; k * A; A = 2; k = 0.3"})
add("sbml.load", lambda: {"source": cf.sbml.load_antimony("A -> ; k * A; A = 2; k = 0.3").sbml})

# Methods of results
P = lambda name: lambda: {"path": folder() / name}  # noqa: E731
add_methods("Result", result, confidence_intervals={}, confidence_region={}, plot=P("r.png"),
            predict={"times": [1.0, 2.0]}, report=P("r.html"), residual_table={}, save=P("s.json"),
            summary={}, to_frame={}, with_problem=lambda: {"problem": problem()}, sensitivities={},
            load=P("result.json"))  # fmt: skip
add_methods("PathResult", noisy, confidence_intervals={}, laplace_check={"draws": 20},
            path={"name": "x"}, plot=P("p.png"), predict={"times": [1.0]}, report=P("p.html"), save=P("q.json"),
            load=P("path.json"), with_problem=lambda: {"problem": noisy().problem})  # fmt: skip
add_methods("MixedEffectsResult", lambda: result_of("mixed_effects"), confidence_intervals={}, predict={"times": [1.0]},
            plot=P("m.png"), with_problem=lambda: {"problem": crowd()}, to_frame={}, report=P("m.html"),
            save=P("m.json"), load=lambda: {"path": folder() / "population.json", "problem": crowd(),
                                            "population": cf.Population({"k": cf.Individual()})})  # fmt: skip
add_methods("Plan", lambda: result_of("plan"), again={"initial": {"x": 0.5}}, bounds_of={"name": "u"}, plot=P("l.png"),
            report=P("l.html"), save=P("l.json"), load=P("plan.json"))  # fmt: skip
add_methods("MultistartResult", lambda: result_of("multistart"), plot=P("w.png"), report=P("w.html"), save=P("w.json"),
            load=P("multistart.json"), with_problem=lambda: {"problem": problem()})  # fmt: skip
add_methods("Profiles", lambda: result_of("profiles"), limits={}, plot=P("f.png"), save=P("f.json"),
            load=P("profiles.json"), get={"key": "k"})  # fmt: skip
add_methods("Profile", lambda: result_of("profiles")["k"], limits={}, regions={}, at={"values": 0.5},
            threshold={"confidence_level": 0.95})  # fmt: skip
add_methods("Contours", lambda: result_of("contours"), plot=P("c.png"))
add_methods(
    "SampleResult", lambda: result_of("sample"), confidence_intervals={}, plot=P("a.png"), predict={"times": [1.0]}
)
add_methods("BootstrapResult", lambda: result_of("bootstrap"), confidence_intervals={}, plot=P("b.png"),
            predict={"times": [1.0]}, save=P("b.json"), load=P("bootstrap.json"))  # fmt: skip
add_methods("ComparisonResult", lambda: result_of("compare"), plot=P("o.png"), report=P("o.html"), to_csv=P("o.csv"),
            to_json=P("o.json"))  # fmt: skip
add_methods("ScatterResult", lambda: result_of("scatter"), plot=P("z.png"), report=P("z.html"),
            seconds_to={"objective": 5.0}, simulations_to={"objective": 5.0})  # fmt: skip
add_methods("PortfolioResult", lambda: result_of("estimate"), report=P("e.html"))
add_methods("SelectionResult", lambda: result_of("select"), plot=P("v.png"), report=P("v.html"),
            predict={"times": [1.0]},
            candidate={"name": "m"}, average={"name": "k"}, size={"name": "m"}, evidence={})  # fmt: skip
add_methods("Design", lambda: result_of("design"), plot=P("d.png"), verify={"samples": 2})
add_methods("ConfidenceRegion", lambda: result_of("region"), intervals={}, contains={"values": {"k": 0.5, "m": 0.01}},
            pair={"first": "k", "second": "m"})  # fmt: skip
add_methods("IdentifiabilityStudy", lambda: result_of("identifiability"), collinearity={"names": ["k", "m"]})
add_methods("KalmanResult", lambda: result_of("kalman"), filtered={"state": "x"}, smoothed={"state": "x"})
add_methods(
    "MovingHorizon",
    lambda: cf.moving_horizon(noisy(), 3),
    step={"time": 1.0, "measured": {"x": 0.5}},
    save=P("h.json"),
    load=lambda: {"path": folder() / "horizon.json", "result": noisy()},
)
add_methods("PriorInfluence", lambda: result_of("prior_influence"), summary={})
add_methods("Stiffness", lambda: result_of("stiffness"), plot=P("i.png"))
add_methods("Problem", problem, replace=lambda: {"experiments": experiment()}, theta_from={"values": {"k": 0.5}})
add_methods("Experiment", experiment, until={"horizon": 3.0}, with_values={"values": {"x": np.ones((6, 1))}},
            called={"name": "b"})  # fmt: skip
for name, owner in (("fit", "result"), ("residuals", "result"), ("ellipses", "result"), ("correlation", "result"),
                    ("directions", "result"), ("history", "result"), ("sensitivities", "result"), ("pairs", "draws"),
                    ("histograms", "draws"), ("profiles", "found"), ("waterfall", "result"), ("paths", "result"),
                    ("plan", "found"), ("individuals", "result"), ("comparison", "results")):  # fmt: skip
    sources = {"pairs": "sample", "histograms": "bootstrap", "profiles": "profiles", "waterfall": "multistart",
               "plan": "plan", "individuals": "mixed_effects"}  # fmt: skip

    def source(name: str = name, sources: Mapping[str, str] = sources) -> Any:
        argument = result_of(sources[name]) if name in sources else noisy() if name == "paths" else result()
        return {"a": result()} if name == "comparison" else argument

    add(f"plots.{name}", lambda owner=owner, source=source: {owner: source(), "path": folder() / "plot.png"})


BAD: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "-inf": lambda: -math.inf,
    "-1": lambda: -1,
    "0": lambda: 0,
    "0.5": lambda: 0.5,
    "1e300": lambda: 1e300,
    "10**30": lambda: 10**30,
    "10**400": lambda: 10**400,
    "True": lambda: True,
    "1j": lambda: 1j,
    "''": lambda: "",
    "two lines": lambda: "two\nlines",
    "unknown name": lambda: "nobody",
    "long name": lambda: "n" * 500,
    "hostile name": lambda: "<!--<script>\0",
    "bytes": lambda: b"x",
    "[]": list,
    "{}": dict,
    "set": lambda: {1, "a"},
    "[nan]": lambda: [math.nan],
    "[None]": lambda: [None],
    "duplicates": lambda: ["k", "k"],
    "ragged": lambda: [[1], [2, 3]],
    "unsorted": lambda: [3.0, 1.0, 2.0],
    "object": object,
    "0-d array": lambda: np.array(1.0),
    "0-d nan": lambda: np.array(math.nan),
    "empty array": lambda: np.zeros(0),
    "2-d array": lambda: np.ones((2, 2)),
    "3-d array": lambda: np.ones((2, 2, 2)),
    "object array": lambda: np.array([object(), None]),
    "text array": lambda: np.array(["a", "b"]),
    "complex array": lambda: np.array([1j, 2.0]),
    "dates": lambda: np.array(["2020", "2021"], dtype="datetime64"),
    "NA": lambda: pd.NA,
    "frame": pd.DataFrame,
    "series": lambda: pd.Series([1.0, None]),
    "{name: 1}": lambda: {"nobody": 1.0},
    "{None: 1}": lambda: {None: 1.0},
    "{k: text}": lambda: {"k": "a"},
    "{k: nan}": lambda: {"k": math.nan},
    "{k: array}": lambda: {"k": np.ones((2, 2)), "x": np.ones((2, 2))},
    "garbage function": lambda: lambda *_, **__: "garbage",
    "array function": lambda: lambda *_, **__: np.array([1.0, 2.0]),
    "function of nothing": lambda: lambda: None,
    "class": lambda: float,
    "folder": folder,
    "no such file": lambda: folder() / "none" / "none.json",
    "garbage file": lambda: folder() / "garbage.json",
    "symbol": lambda: ca.SX.sym("nobody"),
    "MX": lambda: ca.MX.sym("x"),
    "DM": lambda: ca.DM([1, 2]),
    "empty SX": lambda: ca.SX(0, 1),
    "vector SX": lambda: ca.SX.sym("v", 2),
    "iterator": lambda: iter([1.0, 2.0]),
    "...": lambda: ...,
    "other result": lambda: result_of("plan"),
    "problem": problem,
}

CONSUMING = {"workers"}  # arguments that start processes
LONG_BUT_VALID = {("SelectionResult.evidence", "sampling", "True")}  # thousands of draws for each candidate


@dataclass(frozen=True)
class Case:
    """A call with one bad value: for an argument, for an entry of it, or for the key of an entry."""

    call: str
    argument: str
    where: str
    bad: str

    def __str__(self) -> str:
        return f"{self.call}({self.argument}{'' if self.where == 'argument' else ' ' + self.where} = {self.bad})"


def options(call: Call) -> dict[str, Any]:
    """Return the arguments of a valid call, and None for each that it leaves out."""
    arguments = call.arguments()
    names = [
        n for n, p in inspect.signature(call.function()).parameters.items()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and n not in CONSUMING
    ]  # fmt: skip
    return {**dict.fromkeys(names), **arguments}


def cases() -> list[Case]:
    """Return every bad call, in a fixed order."""
    listed: list[Case] = []
    for call in CALLS.values():
        for argument, value in options(call).items():
            places = ["argument"]
            places += ["entry", "key"] if isinstance(value, dict) and value else []
            places += ["entry"] if isinstance(value, list) and value else []
            listed += [Case(call.name, argument, where, bad) for where in places for bad in BAD]
    return [case for case in listed if (case.call, case.argument, case.bad) not in LONG_BUT_VALID]


def sampled(count: int, seed: int) -> list[Case]:
    """Return a random sample of bad calls."""
    listed = cases()
    chosen = np.random.default_rng(seed).choice(len(listed), min(count, len(listed)), replace=False)
    return [listed[i] for i in sorted(chosen.tolist())]


def _spoil(value: Any, where: str, bad: Any) -> Any:
    if where == "argument":
        return bad
    if isinstance(value, list):
        return [bad, *value[1:]]
    key, entry = next(iter(value.items()))
    other_entries = {n: v for n, v in value.items() if n is not key}
    return {key: bad, **other_entries} if where == "entry" else {bad: entry, **other_entries}


class Hang(BaseException):
    """A call took too long."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise Hang

    if not hasattr(signal, "SIGALRM"):  # Windows has no alarm: a call that hangs is ended by the test run
        yield
        return
    old_handler = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old_handler)


@contextmanager
def inside(directory: Path) -> Iterator[None]:
    """Make a directory the current one."""
    old_directory = Path.cwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(old_directory)


def verdict(case: Case) -> str:
    """Make a bad call; return "refused" (in words), "accepted", "skipped", or the fault."""
    call = CALLS[case.call]
    arguments = dict(call.arguments())
    try:
        arguments[case.argument] = _spoil(arguments.get(case.argument), case.where, BAD[case.bad]())
    except (TypeError, NotImplementedError):  # no key of a mapping
        return "skipped"
    function = call.function()
    try:
        with (
            limited(LIMIT_SECONDS), warnings.catch_warnings(), inside(folder()),
            redirect_stdout(StringIO()), redirect_stderr(StringIO()),
        ):  # fmt: skip
            warnings.simplefilter("ignore")
            answer = call.use(function(**arguments))
    except Hang:
        return "hang"
    except cf.CastfitError as error:
        return _message_fault(str(error)) or "refused"
    except Exception as error:
        if case.bad in ("function of nothing", "class") and _is_users_own(error):
            return "refused"
        frame = traceback.extract_tb(error.__traceback__)[-1]
        own_frames = [f for f in traceback.extract_tb(error.__traceback__) if "/castfit/" in f.filename]
        place = f"{Path(own_frames[-1].filename).name}:{own_frames[-1].lineno}" if own_frames else "no frame of castfit"
        return f"raw {type(error).__name__}: {str(error)[:80]!r} at {place} ({Path(frame.filename).name})"
    return _type_fault(case, function, arguments[case.argument]) or number_fault(case, answer) or "accepted"


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "float": lambda value: np.ndim(value) == 0 and np.asarray(value).dtype.kind in "iuf" and not np.isnan(value),
    "int": lambda value: isinstance(value, (int, np.integer)) and not isinstance(value, bool),
    "bool": lambda value: isinstance(value, bool),
    "str": lambda value: isinstance(value, str),
    "Path": lambda value: isinstance(value, Path),
    "None": lambda value: value is None,
}


def _type_fault(case: Case, function: Callable[..., Any], value: Any) -> str:
    """Return a fault if the accepted value is of none of the annotated types."""
    parameter = inspect.signature(function).parameters.get(case.argument)  # none of the options that are passed on
    kinds = str(parameter.annotation if parameter else "Any").split(" | ")
    if case.where != "argument" or not set(kinds) <= {*_CHECKS} or (case.argument == "verbose" and value is True):
        return ""
    is_long = isinstance(value, int) and abs(value) > 2**62  # which NumPy keeps as an object
    return "" if is_long or any(_CHECKS[kind](value) for kind in kinds) else f"wrong: accepted for {' | '.join(kinds)}"


def _is_users_own(error: Exception) -> bool:
    """Check whether a function of the user raised, whose errors pass through castfit as they are."""
    text = str(error)
    return "<lambda>" in text or text.startswith(("float() argument", "could not convert string to float"))


def _message_fault(text: str) -> str:
    lines = text.splitlines()
    if any(not line.strip(" -") for line in lines):
        return f"empty message {text!r}"
    return f"message of {len(text)} characters: {text[:80]!r}" if len(text) > 6000 else ""


def number_fault(case: Case, answer: Any) -> str:
    """Return the fault of a fit that claims success: values that are not finite, or not the known optimum.

    The optimum is known if the question is the valid call's, and only the way to the answer differs.
    """
    best = getattr(answer, "best", answer)
    if not (isinstance(best, cf.Result) and best.success):
        return ""
    if not all(math.isfinite(v) for v in [*best.values.values(), best.objective]):
        return f"wrong: success with {best}"
    optimum = result()
    if best.problem is None or best.problem.posed is not problem().posed:
        return ""
    distances = {n: abs(best.values[n] - optimum.values[n]) / optimum[n].standard_error for n in optimum.names}
    return f"wrong: success at {dict(best.values)}" if max(distances.values()) > _MAX_DIFFERENCE_SE else ""


def main(report: str, count: int, seed: int) -> None:
    """Write the faults of a sample of bad calls, or of all, to a file."""
    counts: Counter[str] = Counter()
    with Path(report).open("w", buffering=1) as file:
        for case in sampled(count, seed) if count else cases():
            start_time = time.perf_counter()
            fault = verdict(case)
            took = time.perf_counter() - start_time
            counts[fault.partition(":")[0]] += 1
            if fault not in ("refused", "skipped") or took > 5:
                file.write(f"{took:6.2f} {case}: {fault}\n")
            if "matplotlib.pyplot" in sys.modules:
                sys.modules["matplotlib.pyplot"].close("all")
        file.write(f"{dict(counts)}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
