"""Searches by the library PEtab Select: `cf.petab.select` of its files, and FAMoS for any problem with choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from castfit._support.arguments import rng_mistakes, shorten_repr
from castfit._support.status import raise_if_mistakes
from castfit.drive.model_comparison.candidates import CandidateModel, Candidates, estimated
from castfit.drive.model_comparison.search import CandidateProposal, Search, SearchHistoryView
from castfit.drive.model_comparison.select import CRITERIA, run_selection
from castfit.drive.model_comparison.selection_log import SelectionLog, SelectionProgress
from castfit.drive.model_comparison.selection_result import SelectionResult
from castfit.drive.run.options import RunOptions
from castfit.fit.methods import Solver, Transcription, given_parts
from castfit.formats.petab.selection import ESTIMATE, Calibration, ProposedModel, SelectionProblem, problem_of


def select(
    file: str | Path,
    transcription: Transcription | str | None = None,
    solver: Solver | str | None = None,
    *,
    folder: str | Path | None = None,
    rng: int | np.random.Generator = 0,
    workers: int | Executor = 1,
    max_time: float = np.inf,
    fit_max_time: float = np.inf,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    callback: Callable[[SelectionProgress], Any] | None = None,
    verbose: int | None = None,
) -> SelectionResult:
    """Carry out a model selection in the PEtab Select format: its library searches, castfit fits the models.

    Needs the extra ``castfit[petab]``.  Models of one iteration are independent, so that the numbers do not
    depend on the workers.

    Parameters
    ----------
    file : str or Path
        The YAML file of the PEtab Select problem.
    transcription, solver : optional
        As for `fit`; by default single shooting and "box", for parameters known to an order of magnitude.
    folder : str or Path, optional
        Folder for the library's files: ``models.yaml`` with all calibrated models, ``best.yaml``, ``summary.tsv``.
    rng, workers, max_time, fit_max_time, checkpoint, resume, callback, verbose
        As for `castfit.select`.

    Returns
    -------
    SelectionResult
        The names of candidates are the hashes of the library, which also computes the criteria: for AICc and BIC it
        counts priors as data.

    Raises
    ------
    InputError
        For mistakes in the files, criteria that always prefer the largest model, and misuse.

    Examples
    --------
    >>> import castfit as cf
    >>> found = cf.petab.select("petab_select_problem.yaml", workers=2)  # doctest: +SKIP
    """
    run = RunOptions(
        workers=workers, max_time=max_time, fit_max_time=fit_max_time, callback=callback,
        verbose=verbose, checkpoint=checkpoint, resume=resume,
    )  # fmt: skip
    mistakes: list[str] = []
    default = transcription is None and solver is None
    requested_transcription, chosen_solver = given_parts(
        "single" if default else transcription, "box" if default else solver, mistakes
    )
    paths: dict[str, Any] = {"the file": file, "folder": "." if folder is None else folder}
    mistakes += [
        f"{n} is {shorten_repr(v)}; expected a path" for n, v in paths.items() if not isinstance(v, (str, Path))
    ]
    raise_if_mistakes("petab.select", [*mistakes, *rng_mistakes(rng), *run.file_mistakes(), *run.mistakes()])
    target = None if folder is None else Path(folder)
    if target is not None:
        target.mkdir(parents=True, exist_ok=True)
    problem = SelectionProblem.of_file(Path(file), None if target is None else target / "summary.tsv")
    if problem.criterion not in CRITERIA:
        raise_if_mistakes("petab.select", [f"the criterion {problem.criterion} always prefers the largest model; "
                                           f"choose one of {', '.join(CRITERIA)}"])  # fmt: skip
    varied = problem.varied
    space = Candidates({str(path): problem_of(path, varied) for path in problem.files}, total=problem.count)
    entries = {"criterion": problem.criterion, "method": problem.method}
    selection = run_selection(
        "petab.select", space, problem.criterion, problem.method, lambda log: _iterate_proposals(problem, space, log),
        run.with_plain_numbers(), (requested_transcription, chosen_solver), rng, entries,
    )  # fmt: skip
    if target is not None and selection.names:
        problem.write(target)
    return selection


def _iterate_proposals(problem: SelectionProblem, space: Candidates, log: SelectionLog) -> Search:
    """Yield the models that the library proposes, and pass the results of their fits to it."""

    def build_candidate(model: ProposedModel) -> CandidateModel:
        parameters = space.problems[str(model.file)].parameters
        return CandidateModel(model.name, str(model.file), {
            n: estimated if isinstance(v, str) else v for n, v in model.parameters.items() if n in parameters
        })  # fmt: skip

    while not problem.ended:
        models = problem.proposed()
        yield [CandidateProposal(build_candidate(m), m.predecessor) for m in models]
        calibrations: dict[str, Calibration] = {}
        for m in models:
            row = log.rows[m.name]
            if row.success and row.result is not None:
                calibrations[m.name] = Calibration(0.5 * row.result.criteria.neg2loglik, row.result.values)
        log.external_criteria |= {n: v for n, v in problem.submit(calibrations).items() if n in calibrations}


def famos(space: Candidates, history: SearchHistoryView, criterion: str) -> Search:
    """Search by FAMoS (Gabel et al. 2019) of PEtab Select: forward, backward, swaps, and jumps."""
    ids = {f"p{i}": n for i, n in enumerate(space.choices)}
    choices = {i: [ESTIMATE if v is estimated else repr(v) for v in space.choices[n]] for i, n in ids.items()}
    with TemporaryDirectory() as folder:
        problem = SelectionProblem.of_choices(choices, criterion, "famos", Path(folder))
        while not problem.ended:
            models = problem.proposed()
            candidates = {m.name: space.build_candidate(_chosen(m, ids)) for m in models}
            # FAMoS may return to an earlier model, which is not fitted again.
            yield [
                CandidateProposal(
                    c, candidates[m.predecessor].name if m.predecessor in candidates else history.nearest(c)
                )
                for m, c in zip(models, candidates.values(), strict=True)
                if not history.is_proposed(c.name)
            ]
            calibrations: dict[str, Calibration] = {}
            for name, c in candidates.items():
                value = history.value(c.name)
                if np.isfinite(value):
                    result = history.result(c.name)
                    calibrations[name] = Calibration(0.5 * result.criteria.neg2loglik, {}, {criterion: value})
            problem.submit(calibrations)


def _chosen(model: ProposedModel, ids: Mapping[str, str]) -> dict[str, Any]:
    """Return the alternatives of a proposed model by the names of the choices."""
    return {n: estimated if isinstance(model.parameters[i], str) else model.parameters[i] for i, n in ids.items()}
