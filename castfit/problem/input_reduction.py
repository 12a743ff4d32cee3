"""Estimated inputs as parameters of the model that change at knots: the reduction to a model with known inputs.

Between two knots t_k and t_(k+1) = t_k + h an estimated input is one polynomial, of which the model knows the ends:

    s = (t - t_k) / h,    g = (1 - s) a + s b                                                    linear
                          g = a + s^2 (3 - 2 s) (b - a) + s (1 - s)^2 d - s^2 (1 - s) e           cubic
    u = u0 + g,  or  u0 + exp(g)         a, b values and d, e slopes times h at both ends; u0 = 0

So u is replaced in the model, and t_k, 1/h, a, b, d, e are parameters of it which are other expressions of the values
at the knots from every knot on.  They are known at every time, as rates of infusions are: a stage of a transcription
ends at every knot and depends on a handful of parameters, however many knots there are.

Where some experiments know the input and others estimate it, factors 0 and 1 choose between u0, g and exp(g).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import casadi as ca
import numpy as np

from castfit._support.casadi_functions import PerObjectCache
from castfit._support.records import dataclass
from castfit.experiment.estimated_inputs import EstimatedInput
from castfit.experiment.events import Event, ParameterSwitch
from castfit.experiment.experiment import Experiment
from castfit.experiment.inputs import Placeholder
from castfit.model.expressions import substitute_by_name
from castfit.model.model import Model
from castfit.problem.parameters import ProblemStatement

_DEGREE = {"piecewise_constant": 0, "linear": 1, "cubic_spline": 3}


@dataclass(frozen=True)
class InputForm:
    """Parametric form of one input of a model: the highest polynomial degree, and the ways to specify it.

    `ways` holds "linear", "log" and "known".
    """

    input_name: str
    degree: int
    ways: tuple[str, ...]

    @property
    def names(self) -> dict[str, str]:
        """The parameters that the model needs, by what they are."""
        u = self.input_name
        labels = {"a": f"{u} at the left knot"}
        if self.degree:
            labels |= {"b": f"{u} at the right knot", "t": f"left knot of {u}", "r": f"rate between knots of {u}"}
        if self.degree == 3:
            labels |= {"d": f"slope of {u} at the left knot", "e": f"slope of {u} at the right knot"}
        if len(self.ways) > 1:
            labels |= {way: f"{u} is estimated{', logarithm' * (way == 'log')}" for way in self.ways if way != "known"}
        return labels

    def value(self, symbols: Mapping[str, ca.SX], t: ca.SX) -> ca.SX:
        """Return the term added to the known input, as an expression of the symbols of its parameters and time."""
        a = g = symbols["a"]
        if self.degree:
            s, b = (t - symbols["t"]) * symbols["r"], symbols["b"]
            g = (1 - s) * a + s * b
            if self.degree == 3:
                d, e = symbols["d"], symbols["e"]
                g = a + s**2 * (3 - 2 * s) * (b - a) + s * (1 - s) ** 2 * d - s**2 * (1 - s) * e
        shapes = {"linear": g, "log": ca.exp(g)}
        out = ca.SX(0)
        for way in (w for w in self.ways if w != "known"):
            out += symbols[way] * shapes[way] if len(self.ways) > 1 else shapes[way]
        return out

    def build_known_values(self) -> dict[str, float]:
        """Return the parameters where the input is known."""
        return dict.fromkeys(self.names.values(), 0.0)

    def choice(self, spec: EstimatedInput) -> dict[str, float]:
        """Return the factors that choose between the ways, by name."""
        return {name: float(way == spec.scale) for way, name in self.names.items() if way in self.ways}


@dataclass(frozen=True, eq=False)
class _InputCurve:
    """One experiment's estimated input: the values at its knots as symbols, logarithms where these are meant."""

    form: InputForm
    estimated_input: EstimatedInput
    theta: ca.SX

    @classmethod
    def from_spec(cls, form: InputForm, spec: EstimatedInput) -> _InputCurve:
        values = [ca.SX.sym(n) for n in spec.names(form.input_name)]
        return cls(form, spec, ca.vertcat(*(ca.log(v) if spec.log else v for v in values)))

    def evaluate(self, time: float) -> ca.SX:
        """Return g at a number."""
        return _combine_forms(self.estimated_input.interpolation(time)[0], self.theta)

    def evaluate_before(self, time: float) -> ca.SX:
        """Return u just before a number, from which it is continuous but where it jumps."""
        if self.estimated_input.kind == "piecewise_constant":
            time = float(np.nextafter(time, -np.inf))
        g = self.evaluate(max(time, float(self.estimated_input.knots[0])))
        return ca.exp(g) if self.estimated_input.log else g

    def piece(self, k: int) -> dict[str, Any]:
        """Return the parameters between knots k and k + 1."""
        t, n = self.estimated_input.knots, self.estimated_input.knots.size
        right_knot = min(k + 1, n - 1)
        a, b = self.theta[k], self.theta[right_knot]
        constant = self.estimated_input.kind == "piecewise_constant"
        h = float(t[right_knot] - t[k]) if right_knot > k else 1.0
        piece_values: dict[str, Any] = {
            "a": a,
            "b": a if constant else b,
            "t": float(t[k]),
            "r": 0.0 if constant else 1.0 / h,
        }
        if self.form.degree == 3:
            if self.estimated_input.kind == "cubic_spline":
                piece_values |= {"d": _combine_forms(h * self.estimated_input.slopes[k], self.theta)}
                piece_values |= {"e": _combine_forms(h * self.estimated_input.slopes[right_knot], self.theta)}
            else:
                piece_values |= dict.fromkeys("de", 0.0 if constant else b - a)
        names = self.form.names
        return {names[key]: value for key, value in piece_values.items() if key in names}

    def find_first_piece(self, start: float) -> int:
        """Return the piece on which an experiment begins."""
        t = self.estimated_input.knots
        last_piece = t.size - 1 if self.estimated_input.kind == "piecewise_constant" else t.size - 2
        return int(np.clip(np.searchsorted(t, start, side="right") - 1, 0, last_piece))

    def settings(self, start: float) -> list[ParameterSwitch]:
        """Return the parameter switches at the knots after the start."""
        t = self.estimated_input.knots
        n = t.size if self.estimated_input.kind == "piecewise_constant" else t.size - 1
        switches: list[ParameterSwitch] = []
        current_piece = self.piece(self.find_first_piece(start))
        for k in range(self.find_first_piece(start) + 1, n):
            next_piece = self.piece(k)
            switches.append(
                ParameterSwitch(float(t[k]), {n: v for n, v in next_piece.items() if not _is_same(v, current_piece[n])})
            )
            current_piece = next_piece
        return switches

    def build_constant_parameters(self, start: float) -> dict[str, Any]:
        """Return the parameters of an input that stands at its value at the start."""
        constant_values = self.form.build_known_values() | self.form.choice(self.estimated_input)
        return constant_values | {self.form.names["a"]: self.evaluate(start)} | self._flat(self.evaluate(start))

    def _flat(self, value: ca.SX) -> dict[str, Any]:
        return {self.form.names["b"]: value} if self.form.degree else {}


def _combine_forms(weights: Any, theta: ca.SX) -> ca.SX:
    """Return the weighted sum of the values with nonzero weights."""
    used = np.flatnonzero(np.asarray(weights)).tolist()
    if len(used) == 1 and weights[used[0]] == 1.0:
        return theta[used[0]]
    return sum((float(weights[j]) * theta[j] for j in used), ca.SX(0))


def _is_same(first_value: Any, second_value: Any) -> bool:
    """Whether two values are the same number or expression."""
    if isinstance(first_value, ca.SX) and isinstance(second_value, ca.SX):
        return bool(ca.is_equal(first_value, second_value, 2))
    return not isinstance(first_value, ca.SX) and not isinstance(second_value, ca.SX) and first_value == second_value


# Models without estimated inputs, so that their functions are built once.
_REDUCED: PerObjectCache[Model, dict[tuple[InputForm, ...], Model]] = PerObjectCache()


def with_piecewise_inputs(statement: ProblemStatement) -> ProblemStatement:
    """Return the statement with parameters that change at knots in place of estimated inputs."""
    forms = _forms(statement)
    if not forms:
        return statement
    model = statement.model
    symbols = {f.input_name: {key: ca.SX.sym(n) for key, n in f.names.items()} for f in forms}
    models_by_forms = _REDUCED.get(model, lambda _: {})
    values = {f.input_name: f.value(symbols[f.input_name], model.system.t) for f in forms}
    added = [s for f in forms for s in symbols[f.input_name].values()]
    if forms not in models_by_forms:
        models_by_forms[forms] = model.with_added_inputs(values, added)
    return replace(
        statement,
        model=models_by_forms[forms],
        experiments=tuple(_replace_inputs(e, forms) for e in statement.experiments),
    )


def _forms(statement: ProblemStatement) -> tuple[InputForm, ...]:
    forms: list[InputForm] = []
    for input_name in statement.model.inputs:
        inputs = [e.inputs[input_name] for e in statement.experiments]
        inputs += [
            e.steady.inputs[input_name] for e in statement.experiments if e.steady and input_name in e.steady.inputs
        ]
        estimated_sources = [u for u in inputs if isinstance(u, EstimatedInput)]
        if estimated_sources:
            ways = {u.scale for u in estimated_sources} | (
                {"known"} if len(estimated_sources) < len(inputs) else set[str]()
            )
            forms.append(InputForm(input_name, max(_DEGREE[u.kind] for u in estimated_sources), tuple(sorted(ways))))
    return tuple(forms)


def _replace_inputs(experiment: Experiment, forms: Iterable[InputForm]) -> Experiment:
    """Return an experiment in which estimated inputs are parameters that change."""
    inputs, parameters, settings = dict(experiment.inputs), dict(experiment.parameters), list[ParameterSwitch]()
    curves: dict[str, _InputCurve] = {}
    steady_parameters: dict[str, Any] = {}
    steady = experiment.steady
    for form in forms:
        source = inputs[form.input_name]
        if not isinstance(source, EstimatedInput):
            parameters |= form.build_known_values()
            continue
        curve = curves[form.input_name] = _InputCurve.from_spec(form, source)
        inputs[form.input_name] = Placeholder.from_spec(source, form.input_name)
        parameters |= {**form.choice(source), **curve.piece(curve.find_first_piece(experiment.start))}
        settings += curve.settings(experiment.start)
        if steady is not None:
            steady_parameters |= (
                form.build_known_values()
                if form.input_name in steady.inputs
                else curve.build_constant_parameters(experiment.start)
            )
    events = [_exchanged_event(event, curves) for event in experiment.events]
    changes: dict[str, Any] = {"inputs": inputs, "parameters": parameters, "events": (*events, *settings)}
    if steady is not None:
        changes["initial"] = replace(steady, parameters={**steady.parameters, **steady_parameters})
    return experiment.with_changes(**changes)


def _exchanged_event(event: Any, curves: Mapping[str, _InputCurve]) -> Any:
    """Substitute the values of estimated inputs into an event at a known time."""
    if not isinstance(event, Event) or isinstance(event.time, ca.SX) or event.when is not None:
        return event
    time = event.time
    symbols = [s for v in event.changes.values() if isinstance(v, ca.SX) for s in ca.symvar(v)]
    values = {
        s.name(): s + curves[s.name()].evaluate_before(time) for s in symbols if s.name() in curves
    }  # a known one adds
    if not values:
        return event
    new_changes = {n: substitute_by_name(v, values) if isinstance(v, ca.SX) else v for n, v in event.changes.items()}
    return Event(time, new_changes, measured=event.measured)
