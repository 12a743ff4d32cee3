"""`design`: what to measure next.

known --candidates--> rows of information --relaxed, with its bound--> weights --rounding, exchange--> the design
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from castfit._support.arguments import (
    flag_mistakes,
    is_count,
    is_one_of,
    is_within,
    items,
    kept,
    option_mistakes,
    rng_mistakes,
    text,
)
from castfit._support.arrays import Array, Index, Mask
from castfit._support.blas_threads import one_blas_thread
from castfit._support.public_names import public
from castfit._support.reprs import listed
from castfit._support.status import InputError, check, suggest
from castfit._support.time_limit import Stopped, watched
from castfit.drive.design.best_choices import ChoiceSearch, chosen_design, path_constraints
from castfit.drive.design.candidate import Candidate
from castfit.drive.design.choices import choices_of, places_of
from castfit.drive.design.criteria import (
    ACriterion,
    DCriterion,
    ECriterion,
    InformationCriterion,
    standard_deviations,
)
from castfit.drive.design.discrimination import Discrimination, discriminated
from castfit.drive.design.exact import exact as exact_design
from castfit.drive.design.interior_point import DesignGoal, Offers, RelaxedDesign, relaxed
from castfit.drive.design.knowledge import UNKNOWN, Knowledge, knowledge
from castfit.drive.design.proposal import Design, deviations, remarks_of
from castfit.drive.design.purchases import Purchases, purchases
from castfit.drive.design.simple_schedules import EQUIDISTANT, simple_designs
from castfit.drive.design.times_between import moved_times
from castfit.drive.population.result import MixedEffectsResult
from castfit.drive.population.spec import Population
from castfit.drive.uncertainty.profile.predictions import OutputAt

STARTS = 20  # of choices
_SOFT = (30.0, 300.0)  # how sharply the worst sample counts, one after the other
_UNUSED = 1e-7  # of the largest weight
_ALIKE = 1e-6  # chi2 by which all that the budget buys tells models apart
_NOTHING = 1e-9  # of a criterion: what changes it by less tells nothing


@public("castfit")
@dataclass(frozen=True, eq=False)
class VarianceOf:
    """Quantities, expressions or predictions whose variance a design makes small; create it with `variance_of`.

    Examples
    --------
    >>> import castfit as cf
    >>> cf.variance_of("k1", cf.OutputAt("y", 30)).what[0]
    'k1'
    """

    what: tuple[Any, ...]


def variance_of(*what: Any) -> VarianceOf:
    """Create a criterion: the variance of a quantity, an expression or a prediction, or the sum of several variances.

    Parameters
    ----------
    *what : str, casadi.SX or OutputAt
        Names of quantities, expressions of their symbols, or predictions ``cf.OutputAt("y", 30)``, in their units.

    Examples
    --------
    >>> import castfit as cf
    >>> k1, k2 = cf.symbols("k1 k2")
    >>> criterion = cf.variance_of(k1 / k2)
    """
    return VarianceOf(what)


@one_blas_thread
def design(
    known: Any,
    candidates: Candidate | Sequence[Candidate],
    *,
    budget: float | Mapping[str, float] | None = None,
    criterion: Any = "D",
    over: Sequence[str] | str | None = None,
    worst: bool = False,
    distinct: int | None = None,
    exact: bool = True,
    price: float = 0.0,
    population: Population | None = None,
    samples: int | None = None,
    constraints: Any = None,
    starts: int | None = None,
    rng: int | np.random.Generator = 0,
    max_time: float = np.inf,
) -> Design:
    """Propose what to measure next within a budget, and say how far that is from the best possible.

    Parameters
    ----------
    known : Result, Problem, SampleResult, BootstrapResult or MixedEffectsResult
        What is known: a fit, whose data count; guesses, of which only priors count; or draws, over whom the design is
        good on average or in the worst case.  A fit of a population asks for subjects.
    candidates : Candidate or sequence of Candidate
        What could be measured.
    budget : float or mapping from str to float, optional
        What may be spent, in the unit of the candidates' costs; or several budgets, of outputs and of candidates by
        their names, and ``"all"``.
    criterion : {"D", "A", "E"}, variance_of or discriminate
        What is made small: the volume of the confidence ellipsoid; the mean square of the relative errors; the largest
        axis of the ellipsoid, of relative errors; the variance of something; or the chance to confuse two models.
    over : sequence of str, optional
        The quantities that matter, for "D" and "A"; by default all of the problem.
    worst : bool
        Whether the least efficiency among the draws is to be large, rather than the mean of the criterion small.
    distinct : int, optional
        At how many different times, at least, each output is measured; more than quantities to see a lack of fit.
    exact : bool
        Whether whole numbers are wanted; False for weights.
    price : float
        What a unit of cost counts in the criterion: nothing is bought that is not worth it.  Without a budget it alone
        decides on the size of the experiment; for "D" then no more than the number of quantities over it is spent.
    population : Population, optional
        How own parameters of a Problem vary between subjects: then candidates are groups, and what is bought are
        subjects, each measured at the candidate's times, or at ``per_subject`` of them that are chosen.
    samples : int, optional
        How many of the draws count, at most; by default 100.
    constraints : sequence of relations, optional
        What choices (`choose`) must keep: ``cf.along(x <= 5)`` at all times of the candidates, ``cf.at(3, x >= 1)`` at
        some, and relations of what `choose` returned, ``first + second <= 100``.
    starts : int, optional
        From how many points choices are sought, by default 20: the middle, what the experiment was like, corners, and
        random ones.
    rng : int or numpy.random.Generator
        Of random starts.
    max_time : float
        Seconds after which the best so far is returned.

    Returns
    -------
    Design
        ``print(design)`` says it in words, ``design.experiments`` go into the next `Problem`.

    Raises
    ------
    InputError
        Listing every mistake: unknown names, an accuracy that nobody stated, a budget that is too small, quantities of
        which no candidate tells anything, ...

    Examples
    --------
    >>> import castfit as cf
    >>> import numpy as np
    >>> a, b, k1, k2 = cf.symbols("a b k1 k2")
    >>> model = cf.Model({a: -k1 * a, b: k1 * a - k2 * b}, parameters=[k1, k2], initial={a: 1.0, b: 0.0})
    >>> pilot = cf.Experiment({"b": [0.4, 0.55]}, [1, 4], sigma=0.05)
    >>> guesses = {"k1": cf.Parameter(0.7, scale="log"), "k2": cf.Parameter(0.2, scale="log")}
    >>> problem = cf.Problem(model, pilot, parameters=guesses)
    >>> design = cf.design(problem, cf.Candidate(np.linspace(0.1, 20, 200), ["b"]), budget=6)
    >>> print(design.summary().splitlines()[0])
    Measure b at t = 1.2 (3 times) and 6.9 (3 times).
    """
    mistakes = option_mistakes(
        ("samples", samples, samples is None or is_count(samples, 1, 10**4), "give a positive integer"),
        ("distinct", distinct, distinct is None or is_count(distinct, 1), "give a positive integer, or leave it out"),
        ("price", price, is_within(price, 0.0, 1e300), "give a number that is not negative"),
        ("max_time", max_time, is_within(max_time, 1e-300), "give positive seconds"),
    )
    mistakes += [*flag_mistakes(worst=worst, exact=exact), *rng_mistakes(rng)]
    given = [candidates] if isinstance(candidates, Candidate) else items(candidates) or []
    if not given or not all(isinstance(c, Candidate) for c in given):
        odd = ", ".join(text(c) for c in given if not isinstance(c, Candidate))
        said = f"candidates contain {odd}" if odd else f"candidates are {text(candidates)}"
        check("design", [f"{said}; give Candidate(...), or a list of them", *mistakes])
    if not (is_one_of(criterion, "D", "A", "E") or isinstance(criterion, (VarianceOf, Discrimination))):
        mistakes.append(f"criterion is {text(criterion)}; expected 'D', 'A', 'E' or cf.variance_of(...)")
    ends = is_one_of(criterion, "D", "A") or isinstance(criterion, VarianceOf)  # E and T grow as fast as what is spent
    priced = ends and is_within(price, 0.0, 1e300, strictly=True)
    mixed = population is not None or isinstance(known, MixedEffectsResult)
    if samples is not None and (mixed or not hasattr(known, "thetas")):
        mistakes.append("samples= has an effect only for a sample or bootstrap result; pass cf.sample(result), or remove samples=")
    choices, over = choices_of(given, mistakes), kept(over)
    if mixed:
        refused = {"worst=True": worst, "distinct=": distinct is not None, "cf.choose": choices,
                   "cf.discriminate(...)": isinstance(criterion, Discrimination)}  # fmt: skip
        mistakes += [f"{what} is unsupported for populations; remove it" for what, is_so in refused.items() if is_so]
    else:
        mistakes += [
            f"{c.name or f'candidate {k + 1}'}: per_subject is for populations; leave it out, or give population="
            for k, c in enumerate(given)
            if c.per_subject is not None
        ]

    def at(numbers: Mapping[str, Array]) -> tuple[Knowledge, Any]:
        if mixed:
            from castfit.drive.design.populations import population_knowledge

            check("design", mistakes if choices else [])
            found: Knowledge = population_knowledge(known, population, given, mistakes)
        else:
            found = knowledge(known, given, mistakes, samples=samples or 100, chosen=numbers)
        return found, purchases(found, budget, float(price), distinct, mistakes, priced=priced)

    found, bought = at({c.name: c.middle for c in choices})
    mistakes += _choice_mistakes(
        found, given, criterion, {"constraints": constraints, "starts": starts, "worst": worst}
    )
    rules = path_constraints(constraints, found, choices, mistakes) if choices else []
    if worst and price and criterion != "D":
        mistakes.append("with worst=True, price= is defined only for criterion 'D'; remove price=, or set budget=")
    if worst and len(found.thetas) == 1:
        mistakes.append("worst=True needs parameter samples; pass cf.sample(result) or a bootstrap, or remove worst")
    if bought is not None and exact and not bought.affordable:
        mistakes.append("the budget is smaller than the cost of every candidate; increase it, or set exact=False for a weighted design")
    apart = criterion if isinstance(criterion, Discrimination) else None
    if apart is not None and (over is not None or worst or len(found.thetas) > 1):
        mistakes.append("discriminate needs a Result or a Problem, without over= and worst=; remove these")
    made = None if apart is not None else _criterion(found, criterion, over, mistakes)
    check("design", mistakes)
    assert bought is not None
    generator = np.random.default_rng(rng)
    with watched(max_time) as watch:

        def stop() -> bool:
            return watch.cause is not None

        def designed(found: Knowledge, bought: Purchases) -> Design:
            assert made is not None
            return _designed(found, bought, made, over, worst=worst, exact=exact, rng=generator, stop=stop)

        if apart is not None:
            return _against(found, bought, apart, exact=exact, rng=generator, stop=stop)
        if not choices or made is None:
            return designed(found, bought)
        search = ChoiceSearch(found, bought, DesignGoal(made), _order(found, made, over), given, choices, rules)
        return chosen_design(search, at, designed, starts or STARTS, generator, stop)


def _choice_mistakes(
    known: Knowledge, given: Sequence[Candidate], criterion: Any, options: Mapping[str, Any]
) -> list[str]:
    """List what does not go with choices, or not without them."""
    starts, labels = options["starts"], [n for n, c in zip(known.labels, given, strict=True) if places_of(c)]
    found = option_mistakes(("starts", starts, starts is None or is_count(starts, 1), "give a positive integer"))
    if not labels:
        none = "no candidate contains cf.choose(low, high); add one, or remove the argument"
        return found + [f"{n}= is given, and {none}" for n in ("constraints", "starts") if options[n] is not None]
    if isinstance(criterion, Discrimination):
        found.append("discriminating designs do not support cf.choose; pass candidates with fixed numbers")
    if options["worst"]:
        found.append("cf.choose optimises the average over samples; remove worst=True, or pass candidates with fixed numbers")
    for what in criterion.what if isinstance(criterion, VarianceOf) else ():
        if isinstance(what, OutputAt) and what.experiment in labels:
            found.append(f"OutputAt: '{what.experiment}' is what is chosen; predict an experiment that is known")
    return found


def _against(
    known: Knowledge, bought: Purchases, criterion: Discrimination, *, exact: bool, rng: np.random.Generator, stop: Any
) -> Design:
    """Return the design that tells the model from rivals."""
    found = discriminated(known, bought, criterion, exact=exact, rng=rng, stop=stop)
    if -found.relaxed.bound <= _ALIKE:
        check("design", ["a competing model predicts the same at all candidates; add other conditions, or remove this model"])
    simple = {name: (of, value / -found.relaxed.bound) for name, (of, value) in found.simple.items()}
    said = f"The best of {found.fits} fits of the nearest competing model has an expected misfit of chi2 = {found.value:.4g} beyond the noise"
    if EQUIDISTANT in found.simple:
        said += f" (equidistant: {found.simple[EQUIDISTANT][1]:.4g})"
    return _proposed(
        known, bought, found.goal, found.relaxed, found.counts, value=-found.value, simple=simple,
        remarks=[f"{said}."], exact=exact, criterion="T",
    )  # fmt: skip


def _proposed(
    known: Knowledge,
    bought: Purchases,
    goal: DesignGoal,
    found: RelaxedDesign,
    counts: Array,
    *,
    value: float,
    simple: Mapping[str, tuple[Array, float]],
    remarks: Sequence[str],
    **fields: Any,
) -> Design:
    """Return a design with all that is to be said of it."""
    bound, information = min(found.bound, value), bought.offers.information
    design = Design(
        weights=found.w,
        counts=counts,
        value=value,
        bound=bound,
        efficiency=goal.efficiency(value, bound),
        before=deviations(known, bought.offers.M0),
        after=deviations(known, information(counts)),
        simple={name: deviations(known, information(of)) for name, (of, _) in simple.items()},
        simple_efficiency={name: reached for name, (_, reached) in simple.items()},
        goal=goal,
        known=known,
        bought=bought,
        relaxed=found,
        **fields,
    )
    return replace(design, remarks=(*remarks_of(design), *remarks))


def _designed(
    known: Knowledge,
    bought: Purchases,
    criterion: InformationCriterion,
    over: Any,
    *,
    worst: bool,
    exact: bool,
    rng: np.random.Generator,
    stop: Any,
) -> Design:
    order = _order(known, criterion, over)
    goal = DesignGoal(criterion)
    groups: Any = None
    if known.subjects:
        from castfit.drive.design import populations as groups

        known, bought = groups.scheduled(known, bought, goal, order, rng, stop)
    offers = bought.offers.ordered(order)
    _require_determined(known, goal, offers, order)
    if worst:
        goal, offers = _worst(goal, offers, stop)
    found = relaxed(goal, offers, stop=stop)
    for b in _SOFT[1:] if worst and found is not None and not isinstance(criterion, ECriterion) else ():
        goal = replace(goal, b=b)
        assert found is not None
        found = relaxed(goal, offers, start=found.w, stop=stop) or found
    if found is None:
        raise InputError("design", ["the information matrix of all candidates is singular; add candidates"])
    # What is left of weights where nothing is measured says nothing, and is not listed.
    counts = np.where(found.w > _UNUSED * found.w.max(), found.w, 0.0)
    if exact:
        counts = exact_design(goal, offers, bought.at, found.w, rng=rng, stop=stop)
        with suppress(Stopped):
            move = groups.moved_schedules if groups else moved_times
            moved = None if worst else move(known, bought, goal, counts, order)
            bought, offers = (bought, offers) if moved is None else moved

    def valued(counts: Array) -> float:
        return float(goal.values(offers.information(counts)) + offers.price @ counts)

    known = groups.told(known, counts) if groups else known
    _require_reached(known, goal, offers, counts, exact=exact)
    simple = simple_designs(known, bought, counts) if exact else {}
    bound = min(found.bound, valued(counts))
    return _proposed(
        known, bought, goal, found, counts, value=valued(counts), exact=exact, criterion=criterion.name,
        simple={name: (of, goal.efficiency(valued(of), bound)) for name, of in simple.items()},
        remarks=["The time limit was reached; this is the best design so far."] if stop() else [],
    )  # fmt: skip


def _criterion(known: Knowledge, given: Any, over: Any, mistakes: list[str]) -> InformationCriterion | None:
    """Return the criterion in the order of `_order`; None where something is wrong."""
    names = known.quantities
    listed_over = [over] if isinstance(over, str) else items(over) if over is not None else list(names)
    if listed_over is None or not listed_over or not all(isinstance(n, str) for n in listed_over):
        mistakes.append(f"over is {text(over)}; expected names of quantities")
        return None
    mistakes += [f"over names '{n}': {suggest(n, names)}" for n in listed_over if n not in names]
    if over is not None and (isinstance(given, VarianceOf) or is_one_of(given, "E")):
        mistakes.append("over= has an effect only for criteria 'D' and 'A'; remove it")
    if mistakes:
        return None
    n, kept = len(known.names), len(set(listed_over))
    if isinstance(given, VarianceOf):
        columns = [_gradient(known, what, mistakes) for what in given.what]
        if not columns:
            mistakes.append("variance_of() needs something: a quantity, an expression, or cf.OutputAt(...)")
        wanted = [c for c in columns if c is not None]
        if len(wanted) == len(columns) and columns and not any(c.any() for c in wanted):
            mistakes.append("the argument of variance_of does not depend on any quantity; pass one that does")
        return None if mistakes else ACriterion(np.stack(wanted, axis=1))
    if is_one_of(given, "D"):
        return DCriterion(n, n - kept)
    if is_one_of(given, "A"):
        K = np.zeros((n, kept))
        K[_order(known, DCriterion(n, n - kept), over)[-kept:], range(kept)] = 1.0
        return ACriterion(K)
    return ECriterion(n)


def _gradient(known: Knowledge, what: Any, mistakes: list[str]) -> Array | None:
    """Compute the derivatives of a quantity, expression or prediction by relative changes, (n_u,).

    Return None after a mistake.
    """
    if not isinstance(what, OutputAt) or known.subjects:
        return known.gradient(what, mistakes)
    names = [e.name for e in known.problem.experiments]
    label = what.experiment or names[0]
    conditions = [*names, *known.labels]
    if label not in conditions:
        mistakes.append(f"OutputAt: '{label}' is no experiment: {suggest(label, conditions)}")
    if what.output not in known.problem.own_model.output_names:
        mistakes.append(
            f"OutputAt: '{what.output}' is no output: {suggest(what.output, known.problem.own_model.output_names)}"
        )
    if mistakes:
        return None
    return known.slopes(label, np.array([float(what.time)]), [what.output])[1][0, 0]


def _order(known: Knowledge, criterion: InformationCriterion, over: Any) -> Index:
    """Return the order of quantities in which a criterion takes them: nuisance first, where there is any."""
    if not isinstance(criterion, DCriterion) or not criterion.nuisance:
        return np.arange(len(known.names))
    chosen = {over} if isinstance(over, str) else set(over) if over is not None else set(known.quantities)
    matters = np.zeros(len(known.names), dtype=bool)
    matters[[int(known.of[known.quantities.index(n)]) for n in chosen]] = True
    return np.argsort(matters, kind="stable")


def _require_determined(known: Knowledge, goal: DesignGoal, offers: Offers, order: Index) -> None:
    """Refuse what even all candidates together cannot do."""
    cap = np.where(np.isfinite(offers.u), offers.u, 1.0)
    reached = standard_deviations(offers.information(cap)).max(axis=0)[np.argsort(order)]
    matters = _matter(goal.criterion, len(known.names))[np.argsort(order)]
    names = np.array(known.names)
    blind = ~(offers.J != 0.0).any(axis=(0, 1, 2))[np.argsort(order)]
    lost = matters & (reached > UNKNOWN)
    if not lost.any():
        before, after = float(goal.values(offers.M0)), float(goal.values(offers.information(cap)))
        unit = 1.0 if goal.criterion.logarithmic else abs(before)  # a variance has one
        if np.isfinite(before) and before - after <= _NOTHING * unit:
            remedy = "offer other times, outputs or conditions"
            raise InputError("design", [f"the candidates add no information; {remedy}"])
        return
    said = [f"no candidate depends on {listed(names[lost & blind])}"] if (lost & blind).any() else []
    if (lost & ~blind).any():
        said.append(f"the candidates cannot distinguish {listed(names[lost & ~blind])} from other quantities")
    remedy = "add other outputs or conditions, fix it (Parameter(fixed=True)), or exclude it with over="
    raise InputError("design", [f"{one}; {remedy}" for one in said])


def _matter(criterion: InformationCriterion, n: int) -> Mask:
    """Return a mask of the entries that a criterion must determine, in its order."""
    if isinstance(criterion, DCriterion):
        return np.arange(n) >= criterion.nuisance
    if isinstance(criterion, ACriterion):
        return np.zeros(n, dtype=bool) if criterion.K.shape[1] == 1 else (criterion.K != 0.0).any(axis=1)
    return np.ones(n, dtype=bool)


def _require_reached(known: Knowledge, goal: DesignGoal, offers: Offers, counts: Array, *, exact: bool) -> None:
    """Raise an InputError if the counts do not determine the quantities that the criterion needs."""
    matters = _matter(goal.criterion, len(known.names))
    lost = matters & (standard_deviations(offers.information(counts)).max(axis=0) > UNKNOWN)
    if isinstance(goal.criterion, ACriterion) and goal.criterion.K.shape[1] == 1:
        lost = np.array(
            [float(goal.values(offers.information(counts))) > UNKNOWN**2 * float(np.sum(goal.criterion.K**2))]
        )
    if not lost.any():
        return
    n, count = int(matters.sum()) or 1, int(counts.sum())
    bought = "one measurement is" if count == 1 else f"{count} measurements are"
    if not exact:
        bought = "what the budget buys is"
    what = f"{n} {'quantity' if n == 1 else 'quantities'} without prior information"
    less = "add priors or pass a fit, or reduce the target with over= or cf.variance_of(...)"
    remedy = f"increase the budget or reduce the price, {less}"
    if known.fitted:
        what = f"{n} {'quantity' if n == 1 else 'quantities'} at estimates that are poorly determined"
        remedy = "pass the problem with trusted guesses instead of the fit, or increase the budget"
    raise InputError("design", [f"{bought} not enough for {what}; {remedy}"])


def _worst(goal: DesignGoal, offers: Offers, stop: Any) -> tuple[DesignGoal, Offers]:
    """Return the goal of the least efficiency: each sample beside its own best design, in units of it."""
    best = np.zeros(len(offers.J))
    for s in range(best.size):
        alone = relaxed(goal, replace(offers, J=offers.J[s : s + 1], M0=offers.M0[s : s + 1]), 1e-6, stop=stop)
        if alone is None:
            raise InputError("design", ["at one of the samples the information matrix of the candidates is singular; add candidates"])
        best[s] = alone.value
    if goal.criterion.logarithmic:
        return DesignGoal(goal.criterion, best, _SOFT[0]), offers
    unit = best if isinstance(goal.criterion, ACriterion) else 1.0 / np.abs(best)
    scaled = replace(offers, J=offers.J * np.sqrt(unit)[:, None, None, None], M0=offers.M0 * unit[:, None, None])
    return DesignGoal(
        goal.criterion, np.full(best.size, 1.0 if isinstance(goal.criterion, ACriterion) else -1.0), _SOFT[0]
    ), scaled
