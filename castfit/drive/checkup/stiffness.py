"""Stiffness: the spread of a model's time constants, and a suitable integrator.

Near a point of a trajectory the solutions of  x' = f(t, x)  behave as  x(t) − x(t_0) = b + sum_i c_i w_i exp(lambda_i
(t − t_0)),  with the eigenvalues lambda_i of the Jacobian df/dx (Hemker 1972, Eqs. 1.4 to 1.7): 1 / |lambda_i| are the
time constants.  A system is stiff if its solutions decay (Re lambda_i < 0) at rates that are widely spread.  An
explicit method is stable only where all h lambda_i lie in a bounded region, |1 + h lambda| < 1 for Euler's (Eq. 1.12),
so the fastest rate limits the steps long after the fast component has decayed.

    ratio     max |Re lambda_i| / min |Re lambda_i|  over decaying components
    steps     integral of max |lambda_i| dt / 2.79:  steps of a Runge-Kutta method of order 4 for stability alone
    growth    integral of max(Re lambda_i, 0) dt:  errors of the initial state grow by exp(growth)

With algebraic states, df/dx = f_x − f_z g_z^-1 g_x.  All figures are independent of the units of states; ratio, steps
and growth are independent of the unit of time, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import casadi as ca
import numpy as np

from castfit._support.arguments import shorten_repr
from castfit._support.public_names import public
from castfit._support.reprs import add_brief_repr
from castfit._support.status import raise_if_mistakes
from castfit._support.text_tables import TextTable
from castfit._support.views import views
from castfit.drive.uncertainty.inputs import UNKNOWN_MODEL
from castfit.integrate import STEPPED, IntegratorOptions, method_of
from castfit.model.model import Model
from castfit.result.result import Result
from castfit.simulate.simulate import SimulatedPath, SimulationRequest, Times, paths

if TYPE_CHECKING:
    import pathlib

    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

    from castfit._support.arrays import Array, Complex
    from castfit.problem.problem import Posable

RK4_REAL_STABILITY_LIMIT = 2.785  # where the stability region of the classical Runge-Kutta method cuts the real axis
_ZERO_RATE_FRACTION = 1e-11  # rate relative to the fastest, below which it is rounding, as of conserved sums
_STIFF_STEP_RATIO = 1000.0  # steps for stability alone, and ratio of rates, above which a model is stiff
_MILDLY_STIFF_RATIO = 100.0  # the same for mildly stiff
_OSCILLATION_RATIO = np.tan(np.deg2rad(51.8))  # |Im / Re| beyond which BDF of order 5 is unstable
_MAX_LOG_GROWTH = 12.0  # growth by exp(12) = 2e5, beyond which single shooting is too inaccurate


@public("castfit")
@add_brief_repr
@dataclass(frozen=True, eq=False)
class Stiffness:
    """Result of a stiffness analysis of a model along a trajectory.

    Attributes
    ----------
    name : str
        Name of the experiment.
    times : (n,) array
    eigenvalues : (n, n_x) complex array
        Eigenvalues of the Jacobian, in 1 / unit of time, by decreasing size; rounding errors are set to zero.
    suggested : str
        An integrator, as `IntegratorOptions` names it.
    sentence : str
        Verdict, with the recommended integrator and the reason.

    Examples
    --------
    >>> import castfit as cf
    >>> a, b, fast = cf.symbols("a b fast")
    >>> model = cf.Model({a: -a, b: fast * (a - b)}, parameters=[fast], initial={a: 1, b: 0})
    >>> found = cf.stiffness(model, {"fast": 1e4}, [0, 1, 2])
    >>> round(found.ratio), found.oscillating
    (10000, False)
    """

    name: str
    times: Array
    eigenvalues: Complex
    suggested: str
    sentence: str

    @cached_property
    def time_constants(self) -> Array:
        """``1 / |lambda|``, increasing, (n, n_x); infinite for constant components."""
        with np.errstate(divide="ignore"):
            return 1.0 / np.abs(self.eigenvalues)

    @cached_property
    def ratios(self) -> Array:
        """Ratio of the fastest to the slowest decay rate at each time, (n,); 1 if fewer than two components decay."""
        rate = -self.eigenvalues.real
        fast = np.where(rate > 0.0, rate, 0.0).max(axis=1)
        slow = np.where(rate > _ZERO_RATE_FRACTION * fast[:, None], rate, np.inf).min(axis=1)
        return np.where(fast > 0.0, fast / np.minimum(slow, np.where(fast > 0.0, fast, 1.0)), 1.0)

    @property
    def ratio(self) -> float:
        """The largest ratio."""
        return float(self.ratios.max())

    @cached_property
    def steps(self) -> float:
        """Number of steps that an explicit method needs for stability alone."""
        fastest = np.where(self.eigenvalues.real < 0.0, np.abs(self.eigenvalues), 0.0).max(axis=1)
        return _integrate_trapezoidal(fastest, self.times) / RK4_REAL_STABILITY_LIMIT

    @cached_property
    def growth(self) -> float:
        """Logarithm of the growth of an error in the initial state."""
        return _integrate_trapezoidal(np.maximum(self.eigenvalues.real.max(axis=1), 0.0), self.times)

    @cached_property
    def oscillating(self) -> bool:
        """Whether slowly decaying oscillations limit the steps of BDF (CVODES, IDAS)."""
        values, size = self.eigenvalues, np.abs(self.eigenvalues)
        is_ringing = (values.real < 0.0) & (np.abs(values.imag) > _OSCILLATION_RATIO * np.abs(values.real))
        return (
            _integrate_trapezoidal(np.where(is_ringing, size, 0.0).max(axis=1), self.times) / RK4_REAL_STABILITY_LIMIT
            > _MILDLY_STIFF_RATIO
        )

    def __str__(self) -> str:
        finite = [constants[np.isfinite(constants)] for constants in self.time_constants]
        sheet = TextTable.from_items(
            np.unique(np.linspace(0, self.times.size - 1, 6).astype(int)).tolist(),
            (">time", lambda i: f"{self.times[i]:.4g}"),
            (">fastest", lambda i: f"{finite[i].min():.3g}" if finite[i].size else "none"),
            (">slowest", lambda i: f"{finite[i].max():.3g}" if finite[i].size else "none"),
            (">ratio", lambda i: f"{self.ratios[i]:.3g}"),
        )
        return "\n".join(["time constants", *sheet.lines, "", self.sentence])

    def plot(self, path: str | pathlib.Path | None = None) -> Figure:
        """Plot time constants over time, and the eigenvalues; also write the figure to `path` if it is given."""
        return views().plots.stiffness(self, path)


@overload
def stiffness(
    problem: Model,
    parameters: Mapping[str, float] | None = None,
    times: ArrayLike | None = None,
    *,
    initial: Mapping[str, Any] | None = None,
    inputs: Mapping[str, Any] | None = None,
    start: float | None = None,
    integrator: IntegratorOptions | None = None,
) -> Stiffness: ...
@overload
def stiffness(
    problem: Posable | Result,
    parameters: Mapping[str, float] | ArrayLike | None = None,
    times: Times = None,
    *,
    integrator: IntegratorOptions | None = None,
) -> dict[str, Stiffness]: ...
def stiffness(
    problem: Model | Posable | Result,
    parameters: Any = None,
    times: Any = None,
    *,
    initial: Mapping[str, Any] | None = None,
    inputs: Mapping[str, Any] | None = None,
    start: float | None = None,
    integrator: IntegratorOptions | None = None,
) -> Any:
    """Compute the time constants of a model along a trajectory, and recommend an integrator.

    Parameters
    ----------
    problem : Model, Problem, Posed or Result
        A result supplies its estimates as values.
    parameters, times, initial, inputs, start, integrator
        As for `castfit.simulate`; eigenvalues are computed at `times`.

    Returns
    -------
    Stiffness, or dict from experiment to Stiffness
        One for a model; one per experiment for a problem or a result.

    Raises
    ------
    InputError
        Listing every mistake in the names, values and times.
    SimulationError
        If the integration stops.

    Examples
    --------
    >>> import castfit as cf
    >>> a, b, fast = cf.symbols("a b fast")
    >>> model = cf.Model({a: -a, b: fast * (a - b)}, parameters=[fast], initial={a: 1, b: 0})
    >>> found = cf.stiffness(model, {"fast": 1e4}, [0, 1, 2])
    >>> round(found.ratio)
    10000
    >>> found.suggested in ("esdirk", "cvodes")  # the first needs a C compiler
    True
    """
    mistakes: list[str] = []
    argument: Any = integrator
    if argument is not None and not isinstance(argument, IntegratorOptions):
        mistakes.append(f"integrator is {shorten_repr(argument)}; expected IntegratorOptions(...)")
    model_or_problem, values = problem, parameters
    if isinstance(model_or_problem, Result):
        if values is not None:
            mistakes.append("parameters are part of the result; remove them, or pass the problem instead")
        if model_or_problem.problem is None:
            raise_if_mistakes("stiffness", [*mistakes, UNKNOWN_MODEL])
        model_or_problem, values = model_or_problem.problem, model_or_problem.theta
    options = integrator or IntegratorOptions()
    model, simulated_paths = paths(
        model_or_problem, SimulationRequest("stiffness", values, times, initial, inputs, start, mistakes), options
    )
    results = {path.name: _classify(model, path) for path in simulated_paths}
    return next(iter(results.values())) if isinstance(model_or_problem, Model) else results


def jacobians(model: Model, path: SimulatedPath) -> Array:
    """Return df/dx along a path, algebraic states eliminated, (n, n_x, n_x)."""
    system, n = model.system, path.times.size
    n_x, n_z = path.x.shape[1], path.z.shape[1]
    block_jacobian = ca.jacobian(ca.vertcat(system.ode, system.alg), ca.vertcat(system.x, system.z))
    function: Any = system.function("blocks", ca.densify(block_jacobian)).map(n)
    flat_values = np.asarray(function(path.times[None], path.x.T, path.z.T, path.p.T, path.u.T), dtype=float)
    blocks = flat_values.reshape(n_x + n_z, n, n_x + n_z).transpose(1, 0, 2)
    f_x, f_z, g_x, g_z = blocks[:, :n_x, :n_x], blocks[:, :n_x, n_x:], blocks[:, n_x:, :n_x], blocks[:, n_x:, n_x:]
    return f_x - f_z @ np.linalg.solve(g_z, g_x) if n_z else f_x


def _classify(model: Model, path: SimulatedPath) -> Stiffness:
    eigenvalues = np.linalg.eigvals(jacobians(model, path)).astype(complex)
    order = np.argsort(-np.abs(eigenvalues), axis=1, kind="stable")
    eigenvalues = np.take_along_axis(eigenvalues, order, axis=1)
    size = np.abs(eigenvalues)
    eigenvalues = np.where(size > _ZERO_RATE_FRACTION * size.max(axis=1, keepdims=True), eigenvalues, 0.0)
    raw_stiffness = Stiffness(path.name, path.times, eigenvalues, "", "")
    suggested, sentence = _recommend(model, raw_stiffness)
    return replace(raw_stiffness, suggested=suggested, sentence=sentence)


def _recommend(model: Model, raw_stiffness: Stiffness) -> tuple[str, str]:
    """Return an integrator and the sentence that recommends it."""
    system = model.system
    function = system.function("system", system.ode, system.alg)
    suggested = usual = method_of(IntegratorOptions(), system.x.numel(), system.z.numel(), function)
    figures = f"decay rates differ by a factor of up to {raw_stiffness.ratio:.3g}"
    need = f"an explicit method would need {_format_count(raw_stiffness.steps)} steps for stability"
    is_stiff = raw_stiffness.steps > _STIFF_STEP_RATIO and raw_stiffness.ratio > _STIFF_STEP_RATIO
    is_mildly_stiff = raw_stiffness.steps > _MILDLY_STIFF_RATIO and raw_stiffness.ratio > _MILDLY_STIFF_RATIO
    if raw_stiffness.oscillating:
        suggested = "esdirk" if usual in STEPPED else "rosenbrock"
        kind = "Stiff and oscillating" if is_stiff or is_mildly_stiff else "Oscillating"
        reason = "it is L-stable; BDF of order 4 and 5 (CVODES, IDAS) damps oscillations only with short steps"
    elif is_stiff or is_mildly_stiff:
        kind = "Stiff" if is_stiff else "Mildly stiff"
        suggested = "esdirk" if usual in STEPPED else usual
        stability = "it is L-stable" if usual in STEPPED else "BDF is implicit and stable for all decay rates"
        reason = f"{stability}, so accuracy alone determines the step size"
    else:
        kind = "Not stiff"
        reason = "accuracy, not stability, limits the step size"
    sentence = f"{kind}: {figures}; {need}. Use '{suggested}': {reason}."
    if is_stiff or is_mildly_stiff:
        sentence += (
            " Collocation at Radau points is equally stable, but needs short elements where fast components decay."
        )
    if raw_stiffness.growth > _MAX_LOG_GROWTH:
        sentence += (
            " Unstable: errors of the initial state may grow by a factor of "
            f"{np.exp(min(raw_stiffness.growth, 700.0)):.1g}. "
            "Use MultipleShooting or Collocation."
        )
    return suggested, sentence


def _format_count(number: float) -> str:
    return f"{number:,.0f}" if number < 1e6 else f"{number:.2g}"


def _integrate_trapezoidal(values: Array, times: Array) -> float:
    """Integrate values (n,) at times (n,) by the trapezoidal rule."""
    return 0.5 * float(np.diff(times) @ (values[1:] + values[:-1]))
