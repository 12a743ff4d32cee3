"""`load`: a PEtab problem, version 1 or 2 of the format, as a castfit problem.

The tables define names, the model defines its identifiers; both become experiments of one model.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import casadi as ca

from castfit._support.arguments import is_one_of, option_mistakes
from castfit._support.progress_line import print_progress, progress_line
from castfit._support.status import raise_if_mistakes
from castfit.experiment.events import event_symbols
from castfit.experiment.experiment import Experiment, SteadyStart
from castfit.formats.petab.experiments import PetabExperimentReader, experiments_of, refuse_preequilibration_events
from castfit.formats.petab.identifiers import Constants, ModelEntities, NameResolution, read_entities, resolve_names
from castfit.formats.petab.observing import ObservableCompiler, PetabDatum, compile_observables
from castfit.formats.petab.priors import beginnings, distribution
from castfit.formats.petab.problem_tables import LIN, ParameterRow, ProblemTables
from castfit.formats.petab.reading import read_overview
from castfit.formats.petab.versions import read_version_1, read_version_2
from castfit.model.model import Model
from castfit.problem.compiled_problem import PETAB
from castfit.problem.parameters import Parameter
from castfit.problem.problem import Problem
from castfit.problem.validation import UnmeasuredError

_BOUND_RTOL = 1e-9  # relative distance from its bound within which a nominal value counts as rounded
_LOG_SCALE_BOUND_RATIO = 10.0  # ratio of positive bounds above which version 2 is searched on a logarithmic scale


@dataclass(frozen=True)
class LoadedProblem:
    """A problem with the tables that it was made from, and which of its outputs each row measures.

    notes : parts of the files that have no effect and were ignored
    warnings : columns that seem misspelt, nominal values outside of their bounds, parameters that nothing depends on
    """

    tables: ProblemTables
    observing: ObservableCompiler
    problem: Problem
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def load(file: str | Path, *, verbose: int | None = None) -> Problem:
    r"""Read a PEtab problem: model, data, conditions, noise, bounds, priors; nominal values are the guesses.

    Parameters
    ----------
    file : str or path
        The YAML file of the problem.
    verbose : {0, 1}, optional
        0 prints nothing; 1 also says what of the files does not matter, such as events after the last measurement.  By
        default a terminal shows what is being done where that takes longer than two seconds.

    Raises
    ------
    InputError
        Listing every mistake in the files with its file and line, and everything that cannot be expressed.

    Warns
    -----
    UserWarning
        For columns that seem to be misspelt, which are passed over; for nominal values outside of their bounds, which
        stand at the nearer bound; and for parameters on which nothing depends, which are left out.

    Examples
    --------
    >>> from pathlib import Path
    >>> import castfit as cf
    >>> def table(name, *rows):
    ...     _ = Path(name).write_text("\n".join("\t".join(row.split()) for row in rows))
    >>> _ = Path("model.xml").write_text(cf.sbml.load_antimony("A -> ; k * A; A = 2; k = 0.3").sbml)
    >>> table(
    ...     "parameters.tsv",
    ...     "parameterId parameterScale lowerBound upperBound nominalValue estimate",
    ...     "k           log10          1e-3       1e3        0.4          1",
    ... )
    >>> table("observables.tsv", "observableId observableFormula noiseFormula", "y A 0.1")
    >>> table("conditions.tsv", "conditionId", "c")
    >>> table("data.tsv", "observableId simulationConditionId measurement time", "y c 1.3 1", "y c 0.5 4")
    >>> _ = Path("problem.yaml").write_text(
    ...     "format_version: 1\nparameter_file: parameters.tsv\nproblems:\n"
    ...     "- {sbml_files: [model.xml], observable_files: [observables.tsv], condition_files: [conditions.tsv], "
    ...     "measurement_files: [data.tsv]}"
    ... )
    >>> problem = cf.petab.load("problem.yaml")
    >>> problem
    Problem(1 experiment, 2 values of y; estimates k)
    >>> round(cf.petab.negative_log_likelihood(problem), 4)
    -2.2219
    """
    is_valid = verbose is None or is_one_of(verbose, 0, 1, 2)
    raise_if_mistakes("petab.load", option_mistakes(("verbose", verbose, is_valid, "choose 0 or 1")))
    with progress_line(verbose, keep=False) as show:
        loaded = load_tables(file, show or (lambda text: None))
    if verbose:
        for note in loaded.notes:
            print_progress(f"{note}; it does not matter")
    if loaded.warnings:
        warnings.warn("; ".join(loaded.warnings), UserWarning, stacklevel=2)
    return loaded.problem


def load_tables(file: Any, show: Callable[[str], object] = lambda text: None) -> LoadedProblem:
    """Read a PEtab problem and keep the contents of its tables; progress messages are passed to `show`."""
    overview = read_overview(file)
    mistakes: list[str] = []
    show("reading the tables")
    tables = (read_version_1 if overview.version == 1 else read_version_2)(overview, mistakes)
    show("reading the model")
    return build(tables, read_entities(tables.model_file, mistakes), mistakes, show)


def build(
    tables: ProblemTables, entities: ModelEntities, mistakes: list[str], show: Callable[[str], object]
) -> LoadedProblem:
    """Return the problem; all mistakes, those found before too, are raised at once.

    Raises InputError: listing every mistake with its file and line.
    """
    show("putting tables and model together")
    naming = resolve_names(tables, entities, mistakes)
    observables = compile_observables(
        tables.observables, tables.measurements, naming.graphs_by_name, entities.moving, mistakes
    )
    reader = PetabExperimentReader(tables, entities, naming, mistakes)
    plans = {row.name: reader.plan(row) for row in tables.experiments}
    data_by_experiment: dict[str, list[PetabDatum]] = {}
    for datum in observables.data:
        data_by_experiment.setdefault(datum.row.experiment, []).append(datum)
    data = {row.name: data_by_experiment.get(row.name, []) for row in tables.experiments}
    for row in tables.experiments:
        reader.refuse(row, data[row.name])
    substitute = Constants.from_entities(entities, naming.parameter_constants, naming.targets)
    prior_names = {row.name for row in tables.parameters if row.estimated and row.prior is not None}
    model = _model(entities, naming, observables, substitute, prior_names, mistakes)
    mistakes += [] if mistakes else refuse_preequilibration_events(tables, model, entities.events)
    priors = [(row, distribution(row, truncated=False)) for row in tables.parameters]
    mistakes += [
        f"{row.where}: the prior of '{row.name}': {message}"
        for row, prior in priors
        if prior is not None
        for message in prior.mistakes()
    ]
    mistakes += [] if tables.measurements or mistakes else [f"{tables.file.name}: its measurement tables have no rows"]
    raise_if_mistakes("petab.load", mistakes)
    notes: list[str] = []
    experiments = [
        experiment
        for row in tables.experiments
        for experiment in experiments_of(row, plans[row.name], data[row.name], observables, entities, substitute, notes)
    ]
    graphs = ca.vertcat(
        model.system.ode, model.system.alg, *model.outputs.values(), *map(ca.SX, model.initial.values())
    )
    relevant_names = {*(s.name() for s in ca.symvar(graphs)), *_inside(experiments)}
    relevant_names |= prior_names
    used = {*model.parameters, *relevant_names} - {*naming.targets}
    formula_names = tables.names
    unused_messages = tuple(
        f"{row.where}: '{n}' is "
        + ("estimated, but nothing depends on it" if row.estimated else "in no formula, and not in the model")
        + "; it is left out"
        for n, row in naming.table.items()
        if n not in relevant_names and (row.estimated or not (n in entities.meaning or n in formula_names))
    )
    show(f"compiling experiments: {len(experiments)}, states: {len(model.states)}")

    def make_problem(free: set[str]) -> Problem:
        rows = {n: parameter(r, tables.version, matters=n in free) for n, r in naming.table.items() if n in used}
        return Problem(model, experiments, parameters=rows).with_format_measure(PETAB)

    try:
        problem = make_problem(relevant_names)
    except UnmeasuredError as error:
        problem = make_problem(relevant_names - {*error.names})
        unused_messages += tuple(
            f"{naming.table[n].where}: '{n}' is estimated, but no measurement depends on it; it is left out"
            for n in error.names
        )
    warning_messages = (*tables.doubts, *_outside(tables.parameters), *unused_messages)
    return LoadedProblem(tables, observables, problem, tuple(notes), warning_messages)


def _outside(rows: Iterable[ParameterRow]) -> tuple[str, ...]:
    """Return a message for each estimated parameter whose nominal value lies clearly outside its bounds."""
    return tuple(
        f"{row.where}: '{row.name}' has the nominalValue {row.nominal:g} outside of its bounds, {row.lower:g} to "
        f"{row.upper:g}; it starts at the nearer one"
        for row in rows
        if row.estimated and row.nominal is not None
        for slack in [_BOUND_RTOL * abs(row.nominal)]
        if not row.lower - slack <= row.nominal <= row.upper + slack
    )


def _model(
    entities: ModelEntities,
    naming: NameResolution,
    observables: ObservableCompiler,
    substitute: Constants,
    prior_names: set[str],
    mistakes: list[str],
) -> Model:
    """Return the model; its parameters are those in formulas, and what priors alone inform of."""
    rates = {symbol: substitute.graph(rate) for symbol, rate in entities.rates.values()}
    algebraic = {symbol: substitute.graph(residual) for symbol, residual in entities.algebraic.items()}
    outputs = {n: substitute.graph(graph) for n, graph in observables.outputs.items()}
    initial = {n: substitute(v) for n, v in entities.initial.items()}
    graphs = [*rates.values(), *algebraic.values(), *outputs.values(), *map(ca.SX, initial.values())]
    state_names = {s.name() for s in (*rates, *algebraic, entities.time)}
    symbols_by_name = {s.name(): s for s in ca.symvar(ca.vertcat(*graphs)) if s.name() not in state_names}
    allowed = {*naming.table, *naming.targets, *(n for values in observables.placeholders.values() for n in values)}
    mistakes += [
        f"'{n}' of the model has no value: give one in the model, in the parameter table or in every condition"
        for n in symbols_by_name
        if n not in allowed
    ]
    parameters = {n: entities.constants[n] for n in naming.parameter_constants} | symbols_by_name
    parameters |= {n: ca.SX.sym(n) for n in naming.table if n in prior_names and n not in parameters}
    if mistakes:  # graphs may contain errors
        return Model({ca.SX.sym("nothing"): 0.0})
    return Model(
        rates,
        algebraic=algebraic,
        parameters=parameters.values(),
        outputs=outputs,
        time=entities.time,
        initial={entities.rates[n][0]: v for n, v in initial.items()},
    )


def _inside(experiments: Iterable[Experiment]) -> set[str]:
    """Return the names in expressions of experiments."""
    names: set[str] = set()
    for e in experiments:
        names |= event_symbols(e.events)
        steady_values: list[Any] = []
        steady = e.steady
        while steady is not None:
            steady_values += [*steady.parameters.values(), *steady.initial.values()]
            steady = steady.initial if isinstance(steady.initial, SteadyStart) else None
        spreads = [model.sigma for model in e.noise.values()]
        for value in (*e.parameters.values(), *e.initial.values(), *steady_values, *spreads):
            if isinstance(value, ca.SX):
                names |= {s.name() for s in ca.symvar(value)}
    return names


def parameter(row: ParameterRow, version: int, *, matters: bool = True) -> Parameter:
    """Convert a row of the parameter table to an estimated or a fixed parameter."""
    if row.nominal is not None and not (row.estimated and matters):
        return Parameter(row.nominal, fixed=True)
    log = row.scale != LIN or (version > 1 and row.lower > 0 and row.upper > _LOG_SCALE_BOUND_RATIO * row.lower)
    value = row.nominal
    if value is None:
        value = sqrt(row.lower * row.upper) if log else 0.5 * (row.lower + row.upper)
    value = min(max(value, row.lower), row.upper)
    prior = distribution(row, truncated=version > 1)
    if not matters:
        return Parameter(value, fixed=True)
    return Parameter(value, row.lower, row.upper, "log" if log else "linear", prior=prior, starts=beginnings(row))
