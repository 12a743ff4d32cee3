"""Page section on the question: equations, experiments and quantities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit.experiment.experiment import Free
from castfit.report.equations import formula
from castfit.report.equations import table as equations
from castfit.report.markup import Content, Markup, joined, tag
from castfit.report.mathml_names import Spelling, spelling
from castfit.report.system import system
from castfit.report.tables import facts, table

if TYPE_CHECKING:
    from castfit.experiment.experiment import Experiment
    from castfit.experiment.inputs import Input
    from castfit.model.model import Model
    from castfit.problem.compiled_experiments import Condition
    from castfit.problem.compiled_problem import Posed
    from castfit.problem.problem import Posable
    from castfit.problem.quantities import Quantity


_LISTED = 6  # names in a sentence


def question(problem: Posable) -> Markup:
    """Return the section on the model, the experiments, and the estimated quantities."""
    posed = problem.posed
    return joined(
        tag("p", _summary(posed)),
        model(problem.own_model),
        tag("h3", "Experiments"),
        experiments(posed),
        tag("h3", "Estimated quantities"),
        quantities(posed),
        _fixed(posed),
        _limits(posed),
    )


def model(asked: Model) -> Markup:
    """Return the equations of a model, under the names of their kinds."""
    found = system(asked)
    groups = (
        ("Model", found.rates),
        ("Algebraic equations", found.algebraic),
        ("where", found.definitions),
        ("Outputs", found.outputs),
        ("Initial values", found.initial),
    )
    shown = [tag("div", tag("h3", title), _scrolled(equations(group))) for title, group in groups if group]
    return tag("div", shown, class_="groups")


def _scrolled(content: Markup) -> Markup:
    return tag("div", content, class_="scroll")


def _summary(posed: Posed) -> str:
    count = len(posed.conditions)
    model = posed.own_model
    kind = "differential-algebraic equations" if model.algebraic_states else "ordinary differential equations"
    experiments = f"{count} experiment{'' if count == 1 else 's'}"
    estimated = f"{len(posed.names)} quantit{'y is' if len(posed.names) == 1 else 'ies are'}"
    return (
        f"{estimated} estimated from {posed.n_data} measured values of {some(posed.outputs)} in {experiments}, "
        f"with a model of {len(model.own_states)} {kind}."
    ).replace("a model of 1 ordinary differential equations", "a model of one ordinary differential equation")


def some(names: Sequence[str]) -> str:
    """List names, of many the first ones."""
    if len(names) <= _LISTED + 1:
        return ", ".join(names)
    return f"{', '.join(names[:_LISTED])} and {len(names) - _LISTED} more"


def experiments(posed: Posed) -> Markup:
    """Return a table of the experiments; of initial states only where they are not the model's own."""
    unit = posed.unit("time")
    spell = spelling([*posed.names, *posed.parameters, *posed.own_model.own_states, *posed.own_model.output_names])
    starts = [_initial(posed, e) for e in posed.experiments]
    heads = ["experiment", "measured", ">values", f"times{f' ({unit})' if unit else ''}", "noise"]
    heads += ["?initial states", "?inputs", "?events", "?own parameters"]
    given = {e.name: (e, start) for e, start in zip(posed.experiments, starts, strict=True)}
    rows: list[list[Content]] = []
    for condition in posed.conditions:
        (experiment, start), points = given[condition.name], condition.points
        times = "at rest" if condition.settled else f"{points.times.min():g} to {points.times.max():g}"
        rows.append(
            [
                condition.name,
                ", ".join(n for j, n in enumerate(posed.outputs) if points.mask[:, j].any()),
                str(int(points.mask.sum())),
                times,
                _noise(posed, condition),
                _values(start, spell) if isinstance(start, dict) else start,
                _inputs(experiment.inputs),
                str(len(experiment.events) or ""),
                _values(experiment.parameters, spell),
            ]
        )
    return table(heads, rows)


def _noise(posed: Posed, condition: Condition) -> Markup:
    """Describe the noise of each output; outputs with equal noise share a line."""
    said: dict[str, list[str]] = {}
    for j, (output, observed) in enumerate(zip(posed.outputs, condition.observed, strict=True)):
        if observed is None:
            continue
        sigma = condition.points.sigma[condition.points.mask[:, j], j]
        if observed.computed:
            spread = "sigma computed"
        elif observed.group >= 0:
            spread = "sigma unknown"
        elif np.ptp(sigma) <= 1e-9 * sigma.max():
            spread = f"sigma {sigma[0]:g}"
        else:
            spread = f"sigma {sigma.min():.3g} to {sigma.max():.3g}"
        said.setdefault(f"{type(observed.noise).__name__}, {spread}", []).append(output)
    if len(said) == 1:
        return joined(next(iter(said)))
    lines = [f"{', '.join(outputs)}: {text}" for text, outputs in said.items()]
    return joined(lines[0], *((tag("br"), line) for line in lines[1:]))


def _initial(posed: Posed, experiment: Experiment) -> dict[str, Any] | str:
    """Return the initial states of an experiment that are not those that the model shows, or say that it rests."""
    if experiment.steady is not None:
        return "steady state"
    model = posed.own_model.said.initial
    known = {n: v for n, v in posed.initial_values(experiment).items() if n in posed.own_model.own_states}
    return {n: v for n, v in known.items() if isinstance(v, Free) or n not in model or not _same(v, model[n])}


def _same(one: Any, other: Any) -> bool:
    return bool(ca.is_equal(ca.SX(one), ca.SX(other), 20))


def _values(known: Mapping[str, Any], spell: Spelling) -> Markup:
    parts: list[Content] = []
    for name, value in known.items():
        parts += [", "] if parts else []
        if isinstance(value, Free):
            parts.append([tag("math", spell(name)), " free"])
        elif isinstance(value, ca.SX) and not value.is_constant():
            parts.append([tag("math", spell(name)), " = ", formula(value, spell)])
        else:
            parts.append([tag("math", spell(name)), f" = {float(value):g}"])
    return joined(*parts)


def _inputs(given: Mapping[str, Input]) -> str:
    return ", ".join(
        f"{n} = {u.values[0]:g}" if u.kind == "constant" else f"{n} ({u.kind.replace('_', ' ')}, {u.times.size} points)"
        for n, u in given.items()
    )


def quantities(posed: Posed) -> Markup:
    """Return a table of guesses, bounds, scales and priors."""

    def row(q: Quantity) -> list[Content]:
        prior = "" if q.prior is None else repr(q.prior)
        return [q.name, posed.unit(q.name), f"{q.guess:g}", _between(q.lower, q.upper), q.scale, prior]

    return table(("quantity", "?unit", ">guess", "bounds", "scale", "?prior"), map(row, posed.quantities))


def _between(low: float, high: float) -> str:
    if np.isinf(low) or np.isinf(high):
        return "none" if np.isinf(low) and np.isinf(high) else f"≥ {low:g}" if np.isinf(high) else f"≤ {high:g}"
    return f"{low:g} to {high:g}"


def _fixed(posed: Posed) -> Markup:
    """List the fixed parameters with their values."""
    known = {n: p.value for n, p in posed.parameters.items() if p.fixed}
    if not known:
        return Markup("")
    shown = [
        (n, ", ".join(f"{e}: {v:g}" for e, v in value.items()) if isinstance(value, Mapping) else f"{value:g}")
        for n, value in known.items()
    ]
    units = [(f"{n} ({posed.unit(n)})" if posed.unit(n) else n, text) for n, text in shown]
    return joined(tag("h3", "Given values"), facts(units))


def _limits(posed: Posed) -> Markup:
    """List bounds of states, constraints, and priors on several quantities."""
    parts: list[Content] = []
    for n, (low, high) in posed.state_bounds.items():
        parts.append(tag("li", f"{low:g} ≤ {n} ≤ {high:g}"))
    for c in posed.constraints:
        equal = c.lower == c.upper
        low = "" if equal or np.isinf(c.lower) else f"{c.lower:g} ≤ "
        high = f" = {c.upper:g}" if equal else "" if np.isinf(c.upper) else f" ≤ {c.upper:g}"
        parts.append(tag("li", f"{c.name}: {low}", formula(c.expression), high))
    parts += [tag("li", f"prior on {term.what}") for term in posed.prior_terms]
    return joined(tag("h3", "Constraints and joint priors"), tag("ul", parts)) if parts else Markup("")
