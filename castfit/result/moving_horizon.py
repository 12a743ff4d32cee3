"""Moving-horizon estimation: the most probable path over the last measurements, with a prior from earlier data.

    min  1/2 |u|^2 + cost of the data in the window,     x_0 = m + S u_0,   x_{k+1} = f_k(x_k, c_k)

with a node for each measurement, the noise c_k of each stage free, and the prior N(m, S S') of the oldest node: the
arrival cost.  When the window moves on, the oldest node is marginalised: its prior, its own measurement and its stage,
made linear about the path that was found last, give the prior of the next one.  Intervals that are longer than the
stages of the fit have nodes inside.  No datum is counted twice, and for linear models with normal errors the newest
node is that of the Kalman filter, whatever the horizon (Rao, Rawlings and Mayne 2003).

A step is one or a few of Newton's method on the window, by a Riccati factor (castfit.solve.riccati).  Bounds hold up to
a part in 1e8 of a standard deviation: an active bound gets a large weight, as long as its multiplier pushes outwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from castfit._support.arguments import (
    is_count,
    is_within,
    option_mistakes,
    read_mapping,
    read_real,
    read_reals,
    shorten_repr,
)
from castfit._support.arrays import Array
from castfit._support.json_codec import check_shapes, load_record, write_record
from castfit._support.public_names import public
from castfit._support.reprs import one_line
from castfit._support.status import InputError, raise_if_mistakes, suggest
from castfit._support.time_limit import interruptible
from castfit.densities.priors import Normal
from castfit.result.path_result import PathResult
from castfit.solve.riccati import RiccatiFactor, riccati
from castfit.transcribe.path_likelihood import PathLikelihood, marginal, positive_part

FORMAT = 1  # of saved estimators
_MAX_STAGES = 100_000  # Stages between two measurements at most.
_STEP_TOLERANCE_SD = 1e-3  # Step length, in deviations of the noise, at which Newton's method stops.
_BOUND_WEIGHT_FACTOR = 1e8  # Weight of an active bound relative to the other information on a state.
_MAX_ACTIVE_SET_CHANGES = 12  # Changes of the set of active bounds in one step at most.
_MIN_EIGENVALUE_RATIO = 1e-14  # Eigenvalues of a covariance below this fraction of the largest count as zero.


@public("castfit")
@dataclass(frozen=True, eq=False)
class OnlineEstimate:
    """Estimate of the states after a measurement.

    states, deviations : by name
    covariance : (n, n), in the order of the model's states
    disturbances : by name of the noise, its mean over the time since the measurement before; none at the first one
    held : names of states and noises that a bound holds now

    Examples
    --------
    >>> import castfit as cf
    >>> x, w = cf.symbols("x w")
    >>> model = cf.Model({x: -x + 0.5 * w}, noises=[w])
    >>> experiment = cf.Experiment({"x": [0.4, 0.2]}, time=[1, 2], sigma=0.1, start=0, initial={"x": cf.Normal(1, 0.5)})
    >>> now = cf.moving_horizon(cf.fit(cf.Problem(model, experiment)))
    >>> estimate = now.step(1.0, {"x": 0.4})
    >>> sorted(estimate.states), sorted(estimate.disturbances), estimate.held
    (['x'], ['w'], ())
    """

    time: float
    states: dict[str, float]
    deviations: dict[str, float]
    covariance: Array
    disturbances: dict[str, float]
    held: tuple[str, ...]
    iterations: int

    def __repr__(self) -> str:
        states_text = ", ".join(f"{n} = {v:.4g} ± {self.deviations[n]:.2g}" for n, v in self.states.items())
        return one_line(f"OnlineEstimate(time = {self.time:g}: {states_text})")


@dataclass
class EstimationWindow:
    """Nodes x (M, n) with their data, stages between them with modes c (M - 1, m), and the prior of the oldest node.

    steps : whether a node is at the time of a step, or inside an interval
    """

    mean: Array
    root: Array
    t: list[float]
    steps: list[bool]
    x: list[Array]
    z: list[Array]
    data: list[tuple[Array, Array]]
    u: list[Array]
    c: list[Array]
    lam: list[Array]
    initial_deviations: Array


@dataclass(frozen=True)
class MovingHorizonState:
    """All that an estimator needs besides the result that it was made from, as it is saved.

    y, question : estimates and problem of that result, by which it is recognised
    active_bounds : as (state or mode, node or stage, index, bound)
    """

    experiment: str
    horizon: int
    bounds: Mapping[str, tuple[float, float]]
    iterations: int
    y: Array
    question: Mapping[str, str]
    start: float
    inputs: Array | None
    z: Array
    active_bounds: tuple[tuple[str, int, int, float], ...]
    window: EstimationWindow
    latest_estimate: OnlineEstimate | None

    def use_all(self) -> None:
        """Check counts and numbers; `MovingHorizon.load` compares the window with the model."""
        w = self.window
        is_finite = all(
            np.isfinite(part).all() for part in (w.mean, w.root, w.initial_deviations, self.start, *w.t, *w.x)
        )
        if min(self.horizon, self.iterations) < 1 or not is_finite or (np.diff(w.t) <= 0.0).any():
            raise ValueError("horizon, iterations or nodes are impossible")


@public("castfit")
class MovingHorizon:
    """An estimator that takes one measurement after the other; `moving_horizon` makes it.

    Attributes
    ----------
    horizon : int
        How many measurements lie in the window, at most.
    now : OnlineEstimate or None
        What the last step found; `states`, `covariance` and `disturbances` are its.

    Examples
    --------
    >>> import castfit as cf
    >>> x, w, s = cf.symbols("x w s")
    >>> model = cf.Model({x: s * w}, parameters=[s], noises=[w])
    >>> data = [1.1, 0.9, 1.6, 2.2, 1.9, 2.4, 3.3, 3.1, 2.6, 2.9, 3.5, 4.1]
    >>> experiment = cf.Experiment({"x": data}, time=range(12), sigma=0.2, initial={"x": cf.Normal(1, 1)})
    >>> result = cf.fit(cf.Problem(model, experiment, parameters={"s": cf.Parameter(0.3, scale="log")}))
    >>> now = cf.moving_horizon(result, horizon=5)
    >>> for time, value in enumerate(data):
    ...     estimate = now.step(time, {"x": value})
    >>> estimate
    OnlineEstimate(time = 11: x = 4.016 ± 0.19)
    """

    def __init__(self, result: PathResult, experiment: str, horizon: int, bounds: Any, iterations: int) -> None:
        likelihood = PathLikelihood(*marginal(result.owner("moving_horizon").posed), result.longest)
        i = [c.name for c in likelihood.problem.conditions].index(experiment)
        each = likelihood.chains[i]
        self._chain, self._model, self._result, self._experiment = (
            each.chain,
            likelihood.problem.model,
            result,
            experiment,
        )
        theta, self._sigma = likelihood.split_variables(result.y)
        condition = each.chain.condition
        natural = condition.link.natural(theta[condition.theta])
        self.horizon, self._iterations, self._p = horizon, iterations, natural.p
        self._outputs, self._bounds = likelihood.problem.outputs, bounds
        self._max_stage_length = likelihood.max_stage_lengths[i]
        self._start, self._inputs = condition.start, None if condition.inputs else np.empty(0)
        empty: Any = np.zeros(each.S.shape[1])
        self._window = EstimationWindow(natural.a, each.S, [], [], [], [], [], [], [], [], empty)
        self._z = condition.z_guess
        self._held: dict[tuple[str, int, int], float] = {}  # (state or mode, node or stage, which): the bound
        self.now: OnlineEstimate | None = None

    @property
    def _state(self) -> MovingHorizonState:
        active_bounds = tuple((*key, bound) for key, bound in self._held.items())
        return MovingHorizonState(
            self._experiment, self.horizon, self._bounds, self._iterations, self._result.y, self._result.question,
            self._start, self._inputs, self._z, active_bounds, self._window, self.now,
        )  # fmt: skip

    @classmethod
    def _continued(cls, result: PathResult, state: MovingHorizonState) -> MovingHorizon:
        """Return an estimator in a saved state."""
        estimator = cls(result, state.experiment, state.horizon, dict(state.bounds), state.iterations)
        estimator._start, estimator._inputs, estimator._z = state.start, state.inputs, state.z
        estimator._held = {(kind, k, j): bound for kind, k, j, bound in state.active_bounds}
        estimator._window, estimator.now = state.window, state.latest_estimate
        return estimator

    def __reduce__(self) -> tuple[Any, ...]:
        return MovingHorizon._continued, (self._result, self._state)

    def save(self, path: str | Path) -> None:
        """Write the window and the last estimate as JSON; the result is saved by itself."""
        write_record(path, "castfit_moving_horizon", FORMAT, self._state)

    @classmethod
    def load(cls, path: str | Path, result: PathResult) -> MovingHorizon:
        """Read a saved estimator, with the result that it was made from; it continues from the saved state.

        Raises
        ------
        InputError
            If the file is no saved estimator, is damaged, or was made from another result.
        """
        raise_if_mistakes("MovingHorizon.load", _result_mistakes(result))
        result.owner("MovingHorizon.load")
        state: MovingHorizonState = load_record(MovingHorizonState, path, "castfit_moving_horizon", FORMAT)
        is_same = np.array_equal(state.y, result.y) and dict(state.question) == dict(result.question)
        other = "the estimator was made from another result; pass that result"
        raise_if_mistakes("MovingHorizon.load", [] if is_same else [other])
        try:
            estimator = cls._continued(result, state)
            check_shapes(estimator._shapes())
            return estimator
        except (ValueError, TypeError, LookupError) as error:
            raise InputError("MovingHorizon.load", [f"'{path}' is damaged: {error}"]) from None

    def _shapes(self) -> Iterator[tuple[str, Any, tuple[int, ...]]]:
        """Iterate over names, arrays and expected shapes of the window."""
        w, n, m, nodes = self._window, len(self._model.states), self._chain.functions.m, len(self._window.t)
        yield from (("mean", w.mean, (n,)), ("root", w.root, (n, w.initial_deviations.size)))
        yield from (("covariance", self.covariance, (n, n)), ("steps", w.steps, (nodes,)))
        yield "initial_deviations", w.initial_deviations, w.root.shape[1:]
        if self._inputs is not None:
            yield "inputs", self._inputs, (len(self._model.inputs),)
        if self.now is not None:
            moments = self.now.states, self.now.deviations
            yield "now", [values[name] for values in moments for name in self._model.states], (2 * n,)
        sizes = {"x": n, "lam": n, "u": len(self._model.inputs), "z": np.size(self._chain.condition.z_guess), "c": m}
        for name, size in sizes.items():
            parts = getattr(w, name)
            yield f"number of {name}", np.empty(len(parts)), (max(nodes - 1, 0) if name == "c" else nodes,)
            yield from ((name, part, (size,)) for part in parts)
        yield "data", np.empty(len(w.data)), (nodes,)
        yield from (("data", part, (len(self._outputs),)) for pair in w.data for part in pair)

    def begin(self, initial: Mapping[str, Normal | float], start: float | None) -> None:
        """Set the distribution of states before the first step, and the start time."""
        w, names = self._window, self._model.states
        w.mean = w.mean.copy()
        cov = w.root @ w.root.T
        for name, value in initial.items():
            j = names.index(name)
            w.mean[j] = value.mean if isinstance(value, Normal) else float(value)
            cov[j], cov[:, j] = 0.0, 0.0
            cov[j, j] = value.deviation**2 if isinstance(value, Normal) else 0.0
        w.root = np.diag(np.sqrt(np.diag(cov)))
        w.initial_deviations = np.zeros(w.mean.size)
        self._start = self._start if start is None else start

    @property
    def states(self) -> dict[str, float]:
        """The newest states by name; the initial ones before the first step."""
        return (
            dict(zip(self._model.states, self._window.mean.tolist(), strict=True)) if not self.now else self.now.states
        )

    @property
    def covariance(self) -> Array:
        """Their covariance, (n, n)."""
        return self.now.covariance if self.now else self._window.root @ self._window.root.T

    @property
    def disturbances(self) -> dict[str, float]:
        """The mean of each noise over the time since the measurement before the last one."""
        return self.now.disturbances if self.now else {}

    @interruptible
    def step(
        self, time: float, measured: Mapping[str, float], *, inputs: Mapping[str, float] | None = None
    ) -> OnlineEstimate:
        """Process a measurement, and return the estimate of the states at its time.

        Parameters
        ----------
        time : float
            After that of the step before; the first one not before the start of the experiment.
        measured : mapping from output to float
            What is missing, or NaN, was not measured; there may be nothing.
        inputs : mapping from input to float, optional
            What they were since the step before; by default as they were then.

        Raises
        ------
        InputError
            For a step back in time, unknown names, values that are no numbers, inputs without a value.
        """
        new_time, u = self._checked(time, measured, inputs)
        value = np.ones(len(self._outputs))
        is_measured = np.zeros(len(self._outputs))
        for name, number in measured.items():
            if np.isfinite(float(number)):
                j = self._outputs.index(name)
                value[j], is_measured[j] = float(number), 1.0
        self._moved_to(new_time, u, (value, is_measured))
        self._inputs = u
        factor, iterations = self._solved()
        self.now = self._estimate(factor, iterations)
        while sum(self._window.steps) > self.horizon or not self._window.steps[0]:
            self._marginalised()
        return self.now

    def _checked(self, time: Any, measured: Any, inputs: Any) -> tuple[float, Array]:
        mistakes: list[str] = []
        new_time, last_time = read_real(time), self._window.t[-1] if self._window.t else None
        if new_time is None or not np.isfinite(new_time):
            mistakes.append(f"time is {shorten_repr(time)}; expected a finite number")
        elif last_time is not None and new_time <= last_time:
            mistakes.append(f"time is {new_time:g}, but the previous step was at {last_time:g}; times must increase")
        elif new_time < self._start:
            mistakes.append(f"time is {new_time:g}, before the start; expected a time from {self._start:g} on")
        elif new_time - (self._start if last_time is None else last_time) > _MAX_STAGES * self._max_stage_length:
            mistakes.append(
                f"time is {new_time:g}, after a gap of more than {_MAX_STAGES} stages; begin a new estimator"
            )
        for name, number in read_mapping("measured", measured, mistakes).items():
            if name not in self._outputs:
                mistakes.append(f"'{name}' is not a measured output: {suggest(name, self._outputs)}")
            elif (value := read_real(number)) is None or np.isinf(value):
                mistakes.append(
                    f"'{name}' is {shorten_repr(number)}; expected a finite number, or NaN for a missing measurement"
                )
        new_inputs = read_mapping("inputs", inputs, mistakes)
        names = self._model.inputs
        u = np.full(len(names), np.nan) if self._inputs is None else self._inputs.copy()
        for name, number in new_inputs.items():
            input_value = read_real(number)
            if name not in names:
                mistakes.append(f"unknown input '{name}': {suggest(name, names)}")
            elif input_value is None or not np.isfinite(input_value):
                mistakes.append(f"input '{name}' is {shorten_repr(number)}; expected a finite number")
            else:
                u[names.index(name)] = input_value
        missing_inputs = [n for n, v in zip(names, u, strict=True) if np.isnan(v) and n not in new_inputs]
        mistakes += [f"input '{n}' has no value yet; pass inputs={{'{n}': ...}}" for n in missing_inputs]
        raise_if_mistakes("step", mistakes)
        assert new_time is not None
        return new_time, u

    # The window

    def _stage(self, x: Array, c: Array, t: Any, h: Any, u: Array, z: Array, lam: Array) -> tuple[Array, Array, Array]:
        """Return the ends of stages, their derivatives by (x, c), and second ones of lam . ends."""
        n, m = x.shape[-1], c.shape[-1]
        if not x.size:
            return np.zeros((0, n)), np.zeros((0, n, n + m)), np.zeros((0, n + m, n + m))
        cubics = np.zeros((*u.shape, 4))
        cubics[..., 0] = u
        flat = cubics.reshape(*u.shape[:-1], 4 * u.shape[-1])
        blocks = self._chain.functions.blocks(x, c, self._p, flat, t, h, z, lam)
        return blocks[..., :n, 0].copy(), blocks[..., :n, 1:].copy(), blocks[..., n:, 1:].copy()

    def _nodes(self, x: Array) -> tuple[Array, Array]:
        """Return gradient (M, n) and Hessian (M, n, n) of what the data of the oldest M nodes cost, at x (M, n)."""
        w, count = self._window, x.shape[0]
        values, is_measured = (np.array(part) for part in zip(*w.data[:count], strict=True))
        sigma, spread = self._sigma, self._chain.spreads_of_outputs
        t, u, z = np.array(w.t[:count])[:, None], np.array(w.u[:count]), np.array(w.z[:count])
        blocks = self._chain.data.blocks(t, x, self._p, u, z, sigma, values, is_measured, spread)
        return blocks[:, 0, 1:].copy(), blocks[:, 1:, 1:].copy()

    def _moved_to(self, time: float, u: Array, data: tuple[Array, Array]) -> None:
        """Add a node, where the stage before leads without noise; the first one may lie behind the start."""
        w, m, no_data = self._window, self._chain.functions.m, (np.ones_like(data[0]), np.zeros_like(data[1]))
        if not w.t and time > self._start:  # a node at the start, of which nothing was measured
            self._appended(self._start, w.mean.copy(), u, no_data)
        if not w.t:
            self._appended(time, w.mean.copy(), u, data)
            return
        parts = max(int(np.ceil((time - w.t[-1]) / self._max_stage_length * (1.0 - 1e-9))), 1)
        for t in np.linspace(w.t[-1], time, parts + 1)[1:].tolist():
            x, c, h = w.x[-1], np.zeros(m), np.array([t - w.t[-1]])
            end, _, _ = self._stage(x, c, np.array([w.t[-1]]), h, u, w.z[-1], np.zeros(x.size))
            w.c.append(c)
            self._appended(t, end, u, data if t == time else no_data, is_step=t == time)

    def _appended(self, time: float, x: Array, u: Array, data: tuple[Array, Array], *, is_step: bool = True) -> None:
        w = self._window
        w.steps.append(is_step)
        w.t.append(time)
        w.x.append(x)
        w.z.append(w.z[-1] if w.z else self._z)
        w.u.append(u)
        w.data.append(data)
        w.lam.append(np.zeros(x.size))

    def _solved(self) -> tuple[RiccatiFactor, int]:
        """Take steps of Newton's method until they are small, at most so many; return the last factor."""
        w, S = self._window, self._window.root
        m, n = self._chain.functions.m, w.mean.size
        t = np.array(w.t)
        h = np.diff(t)[:, None]
        inputs = np.array(w.u)[1:].reshape(len(w.t) - 1, len(self._model.inputs))
        n_steps, factor = 0, None
        for _ in range(self._iterations):
            n_steps += 1
            x, c, lam = np.array(w.x), np.array(w.c).reshape(-1, m), np.array(w.lam)
            z = np.array(w.z).reshape(len(w.t), -1)
            f, F, second_derivatives = self._stage(x[:-1], c, t[:-1, None], h, inputs, z[:-1], lam[1:])
            gradient, hessian = self._nodes(x)
            d = np.concatenate([(w.mean + S @ w.initial_deviations - x[0])[None], f - x[1:]])
            g = np.concatenate([gradient[:-1], c], axis=1)
            H = second_derivatives.copy()
            H[:, :n, :n] += hessian[:-1]
            H[:, n:, n:] += np.eye(m)
            factor = riccati(F, H, hessian[-1], S)
            if factor is None:
                hessian = positive_part(hessian)
                H[:] = 0.0
                H[:, :n, :n] = hessian[:-1]
                H[:, n:, n:] = np.eye(m)
                factor = riccati(F, H, hessian[-1], S)
            assert factor is not None  # expected curvatures are never negative
            step = factor.solve(g, gradient[-1], d, w.initial_deviations)
            if self._bounds:
                factor, step = self._enforce_bounds(factor, F, H, hessian[-1], g, gradient[-1], d, x, c, h[:, 0])
            w.x, w.c = list(x + step.x), list(c + step.u)
            w.initial_deviations, w.lam = w.initial_deviations + step.initial_variables, list(step.multipliers)
            if z.shape[1]:
                p, u = self._p, np.array(w.u)
                w.z = list(self._chain.functions.algebraic(t[:, None], np.array(w.x), p, u, z)[..., 0].copy())
            step_size = max(
                float(np.abs(step.u).max(initial=0.0)), float(np.abs(step.initial_variables).max(initial=0.0))
            )
            step_size = max(step_size, float((np.abs(step.x) / (1.0 + np.abs(x))).max()))
            if step_size < _STEP_TOLERANCE_SD or self._chain.quadratic:
                break
        assert factor is not None
        return factor, n_steps

    def _enforce_bounds(
        self, factor: RiccatiFactor, F: Array, H: Array, end: Array, g: Array, g_end: Array, d: Array, x: Array,
        c: Array, h: Array,
    ) -> tuple[RiccatiFactor, Any]:  # fmt: skip
        """Activate bounds that a step would violate, and release bounds whose multiplier points inwards."""
        w, n = self._window, x.shape[1]
        weight = _BOUND_WEIGHT_FACTOR * np.maximum(
            np.abs(np.diagonal(factor.V, axis1=1, axis2=2)).max(axis=0), 1.0 / (1.0 + x[-1] ** 2)
        )
        step = factor.solve(g, g_end, d, w.initial_deviations)
        for _ in range(_MAX_ACTIVE_SET_CHANGES):
            H2, end2, g2, g_end2 = H.copy(), end.copy(), g.copy(), g_end.copy()
            for (kind, k, j), bound in self._held.items():
                if kind == "mode":
                    H2[k, n + j, n + j] += _BOUND_WEIGHT_FACTOR
                    g2[k, n + j] += _BOUND_WEIGHT_FACTOR * (c[k, j] - bound)
                elif k < c.shape[0]:
                    H2[k, j, j] += weight[j]
                    g2[k, j] += weight[j] * (x[k, j] - bound)
                else:
                    end2[j, j] += weight[j]
                    g_end2[j] += weight[j] * (x[k, j] - bound)
            bounded_factor = riccati(F, H2, end2, w.root)
            if bounded_factor is None:
                return factor, step
            factor, step = bounded_factor, bounded_factor.solve(g2, g_end2, d, w.initial_deviations)
            active_bounds, new_states, new_noise = dict(self._held), x + step.x, c + step.u
            for (kind, k, j), bound in self._held.items():  # released where it would come back
                new_value = new_noise[k, j] if kind == "mode" else new_states[k, j]
                name = self._model.noises[j] if kind == "mode" else self._model.states[j]
                low, high = self._limits(name, h[k] if kind == "mode" else None)
                if (bound == low and new_value > low) or (bound == high and new_value < high):
                    del active_bounds[kind, k, j]
            for name in self._bounds:
                low, high = self._limits(name, None)
                if name in self._model.states:
                    j = self._model.states.index(name)
                    for k in np.flatnonzero((new_states[:, j] < low) | (new_states[:, j] > high)).tolist():
                        active_bounds.setdefault(("state", k, j), low if new_states[k, j] < low else high)
                else:
                    j = self._model.noises.index(name)
                    for k in range(c.shape[0]):
                        low, high = self._limits(name, float(h[k]))
                        if new_noise[k, j] < low or new_noise[k, j] > high:
                            active_bounds.setdefault(("mode", k, j), low if new_noise[k, j] < low else high)
            if active_bounds == self._held:
                break
            self._held = active_bounds
        return factor, step

    def _limits(self, name: str, h: float | None) -> tuple[float, float]:
        low, high = self._bounds[name]
        return (low, high) if h is None else (low * np.sqrt(h), high * np.sqrt(h))

    def _marginalised(self) -> None:
        """Marginalise the oldest node; the resulting density becomes the prior of the next node."""
        w, n = self._window, self._window.mean.size
        x, cov = w.x[0], w.root @ w.root.T
        f, F, _ = self._stage(x, w.c[0], np.array([w.t[0]]), np.array([w.t[1] - w.t[0]]), w.u[1], w.z[0], np.zeros(n))
        gradient, hessian = self._nodes(x[None])
        gain = np.linalg.solve(np.eye(n) + cov @ positive_part(hessian[0]), np.eye(n))
        e = gain @ (w.mean - x - cov @ gradient[0])
        posterior_cov = gain @ cov
        A, B = F[:, :n], F[:, n:]
        posterior_cov = A @ (0.5 * (posterior_cov + posterior_cov.T)) @ A.T + B @ B.T
        values, vectors = np.linalg.eigh(posterior_cov)
        w.mean = f + A @ e - B @ w.c[0]
        sizes = np.sqrt(np.where(values > _MIN_EIGENVALUE_RATIO * values[-1], values, 0.0))
        w.root = vectors * sizes
        for part in (w.t, w.steps, w.x, w.z, w.u, w.data, w.c, w.lam):
            del part[0]
        # If the new prior has no spread, the path cannot deviate from its mean either.
        w.initial_deviations = np.divide(vectors.T @ (w.x[0] - w.mean), sizes, out=np.zeros(n), where=sizes > 0.0)
        self._held = {(kind, k - 1, j): b for (kind, k, j), b in self._held.items() if k > 0}

    def _estimate(self, factor: RiccatiFactor, iterations: int) -> OnlineEstimate:
        w, names = self._window, self._model.states
        covariance = factor.state_covariances[-1].copy()
        deviations = np.sqrt(np.maximum(np.diag(covariance), 0.0)).tolist()
        noise: dict[str, float] = {}
        last_step = max(np.flatnonzero(w.steps[:-1]).tolist(), default=0)  # of the step before
        if w.c:
            h, c = np.diff(w.t[last_step:]), np.array(w.c[last_step:])[:, : len(self._model.noises)]
            noise = dict(zip(self._model.noises, (np.sqrt(h) @ c / h.sum()).tolist(), strict=True))
        newest_keys = {("state", len(w.t) - 1), *(("mode", k) for k in range(last_step, len(w.c)))}
        names_at_bound = [
            (self._model.noises if kind == "mode" else names)[j]
            for kind, k, j in self._held
            if (kind, k) in newest_keys
        ]
        states = dict(zip(names, w.x[-1].tolist(), strict=True))
        return OnlineEstimate(
            w.t[-1],
            states,
            dict(zip(names, deviations, strict=True)),
            covariance,
            noise,
            tuple(dict.fromkeys(names_at_bound)),
            iterations,
        )

    def __repr__(self) -> str:
        filled = max(sum(self._window.steps) - 1, 0)
        fill_note = (
            ""
            if filled >= self.horizon
            else f", {filled} of them filled so far; no measurement has left the horizon yet"
        )
        return one_line(f"MovingHorizon(horizon = {self.horizon}{fill_note}, {self.now or 'no step yet'})")


@interruptible
def moving_horizon(
    result: PathResult,
    horizon: int = 20,
    *,
    experiment: str | None = None,
    initial: Mapping[str, Normal | float] | None = None,
    start: float | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    iterations: int = 10,
) -> MovingHorizon:
    """Make an estimator of states that takes one measurement after the other, at a result's estimates.

    Parameters
    ----------
    result : PathResult
        Of a model with noises; parameters and sigmas stay at its estimates.
    horizon : int
        How many measurements are in the window: what is older is known by a normal density alone.
    experiment : str, optional
        Whose parameters, sigmas and initial states hold; by default the first one.
    initial : mapping from state to Normal or float, optional
        What is known of the states before the first step, where that is not what the experiment says.
    start : float, optional
        When the initial states hold; by default at the start of the experiment.
    bounds : mapping from state or noise to (lower, upper), optional
        What states at measurements, and the mean of a noise between two, must not leave; also at nodes between
        measurements and in each stage, if an interval is longer than the stages of the fit.
    iterations : int
        Of Newton's method in a step, at most; with 1 every step takes the same time (real-time iteration).

    Returns
    -------
    MovingHorizon
        Of which ``step(time, {"x": 0.41}, inputs={"u": 1.0})`` takes a measurement.

    Raises
    ------
    InputError
        Listing every mistake.

    Examples
    --------
    >>> import castfit as cf
    >>> x, w = cf.symbols("x w")
    >>> model = cf.Model({x: -x + 0.5 * w}, noises=[w])
    >>> experiment = cf.Experiment({"x": [0.4, 0.2]}, time=[1, 2], sigma=0.1, start=0, initial={"x": cf.Normal(1, 0.5)})
    >>> result = cf.fit(cf.Problem(model, experiment))
    >>> now = cf.moving_horizon(result, horizon=10, bounds={"x": (0.0, 5.0)})
    >>> now.step(0.5, {"x": 0.7})
    OnlineEstimate(time = 0.5: x = 0.6948 ± 0.097)
    """
    raise_if_mistakes("moving_horizon", _result_mistakes(result))
    problem, mistakes = result.owner("moving_horizon").posed, list[str]()
    model = problem.model
    if not result.success:
        mistakes.append(f"result is not a solution ({result.status.value}); pass a converged fit")
    counts = {"horizon": horizon, "iterations": iterations}
    mistakes += option_mistakes(
        *((n, v, is_count(v, 1), "expected an integer of at least 1") for n, v in counts.items())
    )
    experiment_names = [c.name for c in problem.conditions]
    experiment_name = experiment_names[0] if experiment is None else experiment
    if experiment_name not in experiment_names:
        mistakes.append(f"unknown experiment '{experiment_name}': {suggest(str(experiment_name), experiment_names)}")
    if any(c.schedule.instants for c in problem.conditions if c.name == experiment_name):
        mistakes.append(
            "events and estimated inputs are unsupported in moving-horizon estimation; pass another experiment"
        )
    limits: dict[str, tuple[float, float]] = {}
    for name, pair in read_mapping("bounds", bounds, mistakes).items():
        array = read_reals(pair)
        if name not in (*model.states, *model.noises):
            mistakes.append(f"bounds has the unknown name '{name}': {suggest(name, (*model.states, *model.noises))}")
        elif array is None or array.shape != (2,) or not array[0] < array[1]:
            mistakes.append(
                f"the bounds of '{name}' are {shorten_repr(pair)}; expected (lower, upper), infinite for no bound"
            )
        else:
            limits[name] = float(array[0]), float(array[1])
    initial_values = read_mapping("initial", initial, mistakes)
    for name, value in initial_values.items():
        if name not in model.states:
            mistakes.append(f"unknown state '{name}': {suggest(name, model.states)}")
        elif not (
            not value.mistakes() and value.on == "value"
            if isinstance(value, Normal)
            else is_within(value, strictly=True)
        ):
            mistakes.append(
                f"the initial value of '{name}' is {shorten_repr(value)}; expected Normal(mean, deviation) or a finite "
                "number"
            )
    start_time = None if start is None else read_real(start)
    if start is not None and (start_time is None or not np.isfinite(start_time)):
        mistakes.append(f"start is {shorten_repr(start)}; expected a finite time")
    raise_if_mistakes("moving_horizon", mistakes)
    estimator = MovingHorizon(result, experiment_name, int(horizon), limits, int(iterations))
    estimator.begin(initial_values, start_time)
    return estimator


def _result_mistakes(result: Any) -> list[str]:
    is_result = isinstance(result, PathResult)
    return [] if is_result else [f"result is {shorten_repr(result)}; pass the result of a model with process noise"]
