"""Benchmarks: published tables repeated with their methods and ours, and what derivatives and linear algebra cost.

In flows the name of a table of ``castfit bench`` with its options, and castfit as its users have it; problems come from
the library, from papers and from the PEtab collection.  Out comes a `Report`: sheets to be shown, a record for JSON,
pictures where a table has some.  Read `table` first, what all kinds of tables have in common, then `paper_tables`.
Nothing in castfit imports this package; ``castfit bench`` looks for it beside castfit.
"""

from castfit.drive.search.compare.benchmarks import recommended_options

from . import (
    ablation,
    adjoint_scaling,
    adjoint_table,
    code,
    collection,
    costs,
    coverage,
    design,
    many_experiments,
    network,
    optimal_control,
    paper_tables,
    population,
    process_noise,
    readme,
    regression,
    residual_tests,
    sbml_suite,
    scaling,
    searches,
    selection,
    sizes,
    small,
    sweep,
    textbook,
)
from .methods import INTEGRATOR, METHODS
from .paper_tables import TableResult, run_table
from .scaling import Scaling, condensing_scaling

KINDS = (
    paper_tables.KIND,
    scaling.KIND,
    searches.KIND,
    regression.KIND,
    coverage.KIND,
    residual_tests.KIND,
    process_noise.KIND,
    adjoint_table.KIND,
    adjoint_scaling.KIND,
    collection.KIND,
    sweep.KIND,
    sweep.EXPLICIT_KIND,
    many_experiments.KIND,
    population.KIND,
    textbook.KIND,
    small.KIND,
    ablation.KIND,
    sizes.KIND,
    costs.KIND,
    sbml_suite.KIND,
    readme.KIND,
    selection.KIND,
    design.KIND,
    code.KIND,
    optimal_control.KIND,
    network.KIND,
)
"""The kinds of tables that ``castfit bench`` knows."""

__all__ = [
    "INTEGRATOR",
    "KINDS",
    "METHODS",
    "Scaling",
    "TableResult",
    "condensing_scaling",
    "recommended_options",
    "run_table",
]
