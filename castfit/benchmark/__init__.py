"""Benchmarks: published tables repeated with their methods and ours, and how the linear algebra scales."""

from castfit.benchmark.methods import INTEGRATOR, METHODS, recommended
from castfit.benchmark.published import TableResult, run_table
from castfit.benchmark.scaling import Scaling, condensing_scaling

__all__ = [
    "INTEGRATOR",
    "METHODS",
    "Scaling",
    "TableResult",
    "condensing_scaling",
    "recommended",
    "run_table",
]
