"""castfit: estimate parameters, initial states and noise of ODE and DAE models from measured time courses."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import Any

# Packages that are named as functions are: loaded and forgotten now, so that no later import puts them in their place.
from castfit import control, fit, simulate
from castfit._support.public_names import assign_public_addresses as _publish
from castfit._support.public_names import with_public_address as _published
from castfit._support.renamed import warn_renamed as _warn_renamed
from castfit._support.status import CastfitError, InputError, Status
from castfit._support.version import __version__ as __version__
from castfit._support.views import register_views as _provide
from castfit.model import functions as _functions
from castfit.model.functions import *  # noqa: F403 - the functions of symbols, all that the module lists

del control, fit, simulate

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
_PUBLIC_MODULES = ("noise", "petab", "plots", "priors", "problems", "sbml")
_ERROR_NAMES = [kind.__name__ for kind in (CastfitError, InputError, Status)]
_NAMES = sorted([*_ERROR_NAMES, "Prior", *_PUBLIC_MODULES, *_MODULE_BY_NAME])
__all__ = [*_NAMES, *_functions.__all__]  # pyright: ignore[reportUnsupportedDunderAll] - the stub lists the names

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
    if name in _PUBLIC_MODULES:
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
        return _import_module("castfit.plots")

    @property
    def search_curves(self) -> Any:
        return _import_module("castfit.plots.searches").curves

    @property
    def reports(self) -> Any:
        return _import_module("castfit.report")

    @property
    def profile_bands(self) -> Any:
        return _import_module("castfit.drive.uncertainty.profile.bands").prediction_bands


_provide(_Views())
_publish(__name__, _ERROR_NAMES, globals())
