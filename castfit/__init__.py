"""castfit: estimate parameters, initial states and noise of ODE and DAE models from measured time courses."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

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

# The public names of each module, which is imported when one of them is used first.
_NAMES_BY_MODULE = {
    "control.control": "control",
    "control.plan": "Plan",
    "control.terms": "at_end final_time integral",
    "densities.noise.correlation": "correlated covariance",
    "densities.noise.models": (
        "Cauchy Gaussian Huber Laplace Likelihood LogNormal NegativeBinomial Poisson SoftL1 StudentT"
    ),
    "densities.noise.unknown": "unknown",
    "densities.priors": "Normal lasso tikhonov",
    "drive.checkup.check": "Checkup doctor",
    "drive.checkup.stiffness": "Stiffness stiffness",
    "drive.design.candidate": "Candidate",
    "drive.design.choices": "choose",
    "drive.design.design": "VarianceOf design variance_of",
    "drive.design.discrimination": "Discrimination discriminate",
    "drive.design.proposal": "Design",
    "drive.design.trials": "VerifiedPopulation",
    "drive.model_comparison.candidates": "estimated",
    "drive.model_comparison.evidence": "EvidenceTable",
    "drive.model_comparison.likelihood_ratio": "LikelihoodRatio likelihood_ratio",
    "drive.model_comparison.model_table": "ModelTable compare_models",
    "drive.model_comparison.select": "select",
    "drive.model_comparison.selection_result": "SelectionResult",
    "drive.population.mixed_effects": "mixed_effects",
    "drive.population.result": "MixedEffectsResult",
    "drive.population.spec": "Individual Population",
    "drive.search.compare.compare": "compare",
    "drive.search.compare.result": "ComparisonResult",
    "drive.search.incremental.incremental": "incremental",
    "drive.search.incremental.result": "IncrementalResult",
    "drive.search.multistart.multistart": "multistart",
    "drive.search.multistart.result": "MultistartResult",
    "drive.search.portfolio.portfolio": "estimate",
    "drive.search.portfolio.result": "PortfolioResult",
    "drive.search.scatter.result": "ScatterResult",
    "drive.search.scatter.scatter_search": "scatter_search",
    "drive.uncertainty.identifiability_study": "IdentifiabilityStudy identifiability",
    "drive.uncertainty.prior_influence": "PriorInfluence prior_influence",
    "drive.uncertainty.profile.contours": "Contours contours",
    "drive.uncertainty.profile.predictions": "OutputAt",
    "drive.uncertainty.profile.profile": "profile profile_limits",
    "drive.uncertainty.profile.result": "Profile Profiles",
    "drive.uncertainty.refits.bootstrap": "BootstrapResult bootstrap",
    "drive.uncertainty.refits.coverage": "CoverageResult coverage",
    "drive.uncertainty.refits.leave_out": "LeaveOutResult leave_out",
    "drive.uncertainty.sample.result": "SampleResult",
    "drive.uncertainty.sample.sample": "sample",
    "experiment.events": "Doses Event",
    "experiment.experiment": "Experiment consistent free relative",
    "experiment.inputs": "Input",
    "experiment.long_tables": "experiments_from",
    "fit.fit": "fit",
    "fit.start.decomposition.search": "Decomposed",
    "fit.start.soft_start": "SoftStart",
    "integrate.options": "IntegratorOptions",
    "model.delay": "delay",
    "model.interval_outputs": "interval_mean per_interval relative_to_first",
    "model.model": "Model symbols",
    "model.scaled_outputs": "scaled",
    "problem.constraints": "along at between conserved monotone quantity",
    "problem.problem": "Constraint Parameter Problem",
    "report.explorer": "explore",
    "result.block_matrix": "BlockMatrix",
    "result.confidence_region": "Axis ConfidenceRegion",
    "result.estimate": "Estimate",
    "result.kalman": "KalmanResult kalman",
    "result.moving_horizon": "MovingHorizon OnlineEstimate moving_horizon",
    "result.path_result": "LaplaceCheck PathBand PathResult",
    "result.result": "Result",
    "simulate.simulate": "SimulationError simulate",
    "simulate.steady_state": "SteadyState SteadyStateError steady_state",
    "solve.gauss_newton": "GaussNewton",
    "solve.ipopt": "Ipopt",
    "solve.solution": "Iteration",
    "solve.sqp": "Sqp",
    "transcribe.collocation": "Collocation",
    "transcribe.multiple_shooting": "MultipleShooting",
    "transcribe.single_shooting": "SingleShooting",
}
_MODULE_BY_NAME = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}

_RENAMED = {"check": "doctor", "table": "compare_models"}  # old names that stay available for one version


def __getattr__(name: str) -> Any:
    """Import a public name on first use; importing every name takes ten times as long as one script needs."""
    if name in _RENAMED:
        _warn_renamed(f"castfit.{name}", f"castfit.{_RENAMED[name]}")
        return __getattr__(_RENAMED[name])
    attribute = _import_alias(name)
    if attribute is None and name in _MODULE_BY_NAME:
        attribute = getattr(_import_module(f"castfit.{_MODULE_BY_NAME[name]}"), name)
    if attribute is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return globals().setdefault(name, _published(attribute, __name__, name))


def _import_alias(name: str) -> Any:
    """Return a public module, or an object whose public name differs from its name in the code.

    Return None for other names.
    """
    if name in ("noise", "petab", "plots", "priors", "problems", "sbml"):
        return _import_module(f"castfit.{name}")  # not `from castfit import ...`, which asks here again
    return _import_module("castfit.result.prior_from_result").prior_from if name == "Prior" else None


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
