"""`sample`: draws from the posterior, by emcee's ensembles of walkers with proposals that the fit suggests.

Three kinds of proposals are mixed, in coordinates in which the posterior has the covariance of the fit:

    t          independent of where a walker is, from Student's t about the estimate: where the posterior is nearly
               normal, almost every one is accepted, and draws are nearly independent
    walk       a normal step of the best size for a normal posterior, 2.38 / sqrt(n)      [Roberts, Gelman, Gilks 1997]
    ensemble   along the difference of two other walkers [ter Braak 2006]: follows what the covariance does not know
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from castfit._support.arguments import is_count, option_mistakes, rng_mistakes, within_reason
from castfit._support.arrays import Array
from castfit._support.process_pool import lost
from castfit._support.status import InputError, Status, check
from castfit.drive.run.jobs import task, thaw
from castfit.drive.run.loop import ProgressReport, carry_out
from castfit.drive.run.options import RunOptions
from castfit.drive.uncertainty.inputs import seed_from, solved_problem
from castfit.drive.uncertainty.sample.posterior import posterior, whitening
from castfit.drive.uncertainty.sample.result import SampleResult
from castfit.problem.compiled_problem import Posed
from castfit.result.result import Result

_DF = 5.0  # of the independent proposals: tails heavier than those of a posterior
_TRIES = 200  # draws for the start of one walker
_INSTALL = "sampling needs the packages emcee and arviz; install them by: pip install 'castfit[sampling]'"


@dataclass(frozen=True)
class WalkerEnsemble:
    """The walkers of one chain, after what it needed to settle.

    thetas (steps, walkers, n), logs (steps, walkers), sigmas (steps, walkers, n_groups); accepted: share of proposals;
    cut: whether the time ended it
    """

    thetas: Array
    logs: Array
    sigmas: Array
    accepted: float
    evaluations: int
    cut: bool


@dataclass(frozen=True)
class SampleProgress:
    """How far a run is: chains finished and in all, seconds."""

    finished: int
    total: int
    seconds: float

    @property
    def sentence(self) -> str:
        """The state of things in one line."""
        return f"{self.finished} of {self.total} chains; {self.seconds:.0f} s"


def sample(
    result: Result,
    *,
    draws: int = 4000,
    chains: int = 4,
    tune: int | None = None,
    walkers: int | None = None,
    rng: int | np.random.Generator = 0,
    workers: int | Executor = 1,
    max_time: float = np.inf,
    callback: Callable[[SampleProgress], Any] | None = None,
    verbose: int | None = None,
) -> SampleResult:
    """Draw from the posterior of the estimates.

    Needs the extra ``castfit[sampling]``.  The posterior is the likelihood times the priors within the bounds.  Priors
    are densities of natural values (by ``on="log"`` of logarithms), also of quantities that are searched in their
    logarithm: the draws are transformed rightly.  A quantity without a prior is equally probable everywhere between its
    bounds in the scale of its search, of ``scale="log"`` in its logarithm.  Sigmas that a fit eliminates are integrated
    over, with Jeffreys' prior 1 / sigma.

    Walkers begin about the estimate with the fit's covariance, by which proposals are scaled too.

    Parameters
    ----------
    result : Result
        Of a fit that succeeded, with its problem.
    draws : int
        How many draws are kept, at least, of all walkers together.
    chains : int
        Ensembles of walkers that know nothing of each other.
    tune : int, optional
        Steps of each walker that are thrown away; by default half as many as are kept, and at least 20.
    walkers : int, optional
        Of each chain; by default twice the number of quantities and two, the least is twice.
    rng : int or numpy.random.Generator
        Numbers do not depend on `workers`.
    workers : int or concurrent.futures.Executor
        Each chain is one task.
    max_time : float
        Seconds; the steps that all chains have come to then count.
    callback : callable, optional
        Called with a `SampleProgress` after each chain; no more are run when it returns True.
    verbose : {0, 1, 2}, optional
        Nothing, the state of the run, one line per chain.  By default a line on a terminal or in a notebook, from two
        seconds on until the end.

    Returns
    -------
    SampleResult
        Its ``inference_data`` is ArviZ's; printing it says whether the chains have converged.

    Raises
    ------
    InputError
        For misuse, and where the extra is not installed, with the command that installs it.

    Examples
    --------
    >>> import castfit as cf
    >>> result = cf.fit(cf.problems.load("bellman").problem)
    >>> drawn = cf.sample(result, draws=40, chains=2, tune=5)  # thousands are to be relied on
    >>> drawn.chain.shape  # walkers of all chains, steps, quantities
    (12, 4, 2)
    """
    run = RunOptions(workers=workers, max_time=max_time, callback=callback, verbose=verbose)
    mistakes: list[str] = []
    posed = solved_problem("sample", result, mistakes)
    n = len(posed.names)
    most = max(1000, 4 * n)
    wrong = rng_mistakes(rng)
    mistakes += option_mistakes(
        ("draws", draws, is_count(draws, 1), "give at least 1"),
        within_reason("chains", chains, 1000),
        ("tune", tune, tune is None or is_count(tune, 0), "give a number of steps, or None"),
        ("walkers", walkers, walkers is None or (is_count(walkers, 2 * n, most) and walkers % 2 == 0),
         f"give an even number of at least {2 * n}, twice the number of quantities, and at most {most}"),
    )  # fmt: skip
    mistakes += wrong + run.mistakes()
    if find_spec("emcee") is None or find_spec("arviz") is None:
        mistakes.append(_INSTALL)
    check("sample", mistakes)
    run, seed = run.cleaned(), seed_from(rng)
    each = 2 * n + 2 if walkers is None else int(walkers)
    steps = max(-(-int(draws) // (int(chains) * each)), 2)
    before = max(steps // 2, 20) if tune is None else int(tune)
    job = run.freeze("sample", "the problem", (posed, result.with_problem(posed), each, before, steps))
    found: dict[int, Any] = {}

    def enter(i: int, outcome: Any) -> ProgressReport | None:
        if isinstance(outcome, InputError):
            raise outcome
        if outcome is None:
            return None
        found[i] = outcome if isinstance(outcome, WalkerEnsemble) else lost(outcome)[1]
        now = SampleProgress(len(found), int(chains), run.seconds)
        return ProgressReport(now, now.sentence, f"chain {i}", len(found), int(chains))

    tasks = deque((i, (job, i, seed, run.deadline)) for i in range(int(chains)))
    stopped = carry_out(run, _chain, tasks, enter, limit=np.inf)
    ensembles = [e for _, e in sorted(found.items()) if isinstance(e, WalkerEnsemble)]
    trouble = [f"Chain {i}: {e}" for i, e in sorted(found.items()) if isinstance(e, str)]
    if any(e.cut for e in ensembles):
        stopped = stopped or Status.MAX_TIME
    return SampleResult.of(result, ensembles, int(chains), steps, before, stopped, trouble, run.seconds)


_Parts = tuple[Posed, Any, int, int, int]


@task
def _chain(job: bytes | _Parts, index: int, seed: int, deadline: float) -> WalkerEnsemble | None:
    """Run the walkers of one chain, wherever this is called; None if there is no time."""
    emcee: Any = import_module("emcee")
    posed, result, walkers, tune, steps = thaw(job)
    if deadline <= time.time():
        return None
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(index,)))
    white = whitening(posed, result)
    log = posterior(posed, result.theta, result.integrator)
    count = 0

    def value(u: Array) -> tuple[float, Array]:
        nonlocal count
        count += 1
        return log(white.theta(u))

    n, n_groups = len(posed.names), len(posed.groups)
    start = np.array([_first(value, rng, n) for _ in range(walkers)])

    moves: Any = [
        (emcee.moves.MHMove(_independent(n)), 0.4),
        (emcee.moves.GaussianMove(2.38**2 / n), 0.3),
        (emcee.moves.DEMove(), 0.3),
    ]
    kept = [("sigma", np.float64, (n_groups,))]
    sampler: Any = emcee.EnsembleSampler(walkers, n, value, moves=moves, blobs_dtype=kept)
    state = emcee.State(start, random_state=np.random.RandomState(int(rng.integers(2**32))).get_state())
    done, accepted, cut = 0, np.zeros(walkers), False
    for _ in sampler.sample(state, iterations=tune + steps, skip_initial_state_check=True):
        done += 1
        if done == tune:
            accepted = sampler.backend.accepted.copy()
        if done < tune + steps and time.time() > deadline:
            cut = True
            break
    chain = sampler.get_chain()[tune:done]
    thetas = white.centre + chain @ white.root.T
    blobs = sampler.get_blobs()[tune:done]
    unnamed = blobs["sigma"] if blobs.dtype.names else blobs  # emcee keeps the name of the only field, or does not
    sigmas = unnamed.astype(float).reshape(*chain.shape[:2], n_groups)
    moved: Any = sampler.backend.accepted
    share = float(moved.mean() - accepted.mean()) / (done - tune) if done > tune else np.nan
    return WalkerEnsemble(thetas, sampler.get_log_prob()[tune:done], sigmas, share, count, cut)


def _first(value: Callable[[Array], tuple[float, Array]], rng: np.random.Generator, n: int) -> Array:
    """Draw where a walker begins: about the estimate, closer and closer until the posterior is not zero there."""
    for k in range(_TRIES):
        u = rng.standard_normal(n) * 0.9**k
        if np.isfinite(value(u)[0]):
            return u
    raise RuntimeError("no start was found about the estimate at which the model can be simulated within its bounds")


def _independent(n: int) -> Callable[..., tuple[Array, Array]]:
    """Return the proposal by Student's t about the estimate: new points, and  log q(old) - log q(new)."""

    def height(u: Array) -> Array:
        return -0.5 * (_DF + n) * np.log1p(np.sum(u**2, axis=-1) / _DF)

    def propose(old: Array, random: Any) -> tuple[Array, Array]:
        scale = np.sqrt(_DF / random.chisquare(_DF, len(old)))
        new = random.standard_normal(old.shape) * scale[:, None]
        return new, height(old) - height(new)

    return propose
