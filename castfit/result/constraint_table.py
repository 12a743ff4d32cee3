"""Effect of constraints on a fit: values, slacks and costs.

At a solution the gradient of the cost is balanced by bounds and constraints,

    grad cost + sum mu_i grad c_i + (bounds) = 0,        d cost* / d bound_i = -mu_i

mu > 0 at an upper bound, mu < 0 at a lower one, and mu of either sign in an equation.  The table reports the derivative
of -2 log likelihood (chi2 if all sigmas are known), which is twice the cost, by the bound.  The mu solve the linearized
problem at the solution, so they do not depend on the solver.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from castfit._support.records import dataclass
from castfit._support.renamed import with_old_names
from castfit._support.reprs import add_brief_repr
from castfit._support.status import InputError, suggest
from castfit._support.text_tables import align_columns
from castfit._support.ties import first_argmin
from castfit.solve.staged import Linearization, StagedProblem
from castfit.solve.subproblem import local_problem

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.problem.compiled_problem import CompiledProblem

# Relative regularisation of the local problem, the default of `GaussNewton.regularisation`.
_SUBPROBLEM_REGULARISATION = 1e-9
_MAX_OBJECTIVE_CHANGE = 1.0  # Largest change of -2 log likelihood in a sentence; larger changes are not linear.


@add_brief_repr
@dataclass(frozen=True)
class HeldConstraint:
    """One constraint at the end of a fit, in the user's units.

    value : what is bounded; along a path the value that is closest to its bound, or farthest beyond
    slack : distance to the nearer bound, negative beyond it; 0 or less in an equation
    active : ``"lower"``, ``"upper"`` or ``"equal"`` where it holds the estimate back; else empty
    multiplier : by how much -2 log likelihood (chi2 where all sigmas are known) rises when the bound that holds is
        raised by one unit, all others kept; 0 where none holds, NaN where the fit did not succeed
    times : the times at which it is active, or, where it is not, that of `value`; empty for a relation of quantities
    sentence : what that means
    """

    name: str
    value: float
    lower: float
    upper: float
    slack: float
    active: str
    multiplier: float
    times: tuple[float, ...]
    sentence: str


@with_old_names(what="objective_name")
@dataclass(frozen=True)
class ConstraintTable:
    """Constraints of a fit: ``print`` shows a table, ``table["name"]`` selects one.

    rows : tuple of HeldConstraint
    objective_name : str
        Objective whose derivatives are the multipliers: "chi2" or "-2 log likelihood".
    """

    rows: tuple[HeldConstraint, ...] = ()
    objective_name: str = "chi2"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the constraints; one that is about several experiments has a row for each."""
        return tuple(row.name for row in self.rows)

    @property
    def active(self) -> tuple[HeldConstraint, ...]:
        """Constraints that are active at the estimate."""
        return tuple(row for row in self.rows if row.active)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[HeldConstraint]:
        return iter(self.rows)

    def __getitem__(self, name: str) -> HeldConstraint:
        """Return a constraint by its name."""
        for row in self.rows:
            if row.name == name:
                return row
        raise InputError("constraints", [f"unknown constraint '{name}': {suggest(str(name), self.names)}"])

    def __str__(self) -> str:
        if not self.rows:
            return "no constraints"
        head = ("constraint", "value", "slack", "holds", f"d {self.objective_name} / d bound")
        lines: list[tuple[str, ...]] = [head]
        for row in self.rows:
            times = "" if not row.times or not row.active else f" at t = {', '.join(f'{t:.4g}' for t in row.times[:4])}"
            price = f"{row.multiplier:.4g}" if row.active else "-"
            lines.append((row.name, f"{row.value:.6g}", f"{max(row.slack, 0.0):.3g}", f"{row.active}{times}", price))
        return "\n".join([*align_columns(lines, "<>><>"), "", *(row.sentence for row in self.active)]).rstrip()


@dataclass(frozen=True)
class _ConstraintRows:
    """The rows of one constraint in one place: values c, bounds, times, multipliers mu and active sides, (n,)."""

    name: str
    c: Array
    lower: float
    upper: float
    times: Array
    mu: Array
    sides: Array
    unit: float
    implied: bool = False


def constraint_table(
    compiled_problem: CompiledProblem, staged: StagedProblem, linearization: Linearization, *, success: bool
) -> ConstraintTable:
    """Work out what constraints cost at the end of a fit."""
    n_c = staged.layout.path_limits[0].size
    mu, sides = np.full(n_c, np.nan), np.zeros(n_c)
    if success:
        with np.errstate(over="ignore", invalid="ignore"):
            local = local_problem(staged, linearization, regularisation=_SUBPROBLEM_REGULARISATION)
            if local.is_finite:
                step = local.direction()
                mu, sides = step.path_multipliers, step.active.path.astype(float)
    is_chi2 = compiled_problem.least_squares and compiled_problem.absolute_sigma
    objective_name = "chi2" if is_chi2 else "-2 log likelihood"
    return ConstraintTable(
        tuple(
            _build_held_constraint(rows, objective_name)
            for rows in _collect_rows(compiled_problem, staged, linearization, mu, sides)
        ),
        objective_name,
    )


def _collect_rows(
    compiled_problem: CompiledProblem, staged: StagedProblem, linearization: Linearization, mu: Array, sides: Array
) -> Iterator[_ConstraintRows]:
    """Yield the rows of every constraint, in every experiment that it is about."""
    layout, offset = staged.layout, 0
    has_many_experiments = len(layout.chains) > 1
    for chain, values in zip(layout.chains, linearization.values, strict=True):
        shape = (-1, max(len(chain.kinds), 1))
        row_range = slice(offset, offset + chain.constraint_lower.size)
        offset = row_range.stop
        c, lower, upper, unit, m, s = (
            array.reshape(shape)
            for array in (
                values.c, chain.constraint_lower, chain.constraint_upper, chain.constraint_unit,
                mu[row_range], sides[row_range],
            )
        )  # fmt: skip
        times = chain.point_times.ravel()
        for j, constraint in enumerate(compiled_problem.path):
            indices = np.flatnonzero(np.isfinite(lower[:, j]) | np.isfinite(upper[:, j]))
            if indices.size:
                # The name of a constraint of this experiment alone already contains the experiment.
                needs_label = has_many_experiments and constraint.experiments != (chain.name,)
                name = f"{constraint.name} ({chain.name})" if needs_label else constraint.name
                at_rows = (indices, np.full(indices.size, j))
                yield _ConstraintRows(
                    name,
                    c[at_rows],
                    constraint.lower,
                    constraint.upper,
                    times[indices],
                    m[at_rows],
                    s[at_rows],
                    float(unit[0, j]),
                )
    relations_by_name = {
        relation.name: relation for relation in (*compiled_problem.relations, *compiled_problem.implied_relations)
    }
    for i, name in enumerate(layout.relations.names):
        relation = relations_by_name.pop(name)
        k = slice(offset + i, offset + i + 1)
        unit = float(layout.relations.unit[i])
        value = linearization.related[i : i + 1]
        yield _ConstraintRows(relation.name, value, relation.lower, relation.upper, np.empty(0), mu[k], sides[k], unit)
    natural = compiled_problem.to_natural(layout.theta(linearization.v))
    for relation in relations_by_name.values():
        value, zero = relation.expression.values(natural)[0], np.zeros(1)
        yield _ConstraintRows(
            relation.name, value, relation.lower, relation.upper, np.empty(0), zero, zero, 1.0, implied=True
        )


def _build_held_constraint(rows: _ConstraintRows, objective_name: str) -> HeldConstraint:
    slack = np.minimum(rows.c - rows.lower, rows.upper - rows.c)
    worst_row = first_argmin(slack)
    equation, is_active = rows.lower == rows.upper, rows.sides != 0.0
    total = -2.0 * float(np.sum(rows.mu)) if equation else -2.0 * float(np.sum(rows.mu[is_active]))
    side = "equal" if equation else ""
    if is_active.any() and not equation:
        side = "lower" if float(np.sum(rows.sides)) < 0.0 else "upper"
    active_times = rows.times if equation or not rows.times.size else rows.times[is_active]
    times = tuple(float(t) for t in (active_times if side else rows.times[worst_row : worst_row + 1]))
    multiplier = np.nan if np.isnan(rows.mu).all() else total + 0.0 if side else 0.0
    sentence = _sentence(rows, side, multiplier, float(slack[worst_row]), objective_name)
    return HeldConstraint(
        rows.name,
        float(rows.c[worst_row]),
        rows.lower,
        rows.upper,
        float(slack[worst_row]),
        side,
        multiplier,
        times,
        sentence,
    )


def _sentence(rows: _ConstraintRows, side: str, multiplier: float, slack: float, objective_name: str) -> str:
    """Describe the effect of a multiplier by a change of the bound so small that the effect is about linear."""
    if np.isnan(multiplier):
        return f"The multiplier of '{rows.name}' is not available: the fit failed."
    if rows.implied:
        return f"'{rows.name}' is implied by other constraints; see their multipliers."
    if not side:
        return f"'{rows.name}' is inactive: the slack is {slack:.3g}."
    bound = rows.upper if side == "upper" else rows.lower
    step = 10.0 ** np.floor(np.log10(0.05 * max(abs(bound), rows.unit)))
    while abs(multiplier) * step > _MAX_OBJECTIVE_CHANGE:
        step /= 10.0
    change = abs(multiplier) * step
    if side == "equal":
        verb = "raises" if multiplier > 0.0 else "lowers"
        return (
            f"Increasing the right side of '{rows.name}' by {step:.3g} {verb} {objective_name} by about {change:.3g}."
        )
    return f"Relaxing '{rows.name}' by {step:.3g} reduces {objective_name} by about {change:.3g}."
