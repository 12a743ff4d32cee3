"""castfit: estimate parameters, initial states and noise of ODE and DAE models from measured time courses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from castfit.densities import priors as priors
from castfit.result.block_matrix import BlockMatrix
from castfit.drive.checkup.check import Checkup, check
from castfit.problem.constraints import along, at, between, conserved, monotone, quantity
from castfit.model.delay import delay
from castfit.drive.uncertainty.bootstrap.bootstrap import bootstrap
from castfit.drive.uncertainty.bootstrap.result import BootstrapResult
from castfit.drive.search.compare.compare import compare
from castfit.drive.search.compare.result import ComparisonResult
from castfit.drive.uncertainty.coverage.coverage import coverage
from castfit.drive.uncertainty.coverage.result import CoverageResult
from castfit.drive.search.incremental.incremental import incremental
from castfit.drive.search.incremental.result import IncrementalResult
from castfit.drive.search.multistart.multistart import multistart
from castfit.drive.search.multistart.result import MultistartResult
from castfit.drive.population.mixed_effects import mixed_effects
from castfit.drive.population.result import MixedEffectsResult
from castfit.drive.population.said import Individual, Population
from castfit.drive.search.portfolio.portfolio import estimate
from castfit.drive.search.portfolio.result import PortfolioResult
from castfit.drive.uncertainty.profile.plane import Contours, contours
from castfit.drive.uncertainty.profile.predicted import OutputAt
from castfit.drive.uncertainty.profile.profile import profile, profile_limits
from castfit.drive.uncertainty.profile.result import Profile, Profiles
from castfit.drive.uncertainty.refits.leave_out import LeaveOutResult, leave_out
from castfit.drive.uncertainty.sample.result import SampleResult
from castfit.drive.uncertainty.sample.sample import sample
from castfit.drive.search.scatter.result import ScatterResult
from castfit.drive.search.scatter.scatter_search import scatter_search
from castfit.result.prior_from_result import prior_from as Prior
from castfit.result.estimate import Estimate
from castfit.experiment.events import Doses, Event
from castfit.experiment.experiment import Experiment, consistent, free, relative
from castfit.fit.fit import fit
from castfit.model.functions import (
    acos,
    asin,
    atan,
    atan2,
    ceil,
    cos,
    cosh,
    erf,
    exp,
    expm1,
    fabs,
    floor,
    fmax,
    fmin,
    if_else,
    log,
    log1p,
    log10,
    sign,
    sin,
    sinh,
    sqrt,
    tan,
    tanh,
)
from castfit.drive.uncertainty.identifiability_study import IdentifiabilityStudy, identifiability
from castfit.drive.uncertainty.prior_influence import PriorInfluence, prior_influence
from castfit.experiment.inputs import Input
from castfit.integrate import IntegratorOptions
from castfit.model.interval_outputs import interval_mean, per_interval, relative_to_first
from castfit.drive.model_comparison.likelihood_ratio import LikelihoodRatio, likelihood_ratio
from castfit.model.model import Model, symbols
from castfit.drive.model_comparison.table import ModelTable, table
from castfit.densities.noise.models import (
    Cauchy,
    Gaussian,
    Huber,
    Laplace,
    Likelihood,
    LogNormal,
    NegativeBinomial,
    Poisson,
    SoftL1,
    StudentT,
)
from castfit.densities.noise.unknown import unknown
from castfit.densities.priors import Normal, lasso, tikhonov
from castfit.problem.problem import Constraint, Parameter, Problem
from castfit.result.confidence_region import Axis, ConfidenceRegion
from castfit.result.result import Result
from castfit.model.scaled_outputs import scaled
from castfit.simulate.simulate import SimulationError, simulate
from castfit.solve.gauss_newton import GaussNewton
from castfit.solve.ipopt import Ipopt
from castfit.solve.solution import Iteration
from castfit.solve.sqp import Sqp
from castfit.fit.start.constant import SoftStart
from castfit.fit.start.decomposition.search import Decomposed
from castfit._support.status import CastfitError, InputError, Status
from castfit.simulate.steady_state import SteadyState, SteadyStateError, steady_state
from castfit.drive.checkup.stiffness import Stiffness, stiffness
from castfit.experiment.long_tables import experiments_from
from castfit.transcribe.collocation import Collocation
from castfit.transcribe.multiple_shooting import MultipleShooting
from castfit.transcribe.single_shooting import SingleShooting

if TYPE_CHECKING:
    from castfit import plots, problems
    from castfit.formats import petab as petab
    from castfit.formats import sbml as sbml

__version__ = "0.2.0"

__all__ = [
    "Axis",
    "BlockMatrix",
    "BootstrapResult",
    "CastfitError",
    "Cauchy",
    "Checkup",
    "Collocation",
    "ComparisonResult",
    "ConfidenceRegion",
    "Constraint",
    "Contours",
    "CoverageResult",
    "Decomposed",
    "Doses",
    "Estimate",
    "Event",
    "Experiment",
    "GaussNewton",
    "Gaussian",
    "Huber",
    "IdentifiabilityStudy",
    "IncrementalResult",
    "Individual",
    "Input",
    "InputError",
    "IntegratorOptions",
    "Ipopt",
    "Iteration",
    "Laplace",
    "LeaveOutResult",
    "Likelihood",
    "LikelihoodRatio",
    "LogNormal",
    "MixedEffectsResult",
    "Model",
    "ModelTable",
    "MultipleShooting",
    "MultistartResult",
    "NegativeBinomial",
    "Normal",
    "OutputAt",
    "Parameter",
    "Poisson",
    "Population",
    "PortfolioResult",
    "Prior",
    "PriorInfluence",
    "Problem",
    "Profile",
    "Profiles",
    "Result",
    "SampleResult",
    "ScatterResult",
    "SimulationError",
    "SingleShooting",
    "SoftL1",
    "SoftStart",
    "Sqp",
    "Status",
    "SteadyState",
    "SteadyStateError",
    "Stiffness",
    "StudentT",
    "acos",
    "along",
    "asin",
    "at",
    "atan",
    "atan2",
    "between",
    "bootstrap",
    "ceil",
    "check",
    "compare",
    "conserved",
    "consistent",
    "contours",
    "cos",
    "cosh",
    "coverage",
    "delay",
    "erf",
    "estimate",
    "exp",
    "experiments_from",
    "expm1",
    "fabs",
    "fit",
    "floor",
    "fmax",
    "fmin",
    "free",
    "identifiability",
    "if_else",
    "incremental",
    "interval_mean",
    "lasso",
    "leave_out",
    "likelihood_ratio",
    "log",
    "log1p",
    "log10",
    "mixed_effects",
    "monotone",
    "multistart",
    "per_interval",
    "petab",
    "plots",
    "prior_influence",
    "priors",
    "problems",
    "profile",
    "profile_limits",
    "quantity",
    "relative",
    "relative_to_first",
    "sample",
    "sbml",
    "scaled",
    "scatter_search",
    "sign",
    "simulate",
    "sin",
    "sinh",
    "sqrt",
    "steady_state",
    "stiffness",
    "symbols",
    "table",
    "tan",
    "tanh",
    "tikhonov",
    "unknown",
]


def __getattr__(name: str) -> Any:
    """Import on first use what needs time and not everyone needs."""
    if name in ("petab", "plots", "problems", "sbml"):
        import importlib

        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
