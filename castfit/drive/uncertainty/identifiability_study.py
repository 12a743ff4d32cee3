"""`identifiability`: what the data determine, what they could determine, and what to measure next, in one place.

structural   what the measured outputs cannot tell, however often and well they are measured
             (castfit.result.structural_identifiability)
practical    what these data do not tell, although they could (castfit.result.identifiability, confidence_region)
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castfit._support.arguments import option_mistakes, real, rng_mistakes
from castfit._support.arrays import Array
from castfit._support.blas_threads import one_blas_thread
from castfit._support.public_names import public
from castfit._support.reprs import brief, listed
from castfit._support.status import check, suggest
from castfit._support.text_tables import Sheet, Tabled
from castfit.drive.uncertainty.inputs import problem_mistakes
from castfit.integrate import IntegratorOptions
from castfit.problem.compiled_problem import Posed
from castfit.problem.problem import Posable
from castfit.result.collinearity import POOR, collinearity, largest_subset, most_collinear, sensitivities
from castfit.result.confidence_region import ConfidenceRegion
from castfit.result.covariance import statistics
from castfit.result.experimental_design import Suggestion, suggestions
from castfit.result.identifiability import AT_BOUND, NOT_IDENTIFIABLE, POORLY_DETERMINED, UNKNOWN, WELL_DETERMINED
from castfit.result.result import Result
from castfit.result.structural_identifiability import Structure, structure
from castfit.transcribe.single_shooting import SingleShooting

STRUCTURAL = "structurally not identifiable"
PRACTICAL = "practically not identifiable"
POORLY = "practically poorly determined"
_PAIRS = 3  # most collinear subsets that are named
_ACCURACY = 10.0  # times its tolerance: what CVODES errs by


@public("castfit")
@brief
@dataclass(frozen=True, eq=False, repr=False)
class IdentifiabilityStudy(Tabled):
    """Result of a study of structural and practical identifiability; ``print`` shows it.

    Attributes
    ----------
    names : tuple of str
    kinds : dict
        By name: "structurally not identifiable", "practically not identifiable", "practically poorly determined", or
        what the fit itself says, such as "well determined" or "at its bound".
    remarks : dict
        By name, a sentence.
    structure : Structure
        What dense data without errors would determine.
    sensitivity : dict
        By name, the largest first: how many standard deviations a datum moves, in root mean square, if the quantity
        changes by its own size (delta^msqr of Brun et al. 2001).
    collinear : tuple of (names, index)
        The most collinear pairs and triples.
    subset : tuple of str
        The largest set of quantities that can be estimated together: collinearity at most 10.
    region : ConfidenceRegion or None
        Of a fit that succeeded.
    suggestions : tuple of Suggestion
        What one more measured value would do for the combination that is known worst.
    information : (n, n) array
        Fisher's information on theta; of the design at the guess where there is no fit.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> found = cf.identifiability(problem, rng=0)
    >>> found.kinds["k1"]
    'well determined'
    >>> round(found.collinearity(["k1", "k2"]), 1)
    2.2
    """

    names: tuple[str, ...]
    kinds: Mapping[str, str]
    remarks: Mapping[str, str]
    structure: Structure
    sensitivity: Mapping[str, float]
    collinear: tuple[tuple[tuple[str, ...], float], ...]
    subset: tuple[str, ...]
    region: ConfidenceRegion | None
    suggestions: tuple[Suggestion, ...]
    information: Array

    def collinearity(self, names: Sequence[str]) -> float:
        """Return the collinearity index of some quantities (Brun et al. 2001): above 10 they hide each other.

        Raises
        ------
        InputError
            For names that are not estimated.
        """
        given = [names] if isinstance(names, str) else list(names)
        check("collinearity", [f"'{n}' is not estimated: {suggest(str(n), self.names)}" for n in given
                               if n not in self.names])  # fmt: skip
        return collinearity(self.information, [self.names.index(n) for n in dict.fromkeys(given)])

    @property
    def table(self) -> Sheet:
        """One row per quantity, the one that moves the data most first."""
        known = {} if self.region is None else dict(zip(self.names, self.region.gains.tolist(), strict=True))

        def gain(name: str) -> str:
            value = known.get(name, np.nan)
            return "-" if np.isnan(value) else "inf" if np.isinf(value) else f"{value:.2g}"

        return Sheet.of(
            self.sensitivity,
            ("", lambda n: n),
            (">moves data by", lambda n: f"{self.sensitivity[n]:.3g} sigma"),
            (">gain if others known", lambda n: f"{gain(n)} times" if gain(n) != "-" else "-"),
            ("verdict", lambda n: self.remarks[n]),
        )

    def _open(self, name: str) -> bool:
        """Check whether a quantity is not yet well determined or at its bound; always True before a fit."""
        return self.region is None or self.kinds[name] not in (WELL_DETERMINED, AT_BOUND)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Messages that supplement the table and explain the verdicts."""
        found = [self.structure.sentence]
        others = [n for n in self.names if n not in self.subset and self._open(n)]
        if others:
            left = f"{len(self.subset)} of {len(self.names)}"
            more = "" if any(self.kinds[n] == STRUCTURAL for n in others) else ", or measure more"
            found.append(f"Estimable together: {listed(self.subset)} ({left}); fix {listed(others)}{more}.")
        for names, index in self.collinear:
            if np.isinf(index):
                found.append(f"{' and '.join(names)} are not distinguishable.")
            elif index > POOR and any(map(self._open, names)):
                found.append(f"{' and '.join(names)} are nearly collinear (collinearity index {index:.3g}).")
            elif index > POOR:
                found.append(
                    f"Changes in the other quantities compensate all but {100 / index:.2g} % of the effect of one of "
                    f"{listed(names)} (collinearity index {index:.3g}). The standard errors include this."
                )
        if self.region is not None:
            found += self.region.sentences
        found += [s.sentence for s in self.suggestions]
        worst = None if self.region is None or not self.region.axes else self.region.axes[-1]
        if worst is not None and np.isinf(worst.standard_error) and not self.suggestions:
            found.append(
                f"No output of this model would determine {worst.combination}: fix a quantity or add a prior."
            )
        return tuple(found)

    @property
    def parts(self) -> tuple[Sheet | str, ...]:
        """The table, and the sentences below it."""
        return self.table, *self.sentences

    def __str__(self) -> str:
        return "\n".join([*self.table.lines, "", *self.sentences])


@one_blas_thread
@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def identifiability(
    problem: Result | Posable, *, rng: int | np.random.Generator = 0, max_time: float = 60.0
) -> IdentifiabilityStudy:
    """Assess structural and practical identifiability, and suggest what to measure next.

    Parameters
    ----------
    problem : Result, Problem or Posed
        Of a fit: what the data say at the estimate.  Of a problem: what the design could say at the guess, before any
        fit; values of the data are not used.
    rng : int or numpy.random.Generator
        Draws the points at which structural identifiability is tested.
    max_time : float
        Seconds after which no further point is drawn; one at least is.

    Returns
    -------
    IdentifiabilityStudy
        Also where nothing is identifiable.

    Raises
    ------
    InputError
        For a loaded result without its problem, or options out of range.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> cf.identifiability(problem, rng=0).kinds
    {'k1': 'well determined', 'k2': 'well determined'}
    """
    began, limit = time.perf_counter(), real(max_time)
    given: Any = problem
    mistakes = rng_mistakes(rng)
    mistakes += option_mistakes(("max_time", max_time, limit is not None and limit > 0.0, "give a number of seconds"))
    mistakes += problem_mistakes(given, "give a Result or a Problem")
    check("identifiability", mistakes)
    assert limit is not None
    if isinstance(given, Result):
        assert given.problem is not None
        fitted, theta, options = given if given.success else None, given.theta, given.integrator
        posed = given.problem.posed.assuming(absolute_sigma=given.absolute_sigma)
    else:
        fitted, theta, options, posed = None, given.posed.guess, IntegratorOptions(), given.posed
    generator = np.random.default_rng(rng)
    bare = structure(posed, theta, generator, options, wanted=lambda: time.perf_counter() - began < 0.5 * limit)
    known = np.asarray(fitted.information) if fitted is not None else _design(posed, theta, options)
    region = None if fitted is None else fitted.confidence_region()
    sizes = _sizes(posed, theta) if region is None else 1.0 / np.where(region.per_theta != 0, region.per_theta, np.inf)
    effect = sensitivities(known, np.abs(sizes), posed.n_data)
    order = np.argsort(-effect, kind="stable")
    pairs = most_collinear(known, 2, _PAIRS)
    told = [at for at, index in pairs if index > POOR]
    pairs += [(at, g) for at, g in most_collinear(known, 3, 1) if not any(np.isin(two, at).all() for two in told)]
    names = posed.names
    kinds = {name: _kind(name, bare, fitted) for name in names}
    advice: tuple[Suggestion, ...] = ()
    if fitted is not None and region is not None and time.perf_counter() - began < limit:
        table = {**fitted.residual_table(), "deviation": fitted.deviations}
        advice = suggestions(posed, theta, region, table, options)
    return IdentifiabilityStudy(
        names=names,
        kinds={name: kind for name, (kind, _) in kinds.items()},
        remarks={name: remark for name, (_, remark) in kinds.items()},
        structure=bare,
        sensitivity={names[j]: float(effect[j]) for j in order},
        collinear=tuple((_at(names, at), index) for at, index in pairs),
        subset=_at(names, largest_subset(known, np.abs(sizes))),
        region=region,
        suggestions=advice,
        information=known,
    )


def _at(names: Sequence[str], places: NDArray[np.intp]) -> tuple[str, ...]:
    return tuple(names[int(j)] for j in places)


def _kind(name: str, bare: Structure, fitted: Result | None) -> tuple[str, str]:
    """Return the identifiability kind of a quantity, structural or practical, and a sentence that explains it."""
    hidden = bare.of(name)
    if hidden is not None:
        error = np.inf if fitted is None else fitted.standard_errors[name]
        remark = "; determined only by priors" if np.isfinite(error) else ""
        return STRUCTURAL, f"{STRUCTURAL}: {hidden.sentence}{remark}"
    if fitted is None:
        if bare.rank < 0 or name not in bare.names:
            return UNKNOWN, "not examined"
        return WELL_DETERMINED, "structurally identifiable"
    verdict = fitted.identifiability[name]
    could = "identifiable from dense, error-free data" if bare.rank >= 0 else "structural identifiability not tested"
    if verdict.kind == NOT_IDENTIFIABLE:
        return PRACTICAL, f"{PRACTICAL}: {verdict.sentence.removeprefix('not identifiable: ')}, but {could}"
    if verdict.kind == POORLY_DETERMINED:
        said = verdict.sentence.removeprefix("poorly determined: ")
        return POORLY, f"{POORLY}: {said}; {could}"
    return verdict.kind, verdict.sentence


def _sizes(posed: Posed, theta: Array) -> Array:
    """Return the size in search scale that corresponds to a relative change of 1, at the guess."""
    natural = np.abs(posed.to_natural(theta))
    return np.where(posed.log, 1.0, np.where(natural > 0.0, natural, 1.0))


def _design(posed: Posed, theta: Array, options: IntegratorOptions) -> Array:
    """Return Fisher's information of the design at theta; zeros where the model cannot be integrated there."""
    staged = SingleShooting(options).transcribe(posed, theta).explicit()
    linear = staged.linearize(theta)
    n = theta.size
    if not linear.ok:
        return np.zeros((n, n))
    found = statistics(
        staged.layout, linear, np.zeros(staged.layout.n_v, dtype=np.int8),
        scale=staged.scale, relative_tolerance=_ACCURACY * options.relative_tolerance,
    )  # fmt: skip
    return np.where(np.isfinite(found.information), found.information, 0.0)
