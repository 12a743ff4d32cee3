"""A PEtab Select problem under way: the library proposes models and decides, the caller calibrates them."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from castfit._support.status import InputError, raise_if_mistakes
from castfit.formats.optional import library
from castfit.formats.petab.loading import load_tables, parameter
from castfit.problem.problem import Problem

ESTIMATE = "estimate"
_TABLE = "parameterId\tparameterScale\tlowerBound\tupperBound\tnominalValue\testimate\n"
_PARTS = "problems:\n- {sbml_files: [], condition_files: [], measurement_files: [], observable_files: []}\n"


@dataclass(frozen=True)
class ProposedModel:
    """A model to be calibrated: its hash, the YAML file of its problem, values of its parameters.

    predecessor : the hash of the model that it was derived from; empty if none
    """

    name: str
    file: Path
    parameters: Mapping[str, float | str]
    predecessor: str


@dataclass(frozen=True)
class Calibration:
    """Calibration result for the PEtab Select library: -log L of the data, estimates, and precomputed criteria."""

    nllh: float
    estimates: Mapping[str, float]
    criteria: Mapping[str, float] = field(default_factory=dict[str, float])


class SelectionProblem:
    """A problem of PEtab Select, and how far its search is."""

    def __init__(self, select_problem: Any, path: Path) -> None:
        self._stated, self._select, self.path = select_problem, library("petab_select"), path
        self._space: Any = None
        self._models: dict[str, Any] = {}
        self.ended = False

    @classmethod
    def of_file(cls, path: Path, summary: Path | None = None) -> SelectionProblem:
        """Read a problem's YAML file.

        summary : where the library writes its table of iterations

        Raises InputError: listing the errors in the file.
        """
        select = library("petab_select", "petab.select")
        raise_if_mistakes(
            "petab.select", [] if path.is_file() else [f"there is no file '{path}'; give a PEtab Select problem"]
        )
        try:
            with _suppress_warnings():
                select_problem = select.Problem.from_yaml(path)
        except Exception as error:  # the library checks with pydantic, pandas and petab
            raise InputError("petab.select", [f"'{path}': {' '.join(str(error).split())[:300]}"]) from error
        select_problem.candidate_space_arguments.pop("summary_tsv", None)
        if summary is not None:
            select_problem.candidate_space_arguments["summary_tsv"] = summary
        return cls(select_problem, path)

    @classmethod
    def of_choices(
        cls, choices: Mapping[str, Sequence[float | str]], criterion: str, method: str, folder: Path
    ) -> SelectionProblem:
        """State a problem by alternatives of parameters, in files of a folder of its own."""
        rows = "".join(f"{n}\tlin\t-1e9\t1e9\t1\t1\n" for n in choices)
        (folder / "parameters.tsv").write_text(_TABLE + rows, encoding="utf-8")
        (folder / "problem.yaml").write_text(
            f"format_version: 1\nparameter_file: parameters.tsv\n{_PARTS}", encoding="utf-8"
        )
        heads = "\t".join(["model_subspace_id", "model_subspace_petab_yaml", *choices])
        cells = "\t".join(["M", "problem.yaml", *(";".join(map(str, values)) for values in choices.values())])
        (folder / "space.tsv").write_text(f"{heads}\n{cells}\n", encoding="utf-8")
        file = folder / "select.yaml"
        swaps = f"swap_parameter_sets: [[{', '.join(choices)}]], consecutive_laterals: true"  # else FAMoS may never end
        file.write_text(
            f"criterion: {criterion}\nmethod: {method}\nmodel_space_files: [space.tsv]\n"
            f"candidate_space_arguments: {{{swaps}}}\n",
            encoding="utf-8",
        )
        return cls.of_file(file)

    @property
    def criterion(self) -> str:
        """By what models are compared: AIC, AICc or BIC, or a likelihood."""
        return str(self._stated.criterion.value)

    @property
    def method(self) -> str:
        """Name of the search method for the model space."""
        return str(self._stated.method.value)

    @property
    def files(self) -> list[Path]:
        """The YAML files of the problems that models are made of."""
        with _suppress_warnings():
            spaces = self._stated.model_space.model_subspaces.values()
        return list(dict.fromkeys(Path(space.petab_yaml).resolve() for space in spaces))

    @property
    def count(self) -> int:
        """Number of models in the model space."""
        spaces = self._stated.model_space.model_subspaces.values()
        return sum(prod(map(len, space.parameters.values())) for space in spaces)

    @property
    def varied(self) -> frozenset[str]:
        """The parameters that differ between models."""
        subspace_parameters = [space.parameters for space in self._stated.model_space.model_subspaces.values()]
        members = dict(self._stated.metaparameters)
        return frozenset(p for each in subspace_parameters for n in each for p in members.get(n, [n]))

    def proposed(self) -> list[ProposedModel]:
        """Begin an iteration; return its models, which may be none."""
        with _suppress_warnings():
            iteration = self._select.ui.start_iteration(problem=self._stated, candidate_space=self._space)
        self._space = iteration["candidate_space"]
        self._models = {str(m.hash): m for m in iteration["uncalibrated_models"]}
        return [self._read(m) for m in self._models.values()]

    def _read(self, model: Any) -> ProposedModel:
        members = dict(model.metaparameters or {})
        parameters = {p: v for n, v in model.parameters.items() for p in members.get(n, [n])}
        values = {n: ESTIMATE if v == ESTIMATE else float(v) for n, v in parameters.items()}
        predecessor = str(model.predecessor_model_hash)
        file = Path(model.model_subspace_petab_yaml).resolve()
        return ProposedModel(str(model.hash), file, values, "" if predecessor.startswith("virtual") else predecessor)

    def submit(self, calibrations: Mapping[str, Calibration]) -> dict[str, float]:
        """End the iteration with what calibrations came to; return the criterion of each model by its hash.

        Models that could not be calibrated have no result: the library receives infinity for them.
        """
        values: dict[str, float] = {}
        with _suppress_warnings():
            for name, model in self._models.items():
                calibration = calibrations.get(name)
                nllh = float("inf") if calibration is None else calibration.nllh
                model.set_criterion(self._select.Criterion.NLLH, nllh)
                criteria: Mapping[str, float] = {} if calibration is None else calibration.criteria
                for criterion, value in criteria.items():
                    model.set_criterion(self._select.Criterion(criterion), value)
                model.set_estimated_parameters({} if calibration is None else dict(calibration.estimates))
                if calibration is None and self.criterion not in criteria:
                    model.set_criterion(self._stated.criterion, nllh)
                values[name] = float(model.get_criterion(self._stated.criterion))
            iteration = self._select.ui.end_iteration(
                problem=self._stated, candidate_space=self._space, calibrated_models=list(self._models.values())
            )
        self._space, self.ended = iteration["candidate_space"], bool(iteration["terminate"])
        return values

    @property
    def best(self) -> str:
        """The hash of the library's best model."""
        with _suppress_warnings():
            return str(self._select.ui.get_best(problem=self._stated, models=self._stated.state.models).hash)

    def write(self, folder: Path) -> None:
        """Write the library's files: all calibrated models, and the best one."""
        folder.mkdir(parents=True, exist_ok=True)
        models = self._stated.state.models
        with _suppress_warnings():
            models.to_yaml(folder / "models.yaml")
            self._select.ui.get_best(problem=self._stated, models=models).to_yaml(folder / "best.yaml")


def problem_of(file: Path, varied: frozenset[str]) -> Problem:
    """Load the problem that models are made of, with all that they vary estimated, within the bounds of its table."""
    loaded = load_tables(file)
    rows = [r for r in loaded.tables.parameters if r.name in varied and r.name in loaded.problem.parameters]
    freed = {r.name: parameter(replace(r, estimated=True), loaded.tables.version) for r in rows}
    return loaded.problem.replace(parameters={**loaded.problem.parameters, **freed})


@contextmanager
def _suppress_warnings() -> Generator[None, None, None]:
    """Keep to oneself what the library and pandas warn of: none of it is the user's to act on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
