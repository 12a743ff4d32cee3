"""A castfit problem as a PEtab problem of version 2, with its model in SBML and formulas in its infix notation.

States become parameters of the model that rate rules change, initial values initial assignments.  Values of
experiments become conditions, and expressions become formulas.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any, cast

import casadi as ca
import numpy as np

from castfit._support.arguments import option_mistakes
from castfit._support.status import raise_if_mistakes
from castfit.densities.noise.density import Noise
from castfit.densities.noise.models import Gaussian, Laplace, LogNormal
from castfit.densities.noise.unknown import UnknownSigma
from castfit.densities.priors import (
    Gamma,
    LaplacePrior,
    LogNormalPrior,
    Normal,
    PriorDistribution,
    Truncated,
    UniformPrior,
)
from castfit.experiment.experiment import Consistent, Experiment, Free, SteadyStart
from castfit.formats.optional import library
from castfit.formats.petab.observing import LogLaplace
from castfit.formats.petab.priors import LogLaplacePrior
from castfit.formats.petab.saving import write_table
from castfit.model.model import Model
from castfit.problem.parameters import Parameter
from castfit.problem.problem import Problem


class UnsupportedFormula(ValueError):
    """An operation that formulas of SBML have not; the message names it."""


def infix(expressions: Sequence[ca.SX], names: Mapping[str, str], *, of_model: bool = False) -> list[str]:
    """Return expressions as text, with other names for some symbols; formulas of a model may round.

    Raises NotSayable: for operations without a counterpart.
    """
    column = ca.vertcat(*(ca.SX(e) for e in expressions))
    symbols = ca.symvar(column)
    graph = ca.Function("formulas", symbols, [ca.densify(column)])
    texts: dict[int, str] = {}
    truth_slots: set[int] = set()  # slots of truth values, which are not numbers in SBML
    out = ["0"] * len(expressions)

    def number(i: int) -> str:
        return f"piecewise(1, {texts[i]}, 0)" if i in truth_slots else texts[i]

    def truth(i: int) -> str:
        return texts[i] if i in truth_slots else f"({texts[i]} != 0)"

    for k in range(graph.n_instructions()):
        op, sources, targets = graph.instruction_id(k), graph.instruction_input(k), graph.instruction_output(k)
        if op == ca.OP_INPUT:
            text = names.get(symbols[sources[0]].name(), symbols[sources[0]].name())
        elif op == ca.OP_OUTPUT:
            out[targets[1]] = number(sources[0])
            continue
        elif op == ca.OP_CONST:
            value = float(graph.instruction_constant(k))
            text = repr(value) if value >= 0 else f"({value!r})"
        elif op == ca.OP_IF_ELSE_ZERO:
            text = f"piecewise({number(sources[1])}, {truth(sources[0])}, 0)"
        elif op in _WORDS:
            write_operand = truth if op in _LOGICAL else number
            text = _WORDS[op].format(*(write_operand(i) for i in sources))
        elif op in _ROUNDING and of_model:
            text = f"{_ROUNDING[op]}({number(sources[0])})"
        else:
            raise UnsupportedFormula(f"an operation ({op} of CasADi) that formulas of SBML have not")
        texts[targets[0]] = text
        if op in _TRUE:
            truth_slots.add(targets[0])
        else:
            truth_slots.discard(targets[0])
    return out


_LOGICAL = frozenset({ca.OP_AND, ca.OP_OR, ca.OP_NOT})
_TRUE = _LOGICAL | {ca.OP_LT, ca.OP_LE, ca.OP_EQ, ca.OP_NE}
_ROUNDING = {ca.OP_FLOOR: "floor", ca.OP_CEIL: "ceil"}  # of SBML; PEtab's tables have not these
_WORDS = {
    ca.OP_ADD: "({0} + {1})",
    ca.OP_SUB: "({0} - {1})",
    ca.OP_MUL: "({0} * {1})",
    ca.OP_DIV: "({0} / {1})",
    ca.OP_POW: "({0} ^ {1})",
    ca.OP_CONSTPOW: "({0} ^ {1})",
    ca.OP_LT: "({0} < {1})",
    ca.OP_LE: "({0} <= {1})",
    ca.OP_EQ: "({0} == {1})",
    ca.OP_NE: "({0} != {1})",
    ca.OP_AND: "({0} && {1})",
    ca.OP_OR: "({0} || {1})",
    ca.OP_NOT: "(!{0})",
    ca.OP_NEG: "(-{0})",
    ca.OP_INV: "(1 / {0})",
    ca.OP_SQ: "({0}^2)",
    ca.OP_TWICE: "(2 * {0})",
    ca.OP_SIGN: "piecewise(1, {0} > 0, -1, {0} < 0, 0)",
    ca.OP_FMAX: "piecewise({0}, {0} > {1}, {1})",
    ca.OP_FMIN: "piecewise({0}, {0} < {1}, {1})",
    ca.OP_EXPM1: "(exp({0}) - 1)",
    ca.OP_LOG1P: "ln(1 + {0})",
    ca.OP_EXP: "exp({0})",
    ca.OP_LOG: "ln({0})",
    ca.OP_SQRT: "sqrt({0})",
    ca.OP_FABS: "abs({0})",
    ca.OP_SIN: "sin({0})",
    ca.OP_COS: "cos({0})",
    ca.OP_TAN: "tan({0})",
    ca.OP_SINH: "sinh({0})",
    ca.OP_COSH: "cosh({0})",
    ca.OP_TANH: "tanh({0})",
    ca.OP_ASIN: "arcsin({0})",
    ca.OP_ACOS: "arccos({0})",
    ca.OP_ATAN: "arctan({0})",
}


_FIRST_SIGMA = 0.1  # of the data: the nominal value of a standard deviation of which nothing is known


def is_identifier(name: str) -> bool:
    """Return whether PEtab and SBML accept a name as an identifier."""
    return re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) is not None


@dataclass
class _ExportTables:
    """Contents of the PEtab tables to write, and messages about content that PEtab cannot express."""

    parameters: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    observables: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    conditions: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    experiments: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    measurements: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    missing: list[str] = field(default_factory=list[str])
    ids: dict[str, str] = field(default_factory=dict[str, str])

    def id(self, name: str) -> str:
        """Return an identifier for a name; always the same, and no other name's."""
        if name not in self.ids:
            identifier = name
            if not is_identifier(name):
                identifier = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "unnamed"
                identifier = f"_{identifier}" if identifier[0].isdigit() else identifier
            while identifier in self.ids.values():
                identifier += "_"
            self.ids[name] = identifier
        return self.ids[name]

    def formula(self, value: Any, label: str, *, of_model: bool = False) -> str:
        """Return a number or an expression as text."""
        if not isinstance(value, ca.SX):
            return repr(float(value))
        try:
            return infix([value], {s.name(): self.id(s.name()) for s in ca.symvar(value)}, of_model=of_model)[0]
        except UnsupportedFormula as error:
            self.missing.append(f"{label} contains {error}")
            return "0"


def save(problem: Problem, folder: str | Path) -> Path:
    """Write a problem in the PEtab format, version 2, with its model in SBML.

    Parameters
    ----------
    problem : Problem
    folder : str or path
        Where the files are written; made if it is not there.

    Returns
    -------
    Path
        The YAML file.

    Raises
    ------
    InputError
        Lists every part of the problem that castfit does not write to PEtab.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k = cf.symbols("x k")
    >>> model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    >>> experiment = cf.Experiment({"x": [1.2, 0.8, 0.4]}, time=[1, 2, 3], sigma=0.1)
    >>> problem = cf.Problem(model, experiment, parameters={"k": cf.Parameter(0.5, lower=0, upper=10)})
    >>> cf.petab.load(cf.petab.save(problem, "decay"))
    Problem(1 experiment, 3 values of observed_x; estimates k)
    """
    is_problem = isinstance(cast("Any", problem), Problem)
    mistakes = option_mistakes(
        ("problem", problem, is_problem, "give a Problem"),
        ("folder", folder, isinstance(cast("Any", folder), (str, PathLike)), "give the path of a folder"),
    )
    if is_problem and problem.model.noises:
        mistakes.append("PEtab does not describe process noise; save the problem of the same model without noises")
    raise_if_mistakes("petab.save", mistakes)
    sbml = library("libsbml")
    model = problem.original_model
    tables = _ExportTables(ids={model.system.t.name(): "time"})
    for name in filter(is_identifier, (*problem.parameters, *model.states, *problem.posed.outputs)):
        tables.id(name)  # valid identifiers are reserved before others are changed
    _refuse(problem, tables)
    targets = _targets(problem)
    for name, parameter in problem.parameters.items():
        # What conditions set is no parameter of the table: there it has another name.
        _add_parameter(f"estimated_{name}" if name in targets else name, parameter, problem.experiments, tables)
    for experiment in problem.experiments:
        _add_experiment(problem, model, experiment, tables)
    text = _sbml(sbml, model, problem, tables)
    raise_if_mistakes(
        "petab.save", [f"castfit does not write {feature} to PEtab" for feature in dict.fromkeys(tables.missing)]
    )
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    (target / "model.xml").write_text(text, encoding="utf-8")
    written = {
        "parameter": list(tables.parameters.values()),
        "observable": list(tables.observables.values()),
        "condition": tables.conditions,
        "experiment": tables.experiments,
        "measurement": tables.measurements,
    }
    lines = ["format_version: 2.0.0", "model_files:", "  model:", "    location: model.xml", "    language: sbml"]
    for kind, rows in written.items():
        if rows:
            write_table(target / f"{kind}s.tsv", list(dict.fromkeys(c for row in rows for c in row)), rows)
            lines += [f"{kind}_files:", f"  - {kind}s.tsv"]
    path = target / "problem.yaml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _refuse(problem: Problem, tables: _ExportTables) -> None:
    model = problem.original_model
    unsupported_features = {
        "algebraic states": bool(model.algebraic_states),
        "delays": bool(model.lines),
        "inputs (replace them by expressions of time)": bool(model.inputs),
        "counts or means per interval": bool(model.memories),
        "constraints": bool(problem.constraints or problem.state_bounds),
        "priors on expressions or several quantities": any(t for t in problem.posed.prior_terms),
        "events and doses": any(e.events for e in problem.experiments),
    }
    tables.missing += [feature for feature, is_used in unsupported_features.items() if is_used]


def _targets(problem: Problem) -> frozenset[str]:
    """Return the parameters that some experiment sets, so that all must."""
    names: set[str] = set()
    for e in problem.experiments:
        names |= {*e.parameters}
        steady = e.steady
        while steady is not None:
            names |= {*steady.parameters}
            steady = steady.initial if isinstance(steady.initial, SteadyStart) else None
    local = {n for n, p in problem.parameters.items() if p.local}
    return frozenset(n for n in names - local if n in problem.original_model.parameters)


def _add_parameter(name: str, parameter: Parameter, experiments: Iterable[Experiment], tables: _ExportTables) -> None:
    """Add a parameter; of a local one a parameter for every experiment."""
    if not parameter.local:
        tables.parameters[name] = _parameter(tables.id(name), float(parameter.value), parameter, tables)  # type: ignore[arg-type]
        return
    for e in experiments:
        if name in e.parameters:
            continue
        local_name = f"{name}_{e.name}"
        value = parameter.value[e.name] if isinstance(parameter.value, Mapping) else parameter.value
        tables.parameters[local_name] = _parameter(tables.id(local_name), float(value), parameter, tables)


def _parameter(name: str, value: float, parameter: Any, tables: _ExportTables) -> dict[str, Any]:
    fixed = bool(getattr(parameter, "fixed", False))
    row: dict[str, Any] = {
        "parameterId": name,
        "lowerBound": "" if fixed else repr(float(parameter.lower)),
        "upperBound": "" if fixed else repr(float(parameter.upper)),
        "nominalValue": repr(value),
        "estimate": "false" if fixed else "true",
    }
    prior = parameter.prior
    if prior is not None and not fixed:
        prior_entry = _prior(prior)
        if prior_entry is None:
            tables.missing.append(f"the prior {prior!r} of '{name}'")
        else:
            row["priorDistribution"], numbers = prior_entry
            row["priorParameters"] = ";".join(repr(float(v)) for v in numbers)
    return row


# In PEtab's words; their numbers come in the same order.
_PRIORS: dict[type[PriorDistribution], str] = {
    Normal: "normal",
    LogNormalPrior: "log-normal",
    LaplacePrior: "laplace",
    LogLaplacePrior: "log-laplace",
    UniformPrior: "uniform",
    Gamma: "gamma",
}


def _prior(prior: PriorDistribution) -> tuple[str, tuple[float, ...]] | None:
    inner = prior.prior if isinstance(prior, Truncated) else prior
    if getattr(inner, "on", "value") != "value" or type(inner) not in _PRIORS:
        return None
    return _PRIORS[type(inner)], tuple(getattr(inner, f.name) for f in fields(inner) if f.name != "on")


def _add_experiment(problem: Problem, model: Model, experiment: Experiment, tables: _ExportTables) -> None:
    name = tables.id(experiment.name)
    steady = experiment.steady
    shared = {n: ca.SX.sym(f"estimated_{n}") for n in _targets(problem) if n in problem.parameters}
    changes = dict(experiment.initial)
    if steady is not None and steady.is_measured_at_steady_state:
        changes = dict(steady.initial)
        steady = steady.initial if isinstance(steady.initial, SteadyStart) else None
    if steady is not None:
        preequilibration_values = {**shared, **experiment.parameters, **steady.parameters, **steady.initial}
        has_condition = _add_condition(f"{name}_before", preequilibration_values, experiment, tables)
        condition = f"{name}_before" if has_condition else ""
        tables.experiments.append({"experimentId": name, "time": "-inf", "conditionId": condition})
    target_values = {**shared, **experiment.parameters, **changes}
    local_names = [n for n, p in problem.parameters.items() if p.local and n in model.parameters]
    target_values |= {n: ca.SX.sym(f"{n}_{experiment.name}") for n in local_names if n not in experiment.parameters}
    has_condition = _add_condition(name, target_values, experiment, tables)
    tables.experiments.append(
        {"experimentId": name, "time": repr(experiment.start), "conditionId": name if has_condition else ""}
    )
    for output, (times, values) in experiment.data.items():
        _measured(model, experiment, output, times, values, tables)


def _add_condition(name: str, target_values: Mapping[str, Any], experiment: Experiment, tables: _ExportTables) -> bool:
    for target, value in target_values.items():
        value = _resolved(value, target_values)
        if isinstance(value, Consistent):
            tables.missing.append(f"the consistent initial value of '{target}'")
            continue
        if isinstance(value, Free):
            parameter_name = f"initial_{target}_{experiment.name}"
            tables.parameters[parameter_name] = _parameter(tables.id(parameter_name), value.guess, value, tables)
            value = ca.SX.sym(parameter_name)
        formula = tables.formula(value, f"'{target}' in '{experiment.name}'")
        tables.conditions.append({"conditionId": name, "targetId": tables.id(target), "targetValue": formula})
    return bool(target_values)


def _resolved(value: Any, values: Mapping[str, Any]) -> Any:
    """Substitute an experiment's parameter assignments into an expression."""
    for _ in values:
        symbols = [s for s in ca.symvar(value) if s.name() in values] if isinstance(value, ca.SX) else []
        if not symbols:
            break
        inner = ca.vertcat(*(ca.SX(values[s.name()]) for s in symbols))
        value = ca.substitute([value], [ca.vertcat(*symbols)], [inner])[0]
    return value


def _measured(
    model: Model, experiment: Experiment, output: str, times: Any, values: Any, tables: _ExportTables
) -> None:
    noise: Noise = experiment.noise.get(output, Gaussian())
    kind, factor = _kind(noise)
    if getattr(noise, "correlation", None) is not None:
        tables.missing.append(f"errors of '{output}' that depend on each other")
        return
    if kind is None:
        tables.missing.append(f"{type(noise).__name__} errors of '{output}'")
        return
    sigma = noise.sigma
    numbers = experiment.sigma[output] if experiment.sigma is not None and output in experiment.sigma else None
    placeholder = "" if numbers is None else f"sigma_of_{tables.id(output)}"  # a placeholder
    if isinstance(sigma, ca.SX):
        formula = tables.formula(factor * _expanded(sigma, model), f"sigma of '{output}'")
    elif numbers is None:
        formula = _unknown(sigma, noise, output, values, factor, tables)
    else:
        formula = placeholder if factor == 1.0 else f"{factor!r} * {placeholder}"
    observable = next(n for n in _names(output) if _free(tables, n, formula, kind))
    tables.observables[observable] = {
        "observableId": tables.id(observable),
        "observableFormula": tables.formula(model.outputs[output], f"the output '{output}'"),
        "noiseFormula": formula,
        "noiseDistribution": kind,
        "noisePlaceholders": placeholder,
    }
    for i, j in zip(*np.nonzero(np.isfinite(values)), strict=True):
        row = {
            "observableId": tables.id(observable),
            "experimentId": tables.id(experiment.name),
            "measurement": repr(float(values[i, j])),
            "time": "inf" if experiment.settled else repr(float(times[i])),
            "noiseParameters": "" if numbers is None else repr(float(numbers[i, j])),
        }
        tables.measurements.append(row)


def _names(output: str) -> Iterable[str]:
    """Go through names of observables for an output: one for each kind of errors that it has in some experiment."""
    return (f"observed_{output}" if k == 0 else f"observed_{output}_{k + 1}" for k in range(1000))


def _free(tables: _ExportTables, observable: str, formula: str, kind: str) -> bool:
    row = tables.observables.get(observable)
    return row is None or (row["noiseFormula"], row["noiseDistribution"]) == (formula, kind)


def _unknown(sigma: Any, noise: Noise, output: str, values: Any, factor: float, tables: _ExportTables) -> str:
    """Add an estimated standard deviation; return the noise formula."""
    unknown_sigma = sigma if isinstance(sigma, UnknownSigma) else UnknownSigma("all")
    name = f"sigma_{unknown_sigma.name or output}"
    size = float(np.nanmedian(np.abs(values))) if noise.in_unit_of_output else 1.0
    guess = unknown_sigma.guess or _FIRST_SIGMA * (size or 1.0)
    lower = unknown_sigma.lower or 1e-6 * guess
    parameter = Parameter(guess, lower, unknown_sigma.upper, prior=unknown_sigma.prior)
    tables.parameters.setdefault(name, _parameter(tables.id(name), guess, parameter, tables))
    return tables.id(name) if factor == 1.0 else f"{factor!r} * {tables.id(name)}"


def _kind(noise: Noise) -> tuple[str | None, float]:
    """Return the distribution in PEtab's words, and the factor of natural logarithms in the unit of its errors."""
    unit = float(np.log(10.0)) if getattr(noise, "base", "e") == 10 else 1.0
    if isinstance(noise, (Gaussian, LogNormal)) and noise.is_residual_noise:
        return ("normal" if isinstance(noise, Gaussian) else "log-normal"), unit
    if isinstance(noise, Laplace):
        return "laplace", unit
    return ("log-laplace", unit) if isinstance(noise, LogLaplace) else (None, unit)


def _expanded(expression: ca.SX, model: Model) -> ca.SX:
    """Substitute the expressions of outputs for their names."""
    states = {*model.states, *model.algebraic_states}
    symbols = [s for s in ca.symvar(expression) if s.name() in model.outputs and s.name() not in states]
    if not symbols:
        return expression
    return ca.substitute(
        [expression], [ca.vertcat(*symbols)], [ca.vertcat(*(model.outputs[s.name()] for s in symbols))]
    )[0]


def _sbml(sbml: Any, model: Model, problem: Problem, tables: _ExportTables) -> str:
    """Return the model: states by rate rules, parameters with values, initial values by assignments."""
    document = sbml.SBMLDocument(3, 1)
    sbml_model = document.createModel()
    sbml_model.setId("model")
    system = model.system
    for name in model.parameters:
        sbml_parameter = sbml_model.createParameter()
        sbml_parameter.setId(tables.id(name))
        sbml_parameter.setConstant(True)
        parameter = problem.parameters.get(name)
        value = 1.0 if parameter is None or isinstance(parameter.value, Mapping) else float(parameter.value)
        sbml_parameter.setValue(value)
    for name, rate in zip(model.states, ca.vertsplit(system.ode), strict=True):
        state = sbml_model.createParameter()
        state.setId(tables.id(name))
        state.setConstant(False)
        start = model.initial.get(name)
        state.setValue(0.0 if start is None or not start.is_constant() else float(start))
        rule = sbml_model.createRateRule()
        rule.setVariable(tables.id(name))
        rule.setMath(sbml.parseL3Formula(tables.formula(rate, f"the rate of '{name}'", of_model=True)))
        if start is not None and not start.is_constant():
            assignment = sbml_model.createInitialAssignment()
            assignment.setSymbol(tables.id(name))
            assignment.setMath(
                sbml.parseL3Formula(tables.formula(start, f"the initial value of '{name}'", of_model=True))
            )
    return str(sbml.writeSBMLToString(document))
