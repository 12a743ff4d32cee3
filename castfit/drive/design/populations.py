"""Designs of populations: groups of subjects with individual parameters, and the measurement schedules of subjects.

A subject of a group with the covariates z has own parameters  phi = mu(y, z) + eta,  eta ~ N(0, Omega(y)), see
`castfit.drive.population`.  Linear in eta (first order), its values are normal with the covariance

    V = L Omega L' + Sigma,    L = df / dphi,  J = L dmu / dy + df / ds,  Sigma the noise's

and, where the dependence of V on what moves the mean is left out (the "reduced" form), a subject brings

    F = J' V^-1 J + B,    B_ab = tr(V^-1 V_a V^-1 V_b) / 2,  a, b among Omega and the noise

(Mentre, Mallet and Baccar 1997; Retout and Mentre 2003).  Its square root stands for the rows of a purchase, so that
the mix of schedules is a convex problem with the certificate of all others.  Which schedules there are is found by
generating them: the relaxed design of those that are known has a tangent, tr(G F), and exchanges of one time for
another look for schedules that are worth more than their price under it (Fedorov 1972; Wynn 1970), until none is found.

Notation
--------
n, q     times and outputs of a schedule;  K = n q of its values
m, n_u   own parameters; everything on the upper level, in relative changes u, as it is reported:  dy = T du
P        schedules;  rows (..., 2, m + n_u) of values: (L, J) / s and (0, s') / s
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations_with_replacement
from math import comb
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.interpolate import CubicSpline

from castfit._support.arguments import text
from castfit._support.reprs import listed
from castfit._support.status import InputError, check, suggest
from castfit.densities.noise.gaussian import Gaussian, LogNormal
from castfit.drive.design.candidate import with_fields
from castfit.drive.design.exact import Positions
from castfit.drive.design.interior_point import Offers, relaxed
from castfit.drive.design.knowledge import WEAK, Knowledge, PredictedValues, extended_by, tight
from castfit.drive.design.simple_schedules import EQUIDISTANT, PRESENT, RATIOS, simple_places
from castfit.drive.design.times_between import FEWEST, moved
from castfit.drive.population.compiled import ask
from castfit.drive.population.result import MixedEffectsResult
from castfit.drive.population.spec import Population
from castfit.problem.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from castfit._support.arrays import Array, Index
    from castfit.drive.design.candidate import Candidate
    from castfit.drive.design.interior_point import DesignGoal, RelaxedDesign
    from castfit.drive.design.purchases import Purchases
    from castfit.drive.population.compiled import Question
    from castfit.experiment.experiment import Experiment
    from castfit.integrate import IntegratorOptions
    from castfit.problem.compiled_experiments import Condition
    from castfit.problem.parameters import Parameter

_EVERY = 2000  # schedules of a group: up to so many, all of them are compared
_FIRST = 12  # schedules of a group by chance, with which a search begins
_WILD = 3  # in each round
_ROUNDS = 40
_USED = 1e-3  # of the largest weight
_WORTH = 1e-6  # relative, by which a schedule must exceed its price to count
_BLOCK = 2**22  # numbers of a batch


@dataclass(frozen=True, eq=False)
class PopulationKnowledge(Knowledge):
    """Prior information of a population, and the information of subjects of groups.

    question : with an experiment for each group;  y (n_y,) : the point, `estimate`
    M0 (n_u, n_u) : what a fit or priors tell;  group (N,) : which group's candidate each of `candidates` is
    integrator : that of the fit, if there is one
    simplest : simple schedules by name, of each group the place among `candidates`
    compared : how many schedules a tangent has compared, and whether these are all that there are
    """

    question: Question = field(kw_only=True)
    M0: Array = field(kw_only=True)
    group: tuple[int, ...] = field(kw_only=True)
    groups: tuple[Candidate, ...] = field(kw_only=True)
    integrator: IntegratorOptions | None = None
    simplest: Mapping[str, list[int]] = field(default_factory=dict[str, "list[int]"])
    compared: int = 0
    all_compared: bool = False

    @property
    def subjects(self) -> bool:
        """Whether purchases are subjects of a population; True here."""
        return True

    @property
    def quantities(self) -> tuple[str, ...]:
        """Everything on the upper level."""
        return self.names

    @cached_property
    def absolute(self) -> frozenset[str]:
        """Names of correlations and of quantities that are 0, whose standard deviations are absolute."""
        values = self.question.natural(self.estimate)
        apart = np.arange(len(self.names)) >= len(self.question.upper) + self.question.m
        return frozenset(n for n, v, own in zip(self.names, values, apart, strict=True) if own or v == 0.0)

    @cached_property
    def turn(self) -> Array:
        """T (n_y, n_u)."""
        values = self.question.natural(self.estimate)
        unit = np.array([1.0 if n in self.absolute else abs(v) for n, v in zip(self.names, values, strict=True)])
        return np.asarray(np.linalg.inv(self.question.natural_slopes(self.estimate)) * unit, dtype=float)

    @cached_property
    def spread(self) -> tuple[Array, Array]:
        """Omega (m, m), and its derivatives by u (m, m, n_u)."""
        covariance, x = self.question.covariance, self.estimate[self.question.of_omega]
        return covariance.matrix(x), covariance.slopes(x) @ self.turn[self.question.of_omega]

    @cached_property
    def _typical(self) -> tuple[Array, Array, Array]:
        """Theta at typical values, and how own (n, m, n_u) and shared (n_s, n_u) parameters move with u."""
        question, y = self.question, self.estimate
        mu, slopes = question.means(y)
        theta = question.theta(mu, y[question.of_shared])
        return theta, slopes @ self.turn, question.shared_slopes @ self.turn

    def theta(self, sample: int | None = None) -> Array:
        """Return theta of all experiments at typical values."""
        return self._typical[0]

    def known(self, sample: int = 0) -> Array:
        """Return the information that a fit or priors give."""
        return self.M0 + WEAK * np.eye(len(self.names))

    def condition(self, k: int) -> Condition:
        """Return the group's experiment, worked out."""
        return self.extended.conditions[self._place(k)]

    def experiment(self, k: int) -> Experiment:
        """Return the group's experiment as it was said."""
        return self._said.experiments[self._place(k)]

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """Parameters as they were said."""
        return self._said.parameters

    @property
    def _said(self) -> Problem:
        assert self.question.said is not None
        return self.question.said[0]

    def _place(self, k: int) -> int:
        return len(self.extended.conditions) - len(self.groups) + self.group[k]

    def population(self, new: Mapping[str, int], names: Sequence[str]) -> Population:
        """Return the population specification with covariates of all experiments.

        New ones take those of their candidates.
        """
        assert self.question.said is not None
        said = self.question.said[1]
        like = {name: self.experiment(new[name]).name if name in new else name for name in names}
        known = {n: {name: float(of[like[name]]) for name in names} for n, of in said.covariates.items()}
        return Population(said.individual, correlated=said.correlated, parameters=said.parameters, covariates=known)

    def simple(self, offers: Offers, counts: Array) -> dict[str, Array]:
        """Return as many subjects at simple times, evenly among groups; none where no times are chosen."""
        found: dict[str, Array] = {}
        for name, places in self.simplest.items():
            out = np.zeros_like(counts)
            out[places] = counts.sum() // len(places) + (np.arange(len(places)) < counts.sum() % len(places))
            found |= {name: out} if counts.sum() and offers.fits(out) else {}
        return found if any(g.per_subject for g in self.groups) else {}

    def doing(self, k: int, often: float, values: PredictedValues, *, exact: bool) -> str:
        """Return the instruction for a schedule: outputs, number of subjects and times."""
        number = f"{often:{'.0f' if exact else '.4g'}} {'subject' if often == 1 else 'subjects'}"
        places = Counter(f"{t:.4g}" for t in values.times)
        times = ", ".join(p if n == 1 else f"{p} ({n} times)" for p, n in places.items())
        return f"{self.labels[k]}: measure {listed(values.outputs)} of {number} at t = {times}."

    def values(
        self, k: int, times: Array, sample: int | None = None, *, outputs: Sequence[str] | None = None
    ) -> PredictedValues:
        """Predict the values of subjects at times, with their information rows, at typical values."""
        names = tuple(outputs or self.candidates[k].outputs)
        mu, s, sigma, rows = self._told(k, times, self.theta(), names)
        _, own, shared = self._typical
        place, noise = self._place(k), self.extended.noise_parameters
        L = rows[:, :, 0][..., self.question.places[place]]
        by_shared = rows[..., self.question.shared]
        moves_noise = np.array([self.extended.names[j] in noise for j in self.question.shared], dtype=bool)
        found = np.zeros((*rows.shape[:3], L.shape[-1] + len(self.names)))
        found[:, :, 0] = np.concatenate([L, L @ own[place] + by_shared[:, :, 0] @ shared], -1)
        found[:, :, 1, L.shape[-1] :] = by_shared[:, :, 1] * moves_noise @ shared / np.sqrt(2.0)
        between = np.einsum("nqi,ij,nqj->nq", L, self.spread[0], L)
        return PredictedValues(times, names, mu, s, sigma, found, between)

    def slopes(self, label: str, times: Array, outputs: Sequence[str]) -> tuple[Array, Array]:
        """Return outputs of typical subjects at times, (n, q), and how they move with relative changes."""
        at = self._place(self.labels.index(label))
        found = self.predicted(self.extended, self.extended.conditions[at], times, self.theta(), outputs)
        _, own, shared = self._typical
        by_own, by_shared = found.slopes[..., self.question.places[at]], found.slopes[..., self.question.shared]
        return found.values[:, : len(outputs)], (by_own @ own[at] + by_shared @ shared)[:, : len(outputs)]

    def gradient(self, what: Any, mistakes: list[str]) -> Array | None:
        """Compute the derivatives of a quantity by relative changes, (n_u,). Return None after a mistake."""
        if not isinstance(what, str) or what not in self.names:
            mistakes.append(f"variance_of {text(what)}; of a population give a name: {suggest(str(what), self.names)}")
            return None
        j = self.names.index(what)
        value = float(self.question.natural(self.estimate)[j])
        return (1.0 if what in self.absolute else abs(value)) * np.eye(len(self.names))[j]

    def blocks(self, values: PredictedValues, together: str) -> Array:
        """Return the square root of what a subject tells, (1, n_u, n_u)."""
        return root(self.information(values.rows[None]))

    def information(self, rows: Array) -> Array:
        """Return F (P, n_u, n_u) of schedules with rows (P, n, q, 2, m + n_u); see the module."""
        size = max(1, _BLOCK // ((rows.shape[1] * rows.shape[2]) ** 2 * len(self.names)))
        parts = [self._information(rows[i : i + size]) for i in range(0, len(rows), size)]
        return np.concatenate(parts)

    def _information(self, rows: Array) -> Array:
        (omega, by_omega), m = self.spread, self.question.m
        P, K = len(rows), rows.shape[1] * rows.shape[2]
        flat = rows.reshape(P, K, 2, -1)
        noise = 2.0 * flat[:, :, 1, m:]
        V = flat[:, :, 0, :m] @ omega @ np.swapaxes(flat[:, :, 0, :m], 1, 2) + np.eye(K)
        C = np.linalg.inv(np.linalg.cholesky(V))
        L, J = np.split(C @ flat[:, :, 0], [m], axis=-1)
        moved = np.flatnonzero((by_omega != 0.0).any(axis=(0, 1)) | (noise != 0.0).any(axis=(0, 1)))
        # C V_a C' for each a: between subjects L (dOmega / du_a) L', of the noise 2 s s_a'
        between = np.einsum("pki,ija,plj->pakl", L, by_omega[:, :, moved], L, optimize=True)
        within = np.einsum("pkr,pra,plr->pakl", C, noise[:, :, moved], C, optimize=True)
        W = (between + within).reshape(P, moved.size, -1)
        F = np.swapaxes(J, 1, 2) @ J
        F[:, moved[:, None], moved] += 0.5 * W @ np.swapaxes(W, 1, 2)
        return F

    @property
    def among(self) -> str:
        """Description of the set of designs that the certificate covers."""
        if not any(g.per_subject for g in self.groups):
            return "these groups"
        return f"all {self.compared} schedules" if self.all_compared else f"the {self.compared} schedules compared"


def root(F: Array) -> Array:
    """Return R (..., n, n) with R'R = F, for F that may be singular."""
    values, vectors = np.linalg.eigh(F)
    return np.sqrt(np.maximum(values, 0.0))[..., None] * np.swapaxes(vectors, -1, -2)


def population_knowledge(
    given: Any, population: Any, candidates: Sequence[Candidate], mistakes: list[str]
) -> PopulationKnowledge:
    """Build the population with a subject for each candidate. Raise an InputError with all `mistakes`, if any."""
    fit = given if isinstance(given, MixedEffectsResult) else None
    if fit is not None:
        if population is not None:
            mistakes.append("the fit knows its population; leave population= out")
        if not fit.success:
            mistakes.append("result is not a solution; pass its problem with guesses and population=...")
        elif not np.isfinite(fit.errors.covariance).any():
            mistakes.append("the fit has no standard errors; set standard_errors=True in the fit")
    problem, spec = (given, population) if fit is None else fit.question.said or (None, None)
    if not isinstance(problem, Problem) or not isinstance(spec, Population):
        mistakes.append("a design of a population takes a Problem and population=cf.Population(...), or their fit")
        check("design", mistakes)
    assert isinstance(problem, Problem)
    assert isinstance(spec, Population)
    mistakes += [
        f"{c.name or f'candidate {k + 1}'}: {what}"
        for k, c in enumerate(candidates)
        for what, wrong in (
            ("a subject is measured as a whole; remove together='time'", c.together == "time"),
            ("a subject has one cost; give a number", not isinstance(c.cost, float)),
            ("every subject of a population is a new one; remove same=True", c.same),
            ("a subject without per_subject is measured at all times; leave spacing and between out, or give it",
             c.per_subject is None and (c.spacing > 0.0 or c.between)),
        )
        if wrong
    ]  # fmt: skip
    whole, extended = extended_by(problem, candidates, mistakes, "design", subjects=True)
    old, new = [e.name for e in problem.experiments], [e.name for e in extended.experiments]
    bases = [*old, *(c.experiment or old[0] for c in whole)]
    covariates = {n: _known_of(spec, n, old, new, bases, mistakes) for n in spec.covariates}
    check("design", mistakes)
    question = ask(
        extended,
        Population(
            spec.individual, correlated=spec.correlated, parameters=spec.parameters,
            covariates=covariates,
        ),
    )  # fmt: skip
    posed = question.problem
    conditions = posed.conditions[len(old) :]
    for c, condition in zip(whole, conditions, strict=True):
        for output in c.outputs:
            of = condition.observed[posed.outputs.index(output)]
            if of is not None and not isinstance(of.noise, (Gaussian, LogNormal)):
                mistakes.append(
                    f"{condition.name}: designs of populations need normal noise, but '{output}' has another noise model"
                )
            if fit is None and c.sigma_of(output) is None and problem.posed.groups:
                remedy = f"give cf.unknown(guess=...) to the experiments, or Candidate(sigma={{'{output}': ...}})"
                mistakes.append(f"{condition.name}: sigma of '{output}' is unknown; {remedy}")
    check("design", mistakes)
    y = question.guess.copy()
    for name, value in zip(fit.names, fit.y, strict=True) if fit is not None else ():
        y[question.names.index(name)] = value
    n_y = question.n_y
    found = PopulationKnowledge(
        problem, posed, tuple(new[len(old) :]), question.names, y, y[None], (), np.arange(n_y), np.arange(n_y),
        np.arange(n_y), fit is not None, False, None, tight(None if fit is None else fit.integrator),
        tuple(with_fields(c, together="experiment", spacing=0.0, between=False) for c in whole),
        question=question, M0=np.zeros((n_y, n_y)), group=tuple(range(len(whole))), groups=tuple(whole),
        integrator=None if fit is None else fit.integrator,
    )  # fmt: skip
    return replace(found, M0=_known_before(found, fit))


def _known_of(
    population: Population, name: str, old: Sequence[str], new: Sequence[str], bases: Sequence[str], mistakes: list[str]
) -> dict[str, float]:
    """Return a covariate of every experiment; of a new group that is not named, that of the experiment it is like."""
    given: Any = population.covariates[name]
    by_name = dict(given) if hasattr(given, "keys") else dict(zip(old, given, strict=False))
    known = dict(zip(old, population.covariate(name, old, mistakes).tolist(), strict=True)) | by_name
    return {label: float(known.get(label, known.get(base, np.nan))) for label, base in zip(new, bases, strict=True)}


def _known_before(found: PopulationKnowledge, fit: MixedEffectsResult | None) -> Array:
    """Return the information of a fit, or of priors, by relative changes."""
    names, turn = found.names, found.turn
    if fit is None:
        rows: Any = found.question.priors(found.estimate).jacobian
        J = np.asarray(rows.toarray() if hasattr(rows, "toarray") else rows, dtype=float) @ turn
        return J.T @ J
    own = np.flatnonzero(np.isfinite(np.diag(fit.errors.covariance)))
    at = [names.index(fit.names[j]) for j in own]
    M = np.zeros((len(names), len(names)))
    M[np.ix_(at, at)] = np.linalg.inv(fit.errors.covariance[np.ix_(own, own)])
    return turn.T @ M @ turn


@dataclass(eq=False)
class _Schedules:
    """Schedules of all groups, as far as they are known.

    values : of each group, on its grid;  pool : (group, places on the grid) of each;  roots : of their F
    """

    known: PopulationKnowledge
    values: Sequence[PredictedValues]
    order: Index
    rng: np.random.Generator
    pool: dict[tuple[int, tuple[int, ...]], Array] = field(default_factory=dict[tuple[int, tuple[int, ...]], Any])
    seen: set[tuple[int, tuple[int, ...]]] = field(default_factory=set[tuple[int, tuple[int, ...]]])

    def informations(self, g: int, schedules: Sequence[Sequence[int]]) -> Array:
        """Return F of schedules of a group (P, n_u, n_u), in the criterion's order."""
        self.seen |= {(g, tuple(sorted(s))) for s in schedules}
        F = self.known.information(self.values[g].rows[np.array(schedules, dtype=np.intp)])
        return F[:, self.order][:, :, self.order]

    def add(self, g: int, schedules: Iterable[Sequence[int]]) -> bool:
        """Take schedules that are not known yet into the pool; tell whether there are any."""
        new = list(dict.fromkeys(key for s in schedules if (key := tuple(sorted(map(int, s)))) not in self.of(g)))
        if new:
            self.pool |= {(g, s): R for s, R in zip(new, root(self.informations(g, new)), strict=True)}
        return bool(new)

    def of(self, g: int) -> set[tuple[int, ...]]:
        """Return the known schedules of a group."""
        return {s for group, s in self.pool if group == g}

    def apart(self, g: int, schedule: Sequence[int]) -> bool:
        """Check whether the times of a schedule keep the spacing of the group."""
        times, gap = self.values[g].times[sorted(schedule)], self.known.groups[g].spacing
        return times.size < 2 or bool(np.diff(times).min() >= gap * (1 - 1e-9))

    def simple(self, g: int) -> dict[str, tuple[int, ...]]:
        """Return schedules at simple times, as near as the grid has them; of a group without a choice what it is."""
        times, n = self.values[g].times, self.known.groups[g].per_subject
        if n is None:
            return dict.fromkeys((EQUIDISTANT, RATIOS, PRESENT), tuple(range(times.size)))
        start, present = self.known.condition(g).start, self.known.present(g, -1)
        found = simple_places(times, n, start, present, tells=bool(self.values[g].rows[0].any()), apart=True)
        every = {name: tuple(np.sort(places).tolist()) for name, places in found.items()}
        return {name: s for name, s in every.items() if self.apart(g, s)}

    def first(self, g: int) -> tuple[int, ...] | None:
        """Return the earliest schedule; None if no times are as far from each other as they should be."""
        times, n, found = self.values[g].times, self.known.groups[g].per_subject or 0, [0]
        for i in range(1, times.size):
            found += [i] if self.apart(g, [found[-1], i]) else []
        return tuple(found[:n]) if len(found) >= n else None

    def drawn(self, g: int) -> tuple[int, ...] | None:
        """Return a schedule by chance; None if chance finds none."""
        n, size = self.known.groups[g].per_subject or 0, self.values[g].times.size
        for _ in range(100):
            trial = np.sort(self.rng.choice(size, n, replace=False))
            if self.apart(g, trial.tolist()):
                return tuple(trial.tolist())
        return None

    def climbed(self, g: int, start: tuple[int, ...], G: Array, stop: Callable[[], bool]) -> tuple[int, ...]:
        """Exchange one time for another as long as tr(G F) grows."""
        now, value = start, float(np.sum(G * self.informations(g, [start])[0]))
        while not stop():
            trials = [
                trial
                for j in range(len(now))
                for i in range(self.values[g].times.size)
                if i != now[j] and self.apart(g, trial := (*now[:j], i, *now[j + 1 :]))
            ]
            worth = np.einsum("ij,pij->p", G, self.informations(g, trials)) if trials else np.zeros(1)
            if worth.max() <= value * (1.0 + _WORTH):
                break
            now, value = tuple(sorted(trials[int(np.argmax(worth))])), float(worth.max())
        return now


def scheduled(
    known: PopulationKnowledge,
    bought: Purchases,
    goal: DesignGoal,
    order: Index,
    rng: np.random.Generator,
    stop: Callable[[], bool],
) -> tuple[PopulationKnowledge, Purchases]:
    """Build schedules by enumeration or column generation. Return them as candidates, with their purchases."""
    free = [int(k) for k in bought.candidate]  # groups of which subjects can be bought
    column = {g: i for i, g in enumerate(free)}
    offers, most = _group_budgets(bought.offers)
    M0 = offers.M0[:, order][:, :, order]
    here, ended = _Schedules(known, bought.values[0], order, rng), True
    open_: list[int] = []
    for g in free:
        n, size = known.groups[g].per_subject, bought.values[0][g].times.size
        here.add(g, here.simple(g).values())
        if n is not None and comb(size + n - 1, n) <= _EVERY:
            here.add(g, [s for s in combinations_with_replacement(range(size), n) if here.apart(g, s)])
        elif n is not None:
            open_.append(g)
            here.add(g, [s for s in (here.first(g), *(here.drawn(g) for _ in range(_FIRST))) if s is not None])
        if not here.of(g):
            crowded = f"no {n} of its times are {known.groups[g].spacing:g} apart; give more times, or less spacing"
            raise InputError("design", [f"{known.labels[g]}: {crowded}"])

    def offered() -> Offers:
        own = [column[g] for g, _ in here.pool]
        J = np.array(list(here.pool.values()))[None]
        return Offers(J, M0, offers.A[:, own], offers.b, most[own], offers.price[own])

    for _ in range(_ROUNDS if open_ else 0):
        now, ended = offered(), False
        found = relaxed(goal, now, _WORTH, stop=stop)
        at = found and goal.criterion.tangent(now.information(found.w)[0], M0[0], found.mu)
        if found is None or not at or stop():
            break
        keys, ended, here.seen = list(here.pool), True, set(here.pool)
        for g in open_:
            used = [keys[i][1] for i in np.flatnonzero(found.w > _USED * found.w.max()) if keys[i][0] == g]
            starts = [*used, *(s for s in (here.drawn(g) for _ in range(_WILD)) if s is not None)]
            ends = sorted({here.climbed(g, s, at.G, stop) for s in starts})
            worth = np.einsum("ij,pij->p", at.G, here.informations(g, ends))
            price = float(found.y @ offers.A[:, column[g]]) + offers.price[column[g]]
            ended &= not (here.add(g, ends) and worth.max() > price * (1.0 + _WORTH))
        if ended:
            break
    if not ended:
        here.seen = set(here.pool)
    return _as_candidates(here, bought, offered(), order, every=not open_)


def _group_budgets(offers: Offers) -> tuple[Offers, Array]:
    """Turn how often a group may be bought into budgets, which its schedules share."""
    capped = np.flatnonzero(np.isfinite(offers.u))
    rows = np.eye(offers.count)[capped]
    A, b = np.concatenate([offers.A, rows]), np.concatenate([offers.b, offers.u[capped]])
    return replace(offers, A=A, b=b), np.full(offers.count, np.inf)


def _as_candidates(
    here: _Schedules, bought: Purchases, offers: Offers, order: Index, *, every: bool
) -> tuple[PopulationKnowledge, Purchases]:
    """Return the pool as candidates, in the order of `known`."""
    known, keys, back = here.known, list(here.pool), np.argsort(order)
    column = {int(g): i for i, g in enumerate(bought.candidate)}
    values, simple = tuple(_at(here.values[g], list(s)) for g, s in keys), {g: here.simple(g) for g in column}
    candidates = tuple(with_fields(known.candidates[g], times=v.times) for (g, _), v in zip(keys, values, strict=True))
    fixed = [g for g, c in enumerate(known.candidates) if c.fixed]
    group = (*(g for g, _ in keys), *fixed)
    new = replace(
        known, candidates=(*candidates, *(known.candidates[g] for g in fixed)), group=group,
        labels=tuple(f"{known.labels[g]} #{k + 1}" for k, g in enumerate(group)),
        compared=len(here.seen), all_compared=every,
        simplest={name: [keys.index((g, s[name])) for g, s in simple.items()]
                  for name in (EQUIDISTANT, RATIOS, PRESENT) if all(name in s for s in simple.values())},
    )  # fmt: skip
    N = len(keys)
    plain = replace(offers, J=offers.J[..., back], M0=bought.offers.M0)
    lone = Positions(-1 - np.arange(N), np.arange(N), np.zeros(N), np.zeros(N))
    none, cost = np.full(N, -1, dtype=np.intp), np.array([bought.cost[column[g]] for g, _ in keys])
    more = tuple(bought.values[0][g] for g in fixed)
    return new, replace(
        bought, offers=plain, at=lone, candidate=np.arange(N), output=none, time=none, cost=cost,
        values=((*values, *more),),
    )  # fmt: skip


def moved_schedules(
    known: PopulationKnowledge, bought: Purchases, goal: DesignGoal, counts: Array, order: Index
) -> tuple[Purchases, Offers] | None:
    """Move the times of used schedules between grid times. Return the purchases and offers, or None if not better.

    All of them move together, along splines of the rows on the grids; what comes out is worked out by the model.
    """
    grids = {
        g: known.values(known.group.index(g), of.times)
        for g, of in enumerate(known.groups)
        if of.between and of.times.size >= FEWEST
    }
    used = [int(k) for k in np.flatnonzero(counts) if known.group[k] in grids]
    if not used:
        return None
    splines = {g: CubicSpline(of.times, of.rows) for g, of in grids.items()}
    start = np.concatenate([bought.values[0][k].times for k in used])
    ends = np.cumsum([bought.values[0][k].times.size for k in used])
    whose = [known.group[k] for k in used for _ in bought.values[0][k].times]
    low, high = (np.array([grids[g].times[at] for g in whose]) for at in (0, -1))
    gap = np.array([known.groups[g].spacing for g in whose])
    inner = np.setdiff1d(np.arange(start.size - 1), ends - 1)
    M = bought.offers.information(np.where(np.isin(np.arange(counts.size), used), 0.0, counts))[0]

    def pieces(t: Array) -> list[Array]:
        return [np.sort(part) for part in np.split(t, ends[:-1])]

    def along(t: Array) -> Array:
        whole = M.copy()
        for k, times in zip(used, pieces(t), strict=True):
            whole += counts[k] * known.information(splines[known.group[k]](times)[None])[0]
        return whole[None]

    def anew(t: Array) -> Purchases:
        values, J = list(bought.values[0]), bought.offers.J.copy()
        for k, times in zip(used, pieces(t), strict=True):
            values[k] = known.values(k, times)
            J[0, k] = known.blocks(values[k], "experiment")[0]
        return replace(bought, offers=replace(bought.offers, J=J), values=(tuple(values),))

    return moved(bought, goal, counts, order, (start, low, high), (inner, gap[1:][inner]), along, anew)


def told(known: PopulationKnowledge, counts: Array) -> PopulationKnowledge:
    """Return the schedules named after their groups, with letters where subjects of one have several."""
    labels = list(known.labels)
    for g, experiment in enumerate(known.extended.experiments[-len(known.groups) :]):
        own = [k for k, of in enumerate(known.group) if of == g and (k >= counts.size or counts[k] > 0)]
        for i, k in enumerate(own):
            labels[k] = experiment.name + (f" {_letters(i)}" if len(own) > 1 else "")
    return replace(known, labels=tuple(labels))


def worth_of_times(
    known: PopulationKnowledge, bought: Purchases, goal: DesignGoal, found: RelaxedDesign, counts: Array
) -> list[tuple[str, Array, Array]]:
    """Return name, times (n,) and best ratio of value to price with one time moved there, of used schedules with
    chosen times.
    """
    offers = bought.offers
    at = goal.criterion.tangent(offers.information(found.w)[0], offers.M0[0], found.mu)
    told_: list[tuple[str, Array, Array]] = []
    chosen = [k for k in np.flatnonzero(counts).tolist() if known.groups[known.group[k]].per_subject]
    for k in chosen if at is not None else ():
        assert at is not None
        own, grid = bought.values[0][k], known.values(k, known.groups[known.group[k]].times)
        moved = np.repeat(own.rows[None, None], own.times.size, 0).repeat(grid.times.size, 1)
        for j in range(own.times.size):
            moved[j, :, j] = grid.rows
        worth = np.einsum("ij,pij->p", at.G, known.information(moved.reshape(-1, *own.rows.shape)))
        worth = worth.reshape(own.times.size, -1)
        for j in range(own.times.size):
            rest = np.delete(own.times, j)
            near = np.abs(grid.times[:, None] - rest) < known.groups[known.group[k]].spacing * (1 - 1e-9)
            worth[j, near.any(axis=1)] = np.nan
        price = float(found.y @ offers.A[:, k]) + float(offers.price[k])
        kept = ~np.isnan(worth).all(axis=0)
        told_.append((known.labels[k], grid.times[kept], np.nanmax(worth[:, kept], axis=0) / price))
    return told_


def _letters(i: int) -> str:
    return chr(ord("a") + i) if i < 26 else _letters(i // 26 - 1) + _letters(i % 26)


def _at(values: PredictedValues, places: Sequence[int]) -> PredictedValues:
    at = np.array(places, dtype=np.intp)
    parts = {name: getattr(values, name)[at] for name in ("times", "mu", "s", "rows", "between")}
    return replace(values, **parts)
