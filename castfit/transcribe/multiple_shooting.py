"""Direct multiple shooting: the states at the interval boundaries are variables too (Bock 1981)."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING

import numpy as np

from castfit._support.arguments import is_one_of, shorten_repr
from castfit._support.public_names import public
from castfit._support.records import dataclass
from castfit._support.reprs import add_brief_repr
from castfit._support.status import raise_if_mistakes
from castfit._support.time_limit import require_memory
from castfit.integrate import IntegratorOptions
from castfit.integrate.lanes import merge
from castfit.solve.staged import Linearization, MatchingProducts, StagedProblem
from castfit.transcribe.shooting_problem import ShootingProblem, derivative_mistakes, is_adjoint_cheaper
from castfit.transcribe.stage_division import (
    divide_all,
    integrator_mistakes,
    interval_mistakes,
    separate_from_events,
    uniform_or_given,
)
from castfit.transcribe.trajectory import States, start_trajectory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.problem.compiled_problem import CompiledProblem
    from castfit.problem.problem import Posable


@public("castfit")
@add_brief_repr
@dataclass(frozen=True)
class MultipleShooting:
    """Integrate every interval from a state of its own, and match the ends.

    Parameters
    ----------
    intervals : int, "data" or array
        Number of equal intervals, an interval between any two measured times, or the boundaries themselves.  Of a
        number of them, boundaries near events that states trigger are moved, or left out.
    states : {"data", "smoothed", "simulation"} or mapping
        Where the node states start: interpolated or smoothed measurements (the rest by simulation), simulation from
        the guess, or ``{state: (times, values)}``.
    integrator : IntegratorOptions
    derivatives : {"auto", "forward", "adjoint"}
        How matching conditions are differentiated: by forward sensitivities, one per state and parameter, or by
        integrating adjoint states backwards, one per state, whatever the number of parameters (Aydogmus and Tor 2018).
        "adjoint" needs ``intervals="data"``: then every measured time is a node, data are compared with the nodes
        themselves, and nothing else has to be differentiated.  "auto" takes it where it is the faster one.
    matching : {"vector", "scalar"}
        As what solvers see the condition that a piece ends where the next one begins: "vector", one equation per state;
        or, with ``derivatives="adjoint"``, "scalar", the square of the distance, which takes a single adjoint state per
        interval but whose gradient vanishes at the solution (see `Sqp`).

    algebraic : {"consistent", "relaxed"}
        What algebraic states are at nodes: "consistent" with the differential ones, sought by Newton's method in every
        evaluation; or "relaxed", variables that satisfy their equations in the end only, so that nodes may be where
        there are no consistent values yet (see castfit.transcribe.relaxed_dae).  Models without algebraic states have
        nothing to relax.

    Raises
    ------
    InputError
        Listing every option that is wrong, or that does not go with another one.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> cf.fit(problem, cf.MultipleShooting(5)).transcription
    'multiple shooting (5 intervals)'
    """

    intervals: int | str | NDArray[np.float64] = 20
    states: States = "data"
    integrator: IntegratorOptions = field(default_factory=IntegratorOptions)
    derivatives: str = "auto"
    matching: str = "vector"
    algebraic: str = "consistent"

    def __post_init__(self) -> None:
        mistakes = interval_mistakes("intervals", self.intervals)
        mistakes += integrator_mistakes(self.integrator)
        mistakes += derivative_mistakes(self.derivatives)
        backward = is_one_of(self.derivatives, "adjoint")
        if backward and not is_one_of(self.intervals, "data"):
            mistakes.append("derivatives='adjoint' needs a node at every measured time; give intervals='data'")
        if not is_one_of(self.matching, "vector", "scalar"):
            mistakes.append(f"matching is {shorten_repr(self.matching)}; choose 'vector' or 'scalar'")
        elif self.matching == "scalar" and not backward:
            mistakes.append("matching='scalar' is for adjoint states; give derivatives='adjoint' as well")
        if not is_one_of(self.algebraic, "consistent", "relaxed"):
            mistakes.append(f"algebraic is {shorten_repr(self.algebraic)}; choose 'consistent' or 'relaxed'")
        elif self.algebraic == "relaxed" and backward:
            mistakes.append("algebraic='relaxed' is differentiated forwards; leave derivatives='adjoint' out")
        raise_if_mistakes("MultipleShooting", mistakes)

    @property
    def label(self) -> str:
        """Name in tables."""
        relaxed = ", relaxed" if self.algebraic == "relaxed" else ""
        if isinstance(self.intervals, str):
            derivative_text = {"adjoint": ", adjoint", "forward": ", forward"}.get(self.derivatives, "")
            return (
                f"multiple shooting (at data{derivative_text}"
                f"{', scalar' if self.matching == 'scalar' else ''}{relaxed})"
            )
        count = "given" if np.ndim(self.intervals) else f"{self.intervals}"
        return f"multiple shooting ({count} intervals{relaxed})"

    @property
    def gives(self) -> tuple[type, ...]:
        """Return the kinds of evaluation that solvers can request; see castfit.solve.staged."""
        return (MatchingProducts,) if self.matching == "scalar" else (Linearization,)

    @property
    def accuracy(self) -> float:
        """Relative accuracy to which the model is solved over a stage; CVODES errs by ten times its tolerance."""
        return 10 * self.integrator.relative_tolerance

    def transcribe(self, problem: Posable, theta: NDArray[np.float64]) -> ShootingProblem:
        """Lay the problem out as stages, starting from theta (n_theta,)."""
        compiled = problem.posed
        self._check_events(compiled)
        backward = self._prefers_adjoint(compiled)
        trajectory = start_trajectory(compiled, theta, self.states, self.integrator)
        edges = [uniform_or_given(c, self.intervals, option_name="intervals") for c in compiled.conditions]
        if compiled.triggered and np.ndim(self.intervals) == 0 and not isinstance(self.intervals, str):
            event_times = [t[1:][np.diff(t) <= 0.0] for t, _, _ in trajectory.tables]
            edges = [
                separate_from_events(stage_edges, times) for stage_edges, times in zip(edges, event_times, strict=True)
            ]
        if backward:  # what is constrained is read at nodes, too
            edges = [
                merge(node_edges, c.watched_times) for node_edges, c in zip(edges, compiled.conditions, strict=True)
            ]
        stages = divide_all(compiled, edges, theta, starts=backward)
        n_x, n_q = len(compiled.model.states), max(c.theta.size for c in compiled.conditions)
        n_numbers = 0 if backward else sum(e.size - 1 for e in edges) * n_x * (n_x + n_q)  # derivatives
        require_memory("MultipleShooting", 2 * n_numbers, "use SingleShooting(), or fewer intervals")
        return ShootingProblem(
            compiled,
            stages,
            nodes=True,
            theta=theta,
            trajectory=trajectory,
            options=self.integrator,
            backward=backward,
            gives=self.gives,
            relaxed=self.algebraic == "relaxed",
            edges=edges,
        )

    def _check_events(self, problem: CompiledProblem) -> None:
        """Refuse what does not go with events that states trigger."""
        unsupported = {"derivatives": self.derivatives == "adjoint", "algebraic": self.algebraic == "relaxed"}
        raise_if_mistakes(
            "MultipleShooting",
            [f"states trigger events in '{problem.triggered[0]}'; leave {name}='{getattr(self, name)}' out"
             for name, is_set in unsupported.items() if problem.triggered and is_set],
        )  # fmt: skip

    def _prefers_adjoint(self, problem: CompiledProblem) -> bool:
        if self.derivatives == "auto":
            if problem.triggered:
                return False
            possible = self.algebraic == "consistent" and is_one_of(self.intervals, "data")
            return possible and is_adjoint_cheaper(problem, self.integrator)
        return self.derivatives == "adjoint"

    def refine(self, problem: Posable, staged: StagedProblem, v: NDArray[np.float64]) -> StagedProblem | None:
        """Return the problem with stages where events are at v, or with tolerances for the states' magnitudes there.

        None if stages and tolerances are right.
        """
        if not isinstance(staged, ShootingProblem):
            return None
        if staged.disarranged(v):
            return replace(self, states="simulation").transcribe(problem, staged.layout.theta(v))
        return staged.rescaled(v)
