"""Result of `control`: inputs, states, objective and constraints, computed by integrating the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from castfit._support.arguments import option_mistakes
from castfit._support.arrays import Array
from castfit._support.json_codec import check_shapes, load_record, write_record
from castfit._support.public_names import public
from castfit._support.renamed import with_old_names
from castfit._support.reprs import one_line
from castfit._support.status import Status, raise_if_mistakes
from castfit._support.text_tables import TabularReport, TextTable
from castfit._support.views import views
from castfit.experiment.inputs import Input

if TYPE_CHECKING:
    from collections.abc import Sequence

    from castfit.control.question import ControlQuestion

FORMAT = 1
"""Format number of saved plans."""


@dataclass(frozen=True)
class ControlStatement:
    """Description of the question that a plan answers.

    timed : whether the horizon was free
    chosen : names of the free inputs
    bounds : finite bounds of free inputs, and of single states along the horizon
    """

    words: str
    time_name: str
    timed: bool
    chosen: tuple[str, ...]
    bounds: dict[str, tuple[float, ...]]

    @classmethod
    def from_question(cls, question: ControlQuestion) -> ControlStatement:
        """Describe a question: objective, free inputs and quantities, constraints, and bounds."""
        inputs = ", ".join(f"{n} ({u.pieces} pieces)" for n, u in question.free_inputs.items())
        constraint_text = "; ".join(c.name for c in (*question.path, *question.points, *question.horizon_constraints))
        choices = [f"the inputs {inputs}"] if inputs else []
        choices += [", ".join(q.name for q in question.quantities)] if question.quantities else []
        text = f"Minimise {question.objective} by {' and '.join(choices)}" + (
            f", so that {constraint_text}." if constraint_text else "."
        )
        pairs = [(n, (u.lower, u.upper)) for n, u in question.free_inputs.items()]
        pairs += [(c.expression.name(), (c.lower, c.upper)) for c in question.path if c.expression.is_symbolic()]
        bounds = {name: tuple(float(b) for n, pair in pairs if n == name for b in pair if np.isfinite(b))
                  for name, _ in pairs}  # fmt: skip
        return cls(text, question.model.system.t.name(), question.has_free_horizon, tuple(question.free_inputs), bounds)


@dataclass(frozen=True)
class PlanConstraint:
    """A constraint of a plan, evaluated on the integrated model.

    least, greatest : extreme values of the expression at the times of the constraint
    violation : beyond its bounds, 0 if none, in the expression's unit
    """

    name: str
    lower: float
    upper: float
    least: float
    greatest: float
    violation: float

    @property
    def active(self) -> bool:
        """Whether a bound is reached, to within 1e-5 of the largest value or bound."""
        size = max(abs(v) for v in (self.lower, self.upper, self.least, self.greatest) if np.isfinite(v)) or 1.0
        return bool(self.least - self.lower <= 1e-5 * size or self.upper - self.greatest <= 1e-5 * size)


@with_old_names(found="solution")
@public("castfit")
@dataclass(frozen=True, eq=False)
class Plan(TabularReport):
    """Optimal inputs, and the integrated model under them; `control` creates it.

    Attributes
    ----------
    success : bool
        Whether the optimality conditions hold, and the model integrated with error control under these inputs
        reproduces the objective and satisfies the constraints, to within 1e-4 of their size.
    status : Status
    message : str
        End of the search, and remarks on the plan.
    objective : float
        Objective of the program; `integrated` is the objective of the integrated model.
    horizon : float
        The length of the horizon.
    inputs : dict from name to Input
        All inputs; they go into `Experiment` and `simulate`.
    times : (n,) array
    states : dict from name to (n,) array, or to (scenarios, n) array with several scenarios
        States, algebraic states and outputs at `times`, integrated.
    parameters : dict from name to float
        Optimised parameters, and initial states as ``x(0)``.
    constraints : dict from name to PlanConstraint
    undetermined : dict from input to (n,) array
        Change of each value of an input, with the others adapting, that changes the objective by 1e-8 of its size; for
        inputs with values that can change by more than a twentieth of their range.
    stages, iterations : int
    solver : str
        "Gauss-Newton", "IPOPT", or one then the other.
    seconds : float
        CPU time in total.
    purpose : ControlStatement
        Description of the question.
    planner, found
        Solver and solution, which `again` needs; None for a loaded plan.

    Examples
    --------
    >>> import castfit as cf
    >>> x, v, u = cf.symbols("x v u")
    >>> model = cf.Model({x: v, v: u}, inputs=[u], initial={x: 0, v: 0})
    >>> plan = cf.control(
    ...     model, horizon=cf.free(3.0, lower=0.1), inputs={"u": cf.Input.free(pieces=20, bounds=(-1, 1))},
    ...     minimise=cf.final_time(), constraints=[cf.at_end(x) == 1, cf.at_end(v) == 0],
    ... )
    >>> plan.success, round(plan.horizon, 6), float(plan.inputs["u"](0.5).round(6))
    (True, 2.0, 1.0)
    """

    status: Status
    message: str
    objective: float
    integrated: float
    horizon: float
    inputs: dict[str, Input]
    times: Array
    states: dict[str, Array]
    parameters: dict[str, float]
    constraints: dict[str, PlanConstraint]
    undetermined: dict[str, Array]
    stages: int
    iterations: int
    solver: str
    seconds: float
    purpose: ControlStatement
    planner: Any = field(default=None, repr=False)  # a ControlSolver, and its PlanSolution
    solution: Any = field(default=None, repr=False)

    @property
    def success(self) -> bool:
        """Whether the plan is a solution that the integrated model confirms."""
        return self.status.success

    @property
    def free_inputs(self) -> dict[str, Input]:
        """The inputs that were free."""
        return {n: u for n, u in self.inputs.items() if n in self.purpose.chosen}

    def again(
        self,
        initial: Mapping[str, float] | None = None,
        *,
        parameters: Mapping[str, float] | None = None,
        inputs: Mapping[str, Input | float] | None = None,
        shift: float = 0.0,
        max_time: float = np.inf,
    ) -> Plan:
        """Plan again from other initial states, as in a closed loop, from this plan.

        The program of this plan is used again unless known inputs change in time or constraints hold at times.

        Parameters
        ----------
        initial : mapping from state to float
            Initial states that are not free; others keep their values.
        parameters : mapping from parameter to float
            Parameters that are not free; others keep their values.
        inputs : mapping from input to Input or float
            Known inputs, such as new forecasts; others stay the functions of time that they are.
        shift : float
            Elapsed time: the new horizon begins that much later and keeps its length.  Known inputs and the times of
            constraints stay as they are on the clock; constraints up to the new start are dropped.
        max_time : float
            Seconds.

        Returns
        -------
        Plan
            It begins at the shifted time; `undetermined` is empty, since it is not computed.

        Raises
        ------
        InputError
            If a name is unknown, a number is not finite, a known input ends before the horizon, or the plan was loaded.

        Examples
        --------
        >>> import castfit as cf
        >>> x, u = cf.symbols("x u")
        >>> model = cf.Model({x: u}, inputs=[u], initial={x: 1})
        >>> free = {"u": cf.Input.free(pieces=10, bounds=(-1, 1))}
        >>> plan = cf.control(model, horizon=2, inputs=free, minimise=cf.integral(x**2 + u**2))
        >>> plan.again({"x": 0.5}).objective < plan.objective
        True
        """
        loaded = "the loaded plan has no program; compute a new plan with cf.control"
        raise_if_mistakes("Plan.again", [loaded] if self.planner is None else [])
        return cast("Any", self.planner).replan(self, initial, parameters, inputs, shift, max_time)

    def plot(self, path: str | Path | None = None, **options: Any) -> Any:
        """Draw states and chosen inputs over time; also write the figure to `path` if it is given.

        Parameters
        ----------
        path : str or Path, optional
        **options
            Options of `castfit.plots.plan`.
        """
        return views().plots.plan(self, path, **options)

    def report(self, path: str | Path, **options: Any) -> Path:
        """Write the plan with its figure and its properties as one HTML file that needs no network.

        Parameters
        ----------
        path : str or Path
            Where to write the page; it ends in ``.html``.
        **options
            ``title=`` and ``notes=`` stand above the page.

        Returns
        -------
        Path
            Path of the file.
        """
        return views().reports.plan_report(self, path, **options)

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, without the program that `again` needs."""
        write_record(path, "castfit_plan", FORMAT, self, without=("planner", "solution"))

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a saved plan, which supports everything except `again`.

        Raises
        ------
        InputError
            If the file is not a saved plan, is damaged, or has an unsupported format.
        """
        return load_record(cls, path, "castfit_plan", FORMAT, planner=None, solution=None)

    def use_all(self) -> None:
        """Compute all that needs no program; an error shows that entries of a file do not fit together."""
        n = self.times.size
        check_shapes([("times", self.times, (n,)), *((k, np.atleast_2d(x)[0], (n,)) for k, x in self.states.items())])
        check_shapes((name, change, self.inputs[name].values.shape) for name, change in self.undetermined.items())
        if missing := {*self.purpose.chosen} - {*self.inputs}:
            raise ValueError(f"inputs lacks {', '.join(sorted(missing))}")
        self.summary()

    def bounds_of(self, name: str) -> tuple[float, ...]:
        """Return the finite bounds of a free input, or of a single state along the horizon."""
        remedy = "expected the name of a free input or of a state"
        raise_if_mistakes("bounds_of", option_mistakes(("name", name, isinstance(cast("Any", name), str), remedy)))
        return self.purpose.bounds.get(name, ())

    @property
    def time_name(self) -> str:
        """Name of the time symbol in the model."""
        return self.purpose.time_name

    @property
    def question(self) -> str:
        """Description of the question."""
        return self.purpose.words

    def summary(self) -> str:
        """Return the plan as text and tables."""
        lines: list[str] = []
        for part in self.parts:
            if lines:
                lines.append("")
            lines += [part] if isinstance(part, str) else ([part.title] if part.title else []) + part.lines
        return "\n".join(lines)

    @property
    def parts(self) -> Sequence[TextTable | str]:
        """The tables and messages, in their order."""
        horizon_kind = "free" if self.purpose.timed else "given"
        overview = (
            f"objective {self.objective:.9g}; after integration {self.integrated:.9g}; horizon {self.horizon:.9g} "
            f"({horizon_kind}); {self.stages} stages, {self.iterations} iterations ({self.solver}), "
            f"{self.seconds:.2f} s"
        )
        sections: list[TextTable | str] = [overview, self.message]
        inputs = [(n, u.values) for n, u in self.free_inputs.items()]
        if inputs:
            sections.append(
                TextTable.from_items(
                    inputs,
                    ("input", lambda i: i[0]),
                    (">values", lambda i: str(i[1].size)),
                    (">least", lambda i: f"{i[1].min():.6g}"),
                    (">greatest", lambda i: f"{i[1].max():.6g}"),
                )
            )
        if self.parameters:
            sections.append(
                TextTable.from_items(
                    self.parameters.items(), ("decided", lambda i: i[0]), (">value", lambda i: f"{i[1]:.9g}")
                )
            )
        if self.constraints:
            sections.append(
                TextTable.from_items(
                    self.constraints.values(),
                    ("constraint", lambda c: c.name),
                    (">least", lambda c: f"{c.least:.6g}"),
                    (">greatest", lambda c: f"{c.greatest:.6g}"),
                    (">violated by", lambda c: f"{c.violation:.2g}"),
                    ("", lambda c: "active" if c.active else ""),
                )
            )
        return sections

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        return one_line(
            f"Plan({self.status.value}: objective {self.objective:.6g}, inputs {', '.join(self.free_inputs)})"
        )
