"""castfit: estimate parameters, initial states and noise of ODE and DAE models from measured time courses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from castfit import noise as noise
from castfit import priors as priors
from castfit._support.public_names import publish as _publish
from castfit._support.renamed import warn_renamed as _warn_renamed
from castfit._support.status import CastfitError, InputError, Status
from castfit._support.version import __version__ as __version__
from castfit._support.views import provide as _provide
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
from castfit.drive.checkup.check import Checkup, doctor
from castfit.drive.checkup.stiffness import Stiffness, stiffness
from castfit.drive.model_comparison import LikelihoodRatio, ModelTable, compare_models, likelihood_ratio
from castfit.drive.population.mixed_effects import mixed_effects
from castfit.drive.population.result import MixedEffectsResult
from castfit.drive.population.spec import Individual, Population
from castfit.drive.search.compare.compare import compare
from castfit.drive.search.compare.result import ComparisonResult
from castfit.drive.search.incremental.incremental import incremental
from castfit.drive.search.incremental.result import IncrementalResult
from castfit.drive.search.multistart.multistart import multistart
from castfit.drive.search.multistart.result import MultistartResult
from castfit.drive.search.portfolio.portfolio import estimate
from castfit.drive.search.portfolio.result import PortfolioResult
from castfit.drive.search.scatter.result import ScatterResult
from castfit.drive.search.scatter.scatter_search import scatter_search
from castfit.drive.uncertainty.identifiability_study import IdentifiabilityStudy, identifiability
from castfit.drive.uncertainty.prior_influence import PriorInfluence, prior_influence
from castfit.drive.uncertainty.profile.contours import Contours, contours
from castfit.drive.uncertainty.profile.predictions import OutputAt
from castfit.drive.uncertainty.profile.profile import profile, profile_limits
from castfit.drive.uncertainty.profile.result import Profile, Profiles
from castfit.drive.uncertainty.refits.bootstrap import BootstrapResult, bootstrap
from castfit.drive.uncertainty.refits.coverage import CoverageResult, coverage
from castfit.drive.uncertainty.refits.leave_out import LeaveOutResult, leave_out
from castfit.drive.uncertainty.sample.result import SampleResult
from castfit.drive.uncertainty.sample.sample import sample
from castfit.experiment.events import Doses, Event
from castfit.experiment.experiment import Experiment, consistent, free, relative
from castfit.experiment.inputs import Input
from castfit.experiment.long_tables import experiments_from
from castfit.fit.fit import fit
from castfit.fit.start.decomposition.search import Decomposed
from castfit.fit.start.soft_start import SoftStart
from castfit.integrate import IntegratorOptions
from castfit.model import functions as _functions
from castfit.model.delay import delay
from castfit.model.functions import *  # noqa: F403 - the functions of symbols, all that the module lists
from castfit.model.interval_outputs import interval_mean, per_interval, relative_to_first
from castfit.model.model import Model, symbols
from castfit.model.scaled_outputs import scaled
from castfit.problem.constraints import along, at, between, conserved, monotone, quantity
from castfit.problem.problem import Constraint, Parameter, Problem
from castfit.result.block_matrix import BlockMatrix
from castfit.result.confidence_region import Axis, ConfidenceRegion
from castfit.result.estimate import Estimate
from castfit.result.prior_from_result import prior_from as Prior
from castfit.result.result import Result
from castfit.simulate.simulate import SimulationError, simulate
from castfit.simulate.steady_state import SteadyState, SteadyStateError, steady_state
from castfit.solve.gauss_newton import GaussNewton
from castfit.solve.ipopt import Ipopt
from castfit.solve.solution import Iteration
from castfit.solve.sqp import Sqp
from castfit.transcribe.collocation import Collocation
from castfit.transcribe.multiple_shooting import MultipleShooting
from castfit.transcribe.single_shooting import SingleShooting

if TYPE_CHECKING:
    from castfit import petab, plots, problems, sbml

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
    "along",
    "at",
    "between",
    "bootstrap",
    "compare",
    "compare_models",
    "conserved",
    "consistent",
    "contours",
    "coverage",
    "delay",
    "doctor",
    "estimate",
    "experiments_from",
    "fit",
    "free",
    "identifiability",
    "incremental",
    "interval_mean",
    "lasso",
    "leave_out",
    "likelihood_ratio",
    "mixed_effects",
    "monotone",
    "multistart",
    "noise",
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
    "simulate",
    "steady_state",
    "stiffness",
    "symbols",
    "tikhonov",
    "unknown",
]
__all__ += _functions.__all__

_RENAMED = {"check": "doctor", "table": "compare_models"}  # these go on for one version


def __getattr__(name: str) -> Any:
    """Import on first use what needs time and not everyone needs."""
    # Not `from castfit import ...`, which asks here again.
    if name == "petab":
        import castfit.petab as petab

        return petab
    if name == "plots":
        import castfit.plots as plots

        return plots
    if name == "problems":
        import castfit.problems as problems

        return problems
    if name == "sbml":
        import castfit.sbml as sbml

        return sbml
    if name in _RENAMED:
        _warn_renamed(f"castfit.{name}", f"castfit.{_RENAMED[name]}")
        return globals()[_RENAMED[name]]
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    """List what is for users."""
    return [*__all__, "__version__"]


class _Views:
    """What shows results; no room below may import it, the root may."""

    @property
    def plots(self) -> Any:
        import castfit.plots as plots

        return plots

    @property
    def search_curves(self) -> Any:
        from castfit.plots.searches import curves

        return curves

    @property
    def reports(self) -> Any:
        from castfit import report

        return report

    @property
    def profile_bands(self) -> Any:
        from castfit.drive.uncertainty.profile.bands import prediction_bands

        return prediction_bands


_provide(_Views())
_publish(__name__, __all__, globals())
