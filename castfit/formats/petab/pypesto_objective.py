"""`to_pypesto`: a problem's negative log likelihood as an objective of pyPESTO, so that only the engine changes.

x (n,)  are parameters on their scales, theta (n_theta,) what castfit searches, natural values stand between them:

    d f / d x_j = (d f / d theta_j) T_j,      T_j = (d natural / d x)_j / (d natural / d theta)_j

and Fisher's information is  T F T.  Residuals belong to normal errors, whose standard deviations s may be estimated:

    rho_i = (mu_i - m_i) / s_i,    sigma_i = sqrt(2 log s_i + C)

half of all squares is the negative log likelihood but for a constant (Raue et al. 2013, PLOS ONE 8, e74335, use
C = 50).  castfit's rows give their derivatives: row i of a prediction is  d mu_i / s_i,  that of a spread, once it is
weighted for Fisher's information,  sqrt(2) d log s_i.

Where scales and offsets b are eliminated (castfit.formats.petab.inner_problem), the gradient by the rest is that at
fixed b, and the information of the rest is the Schur complement of that of the entries of b that are not at a bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import casadi as ca
import numpy as np

from castfit._support.arguments import option_mistakes, read_sequence, shorten_repr
from castfit._support.arrays import Array, Index, Mask
from castfit._support.blas_threads import one_blas_thread
from castfit._support.pickling import Picklable
from castfit._support.status import InputError, collect_mistakes, raise_if_mistakes, suggest
from castfit.densities.noise.gaussian import Gaussian, LogNormal
from castfit.densities.noise.unknown import unknown
from castfit.experiment.events import event_symbols
from castfit.formats.optional import library
from castfit.formats.petab.inner_problem import LinearQuantities, linear_quantities
from castfit.formats.petab.likelihood import Objective
from castfit.formats.petab.loading import load_tables
from castfit.formats.petab.problem_tables import LIN, LOG, LOG10, ParameterRow
from castfit.formats.petab.reading import read_overview
from castfit.integrate import IntegratorOptions
from castfit.problem.parameters import Parameter
from castfit.problem.problem import Problem, kind_mistakes
from castfit.result.covariance import neg2loglik
from castfit.solve.staged import Evaluation
from castfit.transcribe.dense_single_shooting import DenseSingleShooting
from castfit.transcribe.observation import constant
from castfit.transcribe.transcribed_problem import sigma_limits

_LOG_SIGMA_OFFSET = 50.0  # added to 2 log s, so that its root exists down to s = 1e-10
_INTEGRATOR = IntegratorOptions(relative_tolerance=1e-8, compile="auto")  # as pyPESTO's users know it of AMICI
_FIXED_VALUE_RTOL = 1e-9  # relative difference up to which a fixed parameter counts as unchanged


@dataclass(frozen=True)
class ParameterAxes:
    """Layout of x: names, scales ("lin", "log", "log10"), bounds and guesses on these scales, fixed entries included.

    place : (n_theta,) the entry of x that each entry of theta is, -1 of what is eliminated
    fixed : entries of x that are not estimated
    """

    names: tuple[str, ...]
    scales: tuple[str, ...]
    lower: Array
    upper: Array
    guess: Array
    place: Index
    fixed: Index


@dataclass(frozen=True, eq=False)
class EliminatedParameters:
    """Quantities eliminated from x: all `names`, the bounds of eliminated `spreads`, and the `linear` quantities."""

    names: tuple[str, ...]
    spreads: Mapping[str, tuple[float, float]]
    linear: LinearQuantities


@dataclass(frozen=True, eq=False)
class ScaledLikelihood(Picklable):
    """The negative log likelihood of a problem over x; nothing in it needs pyPESTO."""

    problem: Problem
    axes: ParameterAxes
    integrator: IntegratorOptions
    eliminates: EliminatedParameters

    @cached_property
    def _objective(self) -> Objective:
        """Sensitivities follow the steps that the states need: a third less time for the same digits."""
        return self._integrated_by(replace(self.integrator, watch_sensitivities=False))

    @cached_property
    def _robust(self) -> Objective:
        """Fallback objective for failures of `_objective`: with step control of the sensitivities and other methods."""
        return self._integrated_by(self.integrator)

    def _integrated_by(self, integrator: IntegratorOptions) -> Objective:
        compiled_problem, spreads = self.problem.posed, self.eliminates.spreads
        if spreads:
            compiled_problem = replace(
                compiled_problem, group_bounds=tuple(spreads.get(n, (0.0, np.inf)) for n in compiled_problem.groups)
            )
        objective = Objective(compiled_problem, np.array(self.problem.guess), integrator)
        if self.eliminates.linear.entries:
            limits = sigma_limits(compiled_problem, objective.staged.layout, objective.staged.signal)
            objective.staged = objective.staged.with_projection(
                self.eliminates.linear.projection(compiled_problem, limits)
            )
        return objective

    @cached_property
    def _dense(self) -> DenseSingleShooting | None:
        """Evaluator that uses array operations only; None if the problem needs more."""
        return self._objective.staged.explicit().dense_evaluator

    @one_blas_thread
    def _dense_point(self, x: Array) -> tuple[DenseSingleShooting, Array, Array] | None:
        """Return the dense evaluator, theta with optimal eliminated entries, and T.

        Return None if it is missing or fails.
        """
        dense = self._dense
        if dense is None:
            return None
        with np.errstate(all="ignore"):
            theta, scale = self.theta(x)
            best = (
                dense.projected(theta, self._objective.staged.projection) if self.eliminates.linear.entries else theta
            )
        return None if best is None else (dense, best, scale)

    @cached_property
    def _free(self) -> Index:
        """The entries of theta that are not eliminated."""
        return np.flatnonzero(self.axes.place >= 0)

    @cached_property
    def _constant(self) -> float:
        compiled_problem, n_unknown = self._objective.posed, int(self._objective.staged.layout.group_sizes.sum())
        return 0.5 * float(neg2loglik(0.0, constant(compiled_problem), n_unknown=n_unknown))

    @property
    def squares(self) -> bool:
        """Check whether the objective has residuals: all errors are normal, and no quantity is eliminated."""
        observed = [observable for c in self.problem.conditions for observable in c.observed if observable is not None]
        normal = all(
            isinstance(observable.noise, (Gaussian, LogNormal)) and observable.noise.is_residual_noise
            for observable in observed
        )
        return normal and not self._objective.staged.layout.n_groups and not self.eliminates.linear.entries

    def theta(self, x: Array) -> tuple[Array, Array]:
        """Return theta and T, (n_theta,) each.

        Raises InputError: for an x of another length, or where a parameter that is fixed has another value.
        """
        axes = self.axes
        if x.shape != (len(axes.names),):
            raise InputError("petab.to_pypesto", [f"x has the shape {x.shape}; give ({len(axes.names)},): "
                                            f"{', '.join(axes.names)}"])  # fmt: skip
        fixed, guess = axes.fixed, axes.guess
        changed = fixed[np.abs(x[fixed] - guess[fixed]) > _FIXED_VALUE_RTOL * np.maximum(1.0, np.abs(guess[fixed]))]
        if changed.size:
            messages = [
                f"'{axes.names[j]}' is fixed at {guess[j]:g} and cannot be {x[j]:g}; load it as estimated"
                for j in changed
            ]
            raise InputError("petab.to_pypesto", messages)
        natural, slope = np.array(self.problem.to_natural(self.problem.guess)), np.ones(axes.place.size)
        natural[self._free], slope[self._free] = self._natural(x[axes.place[self._free]])
        theta = self.problem.to_search(natural)
        return theta, slope / self.problem.natural_slope(theta)

    def _natural(self, x: Array) -> tuple[Array, Array]:
        """Return the natural values of the free entries of x, and their derivatives with respect to x."""
        bases = {LIN: 0.0, LOG: 1.0, LOG10: float(np.log(10.0))}
        rate = np.array([bases[self.axes.scales[j]] for j in self.axes.place[self._free]])
        exponential = np.exp(rate * x)
        return np.where(rate == 0.0, x, exponential), np.where(rate == 0.0, 1.0, rate * exponential)

    def value(self, x: Array) -> float:
        """Return the negative log likelihood; infinite where the model cannot be integrated."""
        dense_point = self._dense_point(x)
        cost = None if dense_point is None else dense_point[0].cost(dense_point[1])
        if cost is not None:
            return cost + self._constant
        return self._evaluate(x).cost + self._constant

    def _evaluate(self, x: Array) -> Evaluation:
        """Evaluate at x, more robustly if that fails."""
        with np.errstate(all="ignore"):
            theta, _ = self.theta(x)
            evaluation = self._objective.staged.evaluate(self._objective.packed(theta))
            return evaluation if evaluation.ok else self._robust.staged.evaluate(self._robust.packed(theta))

    def derivatives(self, x: Array, *, order: int = 2) -> tuple[float, Array, Array]:
        """Return the value, its gradient (n,), and Fisher's information (n, n); infinity and NaN where they fail.

        order : 1 where the information does not matter, which is zero then
        """
        n = x.size
        value_and_gradient = self._lean_gradient(x) if order == 1 else None
        if value_and_gradient is not None:
            return *value_and_gradient, np.zeros((n, n))
        rows = self._rows(x, weighted=order > 1)
        if rows is None:
            return np.inf, np.full(n, np.nan), np.full((n, n), np.nan)
        gradient, information, free = np.zeros(n), np.zeros((n, n)), self._free
        place = self.axes.place[free]
        gradient[place] = rows.slopes[:, free].T @ rows.values
        if order > 1:
            full_information = rows.weighted.T @ rows.weighted
            information[np.ix_(place, place)] = _without(full_information, free, self._inside(rows))
        return rows.cost + self._constant, gradient, information

    @one_blas_thread
    def _lean_gradient(self, x: Array) -> tuple[float, Array] | None:
        """Return value and gradient where these need nothing but arrays; None where they do not, or fail."""
        dense_point = self._dense_point(x)
        dense_rows = None if dense_point is None else dense_point[0].rows(dense_point[1])
        if dense_point is None or dense_rows is None:
            return None
        with np.errstate(all="ignore"):
            gradient, free = np.zeros(x.size), self._free
            gradient[self.axes.place[free]] = ((dense_rows.u @ dense_rows.E) * dense_point[2])[free]
        return (dense_rows.cost + self._constant, gradient) if np.isfinite(gradient).all() else None

    def _inside(self, rows: _ResidualRows) -> Index:
        """Return the entries of theta that are eliminated and not at a bound."""
        entries = np.array(self.eliminates.linear.entries, dtype=np.intp)
        theta, (lower, upper) = rows.theta[entries], (bound[entries] for bound in self.problem.posed.bounds)
        return entries[(theta > lower) & (theta < upper)]

    def residuals(self, x: Array) -> tuple[Array, Array]:
        """Return residuals (n_r,) and their derivatives (n_r, n), where all errors are normal; NaN where they fail."""
        rows = self._rows(x)
        if rows is None:
            size = self._shape
            return np.full(size, np.nan), np.full((size, x.size), np.nan)
        r, by_mean = rows.values[rows.datum], rows.weighted[rows.datum]
        logs = rows.weighted[~rows.datum] / np.sqrt(2.0)  # d log s
        spreads = self._spreads(rows.objective, x)
        roots = np.sqrt(2.0 * np.log(spreads[rows.computed]) + _LOG_SIGMA_OFFSET)
        by_mean[rows.computed] -= r[rows.computed, None] * logs
        slopes = np.zeros((r.size + roots.size, x.size))
        slopes[:, self.axes.place] = np.concatenate([by_mean, logs / roots[:, None]])
        return np.concatenate([r, roots]), slopes

    @property
    def _shape(self) -> int:
        return sum(int(chain.row_mask.sum()) for chain in self._objective.staged.layout.chains)

    def eliminated(self, x: Array) -> dict[str, float]:
        """Return the optimal values of the eliminated quantities at x; NaN if the model cannot be integrated."""
        evaluation = self._evaluate(x)
        best = dict(zip(self.problem.posed.groups, np.asarray(evaluation.sigma).tolist(), strict=True))
        natural = self.problem.to_natural(evaluation.v)
        best |= {self.problem.names[j]: float(natural[j]) for j in self.eliminates.linear.entries}
        return {n: best[n] if evaluation.ok else float("nan") for n in self.eliminates.names}

    def _spreads(self, objective: Objective, x: Array) -> Array:
        """Return the spread of each value."""
        with np.errstate(all="ignore"):
            standardized_data = objective.staged.standardised(objective.packed(self.theta(x)[0]))
            return np.concatenate([spread for _, spread, _ in standardized_data])

    @one_blas_thread
    def _rows(self, x: Array, *, weighted: bool = True) -> _ResidualRows | None:
        """Return the rows at x, None where they cannot be computed."""
        with np.errstate(all="ignore"):
            theta, scale = self.theta(x)
            rows = self._rows_of(self._objective, theta, scale, weighted)
            return self._rows_of(self._robust, theta, scale, weighted) if rows is None else rows

    @staticmethod
    def _rows_of(objective: Objective, theta: Array, scale: Array, weigh: bool) -> _ResidualRows | None:
        staged = objective.staged
        linear = staged.linearize(objective.packed(theta))
        if not linear.ok:
            return None
        weights = linear.information() if weigh and linear.information is not None else None
        values, slopes, weighted = list[Array](), list[Array](), list[Array]()
        datum, computed = list[Mask](), list[Mask]()
        for i, (chain, chain_values, j) in enumerate(
            zip(staged.layout.chains, linear.values, linear.jacobians, strict=True)
        ):
            chain_slopes = np.zeros((*chain_values.r.shape, theta.size))
            chain_slopes[..., chain.theta] = j.R_q
            chain_slopes *= scale
            w = None if weights is None else weights[i]
            weighted_slopes = (
                chain_slopes if w is None else w[..., None] * chain_slopes if w.ndim == 2 else w @ chain_slopes
            )
            mask = chain.row_mask
            values.append(chain_values.r[mask])
            slopes.append(chain_slopes[mask])
            weighted.append(weighted_slopes[mask])
            datum.append(chain.datum_mask[mask])
            computed.append(chain.spread[mask & chain.datum_mask] >= 0)
        r, by_x, information_rows = (np.concatenate(part) for part in (values, slopes, weighted))
        if not (np.isfinite(r).all() and np.isfinite(by_x).all() and np.isfinite(information_rows).all()):
            return None
        return _ResidualRows(
            objective, linear.v, linear.cost, r, by_x, information_rows, np.concatenate(datum), np.concatenate(computed)
        )


@dataclass(frozen=True)
class _ResidualRows:
    """Rows (m,), their derivatives by entries of theta on the scales of x, and these weighted for information.

    objective : the objective that computed them
    theta : where, with eliminated quantities at their optimal values
    datum (m,) : which rows belong to values
    computed (n,) : which values have a standard deviation that is an expression
    """

    objective: Objective
    theta: Array
    cost: float
    values: Array
    slopes: Array
    weighted: Array
    datum: Mask
    computed: Mask


def _without(information: Array, retained: Index, eliminated: Index) -> Array:
    """Return the information of some quantities where others are eliminated: its Schur complement."""
    inner = information[np.ix_(eliminated, eliminated)]
    mixed = information[np.ix_(retained, eliminated)]
    return information[np.ix_(retained, retained)] - mixed @ np.linalg.pinv(inner, hermitian=True) @ mixed.T


def _on_scales(values: Sequence[float | None], scales: Sequence[str]) -> Array:
    """Return natural values on scales; NaN for one that is not given."""
    natural = np.array([np.nan if v is None else v for v in values])
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.log(natural)
    decades = log / np.log(10.0)
    return np.select([np.equal(scales, LOG), np.equal(scales, LOG10)], [log, decades], natural)


def to_pypesto(
    problem: Problem | str | Path,
    *,
    eliminate: bool | Sequence[str] = False,
    integrator: IntegratorOptions | None = None,
) -> Any:
    """Return a problem's negative log likelihood as an objective of pyPESTO: value, gradient, information, residuals.

    Parameters
    ----------
    problem : Problem, str or path
        The YAML file of a PEtab problem: x is all of its parameter table, in its order and on its scales, fixed ones
        too, as ``PetabImporter(...).create_problem(objective=...)`` wants it.  Or a problem of castfit: x is what it
        estimates, what it searches as a logarithm on the scale log10.
    eliminate : bool or sequence of str
        Whether parameters that data determine by themselves are left out of x (hierarchical optimization): all of
        them, or those that are named.  At every x they stand where they are best between their bounds.  These are
        standard deviations of normal errors that are parameters of nothing else, and scales and offsets: parameters in
        which all outputs that contain them are linear, or proportional to them where errors are those of a logarithm,
        and which nothing else contains.  A parameter with a prior is none.  Of products such as  scale * (x + offset)
        the first one is eliminated.  Standard deviations of `unknown` always are.
    integrator : IntegratorOptions, optional
        By default with a relative tolerance of 1e-8, and with the model compiled where there is a C compiler.

    Returns
    -------
    pypesto.objective.ObjectiveBase
        Without priors, which pyPESTO adds from PEtab's table.  Its second derivatives are Fisher's information.  It has
        residuals where all errors are normal and nothing is eliminated.  ``objective.create_problem()`` is a
        ``pypesto.Problem`` with bounds, names, scales and guess, and without priors; ``objective.eliminated(x)`` is
        what was left out of x, at its best, as in the ``inner_parameters`` of pyPESTO's results.  Where the model
        cannot be integrated, values are infinite.

    Raises
    ------
    InputError
        For mistakes in the files, what is no problem, names of what cannot be eliminated, each with the reason, and
        where pyPESTO is missing.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> objective = cf.petab.to_pypesto(problem)  # doctest: +SKIP
    >>> value, gradient = objective(objective.guess, sensi_orders=(0, 1))  # doctest: +SKIP
    """
    source: Any = problem
    options: Any = _INTEGRATOR if integrator is None else integrator
    mistakes: list[str] = []
    names: tuple[Any, ...] = () if isinstance(eliminate, bool) else tuple(read_sequence(eliminate) or ())
    is_selection = isinstance(eliminate, bool) or (bool(names) and all(isinstance(n, str) for n in names))
    mistakes += option_mistakes(
        ("eliminate", eliminate, is_selection, "choose True, False, or names of parameters"),
        ("integrator", integrator, isinstance(options, IntegratorOptions), "give IntegratorOptions(...)"),
    )
    if not isinstance(source, (str, Path, Problem)):
        mistakes.append(
            f"problem is {shorten_repr(problem)}; give a Problem, or the path of a PEtab problem's YAML file"
        )
    else:
        mistakes += (
            kind_mistakes(source)
            if isinstance(source, Problem)
            else collect_mistakes(lambda: read_overview(source, "problem"))
        )
    raise_if_mistakes("petab.to_pypesto", mistakes)
    base = library("pypesto.objective.base", "petab.to_pypesto").ObjectiveBase
    loaded = None if isinstance(source, Problem) else load_tables(source)
    full_problem: Any = source if loaded is None else loaded.problem
    raise_if_mistakes("petab.to_pypesto", kind_mistakes(full_problem))
    reduced, eliminates = _eliminated(full_problem, eliminate if isinstance(eliminate, bool) else names)
    table = () if loaded is None else tuple(r for r in loaded.tables.parameters if r.name not in eliminates.names)
    axes = _of_quantities(reduced, eliminates) if loaded is None else _of_table(reduced, table)
    return _kind(base)(ScaledLikelihood(reduced, axes, options, eliminates))


def _of_quantities(problem: Problem, eliminates: EliminatedParameters) -> ParameterAxes:
    indices = [j for j, n in enumerate(problem.names) if n not in eliminates.names]
    quantities = [problem.quantities[j] for j in indices]
    scales = tuple(LOG10 if q.scale == "log" else LIN for q in quantities)
    guess = problem.to_natural(problem.guess)[indices].tolist()
    lower, upper = [q.lower for q in quantities], [q.upper for q in quantities]
    lower, upper, guess = (_on_scales(values, scales) for values in (lower, upper, guess))
    place = np.full(len(problem.names), -1, dtype=np.intp)
    place[indices] = np.arange(len(indices))
    names = tuple(q.name for q in quantities)
    return ParameterAxes(names, scales, lower, upper, guess, place, np.empty(0, dtype=np.intp))


def _of_table(problem: Problem, rows: Sequence[ParameterRow]) -> ParameterAxes:
    names, scales = tuple(row.name for row in rows), tuple(row.scale for row in rows)
    guesses = dict(zip(problem.names, problem.to_natural(problem.guess).tolist(), strict=True))
    columns = ([row.lower for row in rows], [row.upper for row in rows], [guesses.get(r.name, r.nominal) for r in rows])
    lower, upper, guess = (_on_scales(values, scales) for values in columns)
    place = np.array([names.index(n) if n in names else -1 for n in problem.names], dtype=np.intp)
    fixed = np.array([k for k, row in enumerate(rows) if not row.estimated], dtype=np.intp)
    return ParameterAxes(names, scales, lower, upper, guess, place, fixed)


def _eliminated(problem: Problem, request: bool | tuple[str, ...]) -> tuple[Problem, EliminatedParameters]:
    """Return the problem without the eliminated standard deviations, and a description of the eliminated quantities.

    Raises InputError: for names of parameters that are not estimated or cannot be eliminated.
    """
    if request is False:
        return problem, EliminatedParameters((), {}, LinearQuantities((), (), {}))
    requested_names = problem.names if request is True else request
    unknown_names = [n for n in requested_names if n not in problem.names]
    messages = [f"'{n}' is not estimated: {suggest(n, problem.names)}" for n in unknown_names]
    raise_if_mistakes("petab.to_pypesto", messages)
    sigma_names = {_find_sigma_name(noise) for e in problem.experiments for noise in e.noise.values()}
    informed = {n for n, prior in zip(problem.names, problem.posed.informed_mask.tolist(), strict=True) if prior}
    free = ({n for n in sigma_names if n in problem.names} - _collect_used_names(problem) - informed) & {
        *requested_names
    }
    reduced = _without_spreads(problem, free)
    linear = linear_quantities(reduced.posed, [n for n in requested_names if n not in free])
    if request is not True:
        messages = [f"'{n}' cannot be eliminated: {reason}" for n, reason in linear.obstacles.items()]
        raise_if_mistakes("petab.to_pypesto", messages)
    bounds = {q.name: (q.lower, q.upper) for q in problem.quantities if q.name in free}
    names = {*free, *(reduced.names[j] for j in linear.entries)}
    return reduced, EliminatedParameters(tuple(n for n in problem.names if n in names), bounds, linear)


def _without_spreads(problem: Problem, free: set[str]) -> Problem:
    """Return the problem in which standard deviations that are parameters of nothing else are eliminated."""
    experiments = [
        e.with_changes(noise={n: _opened(noise, free) for n, noise in e.noise.items()}) for e in problem.experiments
    ]
    model_names = {*problem.original_model.parameters}
    parameters = {
        n: _fix_parameter(p) if n in free else p
        for n, p in problem.parameters.items()
        if n not in free or n in model_names
    }
    return problem.replace(experiments=experiments, parameters=parameters) if free else problem


def _fix_parameter(parameter: Any) -> Any:
    return Parameter(parameter.value, fixed=True)


def _find_sigma_name(noise: Any) -> str:
    """Return the name of a standard deviation that is a parameter, empty where it is anything else."""
    sigma = noise.sigma
    normal = isinstance(noise, (Gaussian, LogNormal)) and noise.is_residual_noise
    return sigma.name() if normal and isinstance(sigma, ca.SX) and sigma.is_symbolic() else ""


def _opened(noise: Any, names: set[str]) -> Any:
    return replace(noise, sigma=unknown(_find_sigma_name(noise))) if _find_sigma_name(noise) in names else noise


def _collect_used_names(problem: Problem) -> set[str]:
    """Return the names in equations, outputs, experiments, and in standard deviations that are more than a name."""
    model = problem.original_model
    graphs: list[Any] = [model.system.ode, model.system.alg, *model.outputs.values(), *model.initial.values()]
    for e in problem.experiments:
        graphs += [*e.parameters.values(), *e.initial.values()]
        preequilibration = e
        while preequilibration.steady is not None:
            preequilibration = preequilibration.before
            graphs += [*preequilibration.parameters.values(), *preequilibration.initial.values()]
        graphs += [noise.sigma for noise in e.noise.values() if not _find_sigma_name(noise)]
    names = {s.name() for g in graphs if isinstance(g, ca.SX) for s in ca.symvar(g)}
    return names.union(*(event_symbols(e.events) for e in problem.experiments))


@dataclass(frozen=True)
class _InnerNames:
    """Stand-in for the `calculator` that pyPESTO's `HierarchicalProblem` queries: parameters eliminated from x."""

    problem: Problem
    eliminates: EliminatedParameters
    semiquant_observable_ids: None = None
    relative_observable_ids: None = None

    def get_interpretable_inner_par_ids(self) -> list[str]:
        """Return their names."""
        return list(self.eliminates.names)

    def get_interpretable_inner_par_bounds(self) -> tuple[Array, Array]:
        """Return their natural bounds."""
        linear = {self.problem.names[j]: self.problem.quantities[j] for j in self.eliminates.linear.entries}
        bounds = {**self.eliminates.spreads, **{n: (q.lower, q.upper) for n, q in linear.items()}}
        lower, upper = np.array([bounds[n] for n in self.eliminates.names], dtype=float).T
        return lower, upper

    def get_interpretable_inner_par_scales(self) -> list[str]:
        """Return the scales of their values."""
        return [LIN] * len(self.eliminates.names)


@cache
def _kind(base: Any) -> Any:
    """Return the class of objectives, whose base is pyPESTO's."""

    class CastfitObjective(base):
        """A negative log likelihood that castfit computes; see `castfit.petab.to_pypesto`."""

        def __init__(self, likelihood: ScaledLikelihood) -> None:
            base.__init__(self, x_names=list(likelihood.axes.names))
            self.likelihood = likelihood

        def call_unprocessed(
            self, x: Array, sensi_orders: tuple[int, ...], mode: str, return_dict: bool, **_: Any
        ) -> dict[str, Any]:
            """Return the requested values and derivatives under pyPESTO's names."""
            if mode == "mode_res":
                results = dict(zip(("res", "sres"), self.likelihood.residuals(x), strict=True))
                return {name: results[name] for order, name in enumerate(results) if order in sensi_orders}
            out: dict[str, Any] = {}
            if max(sensi_orders, default=0) == 0:
                out = {"fval": self.likelihood.value(x)} if sensi_orders else {}
            else:
                order = max(sensi_orders)
                results = dict(zip(("fval", "grad", "hess"), self.likelihood.derivatives(x, order=order), strict=True))
                out = {name: results[name] for order, name in enumerate(results) if order in sensi_orders}
            if return_dict and self.likelihood.eliminates.names:
                out["inner_parameters"] = np.array([*self.likelihood.eliminated(x).values()])
            return out

        def check_mode(self, mode: str) -> bool:
            """Check whether a mode is available: values ("mode_fun"), or residuals ("mode_res")."""
            return mode == "mode_fun" or (mode == "mode_res" and self.likelihood.squares)

        def check_sensi_orders(self, sensi_orders: tuple[int, ...], mode: str) -> bool:
            """Check whether derivatives of these orders are available."""
            max_order = 2 if mode == "mode_fun" else 1
            return self.check_mode(mode) and max(sensi_orders, default=0) <= max_order

        @property
        def calculator(self) -> _InnerNames:
            """The object that a hierarchical problem of pyPESTO queries for the inner parameters."""
            return _InnerNames(self.likelihood.problem, self.likelihood.eliminates)

        @property
        def guess(self) -> Array:
            """Start point of a search, all of x (n,); for a PEtab problem, the nominal values."""
            return self.likelihood.axes.guess.copy()

        def eliminated(self, x: Array) -> dict[str, float]:
            """Return the optimal values of the quantities eliminated from x."""
            return self.likelihood.eliminated(
                np.asarray(self.pre_post_processor.preprocess(x=np.array(x)), dtype=float)
            )

        def create_problem(self, **options: Any) -> Any:
            """Return a `pypesto.Problem` with this objective; options are arguments of its constructor.

            It is a `HierarchicalProblem` where anything is eliminated: results then hold it as `inner_parameters`.
            """
            axes, fixed = self.likelihood.axes, self.likelihood.axes.fixed
            arguments = {
                "x_names": list(axes.names),
                "x_scales": list(axes.scales),
                "x_guesses": np.delete(axes.guess, fixed)[None],
                "x_fixed_indices": fixed.tolist(),
                "x_fixed_vals": axes.guess[fixed].tolist(),
            }
            arguments |= {"objective": self, "lb": axes.lower, "ub": axes.upper}
            if self.likelihood.eliminates.names:
                return library("pypesto.problem", "petab.to_pypesto").HierarchicalProblem(**{**arguments, **options})
            return library("pypesto", "petab.to_pypesto").Problem(**{**arguments, **options})

        def __deepcopy__(self, memo: Mapping[int, Any] | None = None) -> Any:
            return _revived(self.likelihood, deepcopy(self.pre_post_processor))

        def __reduce__(self) -> Any:
            return _revived, (self.likelihood, self.pre_post_processor)

    return CastfitObjective


def _revived(likelihood: ScaledLikelihood, processor: Any) -> Any:
    objective = _kind(library("pypesto.objective.base", "petab.to_pypesto").ObjectiveBase)(likelihood)
    objective.pre_post_processor = processor
    return objective
