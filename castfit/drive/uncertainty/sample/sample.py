"""`sample`: draws from the posterior, by emcee's ensembles of walkers with proposals from the fit.

Three kinds of proposals are mixed, in coordinates in which the posterior has the covariance of the fit:

    t          independent of the walker's position, from Student's t about the estimate: if the posterior is nearly
               normal, almost every proposal is accepted, and draws are nearly independent
    walk       a normal step of the best size for a normal posterior, 2.38 / sqrt(n)      [Roberts, Gelman, Gilks 1997]
    ensemble   along the difference of two other walkers [ter Braak 2006]: adapts to deviations from the covariance

The first two reach every point, so that ten walkers suffice for any number of quantities.  Draws of 20 normal
quantities converged after 12,000 evaluations with 10 walkers, and after 24,000 with 42 walkers; if the posterior was
1.5 times as wide as the proposals, after 24,000 and 49,000.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from castfit._support.arguments import is_count, is_one_of, option_mistakes, rng_mistakes, within_reason
from castfit._support.arrays import Array
from castfit._support.process_pool import lost_task_status
from castfit._support.status import InputError, Status, raise_if_mistakes
from castfit._support.time_limit import (
    StopRequested,
    check_deadline,
    guarded,
    stop_cause,
    with_deadline,
    without_deadline,
)
from castfit.drive.run.jobs import task, unpickle_job
from castfit.drive.run.loop import ProgressReport, run_tasks
from castfit.drive.run.options import RunOptions
from castfit.drive.uncertainty.inputs import as_seed, solved_problem
from castfit.drive.uncertainty.sample.posterior import find_improper, posterior, whitening_transform
from castfit.drive.uncertainty.sample.result import SampleResult
from castfit.problem.compiled_problem import CompiledProblem
from castfit.result.result import Result

_DEFAULT_WALKERS = 10  # walkers per chain
_DEFAULT_DRAWS = 4000  # draws that are kept, of all chains together
_MAX_DOUBLINGS = 4  # how often a default run doubles its draws while it has not converged
_PROPOSAL_T_DF = 5.0  # degrees of freedom of independent proposals: tails heavier than the posterior's
_BY_STEP = ("thetas", "logs", "sigmas", "is_accepted")
# Seconds after which the next chain runs: a run that is stopped early has draws of all chains.
_CHAIN_TIME_SLICE_SECONDS = 5.0
_MAX_START_DRAWS = 200  # draws for the start of one walker
_IMPROPER = (
    "the posterior of {0} is improper: its log density falls by {1:.3g} up to 10 standard errors, and from there to 40 "
    "more slowly than the inverse of the distance. Set bounds or a prior of {0}, or pass improper=True"
)
_INSTALL = "sampling needs the packages emcee and arviz; install them by: pip install 'castfit[sampling]'"


@dataclass(frozen=True)
class WalkerEnsemble:
    """The walkers of one chain, for some steps.

    thetas (steps, walkers, n), logs (steps, walkers), sigmas (steps, walkers, n_groups); is_accepted (steps, walkers);
    state: of emcee, from which the chain continues
    """

    thetas: Array
    logs: Array
    sigmas: Array
    is_accepted: Array
    evaluations: int
    state: Any

    def followed_by(self, other: WalkerEnsemble) -> WalkerEnsemble:
        """Return the steps of both ensembles, one after the other."""
        joined_columns: Any = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in _BY_STEP}
        return replace(other, **joined_columns, evaluations=self.evaluations + other.evaluations)


@dataclass(frozen=True)
class SampleProgress:
    """Progress of a run: chains that reached the current target, all chains, seconds, and draws including tuning."""

    finished: int
    total: int
    seconds: float
    draws: int

    @property
    def sentence(self) -> str:
        """State of the run in one line."""
        return f"{self.draws:,} draws, {self.finished} of {self.total} chains; {self.seconds:.0f} s"


@guarded
def sample(
    result: Result,
    *,
    draws: int | None = None,
    chains: int = 4,
    tune: int | None = None,
    walkers: int | None = None,
    improper: bool = False,
    rng: int | np.random.Generator = 0,
    workers: int | Executor = 1,
    max_time: float = np.inf,
    callback: Callable[[SampleProgress], Any] | None = None,
    verbose: int | None = None,
) -> SampleResult:
    """Draw from the posterior of the estimates.

    Needs the extra ``castfit[sampling]``.  The posterior is the likelihood times the priors within the bounds.  Priors
    are densities of natural values (with ``on="log"``, of logarithms), also for quantities that are searched in their
    logarithm; the draws are transformed accordingly.  A quantity without a prior is uniform between its bounds on the
    scale of its search, with ``scale="log"`` in its logarithm.  Eliminated sigmas are integrated over, with Jeffreys'
    prior 1 / sigma.

    Walkers start near the estimate with the fit's covariance, which also scales the proposals.  Equations between
    quantities are satisfied if they are linear on the scale of the search; others are unsupported, because a uniform
    density on a curve depends on the chosen coordinate.

    Parameters
    ----------
    result : Result
        Of a fit that succeeded, with its problem.
    draws : int, optional
        Minimum number of draws that are kept, of all walkers together.  By default 4,000, doubled until they have
        converged, up to 64,000.
    chains : int
        Number of independent ensembles of walkers.
    tune : int, optional
        Steps of each walker that are discarded; by default half of the kept steps, and with `draws` at least 20.
    walkers : int, optional
        Walkers of each chain; an even number, by default 10.
    improper : bool
        Whether to draw although the posterior has no finite integral.  By default castfit examines its tails along
        every quantity and every direction that the data do not determine, and names a quantity whose tail is flat.
    rng : int or numpy.random.Generator
        Numbers do not depend on `workers`.
    workers : int or concurrent.futures.Executor
        Each chain is one task.
    max_time : float
        Seconds; the result has the steps that all chains have reached by then.
    callback : callable, optional
        Called with a `SampleProgress` after each chain, and every few seconds; the run stops when it returns True.
    verbose : {0, 1, 2}, optional
        Nothing, the state of the run, one line per chain.  By default a line on a terminal or in a notebook, from two
        seconds on until the end.

    Returns
    -------
    SampleResult
        ``print`` shows whether the chains have converged; ``inference_data`` converts it to ArviZ.

    Raises
    ------
    InputError
        For misuse, for an improper posterior, for equations that are not linear, and if the extra is not installed,
        with the command that installs it.

    Examples
    --------
    >>> import castfit as cf
    >>> result = cf.fit(cf.problems.load("bellman").problem)
    >>> drawn = cf.sample(result, draws=80, chains=2, tune=5)  # thousands are to be relied on
    >>> drawn.chain.shape  # walkers of all chains, steps, quantities
    (20, 4, 2)
    """
    run = RunOptions(workers=workers, max_time=max_time, callback=callback, verbose=verbose)
    mistakes: list[str] = []
    compiled_problem = solved_problem("sample", result, mistakes)
    max_count = max(1000, 4 * len(compiled_problem.names))
    seed_mistakes = rng_mistakes(rng)
    mistakes += option_mistakes(
        ("draws", draws, draws is None or is_count(draws, 1), "expected at least 1, or None"),
        within_reason("chains", chains, 1000),
        ("tune", tune, tune is None or is_count(tune, 0), "expected a number of steps, or None"),
        ("walkers", walkers, walkers is None or (is_count(walkers, 4, max_count) and walkers % 2 == 0),
         f"expected an even number from 4 to {max_count}"),
    )  # fmt: skip
    mistakes += option_mistakes(("improper", improper, is_one_of(improper, True, False), "pass True or False"))
    mistakes += seed_mistakes + run.mistakes()
    if find_spec("emcee") is None or find_spec("arviz") is None:
        mistakes.append(_INSTALL)
    raise_if_mistakes("sample", mistakes)
    flat_tails = {} if improper else find_improper(compiled_problem, result)
    raise_if_mistakes("sample", [_IMPROPER.format(name, fall) for name, fall in flat_tails.items()])
    run, seed = run.with_plain_numbers(), as_seed(rng)
    count, each = int(chains), _DEFAULT_WALKERS if walkers is None else int(walkers)
    n_retained = max(-(-int(_DEFAULT_DRAWS if draws is None else draws) // (count * each)), 2)
    min_tuning = max(n_retained // 2, 20) if draws is not None else -(-n_retained // 2)
    steps = n_retained + (min_tuning if tune is None else int(tune))
    max_count = steps if draws is not None else steps << _MAX_DOUBLINGS
    job = run.pickle_job("sample", "the problem", (compiled_problem, result.with_problem(compiled_problem), each))
    slice_seconds = min(_CHAIN_TIME_SLICE_SECONDS, float(run.max_time) / (4 * count))
    ensemble_by_chain: dict[int, WalkerEnsemble] = {}
    failures: dict[int, str] = {}
    steps_by_chain = dict.fromkeys(range(count), 0)  # steps of each chain

    def make_task(i: int) -> tuple[int, tuple[Any, ...]]:
        state = ensemble_by_chain[i].state if i in ensemble_by_chain else None
        return i, (job, i, seed, state, steps - steps_by_chain[i], slice_seconds, run.deadline)

    tasks = deque(make_task(i) for i in range(count))

    def build_result(stop_reason: Status | None) -> SampleResult:
        n_steps = min((len(e.thetas) for e in ensemble_by_chain.values()), default=0)
        n_tuning = -(-n_steps // 3) if draws is None and tune is None else steps - n_retained
        failure_messages = [f"Chain {i}: {e}" for i, e in sorted(failures.items())]
        ensembles = [e for _, e in sorted(ensemble_by_chain.items())]
        return SampleResult.from_ensembles(
            result, ensembles, count, min(n_tuning, n_steps), stop_reason, failure_messages, run.seconds
        )

    def enter(i: int, outcome: Any) -> ProgressReport | None:
        nonlocal steps
        if isinstance(outcome, InputError):
            raise outcome
        if outcome is None:
            return None
        if not isinstance(outcome, WalkerEnsemble):
            failures[i] = lost_task_status(outcome)[1]
        else:
            ensemble_by_chain[i] = ensemble_by_chain[i].followed_by(outcome) if i in ensemble_by_chain else outcome
            steps_by_chain[i] = len(ensemble_by_chain[i].thetas)
            if steps_by_chain[i] < steps:
                tasks.append(make_task(i))
        progress = build_progress()
        n_finished = progress.finished
        if n_finished == count > 1 and not failures and steps < max_count and not build_result(None).converged:
            steps *= 2
            tasks.extend(make_task(j) for j in range(count))
        return ProgressReport(progress, progress.sentence, f"chain {i}", n_finished, count)

    def build_progress() -> SampleProgress:
        n_finished = sum(r == steps for r in steps_by_chain.values()) + len(failures)
        return SampleProgress(n_finished, count, run.seconds, each * sum(steps_by_chain.values()))

    stop_reason = run_tasks(run, _chain, tasks, enter, limit=np.inf, progress=build_progress)
    if stop_reason is None and any(r < steps for i, r in steps_by_chain.items() if i not in failures):
        stop_reason = Status.MAX_TIME
    return build_result(stop_reason)


_Parts = tuple[CompiledProblem, Any, int]


@task
def _chain(
    job: bytes | _Parts, index: int, seed: int, state: Any, steps: int, seconds: float, deadline: float
) -> WalkerEnsemble | None:
    """Advance the walkers of one chain from a state, or start them; return None if no time is left.

    The walkers make at least one step if there is time, and stop after `seconds`.
    """
    if deadline <= time.time():
        return None
    with with_deadline(deadline - time.time()), suppress(StopRequested):
        return _advance_chain(unpickle_job(job), index, seed, state, steps, min(deadline, time.time() + seconds))
    return None


def _advance_chain(parts: _Parts, index: int, seed: int, state: Any, steps: int, deadline: float) -> WalkerEnsemble:
    emcee: Any = import_module("emcee")
    compiled_problem, result, walkers = parts
    scaling = whitening_transform(compiled_problem, result)
    log = posterior(compiled_problem, result.theta, result.integrator)
    count = 0

    def value(u: Array) -> tuple[float, Array]:
        nonlocal count
        count += 1
        if stop_cause():  # emcee prints every exception
            return -np.inf, np.full(n_groups, np.nan)
        with without_deadline():
            return log(scaling.theta(u))

    n, n_groups = scaling.root.shape[1], len(compiled_problem.groups)
    if state is None:
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(index,)))
        start = np.array([_initial_walkers(value, rng, n) for _ in range(walkers)])
        state = emcee.State(start, random_state=np.random.RandomState(int(rng.integers(2**32))).get_state())

    moves: Any = [
        (emcee.moves.MHMove(_independent(n)), 0.4),
        (emcee.moves.GaussianMove(2.38**2 / n), 0.3),
        (
            emcee.moves.DEMove(live_dangerously=True),
            0.3,
        ),  # allows fewer than 2 n walkers: the other moves leave their hyperplane
    ]
    blob_fields = [("sigma", np.float64, (n_groups,))]
    sampler: Any = emcee.EnsembleSampler(walkers, n, value, moves=moves, blobs_dtype=blob_fields)
    positions, current_state, n_steps = [state.coords], state, 0
    for current_state in sampler.sample(state, iterations=steps, skip_initial_state_check=True):
        if stop_cause():  # some of its proposals were not evaluated
            break
        positions.append(current_state.coords.copy())
        n_steps += 1
        if time.time() > deadline:
            break
    if not n_steps:
        check_deadline()
    chain = np.array(positions)
    blobs = sampler.get_blobs()[:n_steps]
    unnamed = blobs["sigma"] if blobs.dtype.names else blobs  # some versions of emcee drop the name of the only field
    sigmas = unnamed.astype(float).reshape(n_steps, walkers, n_groups)
    has_moved = (np.diff(chain, axis=0) != 0.0).any(axis=2)
    thetas = scaling.centre + chain[1:] @ scaling.root.T
    return WalkerEnsemble(thetas, sampler.get_log_prob()[:n_steps], sigmas, has_moved, count, current_state)


def _initial_walkers(value: Callable[[Array], tuple[float, Array]], rng: np.random.Generator, n: int) -> Array:
    """Draw the start of a walker near the estimate, closer with each try, until the posterior is positive."""
    for k in range(_MAX_START_DRAWS):
        u = rng.standard_normal(n) * 0.9**k
        if np.isfinite(value(u)[0]):
            return u
    check_deadline()
    raise RuntimeError("no feasible starting points were found near the estimate")


def _independent(n: int) -> Callable[..., tuple[Array, Array]]:
    """Return the proposal from Student's t about the estimate: new points, and  log q(old) - log q(new)."""

    def height(u: Array) -> Array:
        return -0.5 * (_PROPOSAL_T_DF + n) * np.log1p(np.sum(u**2, axis=-1) / _PROPOSAL_T_DF)

    def propose(old: Array, random: Any) -> tuple[Array, Array]:
        scale = np.sqrt(_PROPOSAL_T_DF / random.chisquare(_PROPOSAL_T_DF, len(old)))
        new = random.standard_normal(old.shape) * scale[:, None]
        return new, height(old) - height(new)

    return propose
