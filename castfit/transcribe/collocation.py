"""Full collocation: the states at the collocation points of every element are variables too.

Elements are refined until the polynomials agree with the integrator: solve, integrate every element from its node,
divide those that differ, solve again from there.
"""

from __future__ import annotations

from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.arguments import is_count, is_one_of, is_within, option_mistakes, plain_numbers
from castfit._support.public_names import public
from castfit._support.records import dataclass
from castfit._support.reprs import add_brief_repr
from castfit._support.status import raise_if_mistakes
from castfit._support.time_limit import require_memory
from castfit.integrate import IntegratorOptions
from castfit.integrate.lanes import merge
from castfit.solve.staged import StagedProblem, read_only_copy
from castfit.transcribe.collocation_problem import CollocationProblem, collocation_problem
from castfit.transcribe.elements import SCHEMES
from castfit.transcribe.refinement import estimated_errors, inner_integrated, refine
from castfit.transcribe.stage_division import check_triggers, integrator_mistakes, interval_mistakes, uniform_or_given
from castfit.transcribe.trajectory import States, Trajectory, start_trajectory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit._support.arrays import Array
    from castfit.problem.compiled_problem import CompiledProblem
    from castfit.problem.problem import Posable


_MIN_MESH_TOLERANCE = 1e-10  # smallest mesh tolerance: the integrator that verifies it is a thousand times as accurate
_MIN_ELEMENT_FRACTION = 1e-6  # element length relative to the horizon, below which the start values are integrated
_MIN_BOUNDARY_DISTANCE = 1e-3  # distance from data, relative to an element, at which no boundary is added

# Smallest number of elements per experiment with which "auto" begins, in addition to the measured times.
MIN_INITIAL_ELEMENTS = 20


@public("castfit")
@add_brief_repr
@dataclass(frozen=True)
class Collocation:
    """Represent the states by polynomials on elements.

    Parameters
    ----------
    degree : int
        Number of collocation points per element.
    scheme : {"radau", "legendre"}
        Radau IIA (order 2 degree - 1 at element ends, stiffly accurate) or Gauss-Legendre (order 2 degree).
    elements : int, "auto", "data" or array
        Number of equal elements, an element between any two measured times, or the boundaries themselves; breakpoints
        of inputs are always boundaries.  "auto" begins with the data and refines until `tolerance` is met.
    tolerance : float
        For "auto": the largest difference between an element and the integrator, relative to each state's magnitude.
    states : {"data", "smoothed", "simulation"} or mapping
        Where the states start: interpolated or smoothed measurements (the rest by simulation), simulation from the
        guess, or ``{state: (times, values)}``.
    integrator : IntegratorOptions
        With which unmeasured states are simulated at the start, and elements checked, there with tighter tolerances.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> cf.fit(problem, cf.Collocation(degree=3, elements=20)).transcription
    'collocation (radau 3, 20 elements)'
    """

    degree: int = 3
    scheme: str = "radau"
    elements: int | str | NDArray[np.float64] = "auto"
    tolerance: float = 1e-8
    states: States = "data"
    integrator: IntegratorOptions = field(default_factory=IntegratorOptions)

    def __post_init__(self) -> None:
        plain_numbers(self)
        mistakes = interval_mistakes("elements", self.elements, words=("auto", "data"))
        tolerance: Any = self.tolerance
        mistakes += option_mistakes(
            ("scheme", self.scheme, is_one_of(self.scheme, *SCHEMES), "choose 'radau' or 'legendre'"),
            ("degree", self.degree, is_count(self.degree, 1, 9), "choose an integer from 1 to 9"),
            ("tolerance", tolerance, is_within(tolerance, _MIN_MESH_TOLERANCE) and tolerance < np.inf,
             f"give a number, not below {_MIN_MESH_TOLERANCE:g}"),
        )  # fmt: skip
        raise_if_mistakes("Collocation", mistakes + integrator_mistakes(self.integrator))

    @property
    def adapts(self) -> bool:
        """Whether elements are refined until `tolerance` is met."""
        return isinstance(self.elements, str) and self.elements == "auto"

    @property
    def label(self) -> str:
        """Name in tables."""
        count = "given" if np.ndim(self.elements) else self.elements
        return f"collocation ({self.scheme} {self.degree}, {count} elements)"

    @property
    def integrates(self) -> bool:
        """Whether stages are integrated, which is what several workers can do at once: no."""
        return False

    @property
    def accuracy(self) -> float:
        """Relative accuracy to which the model is solved over a stage."""
        return self.tolerance

    def transcribe(self, problem: Posable, theta: Array) -> CollocationProblem:
        """Lay the problem out as elements, starting from theta (n_theta,)."""
        compiled = problem.posed
        check_triggers("Collocation", compiled)
        nodes_by_experiment = self.states.nodes if isinstance(self.states, Trajectory) else ()
        edges = [
            _build_initial_mesh(
                uniform_or_given(c, "data", option_name="elements"),
                *(nodes[(nodes > c.start) & (nodes < c.end)] for nodes in nodes_by_experiment[i : i + 1]),
            )
            if self.adapts
            else uniform_or_given(c, self.elements, option_name="elements")
            for i, c in enumerate(compiled.conditions)
        ]
        n_x, n_q = len(compiled.model.states), max(c.theta.size for c in compiled.conditions)
        n_inner = self.degree * (n_x + len(compiled.model.algebraic_states))
        n_numbers = sum(e.size - 1 for e in edges) * n_inner * (n_inner + n_x + n_q)  # derivatives, and their factors
        require_memory("Collocation", 2 * n_numbers, "use SingleShooting(), or fewer elements")
        trajectory = start_trajectory(compiled, theta, self.states, self.integrator)
        staged = self._build_problem(compiled, edges, theta, trajectory)
        lengths = [np.diff(chain.times) / (chain.times[-1] - chain.times[0]) for chain in staged.layout.chains]
        if min(e[e > 0.0].min() for e in lengths) < _MIN_ELEMENT_FRACTION:
            staged.start = read_only_copy(inner_integrated(staged, self.integrator))
        return staged

    def refine(self, problem: Posable, staged: StagedProblem, v: Array) -> CollocationProblem | None:
        """Return a finer problem started from the solution v, or None if v is accurate enough.

        If estimated times of events have left their elements, the elements are rebuilt.
        """
        assert isinstance(staged, CollocationProblem)
        if staged.disarranged(v):
            return self._rebuild_elements(problem.posed, staged, v)
        if not self.adapts:
            return None
        # The error of an integrator exceeds its tolerance, which must be far below the checked error.
        checker = replace(
            self.integrator,
            relative_tolerance=min(self.integrator.relative_tolerance, 1e-3 * self.tolerance),
            absolute_tolerance=min(self.integrator.absolute_tolerance, 1e-5 * self.tolerance),
        )
        errors = estimated_errors(staged, v, checker)
        if max(e.largest for e in errors) <= self.tolerance:
            return None
        edges = [refine(times, e, self.tolerance) for times, e in zip(staged.times(v), errors, strict=True)]
        return collocation_problem(
            problem.posed, edges, theta=staged.layout.theta(v), trajectories=staged.interpolants(v),
            unit=staged.magnitude, degree=self.degree, scheme=self.scheme,
        )  # fmt: skip

    def _rebuild_elements(self, problem: CompiledProblem, staged: CollocationProblem, v: Array) -> CollocationProblem:
        """Return the problem with elements where events are at v, started by simulation."""
        theta = staged.layout.theta(v)
        edges = [
            merge(chain.times[~division.moving_boundaries], uniform_or_given(c, "data", option_name="elements"))
            for c, chain, division in zip(problem.conditions, staged.layout.chains, staged.divisions, strict=True)
        ]
        return self._build_problem(
            problem, edges, theta, start_trajectory(problem, theta, "simulation", self.integrator)
        )

    def _build_problem(
        self, problem: CompiledProblem, edges: list[Array], theta: Array, start: Trajectory
    ) -> CollocationProblem:
        return collocation_problem(
            problem, edges, theta=theta, trajectories=[partial(start.interpolate, i) for i in range(len(edges))],
            unit=np.max(start.units, axis=0), degree=self.degree, scheme=self.scheme,
        )  # fmt: skip


def _build_initial_mesh(data: Array, *nodes: Array) -> Array:
    """Return the initial elements, bounded by data and nodes, and by equally spaced times that are not near these."""
    boundaries = merge(data, *nodes)
    uniform = np.linspace(float(boundaries[0]), float(boundaries[-1]), MIN_INITIAL_ELEMENTS + 1)
    is_far = np.abs(uniform[:, None] - boundaries).min(axis=1) > _MIN_BOUNDARY_DISTANCE * (uniform[1] - uniform[0])
    return merge(boundaries, uniform[is_far])
