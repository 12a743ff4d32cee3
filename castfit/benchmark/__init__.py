"""Benchmarks: published tables repeated with their methods and ours, and how the linear algebra scales."""

from castfit.benchmark.published import METHODS, Method, Row, TableResult, run_table
from castfit.benchmark.scaling import Scaling, condensing_scaling

__all__ = ["METHODS", "Method", "Row", "Scaling", "TableResult", "condensing_scaling", "run_table"]
