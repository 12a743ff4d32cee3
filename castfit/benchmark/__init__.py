"""Benchmarks: published tables repeated with their methods and ours, and how the linear algebra scales."""

from castfit.benchmark.methods import INTEGRATOR, METHODS, Method, PlainFit
from castfit.benchmark.published import Row, TableResult, run_table
from castfit.benchmark.scaling import Scaling, condensing_scaling

__all__ = [
    "INTEGRATOR",
    "METHODS",
    "Method",
    "PlainFit",
    "Row",
    "Scaling",
    "TableResult",
    "condensing_scaling",
    "run_table",
]
