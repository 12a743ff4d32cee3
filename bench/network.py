"""``castfit bench network``: a generated network of reactions as large as the largest that are fitted, from SBML.

A signalling network of the size of Fröhlich's (2018, Cell Systems 7, 567): species bind, are modified and decay by mass
action, every rate constant is a parameter of its own.  It is written as SBML, loaded, and posed with a few observables;
then the objective and its gradient by adjoint states are evaluated, and the gradient is compared with a difference of
objectives along a random direction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import castfit as cf
from castfit._support.status import raise_if_mistakes
from castfit._support.text_tables import TextTable
from castfit.drive.search.compare.benchmarks import Progress

from .table import Kind, Report, collect_rows, number_mistakes, record

NAME = "network"
N_SPECIES = 1396  # number of species of the default network
_PER_SPECIES = 3  # reactions
_MAX_OBSERVED_SPECIES = 12  # number of species that are observed
_MIN_SPECIES = 4  # smallest number of species of a network
_TIMES = np.array([0.5, 1.0, 2.0, 4.0])


@dataclass(frozen=True)
class NetworkRow:
    """What a network costs, in CPU seconds; `difference` is that of the gradient along a direction, relative."""

    species: int
    reactions: int
    parameters: int
    loading: float
    posing: float
    first_value: float
    value: float
    first_gradient: float
    gradient: float
    difference: float


def network(species: int, rng: np.random.Generator) -> tuple[str, int]:
    """Return the SBML of a network, and how many reactions it has."""
    math = 'xmlns="http://www.w3.org/1998/Math/MathML"'
    starts = rng.uniform(0.2, 2.0, species)
    reactions: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for i in range(species):
        reactions.append(((i,), ((i + 1) % species,)))  # modification, a ring so that nothing is lost
        neighbours = rng.choice(species, _PER_SPECIES, replace=False)
        for j, k in zip(neighbours[:-1].tolist(), neighbours[1:].tolist(), strict=True):
            reactions.append(((i, j), (k,)) if i not in (j, k) else ((i,), (k if k != i else j,)))
    constants = 10.0 ** rng.uniform(-1.5, 0.0, len(reactions))
    parts = [
        '<sbml xmlns="http://www.sbml.org/sbml/level3/version1/core" level="3" version="1">'
        '<model id="network"><listOfCompartments><compartment id="cell" size="1" spatialDimensions="3" '
        'constant="true"/></listOfCompartments><listOfSpecies>'
    ]
    parts += [
        f'<species id="s{i}" compartment="cell" initialConcentration="{start!r}" hasOnlySubstanceUnits="false" '
        'boundaryCondition="false" constant="false"/>'
        for i, start in enumerate(starts.tolist())
    ]
    parts.append("</listOfSpecies><listOfParameters>")
    parts += [f'<parameter id="k{j}" value="{k!r}" constant="true"/>' for j, k in enumerate(constants.tolist())]
    parts.append("</listOfParameters><listOfReactions>")
    for j, (reactants, products) in enumerate(reactions):
        sides = "".join(
            f"<listOf{side}>"
            + "".join(f'<speciesReference species="s{i}" stoichiometry="1" constant="true"/>' for i in indices)
            + f"</listOf{side}>"
            for side, indices in (("Reactants", reactants), ("Products", products))
        )
        factors = "".join(f"<ci>s{i}</ci>" for i in reactants)
        law = f"<math {math}><apply><times/><ci>cell</ci><ci>k{j}</ci>{factors}</apply></math>"
        parts.append(
            f'<reaction id="r{j}" reversible="false" fast="false">{sides}<kineticLaw>{law}</kineticLaw></reaction>'
        )
    parts.append("</listOfReactions></model></sbml>")
    return "".join(parts), len(reactions)


def timed_network(species: int, seed: int) -> NetworkRow:
    """Load, pose and evaluate a network."""
    rng = np.random.default_rng(seed)
    text, reactions = network(species, rng)
    loaded, loading = _timed(lambda: cf.sbml.load(text))
    observed = [f"s{i}" for i in rng.choice(species, min(_MAX_OBSERVED_SPECIES, species), replace=False).tolist()]
    data = {name: rng.uniform(0.2, 2.0, _TIMES.size) for name in observed}
    experiment = cf.Experiment(data, time=_TIMES, sigma=0.1)
    free = {n: cf.Parameter(v, lower=1e-6, upper=1e3, scale="log") for n, v in loaded.parameters.items() if n != "cell"}
    shooting = cf.SingleShooting(derivatives="adjoint")

    def build_problem() -> Any:
        problem = cf.Problem(loaded.model, experiment, parameters={"cell": cf.Parameter(1.0, fixed=True), **free})
        return shooting.transcribe(problem, problem.guess)

    staged, posing = _timed(build_problem)
    v = staged.start
    shift = 1e-4 * rng.standard_normal(v.size) / np.sqrt(v.size)
    _, first_value = _timed(lambda: staged.evaluate(v))
    ahead, value = _timed(lambda: staged.evaluate(v + shift))
    behind = staged.evaluate(v - shift)
    cost_gradient, first_gradient = _timed(lambda: staged.gradient(v))
    _, gradient = _timed(lambda: staged.gradient(v + shift))
    slope, between = float(cost_gradient.gradient @ shift), 0.5 * (ahead.cost - behind.cost)
    off = abs(slope - between) / max(abs(between), 1e-300)
    return NetworkRow(
        species, reactions, len(loaded.parameters), loading, posing, first_value, value, first_gradient, gradient, off
    )


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    began = time.process_time()
    value = call()
    return value, time.process_time() - began


def _run(name: str, progress: Progress, *, species: int = N_SPECIES, seed: int = 1) -> Report:
    mistakes = number_mistakes(seed=seed)
    mistakes += [f"species is {species}; give at least {_MIN_SPECIES}"] if species < _MIN_SPECIES else []
    raise_if_mistakes(f"bench {name}", mistakes)

    def run() -> Iterator[NetworkRow]:
        progress(f"{NAME}: {species} species")
        yield timed_network(species, seed)

    rows, status = collect_rows(run())
    sheet = TextTable.from_items(
        rows,
        ("species", lambda row: str(row.species)),
        ("reactions", lambda row: str(row.reactions)),
        ("parameters", lambda row: str(row.parameters)),
        ("load", lambda row: f"{row.loading:.1f}"),
        ("pose", lambda row: f"{row.posing:.1f}"),
        ("first value", lambda row: f"{row.first_value:.1f}"),
        ("value", lambda row: f"{row.value:.2f}"),
        ("first gradient", lambda row: f"{row.first_gradient:.1f}"),
        ("gradient", lambda row: f"{row.gradient:.2f}"),
        ("off a difference by", lambda row: f"{row.difference:.1e}"),
        title=f"{name}: a generated network from SBML, CPU seconds",
    )
    return Report((sheet,), record(name, [asdict(row) for row in rows], seed=seed, **status))


KIND = Kind(
    lambda: (NAME,),
    ("species", "seed"),
    _run,
    lambda name: "a generated network of reactions as large as the largest that are fitted: loading, value, gradient",
)
