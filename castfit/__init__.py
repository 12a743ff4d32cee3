"""castfit: estimate parameters, initial states and noise of ODE and DAE models from measured time courses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from castfit._support.public_names import assign_public_addresses as _publish
from castfit._support.public_names import with_public_address as _published
from castfit._support.renamed import warn_renamed as _warn_renamed
from castfit._support.status import CastfitError, InputError, Status
from castfit._support.version import __version__ as __version__
from castfit._support.views import register_views as _provide
from castfit.model import functions as _functions
from castfit.model.functions import *  # noqa: F403 - the functions of symbols, all that the module lists

if TYPE_CHECKING:
    from castfit import noise, petab, plots, priors, problems, sbml
    from castfit.control.control import control
    from castfit.control.plan import Plan
    from castfit.control.terms import at_end, final_time, integral
    from castfit.densities.noise.correlation import correlated, covariance
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
    from castfit.drive.design.candidate import Candidate
    from castfit.drive.design.choices import choose
    from castfit.drive.design.design import VarianceOf, design, variance_of
    from castfit.drive.design.discrimination import Discrimination, discriminate
    from castfit.drive.design.proposal import Design
    from castfit.drive.design.trials import VerifiedPopulation
    from castfit.drive.model_comparison.candidates import estimated
    from castfit.drive.model_comparison.evidence import EvidenceTable
    from castfit.drive.model_comparison.likelihood_ratio import LikelihoodRatio, likelihood_ratio
    from castfit.drive.model_comparison.model_table import ModelTable, compare_models
    from castfit.drive.model_comparison.select import select
    from castfit.drive.model_comparison.selection_result import SelectionResult
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
    from castfit.integrate.options import IntegratorOptions
    from castfit.model.delay import delay
    from castfit.model.interval_outputs import interval_mean, per_interval, relative_to_first
    from castfit.model.model import Model, symbols
    from castfit.model.scaled_outputs import scaled
    from castfit.problem.constraints import along, at, between, conserved, monotone, quantity
    from castfit.problem.problem import Constraint, Parameter, Problem
    from castfit.report.explorer import explore
    from castfit.result.block_matrix import BlockMatrix
    from castfit.result.confidence_region import Axis, ConfidenceRegion
    from castfit.result.estimate import Estimate
    from castfit.result.kalman import KalmanResult, kalman
    from castfit.result.moving_horizon import MovingHorizon, OnlineEstimate, moving_horizon
    from castfit.result.path_result import LaplaceCheck, PathBand, PathResult
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

else:  # rooms called as functions are: loaded and forgotten now, so that no later import puts them in their place
    from castfit import control, fit, simulate

    del control, fit, simulate

__all__ = [
    "Axis",
    "BlockMatrix",
    "BootstrapResult",
    "Candidate",
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
    "Design",
    "Discrimination",
    "Doses",
    "Estimate",
    "Event",
    "EvidenceTable",
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
    "KalmanResult",
    "Laplace",
    "LaplaceCheck",
    "LeaveOutResult",
    "Likelihood",
    "LikelihoodRatio",
    "LogNormal",
    "MixedEffectsResult",
    "Model",
    "ModelTable",
    "MovingHorizon",
    "MultipleShooting",
    "MultistartResult",
    "NegativeBinomial",
    "Normal",
    "OnlineEstimate",
    "OutputAt",
    "Parameter",
    "PathBand",
    "PathResult",
    "Plan",
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
    "SelectionResult",
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
    "VarianceOf",
    "VerifiedPopulation",
    "along",
    "at",
    "at_end",
    "between",
    "bootstrap",
    "choose",
    "compare",
    "compare_models",
    "conserved",
    "consistent",
    "contours",
    "control",
    "correlated",
    "covariance",
    "coverage",
    "delay",
    "design",
    "discriminate",
    "doctor",
    "estimate",
    "estimated",
    "experiments_from",
    "explore",
    "final_time",
    "fit",
    "free",
    "identifiability",
    "incremental",
    "integral",
    "interval_mean",
    "kalman",
    "lasso",
    "leave_out",
    "likelihood_ratio",
    "mixed_effects",
    "monotone",
    "moving_horizon",
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
    "select",
    "simulate",
    "steady_state",
    "stiffness",
    "symbols",
    "tikhonov",
    "unknown",
    "variance_of",
]
__all__ += _functions.__all__

_RENAMED = {"check": "doctor", "table": "compare_models"}  # old names that stay available for one version


def __getattr__(name: str) -> Any:
    """Import a public name on first use; importing every name takes ten times as long as one script needs."""
    if name in _RENAMED:
        _warn_renamed(f"castfit.{name}", f"castfit.{_RENAMED[name]}")
        return __getattr__(_RENAMED[name])
    attribute = _import_alias(name) or getattr(_defining_module(name), name, None)
    if attribute is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return globals().setdefault(name, _published(attribute, __name__, name))


def _import_alias(name: str) -> Any:
    """Return a public module, or an object whose public name differs from its name in the code.

    Return None for other names.
    """
    # Not `from castfit import ...`, which asks here again.
    match name:
        case "noise":
            import castfit.noise as target
        case "petab":
            import castfit.petab as target
        case "plots":
            import castfit.plots as target
        case "Prior":
            from castfit.result.prior_from_result import prior_from as target
        case "priors":
            import castfit.priors as target
        case "problems":
            import castfit.problems as target
        case "sbml":
            import castfit.sbml as target
        case _:
            return None
    return target


def _defining_module(name: str) -> Any:
    """Return the module that defines a public name."""
    match name:
        case "control":
            from castfit.control import control as module
        case "Plan":
            from castfit.control import plan as module
        case "at_end" | "final_time" | "integral":
            from castfit.control import terms as module
        case "Cauchy" | "Gaussian" | "Huber" | "Laplace" | "Likelihood":
            from castfit.densities.noise import models as module
        case "LogNormal" | "NegativeBinomial" | "Poisson" | "SoftL1" | "StudentT":
            from castfit.densities.noise import models as module
        case "correlated" | "covariance":
            from castfit.densities.noise import correlation as module
        case "unknown":
            from castfit.densities.noise import unknown as module
        case "Normal" | "lasso" | "tikhonov":
            from castfit.densities import priors as module
        case "Checkup" | "doctor":
            from castfit.drive.checkup import check as module
        case "Stiffness" | "stiffness":
            from castfit.drive.checkup import stiffness as module
        case "explore":
            from castfit.report import explorer as module
        case "Candidate":
            from castfit.drive.design import candidate as module
        case "choose":
            from castfit.drive.design import choices as module
        case "VarianceOf" | "design" | "variance_of":
            from castfit.drive.design import design as module
        case "Discrimination" | "discriminate":
            from castfit.drive.design import discrimination as module
        case "Design":
            from castfit.drive.design import proposal as module
        case "VerifiedPopulation":
            from castfit.drive.design import trials as module
        case "LikelihoodRatio" | "likelihood_ratio":
            from castfit.drive.model_comparison import likelihood_ratio as module
        case "ModelTable" | "compare_models":
            from castfit.drive.model_comparison import model_table as module
        case "estimated":
            from castfit.drive.model_comparison import candidates as module
        case "EvidenceTable":
            from castfit.drive.model_comparison import evidence as module
        case "select":
            from castfit.drive.model_comparison import select as module
        case "SelectionResult":
            from castfit.drive.model_comparison import selection_result as module
        case "mixed_effects":
            from castfit.drive.population import mixed_effects as module
        case "MixedEffectsResult":
            from castfit.drive.population import result as module
        case "Individual" | "Population":
            from castfit.drive.population import spec as module
        case "compare":
            from castfit.drive.search.compare import compare as module
        case "ComparisonResult":
            from castfit.drive.search.compare import result as module
        case "incremental":
            from castfit.drive.search.incremental import incremental as module
        case "IncrementalResult":
            from castfit.drive.search.incremental import result as module
        case "multistart":
            from castfit.drive.search.multistart import multistart as module
        case "MultistartResult":
            from castfit.drive.search.multistart import result as module
        case "estimate":
            from castfit.drive.search.portfolio import portfolio as module
        case "PortfolioResult":
            from castfit.drive.search.portfolio import result as module
        case "ScatterResult":
            from castfit.drive.search.scatter import result as module
        case "scatter_search":
            from castfit.drive.search.scatter import scatter_search as module
        case "IdentifiabilityStudy" | "identifiability":
            from castfit.drive.uncertainty import identifiability_study as module
        case "PriorInfluence" | "prior_influence":
            from castfit.drive.uncertainty import prior_influence as module
        case "Contours" | "contours":
            from castfit.drive.uncertainty.profile import contours as module
        case "OutputAt":
            from castfit.drive.uncertainty.profile import predictions as module
        case "profile" | "profile_limits":
            from castfit.drive.uncertainty.profile import profile as module
        case "Profile" | "Profiles":
            from castfit.drive.uncertainty.profile import result as module
        case "BootstrapResult" | "bootstrap":
            from castfit.drive.uncertainty.refits import bootstrap as module
        case "CoverageResult" | "coverage":
            from castfit.drive.uncertainty.refits import coverage as module
        case "LeaveOutResult" | "leave_out":
            from castfit.drive.uncertainty.refits import leave_out as module
        case "SampleResult":
            from castfit.drive.uncertainty.sample import result as module
        case "sample":
            from castfit.drive.uncertainty.sample import sample as module
        case "Doses" | "Event":
            from castfit.experiment import events as module
        case "Experiment" | "consistent" | "free" | "relative":
            from castfit.experiment import experiment as module
        case "Input":
            from castfit.experiment import inputs as module
        case "experiments_from":
            from castfit.experiment import long_tables as module
        case "fit":
            from castfit.fit import fit as module
        case "Decomposed":
            from castfit.fit.start.decomposition import search as module
        case "SoftStart":
            from castfit.fit.start import soft_start as module
        case "IntegratorOptions":
            from castfit.integrate import options as module
        case "delay":
            from castfit.model import delay as module
        case "interval_mean" | "per_interval" | "relative_to_first":
            from castfit.model import interval_outputs as module
        case "Model" | "symbols":
            from castfit.model import model as module
        case "scaled":
            from castfit.model import scaled_outputs as module
        case "along" | "at" | "between" | "conserved" | "monotone" | "quantity":
            from castfit.problem import constraints as module
        case "Constraint" | "Parameter" | "Problem":
            from castfit.problem import problem as module
        case "BlockMatrix":
            from castfit.result import block_matrix as module
        case "Axis" | "ConfidenceRegion":
            from castfit.result import confidence_region as module
        case "KalmanResult" | "kalman":
            from castfit.result import kalman as module
        case "MovingHorizon" | "OnlineEstimate" | "moving_horizon":
            from castfit.result import moving_horizon as module
        case "LaplaceCheck" | "PathBand" | "PathResult":
            from castfit.result import path_result as module
        case "Estimate":
            from castfit.result import estimate as module
        case "Result":
            from castfit.result import result as module
        case "SimulationError" | "simulate":
            from castfit.simulate import simulate as module
        case "SteadyState" | "SteadyStateError" | "steady_state":
            from castfit.simulate import steady_state as module
        case "GaussNewton":
            from castfit.solve import gauss_newton as module
        case "Ipopt":
            from castfit.solve import ipopt as module
        case "Iteration":
            from castfit.solve import solution as module
        case "Sqp":
            from castfit.solve import sqp as module
        case "Collocation":
            from castfit.transcribe import collocation as module
        case "MultipleShooting":
            from castfit.transcribe import multiple_shooting as module
        case "SingleShooting":
            from castfit.transcribe import single_shooting as module
        case _:
            return None
    return cast("Any", module)  # a union of more modules than pyright goes through


def __dir__() -> list[str]:
    """List the public names."""
    return [*__all__, "__version__"]


class _Views:
    """All public names, and what shows results; no room below may import them, the root may."""

    @property
    def names(self) -> dict[str, Any]:
        return {name: globals().get(name) or __getattr__(name) for name in __all__}

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
_publish(__name__, ["CastfitError", "InputError", "Status"], globals())
