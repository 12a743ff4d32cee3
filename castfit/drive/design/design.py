"""`design`: what to measure next.

prior information --candidates--> information rows --relaxation, bound--> weights --rounding, exchange--> design
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from castfit._support.arguments import (
    as_reusable,
    flag_mistakes,
    is_count,
    is_one_of,
    is_within,
    option_mistakes,
    read_sequence,
    rng_mistakes,
    shorten_repr,
)
from castfit._support.arrays import Array, Index, Mask
from castfit._support.blas_threads import one_blas_thread
from castfit._support.public_names import public
from castfit._support.reprs import join_limited
from castfit._support.status import InputError, Status, raise_if_mistakes, suggest
from castfit._support.time_limit import StopRequested, guarded, with_deadline
from castfit.drive.design.best_choices import ChoiceSearch, optimize_choices, read_choice_constraints
from castfit.drive.design.candidate import Candidate
from castfit.drive.design.choices import candidate_choices, choice_locations
from castfit.drive.design.criteria import (
    ACriterion,
    DCriterion,
    ECriterion,
    InformationCriterion,
    standard_deviations,
)
from castfit.drive.design.discrimination import Discrimination, optimize_discrimination
from castfit.drive.design.exact import optimize_counts
from castfit.drive.design.interior_point import CandidatePool, DesignGoal, RelaxedDesign, optimize_weights
from castfit.drive.design.knowledge import UNKNOWN_DEVIATION, DesignInformation, build_design_information
from castfit.drive.design.proposal import Design, build_remarks, compute_deviations
from castfit.drive.design.purchases import CandidateSelection, build_selection
from castfit.drive.design.simple_schedules import EQUIDISTANT, build_simple_designs
from castfit.drive.design.times_between import shift_times
from castfit.drive.population.result import MixedEffectsResult
from castfit.drive.population.spec import Population
from castfit.drive.run.run_result import STOPS
from castfit.drive.uncertainty.profile.predictions import OutputAt

DEFAULT_STARTS = 20  # starting points of a search over choices
_SOFTMAX_SHARPNESS = (30.0, 300.0)  # sharpness b of the soft maximum over samples, one solve after the other
_MIN_COST_FRACTION = 1e-4  # of the largest cost of a purchase: below it, a weight is set to zero
_MAX_VALUE_CHANGE = 1e-3  # relative change of the criterion up to which small weights are set to zero
_MIN_DISCRIMINATION_CHI2 = 1e-6  # bound of chi2 up to which the whole budget cannot distinguish two models
_MIN_CRITERION_GAIN = 1e-9  # gain of the criterion, relative unless it is a logarithm, that counts as information


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


@guarded
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
    """Propose what to measure next within a budget, with a bound on the loss to the best possible design.

    Parameters
    ----------
    known : Result, Problem, SampleResult, BootstrapResult or MixedEffectsResult
        Prior information: a fit, with its data; a problem at its guesses, with its priors only; or samples, over which
        the design is good on average or in the worst case.  A fit of a population leads to a design of subjects.
    candidates : Candidate or sequence of Candidate
        Possible experiments.
    budget : float or mapping from str to float, optional
        Largest total cost, in the unit of the candidates' costs; or several budgets by names of outputs and candidates,
        and ``"all"``.
    criterion : {"D", "A", "E"}, variance_of or discriminate
        The criterion: the volume of the confidence ellipsoid; the mean square of the relative errors; the largest axis
        of the ellipsoid of relative errors; the variance of quantities or predictions; or the discrimination of models.
    over : sequence of str, optional
        Target quantities for "D" and "A"; by default all quantities of the problem.
    worst : bool
        Whether to maximise the least efficiency among the samples, instead of minimising the mean of the criterion.
    distinct : int, optional
        Least number of different times of each output; more than the number of quantities to detect a lack of fit.
    exact : bool
        Whether counts are integers; False for real weights.
    price : float
        Price of a unit of cost in units of the criterion: measurements that gain less are left out.  Without a budget
        the price determines the size of the experiment; for "D" the cost is at most the number of quantities / price.
    population : Population, optional
        Variation of individual parameters of a Problem between subjects.  Candidates are then groups, and purchases are
        subjects, measured at the candidate's times, or at ``per_subject`` chosen ones.
    samples : int, optional
        Largest number of samples that are used; by default 100.
    constraints : sequence of relations, optional
        Constraints of designs with choices (`choose`): ``cf.along(x <= 5)`` at all times of the candidates,
        ``cf.at(3, x >= 1)`` at some, and relations between choices, ``first + second <= 100``.
    starts : int, optional
        Number of starting points of the search over choices, by default 20: the middle, the base experiment, corners,
        and random points.
    rng : int or numpy.random.Generator
        Draws random starting points.
    max_time : float
        Seconds, after which the best design so far is returned.

    Returns
    -------
    Design
        ``print(design)`` describes it; ``design.experiments`` are for the next `Problem`.

    Raises
    ------
    InputError
        Listing every mistake: unknown names, an unknown accuracy, a budget that is too small, quantities that no
        candidate determines, ...

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
        (
            "distinct",
            distinct,
            distinct is None or is_count(distinct, 1, 10**6),
            "give an integer from 1 to 1e6, or leave it out",
        ),
        ("price", price, is_within(price, 0.0, 1e300), "give a number that is not negative"),
        ("max_time", max_time, is_within(max_time, 1e-300), "give positive seconds"),
    )
    mistakes += [*flag_mistakes(worst=worst, exact=exact), *rng_mistakes(rng)]
    candidate_list = [candidates] if isinstance(candidates, Candidate) else read_sequence(candidates) or []
    if not candidate_list or not all(isinstance(c, Candidate) for c in candidate_list):
        invalid_text = ", ".join(shorten_repr(c) for c in candidate_list if not isinstance(c, Candidate))
        message = f"candidates contain {invalid_text}" if invalid_text else f"candidates are {shorten_repr(candidates)}"
        raise_if_mistakes("design", [f"{message}; give Candidate(...), or a list of them", *mistakes])
    if not (is_one_of(criterion, "D", "A", "E") or isinstance(criterion, (VarianceOf, Discrimination))):
        mistakes.append(f"criterion is {shorten_repr(criterion)}; expected 'D', 'A', 'E' or cf.variance_of(...)")
    is_bounded = is_one_of(criterion, "D", "A") or isinstance(
        criterion, VarianceOf
    )  # E and T grow in proportion to the cost
    is_priced = is_bounded and is_within(price, 0.0, 1e300, strictly=True)
    is_population = population is not None or isinstance(known, MixedEffectsResult)
    if samples is not None and (is_population or not hasattr(known, "thetas")):
        mistakes.append(
            "samples= has an effect only for a sample or bootstrap result; pass cf.sample(result), or remove samples="
        )
    choices, over = candidate_choices(candidate_list, mistakes), as_reusable(over)
    if is_population:
        unsupported = {"worst=True": worst, "distinct=": distinct is not None, "cf.choose": choices,
                   "cf.discriminate(...)": isinstance(criterion, Discrimination)}  # fmt: skip
        mistakes += [
            f"{feature} is unsupported for populations; remove it"
            for feature, is_given in unsupported.items()
            if is_given
        ]
    else:
        mistakes += [
            f"{c.name or f'candidate {k + 1}'}: per_subject is for populations; leave it out, or give population="
            for k, c in enumerate(candidate_list)
            if c.per_subject is not None
        ]

    def build_at_choices(numbers: Mapping[str, Array]) -> tuple[DesignInformation, Any]:
        if is_population:
            from castfit.drive.design.populations import build_population_information

            raise_if_mistakes("design", mistakes if choices else [])
            information: DesignInformation = build_population_information(known, population, candidate_list, mistakes)
        else:
            information = build_design_information(
                known, candidate_list, mistakes, samples=samples or 100, choice_values=numbers
            )
        return information, build_selection(information, budget, float(price), distinct, mistakes, priced=is_priced)

    information, selection = build_at_choices({c.name: c.middle for c in choices})
    mistakes += _choice_mistakes(
        information, candidate_list, criterion, {"constraints": constraints, "starts": starts, "worst": worst}
    )
    path_rules = read_choice_constraints(constraints, information, choices, mistakes) if choices else []
    if worst and price and criterion != "D":
        mistakes.append("with worst=True, price= is defined only for criterion 'D'; remove price= and set budget=")
    if worst and len(information.thetas) == 1:
        mistakes.append("worst=True needs parameter samples; pass cf.sample(result) or a bootstrap, or remove worst")
    if selection is not None and exact and not selection.can_afford_any:
        mistakes.append(
            "the budget is smaller than the cost of every candidate; increase it, or set exact=False for a weighted "
            "design"
        )
    discrimination = criterion if isinstance(criterion, Discrimination) else None
    if discrimination is not None and (over is not None or worst or information.has_samples):
        mistakes.append("discriminate needs a Result or a Problem, without over= and worst=; remove these")
    information_criterion = (
        None if discrimination is not None else _build_criterion(information, criterion, over, mistakes)
    )
    raise_if_mistakes("design", mistakes)
    assert selection is not None
    generator = np.random.default_rng(rng)
    with with_deadline(max_time) as watch:

        def stop() -> Status | None:
            return watch.cause

        def optimize_samples(information: DesignInformation, selection: CandidateSelection) -> Design:
            assert information_criterion is not None
            return _optimize_samples(
                information, selection, information_criterion, over, worst=worst, exact=exact, rng=generator, stop=stop
            )

        if discrimination is not None:
            return _design_against_rivals(information, selection, discrimination, exact=exact, rng=generator, stop=stop)
        if not choices or information_criterion is None:
            return optimize_samples(information, selection)
        search = ChoiceSearch(
            information,
            selection,
            DesignGoal(information_criterion),
            _order_quantities(information, information_criterion, over),
            candidate_list,
            choices,
            path_rules,
        )
        return optimize_choices(search, build_at_choices, optimize_samples, starts or DEFAULT_STARTS, generator, stop)


def _choice_mistakes(
    information: DesignInformation, candidates: Sequence[Candidate], criterion: Any, options: Mapping[str, Any]
) -> list[str]:
    """Return mistakes in options that choices exclude, or that need choices."""
    starts, labels = (
        options["starts"],
        [n for n, c in zip(information.labels, candidates, strict=True) if choice_locations(c)],
    )
    mistakes = option_mistakes(("starts", starts, starts is None or is_count(starts, 1), "give a positive integer"))
    if not labels:
        remedy = "no candidate contains cf.choose(low, high); add one, or remove the argument"
        return mistakes + [f"{n}= is given, and {remedy}" for n in ("constraints", "starts") if options[n] is not None]
    if isinstance(criterion, Discrimination):
        mistakes.append("discriminating designs do not support cf.choose; pass candidates with fixed numbers")
    if options["worst"]:
        mistakes.append(
            "cf.choose optimises the average over samples; remove worst=True, or pass candidates with fixed numbers"
        )
    for target in criterion.what if isinstance(criterion, VarianceOf) else ():
        if isinstance(target, OutputAt) and target.experiment in labels:
            mistakes.append(f"OutputAt: '{target.experiment}' contains choices; predict another experiment")
    return mistakes


def _design_against_rivals(
    information: DesignInformation,
    selection: CandidateSelection,
    criterion: Discrimination,
    *,
    exact: bool,
    rng: np.random.Generator,
    stop: Any,
) -> Design:
    """Return the design that discriminates the model from its rivals."""
    result = optimize_discrimination(information, selection, criterion, exact=exact, rng=rng, stop=stop)
    if -result.relaxed.bound <= _MIN_DISCRIMINATION_CHI2:
        raise_if_mistakes(
            "design",
            ["a competing model predicts the same at all candidates; add other conditions, or remove this model"],
        )
    counts = result.counts if exact else _drop_unused(result.counts, selection)
    simple = {
        name: (simple_counts, value / -result.relaxed.bound) for name, (simple_counts, value) in result.simple.items()
    }
    remark = (
        f"The nearest competing model, by the best of {result.fits} fits, has an expected misfit of "
        f"chi2 = {result.value:.4g} beyond the noise"
    )
    if EQUIDISTANT in result.simple:
        remark += f" (equidistant: {result.simple[EQUIDISTANT][1]:.4g})"
    return _build_proposal(
        information, selection, result.goal, result.relaxed, counts, value=-result.value, simple=simple,
        remarks=[f"{remark}.", *_stop_remarks(stop())], exact=exact, criterion="T",
    )  # fmt: skip


def _stop_remarks(cause: Status | None) -> list[str]:
    """Return a remark on the cause that ended the search early, if there is one."""
    return [f"{STOPS[cause].removesuffix('.')}; this is the best design so far."] if cause else []


def _drop_unused(weights: Array, selection: CandidateSelection) -> Array:
    """Return the weights without those that the numerical methods leave on candidates that are not in the design."""
    cost = weights * selection.cost
    return np.where(cost > _MIN_COST_FRACTION * cost.max(), weights, 0.0)


def _build_proposal(
    information: DesignInformation,
    selection: CandidateSelection,
    goal: DesignGoal,
    solution: RelaxedDesign,
    counts: Array,
    *,
    value: float,
    simple: Mapping[str, tuple[Array, float]],
    remarks: Sequence[str],
    **fields: Any,
) -> Design:
    """Return a design with its remarks."""
    bound, compute_information = min(solution.bound, value), selection.pool.information
    design = Design(
        weights=solution.w,
        counts=counts,
        value=value,
        bound=bound,
        efficiency=goal.efficiency(value, bound),
        before=compute_deviations(information, selection.pool.M0),
        after=compute_deviations(information, compute_information(counts)),
        simple={
            name: compute_deviations(information, compute_information(simple_counts))
            for name, (simple_counts, _) in simple.items()
        },
        simple_efficiency={name: efficiency for name, (_, efficiency) in simple.items()},
        design_goal=goal,
        information=information,
        selection=selection,
        relaxed=solution,
        **fields,
    )
    return replace(design, remarks=(*build_remarks(design), *remarks))


def _optimize_samples(
    information: DesignInformation,
    selection: CandidateSelection,
    criterion: InformationCriterion,
    over: Any,
    *,
    worst: bool,
    exact: bool,
    rng: np.random.Generator,
    stop: Any,
) -> Design:
    order = _order_quantities(information, criterion, over)
    goal = DesignGoal(criterion)
    groups: Any = None
    if information.has_subjects:
        from castfit.drive.design import populations as groups

        information, selection = groups.select_schedules(information, selection, goal, order, rng, stop)
    pool = selection.pool.with_order(order)
    _require_determined(information, goal, pool, order)
    if worst:
        goal, pool = _build_maximin_goal(goal, pool, stop)
    solution = optimize_weights(goal, pool, stop=stop)
    for b in _SOFTMAX_SHARPNESS[1:] if worst and solution is not None and not isinstance(criterion, ECriterion) else ():
        goal = replace(goal, b=b)
        assert solution is not None
        solution = optimize_weights(goal, pool, start=solution.w, stop=stop) or solution
    if solution is None:
        raise InputError("design", ["the information matrix of all candidates is singular; add candidates"])

    def evaluate_goal(counts: Array) -> float:
        return float(goal.values(pool.information(counts)) + pool.price @ counts)

    counts, full_value = _drop_unused(solution.w, selection), evaluate_goal(solution.w)
    if not abs(evaluate_goal(counts) - full_value) <= _MAX_VALUE_CHANGE * abs(full_value):
        counts = solution.w  # a singular optimum is the limit of designs with small weights
    if exact:
        counts = optimize_counts(goal, pool, selection.positions, solution.w, rng=rng, stop=stop)
        with suppress(StopRequested):
            shift_selection = groups.shift_schedule_times if groups else shift_times
            improvement = None if worst else shift_selection(information, selection, goal, counts, order)
            selection, pool = (selection, pool) if improvement is None else improvement
    information = groups.name_schedules(information, counts) if groups else information
    _require_reached(information, goal, pool, counts, exact=exact)
    simple = build_simple_designs(information, selection, counts) if exact else {}
    bound = min(solution.bound, evaluate_goal(counts))
    return _build_proposal(
        information,
        selection,
        goal,
        solution,
        counts,
        value=evaluate_goal(counts),
        exact=exact,
        criterion=criterion.name,
        simple={
            name: (simple_counts, goal.efficiency(evaluate_goal(simple_counts), bound))
            for name, simple_counts in simple.items()
        },
        remarks=_stop_remarks(stop()),
    )


def _build_criterion(
    information: DesignInformation, criterion: Any, over: Any, mistakes: list[str]
) -> InformationCriterion | None:
    """Return the criterion in the order of `_order_quantities`. Return None after a mistake."""
    names = information.quantities
    over_names = [over] if isinstance(over, str) else read_sequence(over) if over is not None else list(names)
    if over_names is None or not over_names or not all(isinstance(n, str) for n in over_names):
        mistakes.append(
            f"over is {shorten_repr(over)}; expected names of quantities"
            if names
            else "nothing is estimated: free a parameter (fixed=False) or an initial state (free(guess))"
        )
        return None
    mistakes += [f"over names '{n}': {suggest(n, names)}" for n in over_names if n not in names]
    if over is not None and (isinstance(criterion, VarianceOf) or is_one_of(criterion, "E")):
        mistakes.append("over= has an effect only for criteria 'D' and 'A'; remove it")
    if mistakes:
        return None
    n, n_wanted = len(information.names), len(set(over_names))
    if isinstance(criterion, VarianceOf):
        columns = [_compute_gradient(information, target, mistakes) for target in criterion.what]
        if not columns:
            mistakes.append("variance_of() has no argument; pass a quantity, an expression, or cf.OutputAt(...)")
        valid_columns = [c for c in columns if c is not None]
        if len(valid_columns) == len(columns) and columns and not any(c.any() for c in valid_columns):
            mistakes.append("the argument of variance_of does not depend on any quantity; pass one that does")
        return None if mistakes else ACriterion(np.stack(valid_columns, axis=1))
    if is_one_of(criterion, "D"):
        return DCriterion(n, n - n_wanted)
    if is_one_of(criterion, "A"):
        K = np.zeros((n, n_wanted))
        K[_order_quantities(information, DCriterion(n, n - n_wanted), over)[-n_wanted:], range(n_wanted)] = 1.0
        return ACriterion(K)
    return ECriterion(n)


def _compute_gradient(information: DesignInformation, target: Any, mistakes: list[str]) -> Array | None:
    """Compute the derivatives of a quantity, expression or prediction by relative changes, (n_u,).

    Return None after a mistake.
    """
    if not isinstance(target, OutputAt) or information.has_subjects:
        return information.gradient(target, mistakes)
    names = [e.name for e in information.problem.experiments]
    label = target.experiment or names[0]
    conditions = [*names, *information.labels]
    if label not in conditions:
        mistakes.append(f"OutputAt: '{label}' is no experiment: {suggest(label, conditions)}")
    if target.output not in information.problem.original_model.output_names:
        mistakes.append(
            f"OutputAt: '{target.output}' is no output: "
            f"{suggest(target.output, information.problem.original_model.output_names)}"
        )
    if mistakes:
        return None
    return information.slopes(label, np.array([float(target.time)]), [target.output])[1][0, 0]


def _order_quantities(information: DesignInformation, criterion: InformationCriterion, over: Any) -> Index:
    """Return the order of quantities that a criterion expects: nuisance quantities first."""
    if not isinstance(criterion, DCriterion) or not criterion.nuisance:
        return np.arange(len(information.names))
    wanted_names = {over} if isinstance(over, str) else set(over) if over is not None else set(information.quantities)
    is_relevant = np.zeros(len(information.names), dtype=bool)
    is_relevant[[int(information.problem_positions[information.quantities.index(n)]) for n in wanted_names]] = True
    return np.argsort(is_relevant, kind="stable")


def _require_determined(information: DesignInformation, goal: DesignGoal, pool: CandidatePool, order: Index) -> None:
    """Raise an InputError if all candidates together do not determine the target, or add no information."""
    cap = np.where(np.isfinite(pool.u), pool.u, 1.0)
    best_deviations = standard_deviations(pool.information(cap)).max(axis=0)[np.argsort(order)]
    is_relevant = _find_relevant_entries(goal.criterion, len(information.names))[np.argsort(order)]
    names = np.array(information.names)
    has_no_effect = ~(pool.J != 0.0).any(axis=(0, 1, 2))[np.argsort(order)]
    is_unknown = is_relevant & (best_deviations > UNKNOWN_DEVIATION)
    if not is_unknown.any():
        value_before, value_after = float(goal.values(pool.M0)), float(goal.values(pool.information(cap)))
        unit = 1.0 if goal.criterion.logarithmic else abs(value_before)  # a variance has a unit
        if np.isfinite(value_before) and value_before - value_after <= _MIN_CRITERION_GAIN * unit:
            remedy = "offer other times, outputs or conditions"
            raise InputError("design", [f"the candidates add no information; {remedy}"])
        return
    messages = (
        [f"no candidate depends on {join_limited(names[is_unknown & has_no_effect])}"]
        if (is_unknown & has_no_effect).any()
        else []
    )
    if (is_unknown & ~has_no_effect).any():
        messages.append(
            f"the candidates cannot distinguish {join_limited(names[is_unknown & ~has_no_effect])} from other "
            "quantities"
        )
    remedy = "add other outputs or conditions, fix it (Parameter(fixed=True)), or exclude it with over="
    raise InputError("design", [f"{message}; {remedy}" for message in messages])


def _find_relevant_entries(criterion: InformationCriterion, n: int) -> Mask:
    """Return a mask of the entries that a criterion must determine, in its order."""
    if isinstance(criterion, DCriterion):
        return np.arange(n) >= criterion.nuisance
    if isinstance(criterion, ACriterion):
        return np.zeros(n, dtype=bool) if criterion.K.shape[1] == 1 else (criterion.K != 0.0).any(axis=1)
    return np.ones(n, dtype=bool)


def _require_reached(
    information: DesignInformation, goal: DesignGoal, pool: CandidatePool, counts: Array, *, exact: bool
) -> None:
    """Raise an InputError if the counts do not determine the quantities that the criterion needs."""
    is_relevant = _find_relevant_entries(goal.criterion, len(information.names))
    is_unknown = is_relevant & (standard_deviations(pool.information(counts)).max(axis=0) > UNKNOWN_DEVIATION)
    if isinstance(goal.criterion, ACriterion) and goal.criterion.K.shape[1] == 1:
        is_unknown = np.array(
            [float(goal.values(pool.information(counts))) > UNKNOWN_DEVIATION**2 * float(np.sum(goal.criterion.K**2))]
        )
    if not is_unknown.any():
        return
    n, count = int(is_relevant.sum()) or 1, int(counts.sum())
    purchase_text = "one measurement is" if count == 1 else f"{count} measurements are"
    if not exact:
        purchase_text = "what the budget buys is"
    demand_text = f"{n} {'quantity' if n == 1 else 'quantities'} without prior information"
    alternatives = "add priors or pass a fit, or reduce the target with over= or cf.variance_of(...)"
    remedy = f"increase the budget or reduce the price, {alternatives}"
    if information.is_fitted:
        demand_text = f"{n} {'quantity' if n == 1 else 'quantities'} at estimates that are poorly determined"
        remedy = "pass the problem with trusted guesses instead of the fit, or increase the budget"
    raise InputError("design", [f"{purchase_text} not enough for {demand_text}; {remedy}"])


def _build_maximin_goal(goal: DesignGoal, pool: CandidatePool, stop: Any) -> tuple[DesignGoal, CandidatePool]:
    """Return the goal of the least efficiency: each sample relative to its own best design."""
    best_values = np.zeros(len(pool.J))
    for s in range(best_values.size):
        sample_design = optimize_weights(
            goal, replace(pool, J=pool.J[s : s + 1], M0=pool.M0[s : s + 1]), 1e-6, stop=stop
        )
        if sample_design is None:
            raise InputError(
                "design", ["at one of the samples the information matrix of the candidates is singular; add candidates"]
            )
        best_values[s] = sample_design.value
    if goal.criterion.logarithmic:
        return DesignGoal(goal.criterion, best_values, _SOFTMAX_SHARPNESS[0]), pool
    unit = best_values if isinstance(goal.criterion, ACriterion) else 1.0 / np.abs(best_values)
    scaled_pool = replace(pool, J=pool.J * np.sqrt(unit)[:, None, None, None], M0=pool.M0 * unit[:, None, None])
    return DesignGoal(
        goal.criterion,
        np.full(best_values.size, 1.0 if isinstance(goal.criterion, ACriterion) else -1.0),
        _SOFTMAX_SHARPNESS[0],
    ), scaled_pool
