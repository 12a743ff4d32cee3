"""Interactive page of a model: sliders for the estimated quantities, curves over the data, integration in the browser.

The page is one file that needs no network.  The model's CasADi graph becomes JavaScript, and
`explorer.js` integrates it by a Rosenbrock method with error control, so that a student, or who looks for a start by
hand, sees at once what a parameter does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import casadi as ca
import numpy as np
from scipy.special import fdtri

from castfit._support.arguments import describe_rejected
from castfit._support.status import CastfitError, raise_if_mistakes
from castfit._support.whole_files import write_atomically
from castfit.integrate import IntegratorOptions
from castfit.problem.parameter_map import MappedExpressions
from castfit.problem.problem import Problem
from castfit.report.page import Markup, asset, frame, joined, json_block, page_mistakes, tag
from castfit.result.result import Result
from castfit.simulate.simulate import SimulationRequest, paths

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.problem.compiled_experiments import Condition
    from castfit.problem.compiled_problem import CompiledProblem
    from castfit.problem.quantities import Quantity


_INPUTS = (ca.OP_INPUT, ca.OP_PARAMETER)
_UNARY = {
    ca.OP_ASSIGN: "{0}", ca.OP_NEG: "-{0}", ca.OP_SQ: "{0}*{0}", ca.OP_TWICE: "2*{0}", ca.OP_INV: "1/{0}",
    ca.OP_NOT: "{0}===0?1:0", ca.OP_EXP: "Math.exp({0})", ca.OP_LOG: "Math.log({0})", ca.OP_SQRT: "Math.sqrt({0})",
    ca.OP_SIN: "Math.sin({0})", ca.OP_COS: "Math.cos({0})", ca.OP_TAN: "Math.tan({0})", ca.OP_ASIN: "Math.asin({0})",
    ca.OP_ACOS: "Math.acos({0})", ca.OP_ATAN: "Math.atan({0})", ca.OP_SINH: "Math.sinh({0})",
    ca.OP_COSH: "Math.cosh({0})", ca.OP_TANH: "Math.tanh({0})", ca.OP_ASINH: "Math.asinh({0})",
    ca.OP_ACOSH: "Math.acosh({0})", ca.OP_ATANH: "Math.atanh({0})", ca.OP_LOG1P: "Math.log1p({0})",
    ca.OP_EXPM1: "Math.expm1({0})", ca.OP_FABS: "Math.abs({0})", ca.OP_SIGN: "Math.sign({0})",
    ca.OP_FLOOR: "Math.floor({0})", ca.OP_CEIL: "Math.ceil({0})", ca.OP_ERF: "erf({0})",
}  # fmt: skip
_BINARY = {
    ca.OP_ADD: "{0}+{1}", ca.OP_SUB: "{0}-{1}", ca.OP_MUL: "{0}*{1}", ca.OP_DIV: "{0}/{1}",
    ca.OP_POW: "Math.pow({0},{1})", ca.OP_CONSTPOW: "Math.pow({0},{1})", ca.OP_LT: "{0}<{1}?1:0",
    ca.OP_LE: "{0}<={1}?1:0", ca.OP_EQ: "{0}==={1}?1:0", ca.OP_NE: "{0}!=={1}?1:0", ca.OP_AND: "{0}&&{1}?1:0",
    ca.OP_OR: "{0}||{1}?1:0", ca.OP_FMIN: "Math.min({0},{1})", ca.OP_FMAX: "Math.max({0},{1})",
    ca.OP_IF_ELSE_ZERO: "{0}?{1}:0", ca.OP_ATAN2: "Math.atan2({0},{1})", ca.OP_HYPOT: "Math.hypot({0},{1})",
    ca.OP_FMOD: "{0}%{1}", ca.OP_COPYSIGN: "copysign({0},{1})",
}  # fmt: skip
_MEANING = {**_UNARY, **_BINARY}


def unknown_operations(function: ca.Function) -> list[str]:
    """Name the operations of a function that there is no JavaScript for, each once."""
    supported = {*_MEANING, *_INPUTS, ca.OP_CONST, ca.OP_OUTPUT}
    codes = {function.instruction_id(k) for k in range(function.n_instructions())} - supported
    names = {getattr(ca, name): name[3:].lower() for name in dir(ca) if name.startswith("OP_")}
    return sorted(str(names.get(code, code)) for code in codes)


def script(function: ca.Function) -> str:
    """Return a JavaScript function of arrays, which answers with an array of arrays: the nonzeros of each output.

    Parameters
    ----------
    function : casadi.Function
        Of scalar operations (SX), all of which `unknown_operations` knows.
    """
    lines: list[str] = []
    used: set[int] = set()
    for k in range(function.n_instructions()):
        code, slots = function.instruction_id(k), function.instruction_output(k)
        arguments = function.instruction_input(k)
        if code == ca.OP_OUTPUT:
            lines.append(f"o{slots[0]}[{slots[1]}]=w{arguments[0]};")
            continue
        used.add(slots[0])
        if code == ca.OP_CONST:
            value = _number(function.instruction_constant(k))
        elif code in _INPUTS:
            value = f"i{arguments[0]}[{arguments[1]}]"
        else:
            value = _MEANING[code].format(*(f"w{i}" for i in arguments))
        lines.append(f"w{slots[0]}={value};")
    takes = ",".join(f"i{k}" for k in range(function.n_in()))
    outputs = "".join(f"const o{k}=new Float64Array({function.nnz_out(k)});" for k in range(function.n_out()))
    names = f"let {','.join(f'w{i}' for i in sorted(used))};" if used else ""
    gives = ",".join(f"o{k}" for k in range(function.n_out()))
    return f"({takes})=>{{{names}{outputs}{''.join(lines)}return [{gives}];}}"


def _number(value: float) -> str:
    """Write a number as JavaScript reads it."""
    if value != value:
        return "NaN"
    if abs(value) == float("inf"):
        return "-Infinity" if value < 0 else "Infinity"
    return repr(float(value))


_STEP_RTOL = 1e-7  # Error of a step relative to the states: curves are accurate to 1e-4 of their scale.
_N_CURVE_POINTS = 200  # Points of a curve.
_SLIDER_FACTOR = 100.0  # Factor between the guess and the ends of a slider without bounds.
_MAX_STATES = 300  # Number of states that a page integrates at most.


def explore(found: Problem | Result, path: str | Path, *, title: str = "") -> Path:
    """Write a page with sliders: one file that needs no network, and integrates the model in the browser.

    Parameters
    ----------
    found : Problem or Result
        Of a result the page knows the estimate, too, and draws the ellipse of any two quantities.
    path : str or Path
        Where to write the page; it ends in ``.html``.
    title : str
        Above the page.

    Returns
    -------
    Path
        Of the file.

    Raises
    ------
    InputError
        Listing whatever cannot be shown: algebraic equations, starts at rest, events that states trigger, functions
        that have no JavaScript, models of more than 300 states.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("lotka_volterra").problem
    >>> cf.explore(problem, "model.html").name  # doctest: +SKIP
    'model.html'
    """
    mistakes, argument = page_mistakes(path, title=title), cast("Any", found)
    if not isinstance(argument, (Problem, Result)):
        mistakes.append(f"the first argument is {describe_rejected(argument, 'pass a Problem or a Result')}")
    problem = found.problem if isinstance(found, Result) else found
    if problem is None:
        mistakes.append("the loaded result has no model; call result.with_problem(problem) first")
    raise_if_mistakes("explore", mistakes)
    assert problem is not None
    compiled_problem, result = problem.posed, found if isinstance(found, Result) else None
    raise_if_mistakes("explore", _obstacles(compiled_problem))
    target = Path(path)
    write_atomically(target, [_page(compiled_problem, result, title or "A model to play with").encode()])
    return target


def _obstacles(compiled_problem: CompiledProblem) -> list[str]:
    """Return the features of a problem that a page cannot show, as messages."""
    model = compiled_problem.model
    obstacles = [f"'{n}' is an algebraic state, which the page cannot solve for" for n in model.algebraic_states]
    obstacles += [f"'{n}' is white noise, which the page does not simulate" for n in model.noises]
    if len(model.states) > _MAX_STATES:
        obstacles.append(f"the model has {len(model.states)} states; a page integrates up to {_MAX_STATES}")
    for c in compiled_problem.conditions:
        if c.is_steady_state or any(not isinstance(part, MappedExpressions) for part in c.link.parts):
            obstacles.append(f"{c.name} starts from, or is measured at, a steady state, which the page cannot compute")
        if c.schedule.triggers:
            obstacles.append(f"states trigger events in {c.name}, which the page does not detect")
    graph = (
        [*model.system.arguments],
        [model.system.ode, *(model.outputs[n] for n in _visible_outputs(compiled_problem)[0])],
    )
    unknown = unknown_operations(ca.Function("graph", *graph))
    return [*obstacles, *(f"the model contains '{name}', which has no JavaScript translation" for name in unknown)]


def _visible_outputs(compiled_problem: CompiledProblem) -> tuple[list[str], list[str]]:
    """Return the names of the drawn variables, measured outputs and own states, and of others that densities need."""
    drawn_outputs = [
        *compiled_problem.outputs,
        *(n for n in compiled_problem.model.own_states if n not in compiled_problem.outputs),
    ]
    predicted_outputs = (
        n
        for c in compiled_problem.conditions
        for observable in c.observed
        if observable is not None
        for n in observable.predicted_outputs
    )
    return drawn_outputs, [n for n in dict.fromkeys(predicted_outputs) if n not in drawn_outputs]


class _PageFunctions:
    """Collects functions of the page, each once."""

    def __init__(self) -> None:
        self.code: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def add(self, function: ca.Function, name: str = "") -> str:
        """Add a function, and return what the page calls it."""
        code = script(function)
        function_name = name or self._names.setdefault(code, f"g{len(self._names)}")
        self.code[function_name] = code
        return function_name


def _page(compiled_problem: CompiledProblem, result: Result | None, title: str) -> str:
    functions = _PageFunctions()
    spec = json_block(_specification(compiled_problem, result, functions))
    model = ",\n".join(f"{name}:{code}" for name, code in functions.code.items())
    code = f'const SPEC=JSON.parse(document.getElementById("spec").textContent);\nconst MODEL={{\n{model}\n}};\n'
    body = [
        tag("header", tag("h1", title), tag("p", "", id="told", class_="told", role="status")),
        tag("div", tag("form", "", id="sliders", autocomplete="off"), tag("div", "", id="curves"), id="work"),
        tag("footer", "Written by castfit. The model is integrated here, in the browser; nothing is sent anywhere."),
        tag("script", spec, type="application/json", id="spec"),
        tag("script", Markup(f"{code}{asset('explorer.js')}{asset('explorer_view.js')}")),
    ]
    return frame(title, asset("explorer.css"), joined(*body))


def _specification(
    compiled_problem: CompiledProblem, result: Result | None, functions: _PageFunctions
) -> dict[str, Any]:
    """Return the numbers of a page, and add its functions."""
    model, system = compiled_problem.model, compiled_problem.model.system
    drawn_outputs, further_outputs = _visible_outputs(compiled_problem)
    t, x, _, p, u = system.arguments
    slope, du = ca.jacobian(system.ode, x), ca.SX.sym("du", u.numel())
    in_time = ca.densify(ca.jacobian(system.ode, t) + ca.mtimes(ca.jacobian(system.ode, u), du))
    outputs = ca.densify(ca.vertcat(*(model.outputs[n] for n in [*drawn_outputs, *further_outputs])))
    functions.add(ca.Function("f", [t, x, p, u], [ca.densify(system.ode)]), "f")
    functions.add(ca.Function("slope", [t, x, p, u, du], [slope, in_time]), "slope")
    functions.add(ca.Function("outputs", [t, x, p, u], [outputs]), "outputs")
    place = {n: i for i, n in enumerate([*drawn_outputs, *further_outputs])}
    sizes = _sizes(compiled_problem)
    has_known_sigma = compiled_problem.absolute_sigma and all(
        observable is None or observable.is_weighted for c in compiled_problem.conditions for observable in c.observed
    )
    return {
        "quantities": [_slider(q) for q in compiled_problem.quantities],
        "parameters": len(model.parameters),
        "pattern": [list(part) for part in slope.sparsity().get_triplet()],
        "outputs": drawn_outputs,
        "units": {n: compiled_problem.units[n] for n in ("time", *drawn_outputs) if n in compiled_problem.units},
        "extra": len(further_outputs),
        "groups": list(compiled_problem.groups),
        "measure": "chi2" if has_known_sigma else "-2 log L",
        "tolerance": _STEP_RTOL,
        "experiments": [
            _experiment(compiled_problem, c, place, functions) | {"size": sizes[c.name]}
            for c in compiled_problem.conditions
        ],
        "estimate": None if result is None else _estimate(compiled_problem, result),
        "notes": [
            f"{line} here, so that curves follow the sliders; cf.simulate takes as many as are needed."
            for line in model.lines
            if line.adaptive
        ],
    }


def _sizes(compiled_problem: CompiledProblem) -> dict[str, list[float]]:
    """Return the largest magnitudes of states at the guess, per experiment; 1 if no magnitude can be computed."""
    sizes = {c.name: [1.0] * len(compiled_problem.model.states) for c in compiled_problem.conditions}
    times = {c.name: np.linspace(c.start, c.end, 21) for c in compiled_problem.conditions}
    request = SimulationRequest("explore", None, times, None, None, None, [])
    try:
        simulated_paths = paths(compiled_problem, request, IntegratorOptions())[1]
    except CastfitError:  # sliders may lead to where it can
        return sizes
    largest = {path.name: np.abs(path.x).max(axis=0) for path in simulated_paths}
    return sizes | {name: np.where(size > 0.0, size, 1.0).tolist() for name, size in largest.items()}


def _slider(q: Quantity) -> dict[str, Any]:
    """Return the name, value, range and scale of a slider, in natural values."""
    log = q.guess > 0.0 and (q.scale == "log" or q.lower >= 0.0)
    reach = 2.0 * (abs(q.guess) or 1.0)
    low, high = (q.guess / _SLIDER_FACTOR, q.guess * _SLIDER_FACTOR) if log else (q.guess - reach, q.guess + reach)
    low, high = max(low, q.lower), min(high, q.upper)
    return {"name": q.name, "value": q.guess, "low": low, "high": high, "log": log and low > 0.0}


def _experiment(
    compiled_problem: CompiledProblem, c: Condition, place: dict[str, int], functions: _PageFunctions
) -> dict[str, Any]:
    """Return an experiment: its rows, inputs, events and data."""
    link, end = c.link, c.end
    kinks = [signal.breakpoints for signal in c.inputs]
    edge_candidates = np.unique(np.concatenate([*kinks, [c.start, end]]))
    edges = edge_candidates[(edge_candidates >= c.start) & (edge_candidates <= end)]
    times = np.unique(c.points.times)
    return {
        "name": c.name,
        "start": c.start,
        "theta": c.theta.tolist(),
        "base": link.base.tolist(),
        "of": link.quantity_rows.tolist(),
        "events": link.n_e,
        "parts": [_part(part, functions) for part in link.parts if isinstance(part, MappedExpressions)],
        "edges": edges.tolist(),
        "inputs": [signal.cubics(edges).tolist() for signal in c.inputs],
        "late": [j for j, signal in enumerate(c.inputs) if signal.measured == "after"],
        "instants": [
            {
                "time": i.time,
                "moves": i.is_moving,
                "parameters": i.parameters.tolist(),
                "after": i.is_measured_after,
                "change": None if i.change is None else functions.add(_first_output(i.change.graph)),
            }
            for i in c.schedule.instants
        ],
        "levels": [
            {
                "parameter": v.parameter,
                "on": v.on_instant,
                "off": v.off_instant,
                "height": v.height_row,
                "sets": v.is_assignment,
            }
            for v in c.schedule.levels
        ],
        "times": times.tolist(),
        "grid": np.linspace(c.start, end, _N_CURVE_POINTS).tolist(),
        "data": [d for j in range(len(compiled_problem.outputs)) for d in _series(c, j, times, place, functions)],
    }


def _part(part: MappedExpressions, functions: _PageFunctions) -> dict[str, Any]:
    return {
        "rows": part.rows.tolist(),
        "source": part.source.tolist(),
        "numbers": [v if np.isfinite(v) else 0.0 for v in part.numbers.tolist()],
        "f": functions.add(_first_output(part.jacobian_function)),
    }


def _first_output(function: ca.Function) -> ca.Function:
    """Return a function without its derivatives."""
    arguments = function.sx_in()
    return ca.Function("values", arguments, [ca.densify(function.call(arguments)[0])])


def _series(
    c: Condition, j: int, times: Array, place: dict[str, int], functions: _PageFunctions
) -> list[dict[str, Any]]:
    """Return the data of an output, in a list that is empty where there are none."""
    observable, mask = c.observed[j], c.points.mask[:, j]
    if observable is None or not mask.any():
        return []
    mu, s, m = (ca.SX.sym(name) for name in ("mu", "s", "m"))
    density = observable.noise.density(mu, s, m)
    other_symbols = [e for e in ca.vertsplit(density.eta) if not (ca.is_equal(e, mu) or ca.is_equal(e, s))]
    graph = ca.Function("density", [mu, s, m, ca.vertcat(*other_symbols)], [density.cost, density.residual])
    sigma = np.where(np.isfinite(c.points.sigma[mask, j]), c.points.sigma[mask, j], 1.0)
    return [
        {
            "output": place[observable.predicted_outputs[0]],
            "more": [place[n] for n in observable.predicted_outputs[1:]],
            "computed": observable.is_spread_computed,
            "group": observable.group,
            "density": functions.add(graph),
            "rows": np.searchsorted(times, c.points.times[mask]).tolist(),
            "values": c.points.values[mask, j].tolist(),
            "sigma": sigma.tolist(),
        }
    ]


def _estimate(compiled_problem: CompiledProblem, result: Result) -> dict[str, Any]:
    """Return the estimate, and its covariance in search scale, by which ellipses of 95 % are drawn."""
    covariance = np.asarray(result.covariance, dtype=float)
    freedom = result.dof
    size = (
        -2.0 * np.log(0.05) if compiled_problem.absolute_sigma else 2.0 * fdtri(2, max(freedom, 1), 0.95)
    )  # chi-square, F
    drawable = np.isfinite(covariance).all() and freedom > 0
    return {
        "values": [float(result.values[n]) for n in compiled_problem.names],
        "log": compiled_problem.log.tolist(),
        "covariance": covariance.tolist() if drawable else None,
        "size": float(size),
        "objective": float(result.objective),
    }
