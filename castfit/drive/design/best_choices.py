"""Optimisation of the choices of a design; the weights of samples are projected out by an inner convex problem.

    F(d) = min_w f(M(w, d)),    M(w, d) = M0 + sum_i w_i J_i(d)' J_i(d)

castfit.drive.design.interior_point solves the convex inner problem with its certificate.  The weights need no
derivatives (Danskin 1967): with G of the criterion's tangent,

    dF/dd = -tr(G dM/dd) = -2 sum_i w_i <J_i G, dJ_i/dd>

takes one backward sweep through the graph of the sensitivities.  F is not convex.  Quasi-Newton steps within bounds, or
quadratic programs with constraints, start at the middle, at the values of the base experiment, at corners and at random
points, and again beside the best local optima.  The graph's rows are compared with the integrated model at the middle
and at the end, and with twice as many Runge-Kutta steps after each search; the steps are doubled until both agree.

Notation:  z (n_z,) in [0, 1] are all choices, scaled to their bounds;  d are the choices of one candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import casadi as ca
import numpy as np
from scipy.optimize import minimize

from castfit._support.arrays import Array, Index
from castfit._support.reprs import join_limited
from castfit._support.status import InputError, raise_if_mistakes, suggest
from castfit._support.time_limit import without_deadline
from castfit.drive.design.candidate import Candidate
from castfit.drive.design.choices import DesignChoice, choice_locations, chosen_values, piece_edges
from castfit.drive.design.interior_point import CandidatePool, DesignGoal, optimize_weights
from castfit.drive.design.knowledge import DesignInformation
from castfit.drive.design.proposal import Design
from castfit.drive.design.purchases import CandidateSelection, candidate_rows
from castfit.drive.design.sensitivity_graph import SensitivityGraph, substitute_symbols
from castfit.model.expressions import substitute_by_name
from castfit.problem.constraints import ALONG, Constraint, read_constraints, repeated_names
from castfit.simulate.output_sensitivities import responses

Numbers = dict[str, Array]
End = tuple[float, Array]

_MIN_RK4_STEPS, _MAX_RK4_STEPS = 60, 4000  # Runge-Kutta steps over an experiment when a search begins, and at most
# Change of the objective that ends a local search (SciPy's ftol), and the last one.
_SEARCH_FTOL, _FINAL_FTOL = 1e-9, 1e-13
# Error of the graph's rows by the largest row: while searching, at the end, and refused.
_SEARCH_GRAPH_RTOL, _FINAL_GRAPH_RTOL, _MAX_GRAPH_DEVIATION = 1e-3, 1e-4, 1e-2
# Violation of a path constraint that still satisfies it, by the largest value of its expression.
_CONSTRAINT_RTOL = 1e-5
# Difference of the objective (a logarithm) up to which two local optima count as the same.
_SAME_OPTIMUM_TOLERANCE = 1e-4
_FAILED_VALUE = 1e8  # objective where the model cannot be integrated
# Optima improved, points beside one, searches from these, distance in z.
_MAX_OPTIMA, _MAX_NEIGHBOURS, _MAX_ATTEMPTS, _MIN_NEIGHBOUR_DISTANCE = 4, 60, 3, 0.05
_MAX_REPETITIONS, _MIN_GAIN = 10, 1e-8  # repetitions of a search, and the gain of the objective that each must bring
_N_CHECK_TIMES = 400  # times at which path constraints are evaluated on the integrated model


def read_choice_constraints(
    user_constraints: Any, information: DesignInformation, choices: Sequence[DesignChoice], mistakes: list[str]
) -> list[Constraint]:
    """Read constraints on trajectories, along or at times, and relations between choices."""
    constraints, model = read_constraints(user_constraints or (), mistakes), information.extended.model
    mistakes += repeated_names(constraints)
    choice_names = {c.name for c in choices if c.pieces == 1}
    trajectory_names = {*model.outputs, *model.parameters, *model.inputs, model.system.t.name()}
    last_time = max(float(c.times[-1]) for c in information.candidates)
    for c in constraints:
        symbol_names, is_path = {s.name() for s in ca.symvar(c.expression)}, _is_on_trajectory(c)
        unknown_symbols = sorted(symbol_names - (trajectory_names if is_path else choice_names))
        if c.of != "value":
            mistakes.append(f"constraint '{c.name}' bounds a rate of change; bound a state or an output")
        elif is_path:
            mistakes += [
                f"constraint '{c.name}' contains '{n}': {suggest(n, trajectory_names)}" for n in unknown_symbols
            ]
        elif unknown_symbols:
            mistakes.append(
                f"constraint '{c.name}' contains {join_limited(unknown_symbols)}; along a course write cf.along(...), "
                "else constrain single numbers that cf.choose returned"
            )
        unknown_experiments = [n for n in c.experiments if n not in information.labels]
        mistakes += [
            f"constraint '{c.name}' names '{n}': {suggest(n, information.labels)}" for n in unknown_experiments
        ]
        if isinstance(c.times, tuple) and max(c.times) > last_time:
            mistakes.append(f"constraint '{c.name}' is at a time after the last measurement time of every candidate")
    return list(constraints)


def _is_on_trajectory(c: Constraint) -> bool:
    return c.times == ALONG or isinstance(c.times, tuple)


@dataclass(frozen=True, eq=False)
class ChoiceSearch:
    """The criterion as a function of the choices, at optimal weights, with quantities in the criterion's order."""

    information: DesignInformation
    selection: CandidateSelection
    goal: DesignGoal
    order: Index
    candidates: Sequence[Candidate]
    choices: Sequence[DesignChoice]
    constraints: Sequence[Constraint]
    steps: int = _MIN_RK4_STEPS
    _weights: dict[str, Array] = field(default_factory=dict[str, "Array"])

    @cached_property
    def bounds(self) -> tuple[Array, Array]:
        """Lower and upper bounds of the choices, (n_z,) each."""
        bound_pairs = np.array([pair for c in self.choices for pair in c.pieces * [(c.low, c.high)]], dtype=float)
        return bound_pairs[:, 0], bound_pairs[:, 1]

    @cached_property
    def positions_by_name(self) -> dict[str, Index]:
        """Indices in z of each choice, by name."""
        ends = np.cumsum([0, *(c.pieces for c in self.choices)]).tolist()
        return {c.name: np.arange(i, i + c.pieces) for c, i in zip(self.choices, ends[:-1], strict=True)}

    @cached_property
    def graphs(self) -> dict[int, SensitivityGraph]:
        """Graphs of the candidates that contain choices, by index."""
        return {
            k: SensitivityGraph(
                self.information,
                k,
                c,
                self.selection.values[0][k].times,
                self.list_trajectory_constraints(k),
                self.steps,
            )
            for k, c in enumerate(self.candidates)
            if choice_locations(c)
        }

    def list_trajectory_constraints(self, k: int) -> tuple[Constraint, ...]:
        """Return the constraints of candidate k's course."""
        label = self.information.labels[k]
        trajectory_constraints = (c for c in self.constraints if _is_on_trajectory(c))
        return tuple(c for c in trajectory_constraints if not c.experiments or label in c.experiments)

    @cached_property
    def _relative_columns(self) -> Array:
        """Matrix from rows by the extended problem's theta to rows by relative changes, in the criterion's order."""
        columns = np.zeros((self.information.columns.size, len(self.information.names)))
        columns[np.arange(self.information.columns.size), self.information.columns] = self.information.units[
            self.information.columns
        ]
        return columns[:, self.order]

    @cached_property
    def _samples(self) -> list[tuple[Array, Array]]:
        """Pairs of theta and the information without any candidate, one for each sample, in the criterion's order."""
        samples, reordering = range(len(self.information.thetas)), np.ix_(self.order, self.order)
        return [(self.information.theta(s), self.information.compute_prior_information(s)[reordering]) for s in samples]

    @cached_property
    def _constraint_function(self) -> Any:
        """CasADi function of z: slacks of the relations between choices, and their Jacobian."""
        z, (low, high), slacks = ca.SX.sym("z", self.bounds[0].size), self.bounds, [ca.SX(0, 1)]
        numbers = {
            n: low[i[0]] + (high[i[0]] - low[i[0]]) * z[int(i[0])]
            for n, i in self.positions_by_name.items()
            if i.size == 1
        }
        for c in (constraint for constraint in self.constraints if not _is_on_trajectory(constraint)):
            value = substitute_by_name(c.expression, numbers)
            slacks += [sign * (value - bound) for sign, bound in ((1, c.lower), (-1, c.upper)) if np.isfinite(bound)]
        slack_vector = ca.vertcat(*slacks)
        return ca.Function("slacks", [z], [slack_vector, ca.densify(ca.jacobian(slack_vector, z))])

    def numbers(self, z: Array) -> Numbers:
        """Return the choices, (pieces,) each, by name."""
        d = self.bounds[0] + (self.bounds[1] - self.bounds[0]) * z
        return {name: d[positions] for name, positions in self.positions_by_name.items()}

    def _locate_candidate_choices(self, k: int, z: Array) -> tuple[Index, Array]:
        """Return the indices in z of the choices of candidate k, and their values d."""
        names, numbers = [c.name for c in self.graphs[k].choices], self.numbers(z)
        return np.concatenate([self.positions_by_name[n] for n in names]), np.concatenate([numbers[n] for n in names])

    def rows(self, z: Array, s: int, k: int) -> Array:
        """Return the information rows of candidate k at sample s, (n, n_outputs, 2, n_u)."""
        if k not in self.graphs:
            return self.selection.values[s][k].rows[..., self.order]
        return (
            self.graphs[k].rows(self._samples[s][0], self._locate_candidate_choices(k, z)[1]) @ self._relative_columns
        )

    def compute_relative_deviation(self, selection: CandidateSelection, z: Array) -> float:
        """Return the relative difference at z of the graph's information rows from rows of the integrated model."""
        return self._max_relative_error({k: selection.values[0][k].rows[..., self.order] for k in self.graphs}, z)

    def compute_step_error(self, z: Array) -> float:
        """Return the relative difference at z of the rows from rows with twice the steps."""
        return self._max_relative_error({k: self.finer_search.rows(z, 0, k) for k in self.graphs}, z)

    def _max_relative_error(self, reference_rows: dict[int, Array], z: Array) -> float:
        with np.errstate(invalid="ignore"):
            relative_errors = [
                np.abs(self.rows(z, 0, k) - rows).max() / (np.abs(rows).max() or 1.0)
                for k, rows in reference_rows.items()
            ]
        return float(max(relative_errors)) if np.isfinite(relative_errors).all() else np.inf

    @cached_property
    def finer_search(self) -> ChoiceSearch:
        """Copy of the search with twice as many integration steps."""
        return replace(self, steps=2 * self.steps)

    def value(self, z: Array, counts: Array | None = None, *, sloped: bool = True) -> tuple[float, Array]:
        """Return the logarithm of the criterion, with its gradient by z, at optimal or at fixed weights."""
        failure, criterion, S = (_FAILED_VALUE, np.zeros(z.size)), self.goal.criterion, len(self._samples)
        rows_by_sample = [[self.rows(z, s, k) for k in range(len(self.candidates))] for s in range(S)]
        if not all(np.isfinite(rows).all() for rows_by_candidate in rows_by_sample for rows in rows_by_candidate):
            return failure
        nu = 1e-9
        if counts is None and (counts := self._joint_max_counts) is None:
            solution = optimize_weights(self.goal, self._build_pool(rows_by_sample), start=self._weights.get("last"))
            if solution is None:
                return failure
            counts, nu = solution.w, solution.mu
            self._weights["last"] = counts  # start of the next inner problem
        value, slope = float(self.selection.pool.price @ counts), np.zeros(z.size)
        shares: list[Array] = [np.append(counts, 1.0)[positions][..., None, None] for positions in self._count_indices]
        for (theta, M0), rows_by_candidate in zip(self._samples, rows_by_sample, strict=True):
            flat = [rows.reshape(-1, M0.shape[0]) for rows in rows_by_candidate]
            M = M0 + sum((share * rows).reshape(flat_rows.shape).T @ flat_rows
                         for share, rows, flat_rows in zip(shares, rows_by_candidate, flat, strict=True))  # fmt: skip
            linearization = criterion.tangent(M, M0, nu)
            if linearization is None:
                return failure
            value += linearization.value / S
            for k, graph in self.graphs.items() if sloped else ():
                positions, d = self._locate_candidate_choices(k, z)
                seed = -2.0 / S * shares[k] * (rows_by_candidate[k] @ (linearization.G @ self._relative_columns.T))
                slope[positions] += graph.compute_choice_gradient(theta, d, seed)
        slope *= self.bounds[1] - self.bounds[0]
        if criterion.logarithmic or self.selection.pool.price.any():
            return value, slope
        return float(np.sign(value) * np.log(abs(value))), slope / abs(value)

    @cached_property
    def _joint_max_counts(self) -> Array | None:
        return self.selection.pool.joint_max_counts

    @cached_property
    def _count_indices(self) -> list[Index]:
        """Index in the counts of each value (n, n_outputs) of each candidate; one past the end for fixed candidates."""
        selection, position_arrays = self.selection, list["Index"]()
        for k, (c, values) in enumerate(zip(self.candidates, selection.values[0], strict=True)):
            positions = np.full((values.times.size, len(values.outputs)), selection.candidate.size)
            for i in np.flatnonzero(selection.candidate == k) if not c.fixed else ():
                t, o = int(selection.time[i]), int(selection.output[i])
                positions[slice(None) if t < 0 else t, slice(None) if o < 0 else o] = i
            position_arrays.append(positions)
        return position_arrays

    def _build_pool(self, rows_by_sample: list[list[Array]]) -> CandidatePool:
        """Build the offers from the information rows of each sample and candidate."""
        pairs = zip(self.selection.values, rows_by_sample, strict=True)
        values = [[replace(predicted, rows=rows) for predicted, rows in zip(*pair, strict=True)] for pair in pairs]
        J, M0 = candidate_rows(self.information, values, np.array([M for _, M in self._samples]))
        return replace(self.selection.pool, J=J, M0=M0)

    def compute_slacks(self, z: Array) -> tuple[Array, Array]:
        """Compute the slacks of all constraints, (n,), and their derivatives by z, (n, n_z)."""
        blocks: list[Any] = [self._constraint_function.call([z])]
        for k, graph in self.graphs.items():
            positions, d = self._locate_candidate_choices(k, z)
            slacks, derivatives = graph.compute_slacks(self.information.theta(), d)
            full_derivatives = np.zeros((slacks.size, z.size))
            full_derivatives[:, positions] = derivatives * (self.bounds[1] - self.bounds[0])[positions]
            blocks.append((slacks, full_derivatives))
        return np.concatenate([np.array(v).ravel() for v, _ in blocks]), np.concatenate(
            [np.array(s) for _, s in blocks]
        )

    def search_locally(
        self, z: Array, counts: Array | None, stop: Callable[[], object], tolerance: float = _SEARCH_FTOL
    ) -> End:
        """Return the best feasible point of a local search from z, with its value; infinite if there is none."""
        best: list[Any] = [np.inf, z]
        scale = np.abs(np.nan_to_num(self.compute_slacks(z)[0])) if self.constraints else np.empty(0)
        scale = np.maximum(scale, 1e-3 * max(float(scale.max(initial=0.0)), 1e-300))

        def evaluate_objective(point: Any) -> Any:
            evaluation = self.value(np.asarray(point, dtype=float), counts)
            if evaluation[0] < min(best[0], _FAILED_VALUE) and (
                not scale.size or evaluate_slacks(point).min() >= -_MIN_GAIN
            ):
                best[:] = [evaluation[0], np.array(point)]
            if stop():
                raise StopIteration
            return evaluation

        def evaluate_slacks(point: Any) -> Array:
            return self.compute_slacks(point)[0] / scale

        def evaluate_slack_derivatives(point: Any) -> Array:
            return self.compute_slacks(point)[1] / scale[:, None]

        common: Any = {"jac": True, "bounds": [(0.0, 1.0)] * z.size}
        solve: Any = minimize
        try:
            if self.constraints:
                constraint: Any = {"type": "ineq", "fun": evaluate_slacks, "jac": evaluate_slack_derivatives}
                solve(
                    evaluate_objective,
                    z,
                    method="SLSQP",
                    constraints=[constraint],
                    options={"maxiter": 200, "ftol": tolerance},
                    **common,
                )
            else:
                solve(
                    evaluate_objective,
                    z,
                    method="L-BFGS-B",
                    options={"maxiter": 300, "ftol": tolerance, "gtol": 1e-9},
                    **common,
                )
        except StopIteration:
            pass
        return best[0], best[1]

    def starts(self, count: int, rng: np.random.Generator) -> list[Array]:
        """Return starting points: the middle, the base experiments, both bounds, then others.

        The others are, in turn, early or late pulses of all choices, a random corner, and a random point.
        """
        n = self.bounds[0].size
        points = [np.full(n, 0.5), self._build_base_point(), np.zeros(n), np.ones(n)]
        for i in range(len(points), count):
            z = rng.random(n) if i % 3 == 0 else rng.integers(0, 2, n).astype(float)
            is_late, pulse_length = (i - 4) // 3 % 2, (i - 4) // 6 + 1
            for positions in self.positions_by_name.values() if i % 3 == 1 else ():
                pulse = np.arange(positions.size) < pulse_length
                z[positions] = pulse[::-1] if is_late else pulse
            points.append(z)
        return points[:count]

    def _build_base_point(self) -> Array:
        """Return z with the values of the base experiments, and 0.5 for choices without one."""
        z, (low, high) = np.full(self.bounds[0].size, 0.5), self.bounds
        experiments, model = (
            {e.name: e for e in self.information.problem.experiments},
            self.information.problem.original_model,
        )
        for candidate in (self.candidates[k] for k in self.graphs):
            base = experiments[candidate.experiment or next(iter(experiments))]
            base_values: dict[str, Any] = {**model.initial, **base.initial, **base.inputs}
            for name, value in {**candidate.initial, **candidate.inputs}.items():
                base_value = getattr(base_values.get(name), "guess", base_values.get(name))
                positions = self.positions_by_name.get(str(value))
                if (
                    positions is None
                    or base_value is None
                    or (isinstance(base_value, ca.SX) and not base_value.is_constant())
                ):
                    continue
                edges = piece_edges(candidate, value, base.start)
                number: Any = base_value(0.5 * (edges[1:] + edges[:-1])) if callable(base_value) else float(base_value)
                z[positions] = np.clip((number - low[positions]) / (high - low)[positions], 0.0, 1.0)
        return z

    def build_neighbours(self, z: Array, rng: np.random.Generator) -> list[Array]:
        """Return points that change one choice, or shift an input by one piece."""
        points = [np.where(np.arange(z.size) == i, value, z) for i, value in product(range(z.size), (0.0, 0.5, 1.0))]
        for positions, shift in product(self.positions_by_name.values(), (-1, 1)):
            points.append(z.copy())
            points[-1][positions] = np.roll(z[positions], shift)
        points = [y for y in points if np.abs(y - z).max() > _MIN_NEIGHBOUR_DISTANCE]
        return (
            points
            if len(points) <= _MAX_NEIGHBOURS
            else [points[i] for i in rng.choice(len(points), _MAX_NEIGHBOURS, replace=False)]
        )


def _value(end: End) -> float:
    return end[0]


def optimize_choices(
    search: ChoiceSearch,
    build_at_choices: Callable[[Numbers], tuple[DesignInformation, CandidateSelection]],
    optimize_samples: Callable[[DesignInformation, CandidateSelection], Design],
    starts: int,
    rng: np.random.Generator,
    stop: Callable[[], object],
) -> Design:
    """Return the design of samples at the best choices; an exact design repeats the search at its counts.

    build_at_choices : information and purchases at numbers;  optimize_samples : the best design of samples there
    """
    information, candidates = search.information, search.candidates

    def integrate_at(z: Array) -> tuple[DesignInformation, CandidateSelection]:
        with without_deadline():  # the result is verified even if the time is over
            return build_at_choices(search.numbers(z))

    raise_if_mistakes("design", [m for graph in search.graphs.values() for m in graph.obstacles])
    trusted = VerifiedChoiceSearch(search, integrate_at, stop)
    z, excesses, final_pair = trusted.run(starts, rng)
    search = trusted.search
    best_design = optimize_samples(*final_pair)
    for _ in range(_MAX_REPETITIONS if best_design.exact and not stop() else 0):
        value, new_z = search.search_locally(z, best_design.counts, stop, _FINAL_FTOL)
        if not value < search.value(z, best_design.counts, sloped=False)[0] - _MIN_GAIN:
            break
        new_design = optimize_samples(*integrate_at(new_z))
        if not new_design.value < best_design.value - _MIN_GAIN * abs(best_design.value):
            break
        best_design, z = new_design, new_z
    hits_text = (
        f"{sum(excess <= _SAME_OPTIMUM_TOLERANCE for excess in excesses) or 'none'} of which reached this value of "
        "the criterion"
    )
    with without_deadline():
        path_remarks = _check_path_constraints(best_design.information, search)
    remark = f"Best design of {len(excesses)} starting points, {hits_text}; a better one may exist."
    choices_by_label = {information.labels[k]: chosen_values(candidates[k], search.numbers(z)) for k in search.graphs}
    return replace(
        best_design,
        chosen=choices_by_label,
        remarks=(*best_design.remarks, remark, *path_remarks),
    )


@dataclass(eq=False)
class VerifiedChoiceSearch:
    """Local searches with doubled Runge-Kutta steps until twice the steps confirm their ends."""

    search: ChoiceSearch
    integrate_at: Callable[[Array], tuple[DesignInformation, CandidateSelection]]
    stop: Callable[[], object]

    def search_locally(self, z: Array, tolerance: float = _SEARCH_GRAPH_RTOL, below: float = np.inf) -> End:
        """Search from z. Repeat with twice the steps until these confirm the end, if its value is below `below`."""
        search_tolerance = _SEARCH_FTOL if tolerance == _SEARCH_GRAPH_RTOL else _FINAL_FTOL
        while True:
            end = self.search.search_locally(z, None, self.stop, search_tolerance)
            if self.stop() or not end[0] < below or self._confirm_steps(end[1], tolerance):
                return end
            z = z if tolerance == _SEARCH_GRAPH_RTOL else end[1]

    def _confirm_steps(self, z: Array, tolerance: float) -> bool:
        """Check whether twice the steps give the same rows at z, or the step limit is reached.

        If not, double the steps.
        """
        if self.search.steps >= _MAX_RK4_STEPS or self.search.compute_step_error(z) <= tolerance:
            return True
        self.search = self.search.finer_search
        return False

    def improve_optimum(self, end: End, rng: np.random.Generator) -> End:
        """Improve a local optimum by local searches from points beside it, as long as the value decreases."""
        for _ in range(0 if self.stop() else _MAX_REPETITIONS):
            neighbours = sorted(
                (self.search.value(y, sloped=False)[0], i, y)
                for i, y in enumerate(self.search.build_neighbours(end[1], rng))
            )
            attempts = (
                self.search_locally(y, below=end[0])
                for value, _, y in neighbours[:_MAX_ATTEMPTS]
                if value < _FAILED_VALUE
            )
            best = min(attempts, key=_value, default=end)
            if self.stop() or not best[0] < end[0] - _SAME_OPTIMUM_TOLERANCE:
                break
            end = best
        return end

    def run(
        self, starts: int, rng: np.random.Generator
    ) -> tuple[Array, list[float], tuple[DesignInformation, CandidateSelection]]:
        """Search from all starts and beside the best local optima.

        Return z, the excess of each start, and the model at z.
        """
        middle = np.full(self.search.bounds[0].size, 0.5)
        while (
            self.search.compute_relative_deviation(self.search.selection, middle) > _SEARCH_GRAPH_RTOL
            and self.search.steps < _MAX_RK4_STEPS
        ):
            self.search = self.search.finer_search
        ends: list[End] = []
        for start in self.search.starts(starts, rng):
            ends.append(self.search_locally(start, below=min(ends, key=_value, default=(np.inf, start))[0]))
            if self.stop():
                break
        ranked = sorted(ends, key=_value)
        if not np.isfinite(ranked[0][0]):
            requirement = "keeps the constraints" if self.search.constraints else "can be integrated"
            raise InputError(
                "design",
                [
                    f"none of {len(ends)} starting points led to a design that {requirement}; narrow the "
                    "bounds of cf.choose, or relax the constraints"
                ],
            )
        distinct_ends = [
            end for i, end in enumerate(ranked) if not i or end[0] > ranked[i - 1][0] + _SAME_OPTIMUM_TOLERANCE
        ][:_MAX_OPTIMA]
        value, z = min((self.improve_optimum(end, rng) for end in distinct_ends if np.isfinite(end[0])), key=_value)
        z = self.search_locally(z, _FINAL_GRAPH_RTOL)[1]
        final_pair = self.integrate_at(z)
        if (deviation := self.search.compute_relative_deviation(final_pair[1], z)) > _MAX_GRAPH_DEVIATION:
            message = (
                f"{self.search.steps} Runge-Kutta steps differ from the accurately integrated model by "
                f"{100 * deviation:.2g} %"
            )
            raise InputError(
                "design", [f"{message}: the model is too stiff for cf.choose; pass candidates with fixed numbers"]
            )
        return z, [end - value for end, _ in ends], final_pair


def _check_path_constraints(information: DesignInformation, search: ChoiceSearch) -> list[str]:
    """Return a remark for each path constraint: whether the integrated model satisfies it at the estimate."""
    messages: list[str] = []
    for k, c in [(i, one) for i in search.graphs for one in search.list_trajectory_constraints(i)]:
        label, last_time = information.labels[k], float(search.candidates[k].times[-1])
        compiled = information.extended.with_outputs(
            {"constraint": substitute_symbols(information.extended.model, c.expression)}
        )
        condition = next(one for one in compiled.conditions if one.name == label)
        times = (
            np.linspace(condition.start, last_time, _N_CHECK_TIMES)
            if c.times == ALONG
            else np.unique(np.array(c.times, float))
        )
        response = responses(
            compiled, condition, times, information.theta(), information.options, outputs=["constraint"]
        )
        y = np.full(1, np.nan) if response is None else response.values[:, 0]
        violations = np.maximum(c.lower - y, y - c.upper)
        worst_index = int(np.argmax(violations))
        is_satisfied = bool(violations[worst_index] <= _CONSTRAINT_RTOL * np.abs(y).max())
        location_text = "" if is_satisfied else f" at t = {times[worst_index]:.4g}, where it is {y[worst_index]:.6g}"
        messages.append(
            f"The integrated model of {label} {'satisfies' if is_satisfied else 'violates'} '{c.name}'{location_text}."
        )
    return messages
