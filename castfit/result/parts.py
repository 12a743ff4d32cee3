"""What a result is made of: where the search ended, what the data say about that, and how it came about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from castfit._support.reprs import brief
from castfit.result.constraint_table import ConstraintTable
from castfit.result.identifiability import Identifiability
from castfit.integrate import IntegratorOptions
from castfit.simulate.simulate import Nodes
from castfit._support.status import Status

Array = NDArray[np.float64]


@brief
@dataclass(frozen=True, eq=False)
class Estimates:
    """Where the search ended: the best point, whether or not it is a solution.

    Attributes
    ----------
    status : Status
        How the solve ended.
    message : str
        How the solve ended, in words.
    names : tuple[str, ...]
        The estimated quantities.
    theta : Array
        Estimates in search scale; (n_theta,).
    log : NDArray[np.bool_]
        Which entries of theta are logarithms; (n_theta,).
    parameters : dict[str, float]
        Estimated parameters by name.
    initial_states : dict[str, float]
        Estimated initial states by name.
    cost : float
        What was minimised: ``chi2 / 2`` where standard deviations are known; where they share an unknown factor
        ``n_data / 2 * log(chi2 / n_data)`` plus half the squares of the priors' residuals.
    chi2 : float
        Sum of squared weighted residuals, priors included; of the data alone where the weights' factor is unknown.
    n_data : int
        Number of measured values.
    residuals : Array
        (model - data) / sigma by experiment, time, output, with sigma as it was given, 1 if it was not; (n_data,).
    active : dict[str, str]
        ``"lower"`` or ``"upper"`` for each variable that a bound holds, nodes included.
    gaps : float
        Largest continuity defect of the trajectory, in units of the state's typical magnitude.
    trajectories : dict[str, Nodes]
        Per experiment the `Nodes`: times (K,) and states (K, n_x) at the start of every stage.
    predictions : Array
        Of every measured value; (n_data,).
    spreads : Array
        Its sigma, scale or dispersion as it was given or computed, 1 where it is unknown and eliminated; (n_data,).
    normalised_residuals : Array
        Residuals of variance 1 if the model is right; NaN where sigma could not be estimated; (n_data,).
    deviations : Array
        Standard deviations of the values by their noise model, in the unit of the output; (n_data,).
    bounds : Array
        Lower and upper bounds of the estimated quantities, natural scale; (n_theta, 2).
    """

    status: Status
    message: str
    names: tuple[str, ...]
    theta: Array
    log: NDArray[np.bool_]
    parameters: dict[str, float]
    initial_states: dict[str, float]
    cost: float
    chi2: float
    n_data: int
    residuals: Array
    active: dict[str, str]
    gaps: float
    trajectories: dict[str, Nodes]
    predictions: Array = field(default_factory=lambda: np.empty(0))
    spreads: Array = field(default_factory=lambda: np.empty(0))
    normalised_residuals: Array = field(default_factory=lambda: np.empty(0))
    deviations: Array = field(default_factory=lambda: np.empty(0))
    bounds: Array = field(default_factory=lambda: np.empty((0, 2)))


@brief
@dataclass(frozen=True, eq=False)
class Uncertainty:
    """What the data say about the estimates.

    Attributes
    ----------
    dof : int
        Number of values and priors minus the number of directions that they determine.
    neg2loglik : float
        -2 log likelihood with all constants; with unknown noise at its maximum likelihood.
    aic : float
        Akaike's information criterion, of the data: see castfit.criteria.
    bic : float
        Schwarz's (Bayesian) information criterion, of the data.
    jacobian : Array
        d residuals / d theta (search scale) along the model's equations; rows of priors last; (n_data + n_prior,
        n_theta).
    gradient : Array
        d cost / d theta, search scale; (n_theta,).
    covariance : Array
        NaN where a bound holds a quantity, inf on the diagonal of what is not identifiable; (n_theta, n_theta).
    correlation : Array
        Of the estimates, (n_theta, n_theta).
    standard_errors : dict[str, float]
        Square roots of the covariance's diagonal; numerical errors included.
    numerical_errors : dict[str, float]
        The part of the standard errors that is due to the finite accuracy of the integration.
    noise : float
        Estimated factor on the standard deviations of the data (their value where none was given); 1 if they are
        taken as they are; NaN where data do not share one factor, see `sigmas`.
    absolute_sigma : bool
        Whether standard deviations are taken as they are.
    confidence_level : float
        Of the intervals in the table.
    identifiability : Identifiability
        A verdict on every quantity.
    sigmas : dict[str, float]
        The most likely values of the unknown standard deviations that were eliminated, as ``sigma(y)``; others are
        parameters.
    sigma_errors : dict[str, float]
        Their standard errors.
    information : Array
        Fisher's information of data and priors on theta, search scale, active bounds left aside; (n_theta, n_theta).
    rank : int
        Number of directions of theta that data and priors determine; -1 if it is not known.
    root : Array
        root @ root.T is the covariance of what is determined, search scale; (n_theta, n_theta).
    undetermined : Array
        Directions of theta that are not, search scale; (k, n_theta).
    leverage : Array
        How much of each value's own error the fit follows, from 0 to 1; (n_data,).
    smoothness : dict[str, float]
        The weight of the roughness of each smooth estimated input, as given or chosen.
    effective : dict[str, float]
        How many of its values the data determine: its effective degrees of freedom, in all experiments together.
    inflation : float
        The unbiased variance of an unknown sigma that all data share, in units of the most likely one; else 1.
    neg2logprior : float
        The part of `neg2loglik` that is the priors'.
    n_estimated : float
        How many numbers the data determine, unknown deviations of the noise included; see castfit.criteria.
    constraints : ConstraintTable
        What constraints did to the estimates, and what they cost.
    """

    dof: int
    neg2loglik: float
    aic: float
    bic: float
    jacobian: Array
    gradient: Array
    covariance: Array
    correlation: Array
    standard_errors: dict[str, float]
    numerical_errors: dict[str, float]
    noise: float
    absolute_sigma: bool
    confidence_level: float
    identifiability: Identifiability
    sigmas: dict[str, float] = field(default_factory=dict[str, float])
    sigma_errors: dict[str, float] = field(default_factory=dict[str, float])
    information: Array = field(default_factory=lambda: np.empty((0, 0)))
    rank: int = -1
    root: Array = field(default_factory=lambda: np.empty((0, 0)))
    undetermined: Array = field(default_factory=lambda: np.empty((0, 0)))
    leverage: Array = field(default_factory=lambda: np.empty(0))
    smoothness: dict[str, float] = field(default_factory=dict[str, float])
    effective: dict[str, float] = field(default_factory=dict[str, float])
    inflation: float = 1.0
    neg2logprior: float = 0.0
    n_estimated: float = np.nan
    constraints: ConstraintTable = field(default_factory=ConstraintTable)


@brief
@dataclass(frozen=True, eq=False)
class Provenance:
    """How the result came about.

    Attributes
    ----------
    transcription : str
        Its label.
    solver : str
        Its label.
    integrator : IntegratorOptions
        With which `predict` integrates.
    iterations : int
        Number of iterations, those of all attempts.
    evaluations : dict[str, int]
        Number of evaluations by kind.
    failures : dict[str, int]
        Number of failed evaluations by cause.
    time : float
        Seconds.
    history : tuple[dict[str, float], ...]
        One entry per iteration.
    versions : Mapping[str, str]
        Of castfit, CasADi, NumPy and Python.
    question : Mapping[str, str]
        Hashes of model and data, by what they are of, in a result that was loaded; see castfit.fingerprint.
    """

    transcription: str
    solver: str
    integrator: IntegratorOptions
    iterations: int
    evaluations: dict[str, int]
    failures: dict[str, int]
    time: float
    history: tuple[dict[str, float], ...]
    versions: Mapping[str, str]
    question: Mapping[str, str] = field(default_factory=dict[str, str])
