"""Starting points for partly observed models: relaxed equations, and states that are constant at first.

    guess --simulation--> mean of every state --levels (castfit.solve.relaxed_dynamics)--> theta, nodes

For outputs that are sums, logarithms or scaled states, if neither the data nor a simulation of the guess determines the
states.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from castfit._support.arguments import is_one_of, shorten_repr
from castfit._support.arrays import Array
from castfit._support.public_names import public
from castfit._support.reprs import add_brief_repr
from castfit._support.status import raise_if_mistakes
from castfit._support.time_limit import StopRequested
from castfit.fit.start import StartingPoint
from castfit.integrate import IntegratorOptions
from castfit.integrate.lanes import merge
from castfit.problem.compiled_experiments import Condition
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problem.positivity import positive_states
from castfit.simulate.simulate import TrajectoryNodes
from castfit.solve.relaxed_dynamics import LONG_RAMP, SHORT_RAMP, FlatRelaxedProblem, SearchCoordinates, run_homotopy
from castfit.solve.solution import CountingProblem, SolveControl
from castfit.solve.staged import Chain, Evaluation, Mask, StagedProblem, rows_in_units
from castfit.transcribe.collocation_problem import collocation_problem
from castfit.transcribe.stage_division import check_triggers
from castfit.transcribe.trajectory import Trajectory, start_trajectory

# Prices of equations, from the first to the last.
RELAXATION_RAMPS = {"long": LONG_RAMP, "short": SHORT_RAMP}

_MIN_ELEMENTS = 40  # Smallest number of elements of an experiment.
_COLLOCATION_DEGREE = 3
_ZERO_STATE_RTOL = 1e-6  # Value of a state, relative to its largest one, that integration errors may leave of zero.
_MAX_INITIAL_DISTANCE = 3.0  # Largest distance of a constant from the initial state, in e-folds or units.
# Smallest sigma, relative to the mean measured value, while the states are far from the data.
_MIN_RELATIVE_SIGMA = 0.065
# Limits of an unknown sigma, relative to the standard deviation of the data.
_MIN_SIGMA_FRACTION, _MAX_SIGMA_FRACTION = 0.05, 1.0


@public("castfit")
@add_brief_repr
@dataclass(frozen=True)
class SoftStart:
    """Start from constant states and relaxed equations.

    For partly measured models: outputs that are sums, logarithms or scaled states, and parameters that are known only
    to an order of magnitude.  States start constant in time, at their mean in a simulation of the start.  A penalty
    that rises step by step limits the violation of the equations, while states and parameters are estimated jointly.
    The fit starts at the resulting parameters and states.

    Parameters
    ----------
    start : mapping from quantity name to value, optional
        Starting values, natural scale; quantities that are not named start at their guess.
    ramp : {"long", "short"}
        Increase of the penalty: from 0.01 to 10,000 in tenfold steps, or from 1 to 10,000 in hundredfold steps.  The
        long ramp succeeds more often for chaotic systems and cascades, the short one for oscillators, at half the
        cost.

    Raises
    ------
    InputError
        If `ramp` is neither of these.

    Examples
    --------
    >>> import castfit as cf
    >>> lorenz = cf.problems.load("lorenz")
    >>> far = {"s": 100.0, "r": 3.0, "b": 0.1}
    >>> result = cf.fit(lorenz.problem, start=cf.SoftStart(far))
    >>> result.success, bool(lorenz.reference.is_reached(result.chi2))
    (True, True)
    """

    start: Mapping[str, float] = field(default_factory=dict[str, float])
    ramp: str = "long"

    def __post_init__(self) -> None:
        is_known_ramp = is_one_of(self.ramp, *RELAXATION_RAMPS)
        raise_if_mistakes(
            "SoftStart", [] if is_known_ramp else [f"ramp is {shorten_repr(self.ramp)}; choose 'long' or 'short'"]
        )

    @property
    def stations(self) -> tuple[float, ...]:
        """Values rho of the relaxation, one per level."""
        return RELAXATION_RAMPS[self.ramp]


@dataclass(frozen=True)
class SoftStartResult:
    """Result of a soft start: theta (n_theta,), search scale, and the trajectory of each experiment."""

    theta: Array
    nodes: list[TrajectoryNodes]
    steps: int
    evaluations: dict[str, int]


def soft_start_or_guess(
    problem: CompiledProblem, theta: Array, integrator: IntegratorOptions, stations: tuple[float, ...] = LONG_RAMP
) -> StartingPoint:
    """Return the start of a fit from relaxed equations, or theta itself if the time was too short.

    Raises InputError if states trigger events.
    """
    try:
        soft_solution = soft_start(problem, theta, integrator, stations=stations)
    except StopRequested as stop_reason:
        return StartingPoint(theta, "No time was left for relaxed equations.", stop_reason.status)
    note = f"Started from constant states with relaxed equations, {soft_solution.steps} steps."
    return StartingPoint(soft_solution.theta, note, nodes=soft_solution.nodes)


def soft_start(
    problem: CompiledProblem,
    theta: Array,
    integrator: IntegratorOptions,
    *,
    stations: tuple[float, ...] = LONG_RAMP,
) -> SoftStartResult:
    """Estimate states and theta (n_theta,) jointly, starting from constant states, while equations are tightened.

    The integrator simulates the start for the magnitudes of the states; `stations` are
    `castfit.solve.relaxed_dynamics.LONG_RAMP` or `SHORT_RAMP`.

    Raises InputError if states trigger events.
    Raises StopRequested if the time is over or Ctrl-C was pressed.
    """
    check_triggers("SoftStart", problem)
    simulated = start_trajectory(problem, theta, "simulation", integrator)
    n_x = len(problem.model.states)
    magnitude, positive = _largest(simulated), _positive(problem, simulated)
    constant_states = [_constant(simulated, i, positive, magnitude) for i in range(len(problem.conditions))]
    staged = collocation_problem(
        problem,
        [_edges(condition) for condition in problem.conditions],
        theta=theta,
        trajectories=[_build_constant_trajectory(values, n_x) for values in constant_states],
        unit=magnitude,
        degree=_COLLOCATION_DEGREE,
    ).explicit()
    ledger = CountingProblem(staged, SolveControl())
    coordinates = SearchCoordinates.from_layout(staged.layout, positive, magnitude)
    noise = _noise(staged, ledger.evaluate(staged.start))

    def at_price(rho: float) -> FlatRelaxedProblem:
        return FlatRelaxedProblem(staged, coordinates, noise, staged.table.weights, rho)

    homotopy_path = run_homotopy(ledger, at_price, staged.start, stations)
    times_and_states = zip(staged.times(homotopy_path.v), staged.node_states(homotopy_path.v), strict=True)
    nodes = [TrajectoryNodes(times[:-1], states) for times, states in times_and_states]
    return SoftStartResult(
        staged.layout.theta(homotopy_path.v).copy(), nodes, homotopy_path.steps, dict(ledger.evaluations)
    )


def _largest(simulated: Trajectory) -> Array:
    """Return the largest absolute value of every state, or its unit if it stays zero, (n_x + n_z,)."""
    states = np.concatenate([np.hstack([x, z]) for _, x, z in simulated.tables])
    largest: Array = np.abs(np.where(np.isfinite(states), states, 0.0)).max(axis=0)
    return np.where(largest > 0.0, largest, np.max(simulated.units, axis=0))


def _positive(problem: CompiledProblem, simulated: Trajectory) -> Mask:
    """Return a mask of the states that are searched as logarithms, (n_x + n_z,).

    An algebraic state counts as positive if all differential states are and its simulation is.
    """
    of_x = positive_states(problem)
    of_z = np.all(
        [(z >= -_ZERO_STATE_RTOL * np.abs(z).max(axis=0)).all(axis=0) for _, _, z in simulated.tables], axis=0
    )
    return np.append(of_x, of_z & of_x.all())


def _edges(condition: Condition) -> Array:
    """Return element boundaries: all data, and further ones that limit the length of an element."""
    marks = merge(np.array([condition.start, condition.end]), condition.points.times)
    longest = (condition.end - condition.start) / _MIN_ELEMENTS
    pieces: list[Array] = [
        np.linspace(a, b, math.ceil((b - a) / longest - 1e-9), endpoint=False)
        for a, b in itertools.pairwise(marks.tolist())
    ]
    return np.concatenate([*pieces, marks[-1:]])


def _constant(simulated: Trajectory, i: int, positive: Mask, magnitude: Array) -> Array:
    """Return the mean of every state, in its search coordinate, limited to a distance from its initial value."""
    times, x, z = simulated.tables[i]
    y = np.hstack([x, z])
    coordinates = SearchCoordinates(positive, magnitude, 1e-7 * magnitude)
    searched = np.array([coordinates.search(row) for row in np.where(np.isfinite(y), y, 0.0)])
    span = np.maximum(np.diff(times, append=times[-1:]), 0.0)
    mean = np.average(searched, axis=0, weights=span if span.sum() > 0.0 else None)
    return coordinates.natural(np.clip(mean, searched[0] - _MAX_INITIAL_DISTANCE, searched[0] + _MAX_INITIAL_DISTANCE))


def _build_constant_trajectory(values: Array, n_x: int) -> Callable[..., tuple[Array, Array]]:
    def constant_states(times: Array, *, is_after_event: bool = False) -> tuple[Array, Array]:
        states = np.repeat(values[None], len(times), axis=0)
        return states[:, :n_x], states[:, n_x:]

    return constant_states


def _noise(staged: StagedProblem, evaluation: Evaluation) -> list[Array]:
    """Return standard deviations, (K, n_r) per chain, in units of the weights of the residuals.

    Predictions of constant states hardly vary, so differences of residuals equal those of the data.
    """
    sigmas: list[Array] = []
    for chain, rows, signal in zip(
        staged.layout.chains, rows_in_units(staged.layout, evaluation), staged.signal, strict=True
    ):
        sigma = np.ones(chain.row_mask.shape)
        is_unknown = chain.group >= 0
        if is_unknown.any() and evaluation.ok:
            sigma[is_unknown] = _unknown_sigma(chain, rows)[is_unknown]
        sigmas.append(np.maximum(sigma, _MIN_RELATIVE_SIGMA * signal))
    return sigmas


def _unknown_sigma(chain: Chain, rows: Array) -> Array:
    """Estimate the noise of every output of unknown sigma by second differences.

    Gasser, Sroka and Jennen-Steinmetz 1986, Biometrika 73, 625: the error of interpolating a datum between its
    neighbours, divided by this error for noise of variance 1.
    """
    n_points = max(chain.point_times.shape[1], 1)
    n_out = chain.n_r // n_points
    sigmas = np.ones((chain.n_stages * n_points, n_out))
    times = chain.point_times.ravel()
    output_rows, is_measured = rows.reshape(-1, n_out), (chain.row_mask & chain.datum_mask).reshape(-1, n_out)
    for j in range(n_out):
        t, y = times[is_measured[:, j]], output_rows[is_measured[:, j], j]
        if t.size < 3:
            continue
        outer_spacing, inner_spacing = t[2:] - t[:-2], t[2:] - t[1:-1]
        w = np.where(
            outer_spacing > 0.0, inner_spacing / np.where(outer_spacing > 0.0, outer_spacing, 1.0), 0.5
        )  # replicates
        error = w * y[:-2] + (1.0 - w) * y[2:] - y[1:-1]
        sigma = np.sqrt(np.mean(error**2 / (w**2 + (1.0 - w) ** 2 + 1.0)))
        spread = float(np.std(y))
        sigmas[:, j] = (
            np.clip(sigma, _MIN_SIGMA_FRACTION * spread, _MAX_SIGMA_FRACTION * spread) if spread > 0.0 else 1.0
        )
    return sigmas.reshape(chain.row_mask.shape)
