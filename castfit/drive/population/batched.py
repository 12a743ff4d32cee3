"""Data costs of individuals of the same structure: blocks of them are integrated together as lanes.

Individuals are alike whose equations are linked to own and shared parameters in the same way and whose outputs have
the same noise models; numbers (doses, covariates, data, standard deviations, starts) may differ.  Their times may
differ, too, where the integrator has output at any time: then some of them share a grid that holds the times of all.
Otherwise times are the same relative to the horizon.  A block of them is a batch of arrays from the link to the rows:

    phi, s -> natural values -> p, a (link) -> states and sensitivities (integrator) -> rows and derivatives

No individual is handled by itself, and memory is that of a block.

Notation
--------
L   individuals of a block;  M  their points;  n_d  own and shared parameters, the directions
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.silence import captured
from castfit._support.time_limit import Stopped
from castfit.drive.population.likelihoods import Curved
from castfit.integrate import STEPPED, IntegratorOptions, Lanes, Sensitivities, Trajectories
from castfit.integrate.integrator import integrator_of
from castfit.problem.fingerprint import digest
from castfit.problem.parameter_map import MappedExpressions, natural_value
from castfit.transcribe.experiment_trajectories import mean_magnitude
from castfit.transcribe.observation import Measured, Observer, Slot, constant
from castfit.transcribe.segments import Segments, cut
from castfit.transcribe.stage_division import divide
from castfit.transcribe.trajectory import still_trajectory

if TYPE_CHECKING:
    import casadi as ca

    from castfit._support.arrays import Array, Index
    from castfit.drive.population.compiled import Question
    from castfit.problem.compiled_experiments import Condition


_BLOCK = 256  # individuals that are integrated in one call
_OUTPUTS = 200  # times of a grid that individuals share who were measured at different ones
_SETTLING = 2  # simulations by which the magnitudes of states are found


@dataclass(frozen=True, eq=False)
class _Computed:
    """Rows of the link that are expressions: of arguments that are entries of natural values, or numbers.

    rows (k,) of y;  first: arguments -> (values, Jacobian);  known: positions of arguments that are natural values, and
    which ones;  numbers (L, n_arguments)
    """

    rows: Index
    first: ca.Function
    known: tuple[Index, Index]
    numbers: Array

    def values(self, lanes: Index, natural: Array) -> tuple[Array, Array]:
        """Return the values (L, k) and their derivatives by natural values (L, k, n_d)."""
        arguments = self.numbers[lanes]
        at, source = self.known
        arguments[:, at] = natural[:, source]
        values, slopes = self.first(arguments.T)
        by = np.zeros((lanes.size, self.rows.size, natural.shape[1]))
        whole = slopes.full().reshape(self.rows.size, lanes.size, -1).transpose(1, 0, 2)
        by[:, :, source] = whole[:, :, at]
        return values.full().T, by


@dataclass(frozen=True, eq=False)
class _Alike:
    """Individuals that are alike.

    who (n,) which ones;  grid (m,) relative output times, at (n, M) where points lie on it;  start, duration (n,);
    times (n, M), the last one repeated where there are fewer;  base (n, n_y) rows of the link that are numbers, of
    those that are natural values `rows` and `source`;  u (n, m, n_u, 4) inputs, and at points (n, M, n_u);
    z0 (n, n_z);  unit (n, n_x + n_z)

    flow: which parameters move states, by default all
    """

    who: Index
    grid: Array
    at: Index
    start: Array
    duration: Array
    times: Array
    base: Array
    rows: Index
    source: Index
    computed: tuple[_Computed, ...]
    u: Array
    inputs: Array
    z0: Array
    unit: Array
    measured: Measured
    constant: Array
    flow: Index | None

    def points(self, lanes: Index) -> tuple[Index, Index]:
        """Return the lane and output indices of the points of these lanes in the integrated result."""
        return np.arange(lanes.size, dtype=np.intp)[:, None], self.at[lanes]


class BatchedCohort:
    """The cohort of a question of which every experiment is `suitable`, by blocks of individuals that are alike.

    `laid` is what `laid_out` returns for these among more individuals, so that fewer are integrated in the same way.
    """

    def __init__(
        self,
        question: Question,
        integrator: IntegratorOptions,
        laid: tuple[Sequence[Array], Sequence[Array]] | None = None,
    ) -> None:
        self._question, self._options = question, integrator
        self._model, posed = question.problem.model, question.problem
        self._n_x, self._n_z = posed.model.system.x.numel(), posed.model.system.z.numel()
        self._n_p = posed.model.system.p.numel()
        self._log = np.concatenate([question.lognormal, posed.log[question.shared]])
        self._observer = Observer(posed, state_bounds=False)
        self._known: dict[tuple[int, int], tuple[str, Trajectories, Sensitivities]] = {}
        place = question.directions
        pieces = _pieces(question)
        if laid is None:
            units = still_trajectory(posed, posed.guess).units
        else:
            grids, units = laid
            pieces = [replace(p, pieces=(replace(p.pieces[0], grid=g),)) for p, g in zip(pieces, grids, strict=True)]
        sets: dict[tuple[object, ...], list[int]] = {}
        for i, (c, piece) in enumerate(zip(posed.conditions, pieces, strict=True)):
            free = integrator.method in STEPPED and not piece.pieces[0].cubics[..., 1:].any()
            sets.setdefault(_kind(c, piece, place[c.theta], exact=not free), []).append(i)
        batches = [batch for members in sets.values() for batch in _batches(members, pieces)]
        self._alike = tuple(self._gathered(members, pieces, units, place) for members in batches)
        self._group = np.empty(question.n, dtype=np.intp)
        self._lane = np.empty(question.n, dtype=np.intp)
        for k, alike in enumerate(self._alike):
            self._group[alike.who], self._lane[alike.who] = k, np.arange(alike.who.size)
        with suppress(Stopped):  # no time to simulate: whoever asks for costs will notice
            self._settle()

    def _gathered(
        self, members: Sequence[int], pieces: Sequence[Segments], units: Sequence[Array], place: Index
    ) -> _Alike:
        posed = self._question.problem
        conditions, own = [posed.conditions[i] for i in members], [pieces[i] for i in members]
        first, link = own[0], conditions[0].link
        entries = np.flatnonzero(link.of >= 0)
        to = place[conditions[0].theta]
        computed: list[_Computed] = []
        for every in zip(*(_expressions(c) for c in conditions), strict=True):
            part, numbers = every[0], np.array([of.numbers for of in every])
            known = np.flatnonzero(part.source >= 0)
            computed.append(_Computed(part.rows, part.first, (known, to[part.source[known]]), numbers))
        start = np.array([p.division.edges[0] for p in own])
        grid = np.unique(np.concatenate([p.pieces[0].grid for p in own]))
        longest = max(p.pieces[0].at.size for p in own)
        at = [np.searchsorted(grid, p.pieces[0].grid)[p.pieces[0].at] for p in own]
        still = first.pieces[0].cubics.shape[0] != grid.size or len({p.pieces[0].cubics.shape for p in own}) > 1
        u = [np.repeat(p.pieces[0].cubics[-1:], grid.size, axis=0) if still else p.pieces[0].cubics for p in own]
        return _Alike(
            who=np.array(members, dtype=np.intp),
            grid=grid,
            at=np.array([_filled(a, longest) for a in at]),
            start=start,
            duration=np.array([p.division.edges[-1] for p in own]) - start,
            times=np.array([_filled(p.staging.times[0], longest) for p in own]),
            base=np.array([c.link.base for c in conditions]),
            rows=link.of[entries],
            source=to[entries],
            computed=tuple(computed),
            u=np.array(u),
            inputs=np.array([_filled(p.inputs[0], longest) for p in own]),
            z0=np.array([c.z_guess for c in conditions]),
            unit=np.array([units[i] for i in members]),
            measured=_stacked([p.measured for p in own]),
            constant=np.array([constant(replace(posed, conditions=(c,))) for c in conditions]),
            flow=None if link.flow is None else np.flatnonzero(link.flow),
        )

    def _settle(self) -> None:
        """Take the magnitudes of states from simulations at the guess."""
        question = self._question
        phi = question.problem.guess[question.places]
        s = question.problem.guess[question.shared]
        for _ in range(_SETTLING):
            for alike in self._alike:
                for lanes in _blocks(np.arange(alike.who.size)):
                    found, _ = self._simulated(alike, lanes, phi, s)
                    every = np.concatenate([found.x, found.z], axis=2)
                    size = np.array([mean_magnitude(table) for table in every])
                    alike.unit[lanes] = np.where(size > 0.0, size, alike.unit[lanes])

    def curved(self, phi: Array, s: Array, who: Index) -> Curved:
        """Return costs, gradients and curvatures."""
        out = Curved.blank(who.size, self._question.m + s.size)
        with captured():
            for k, alike in enumerate(self._alike):
                for places in _blocks(np.flatnonzero(self._group[who] == k)):
                    out.put(places, self._block(alike, self._lane[who[places]], phi[places], s))
        return out

    def seen(self, phi: Array, s: Array) -> tuple[Array, Array, Array]:
        """Return predictions, spreads and normalised residuals of everybody's values."""
        parts: dict[int, Array] = {}
        for alike in self._alike:
            for lanes in _blocks(np.arange(alike.who.size)):
                found, given = self._simulated(alike, lanes, phi, s)
                measured = alike.measured.of_stages(lanes)
                p, at = np.repeat(given.p[:, None], alike.at.shape[1], axis=1), alike.points(lanes)
                observed = self._observer.values(
                    measured, alike.times[lanes], found.x[at], found.z[at], p, alike.inputs[lanes]
                )
                of_values = measured.standardised(observed.g)
                for k, i in enumerate(alike.who[lanes].tolist()):
                    mask = measured.values_mask[k]
                    parts[i] = np.array([column[k][mask] for column in of_values])
        every = np.concatenate([parts[i] for i in range(self._question.n)], axis=1)
        return every[0], every[1], every[2]

    def _simulated(self, alike: _Alike, lanes: Index, phi: Array, s: Array) -> tuple[Trajectories, Lanes]:
        """Return the states of some at everybody's phi (n, m)."""
        y, _ = self._linked(alike, lanes, self._natural(phi[alike.who[lanes]], s))
        given = self._lanes(alike, lanes, y)
        with captured():
            return integrator_of(self._model, alike.grid, self._options).values(given), given

    def _natural(self, phi: Array, s: Array) -> Array:
        """Return natural values of own and shared parameters, (L, n_d)."""
        theta = np.concatenate([phi, np.repeat(s[None], phi.shape[0], axis=0)], axis=1)
        return natural_value(theta, self._log)

    def _linked(self, alike: _Alike, lanes: Index, natural: Array) -> tuple[Array, Array]:
        """Return the rows y (L, n_y) of the link, and their derivatives in search scale (L, n_y, n_d)."""
        slope = np.where(self._log, natural, 1.0)
        y = alike.base[lanes]
        dy = np.zeros((*y.shape, natural.shape[1]))
        y[:, alike.rows] = natural[:, alike.source]
        dy[:, alike.rows, alike.source] = slope[:, alike.source]
        for part in alike.computed:
            y[:, part.rows], by_natural = part.values(lanes, natural)
            dy[:, part.rows] = by_natural * slope[:, None]
        return y, dy

    def _lanes(self, alike: _Alike, lanes: Index, y: Array) -> Lanes:
        return Lanes(
            alike.start[lanes],
            alike.duration[lanes],
            y[:, self._n_p : self._n_p + self._n_x],
            y[:, : self._n_p],
            alike.u[lanes],
            alike.z0[lanes],
            alike.unit[lanes],
        )

    def _trajectories(
        self, alike: _Alike, lanes: Index, given: Lanes, dx0: Array, dp: Array
    ) -> tuple[Index, Trajectories, Sensitivities]:
        """Return the directions that move states, and states and sensitivities; the last ones are remembered.

        So parameters of the noise alone cost no integration.
        """
        flow = slice(None) if alike.flow is None else alike.flow
        sizes = (np.abs(d).max(axis=(0, 1), initial=0.0) for d in (dx0, dp[:, flow]))
        moving = np.flatnonzero(sum(sizes))
        place = id(alike), int(lanes[0])
        key = digest(lanes, given.x0, given.p[:, flow], dx0[:, :, moving], dp[:, flow][:, :, moving])
        known = self._known.get(place)
        if known is not None and known[0] == key:
            return moving, *known[1:]
        integrator = integrator_of(self._model, alike.grid, self._options)
        found, slopes = integrator.differentiated(given, dx0[:, :, moving], dp[:, :, moving])
        if lanes[0] % _BLOCK == 0:  # a block of all individuals, or begins like one
            self._known[place] = key, found, slopes
        return moving, found, slopes

    def _block(self, alike: _Alike, lanes: Index, phi: Array, s: Array) -> Curved:
        """Return costs, gradients and curvatures of a block."""
        count = lanes.size
        # Functions of points are kept for every number of points: few of these are to occur.
        filled = np.minimum(np.arange(1 << (count - 1).bit_length()), count - 1)
        lanes, natural = lanes[filled], self._natural(phi[filled], s)
        with np.errstate(all="ignore"):
            y, dy = self._linked(alike, lanes, natural)
            needed = np.concatenate([alike.rows, *(part.rows for part in alike.computed)])
            good = np.isfinite(y[:, needed]).all(axis=1) & np.isfinite(dy[:, needed]).all(axis=(1, 2))
            why = {int(k): "a parameter or initial state cannot be computed" for k in np.flatnonzero(~good)}
            y[~good], dy[~good] = alike.base[lanes][~good], 0.0
            given = self._lanes(alike, lanes, y)
            n_p, n_x = self._n_p, self._n_x
            dx0, dp = dy[:, n_p : n_p + n_x], dy[:, :n_p]
            moving, found, slopes = self._trajectories(alike, lanes, given, dx0, dp)
            why |= {f.lane: f.detail for f in (*slopes.failures, *found.failures)}
            p, at = np.repeat(given.p[:, None], alike.at.shape[1], axis=1), alike.points(lanes)
            measured, times, inputs = alike.measured.of_stages(lanes), alike.times[lanes], alike.inputs[lanes]
            x, z = found.x[at], found.z[at]
            seen = self._observer.values(measured, times, x, z, p, inputs)
            by = self._observer.jacobians(measured, times, x, z, p, inputs)
            rows = by.r_p @ dp[:, None]
            rows[..., moving] += by.r_x @ slopes.dx[at] + by.r_z @ slopes.dz[at]
            rows = rows.reshape(filled.size, -1, natural.shape[1])
            cost = 0.5 * (seen.r**2).sum(axis=1) + measured.excess(seen.g) + alike.constant[lanes]
            gradient = np.einsum("kr,krq->kq", seen.r, rows)
            if measured.reweighted:
                w = measured.information(seen.g)
                rows = w[..., None] * rows if w.ndim == 2 else w @ rows
            curvature = rows.transpose(0, 2, 1) @ rows
        bad = ~(np.isfinite(cost) & np.isfinite(gradient).all(axis=1) & np.isfinite(curvature).all(axis=(1, 2)))
        bad[list(why)] = True
        cost[bad], gradient[bad], curvature[bad] = np.inf, np.nan, np.nan
        for k in sorted({*np.flatnonzero(bad).tolist()} - why.keys()):
            why[k] = "a prediction is not finite"
            for stage, point, row in np.argwhere(~np.isfinite(measured.rows(seen.g)[0])).tolist():
                said = measured.unspread(seen.g, stage, point, row) if stage == k else ""
                why[k] = f"at t = {times[stage, point]:g} {said}" if said else why[k]
        return Curved(cost, why, gradient, curvature).of(np.arange(count))


def laid_out(question: Question) -> tuple[Sequence[Array], Sequence[Array]]:
    """Return everybody's relative output times, and magnitudes of states before simulations."""
    posed = question.problem
    return [p.pieces[0].grid for p in _pieces(question)], still_trajectory(posed, posed.guess).units


def _pieces(question: Question) -> list[Segments]:
    posed = question.problem
    ends = [np.array([c.start, c.end]) for c in posed.conditions]
    whole = [divide(c, edges, np.empty(0)) for c, edges in zip(posed.conditions, ends, strict=True)]
    return [cut(posed, i, division, nodes=False) for i, division in enumerate(whole)]


def suitable(condition: Condition) -> bool:
    """Whether an individual may stand in a block: nothing happens on the way, and no link is solved for."""
    return (
        not condition.schedule.instants
        and not condition.settled
        and condition.breakpoints.size == 0
        and condition.watched.size == 0
        and all(isinstance(part, MappedExpressions) for part in condition.link.parts)
    )


def _expressions(condition: Condition) -> list[MappedExpressions]:
    return [part for part in condition.link.parts if isinstance(part, MappedExpressions)]


def _batches(members: Sequence[int], pieces: Sequence[Segments]) -> list[list[int]]:
    """Divide individuals into those that share a grid, which is to have no more than so many times."""
    out: list[list[int]] = []
    known: set[float] = set()
    for i in members:
        own = {*pieces[i].pieces[0].grid.tolist()}
        if not out or (len(known | own) > _OUTPUTS and not own <= known):
            out.append([])
            known = set()
        out[-1].append(i)
        known |= own
    return out


def _filled(values: Array | Index, size: int) -> Any:
    """Repeat the last entry (n, ...) up to a size."""
    return np.concatenate([values, np.repeat(values[-1:], size - values.shape[0], axis=0)])


def _kind(condition: Condition, pieces: Segments, entries: Index, *, exact: bool) -> tuple[object, ...]:
    """Return a key that is equal for individuals of the same structure; if `exact`, also of the same times."""
    link, piece = condition.link, pieces.pieces[0]
    parts = [
        (id(part.first), tuple(part.rows.tolist()), tuple(np.append(entries, -1)[part.source].tolist()))
        for part in _expressions(condition)
    ]
    observed = [None if o is None else (id(o.noise), o.predicted, o.computed) for o in condition.observed]
    return (
        (*piece.grid.tolist(), *piece.at.tolist()) if exact else (),
        tuple(entries.tolist()),
        tuple(link.of.tolist()),
        tuple(parts),
        tuple(observed),
        pieces.measured.names,
    )


def _stacked(every: Sequence[Measured]) -> Measured:
    """Return the measurements of individuals that are alike, each as a stage."""
    first, slots = every[0], list[Slot]()
    for k, slot in enumerate(first.slots):
        own = [of.slots[k] for of in every]
        slots.append(
            replace(
                slot,
                stage=np.repeat(np.arange(len(every), dtype=np.intp), [of.stage.size for of in own]),
                point=np.concatenate([of.point for of in own]),
                spread=np.concatenate([of.spread for of in own]),
                datum=np.concatenate([of.datum for of in own]),
                size=np.concatenate([of.size for of in own]),
            )
        )
    points = max(of.target.shape[1] for of in every)
    shape = (len(every), points, first.target.shape[2])
    target, weight = np.zeros(shape), np.zeros(shape)
    for k, of in enumerate(every):
        target[k, : of.target.shape[1]], weight[k, : of.weight.shape[1]] = of.target[0], of.weight[0]
    return replace(first, target=target, weight=weight, slots=tuple(slots))


def _blocks(places: Index) -> list[Index]:
    """Divide places (n,) into blocks."""
    return [places[k : k + _BLOCK] for k in range(0, places.size, _BLOCK)]
