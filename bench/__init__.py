"""Benchmarks: published tables repeated with their methods and ours, and how the linear algebra scales."""

from bench import (
    ablation,
    adjoint_scaling,
    adjoint_table,
    against,
    collection,
    coverage,
    many,
    population,
    published,
    scaling,
    searches,
    sweep,
    textbook,
)
from bench.methods import INTEGRATOR, METHODS, recommended
from bench.published import TableResult, run_table
from bench.scaling import Scaling, condensing_scaling

KINDS = (
    published.KIND,
    scaling.KIND,
    searches.KIND,
    against.KIND,
    coverage.KIND,
    adjoint_table.KIND,
    adjoint_scaling.KIND,
    collection.KIND,
    sweep.KIND,
    many.KIND,
    population.KIND,
    textbook.KIND,
    ablation.KIND,
)
"""The kinds of tables that ``castfit bench`` knows."""

__all__ = [
    "INTEGRATOR",
    "KINDS",
    "METHODS",
    "Scaling",
    "TableResult",
    "condensing_scaling",
    "recommended",
    "run_table",
]
