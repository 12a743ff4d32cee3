"""Arguments that a function has not: which one was meant, or what else has it."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from castfit._support.status import suggest

_MEANT = {  # as other tools call it: what it may be here
    **dict.fromkeys(("maxiter", "max_iterations", "iterations", "n_iter", "max_nfev", "niter"), ("max_iter",)),
    **dict.fromkeys(("x0", "p0", "guess", "initial_guess", "theta0"), ("start", "guess", "value", "initial")),
    **dict.fromkeys(("y0", "u0", "initial_conditions", "initial_states"), ("initial",)),
    **dict.fromkeys(("method", "algorithm"), ("transcription", "solver", "methods", "kind")),
    **dict.fromkeys(("optimizer", "optimiser"), ("solver",)),
    **dict.fromkeys(("tol", "ftol", "xtol", "gtol"), ("tolerance",)),
    **dict.fromkeys(("rtol", "reltol"), ("relative_tolerance",)),
    **dict.fromkeys(("atol", "abstol"), ("absolute_tolerance",)),
    **dict.fromkeys(("seed", "random_state", "random_seed"), ("rng",)),
    **dict.fromkeys(("n_jobs", "n_workers", "processes", "threads", "cores"), ("workers",)),
    **dict.fromkeys(("timeout", "time_limit", "maxtime"), ("max_time",)),
    **dict.fromkeys(("n_starts", "nstarts", "n_restarts"), ("starts",)),
    **dict.fromkeys(("n_samples", "n_boot", "n_bootstrap"), ("samples", "draws")),
    **dict.fromkeys(("disp", "verbosity", "progress"), ("verbose",)),
    **dict.fromkeys(("alpha", "level", "conf_level", "ci"), ("confidence_level", "confidence_levels")),
    **dict.fromkeys(("t", "times", "t_eval", "t_span"), ("time", "times")),
    **dict.fromkeys(("error", "errors", "weights", "std", "stdev"), ("sigma",)),
    **dict.fromkeys(("params", "pars", "p"), ("parameters",)),
    **dict.fromkeys(("lb", "min", "minimum"), ("lower",)),
    **dict.fromkeys(("ub", "max", "maximum"), ("upper",)),
    **dict.fromkeys(("path", "filename", "file_name", "fname", "file"), ("file", "path")),
}


def call_mistakes(
    function: Callable[..., Any],
    name: str,
    args: Iterable[Any],
    kwargs: Mapping[str, Any],
    every: Iterable[tuple[str, Callable[..., Any]]],
    raised: object,
) -> list[str]:
    """Return error messages for a call that raised `raised`; `every` lists the public functions to suggest from."""
    own = options_of(function)
    strange = [key for key in kwargs if key not in own]
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        if not strange:
            return [f"{error}; the arguments are {', '.join(own)}"]
    else:  # **options were passed on to a function that has no such one
        strange = [key for key in strange if f"unexpected keyword argument '{key}'" in str(raised)]
    elsewhere: dict[str, list[str]] = {}
    for owner, f in every if strange else ():
        if owner.count(".") == 1 and not owner.endswith("Result"):  # which users call: neither methods nor results
            for option in options_of(f):
                elsewhere.setdefault(option, []).append(owner)
    return [f"{name} has no argument '{key}'; {_instead(key, own, elsewhere)}" for key in strange]


def options_of(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's arguments."""
    hidden = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    of = inspect.signature(function).parameters
    return [n for n, p in of.items() if p.kind not in hidden and n not in ("self", "cls")]


def _instead(key: str, own: list[str], elsewhere: Mapping[str, list[str]]) -> str:
    """Return advice on the argument to use in place of an unknown one."""
    meant = next((_MEANT[word] for word in difflib.get_close_matches(key.lower(), _MEANT, n=1, cutoff=0.88)), ())
    here = [n for n in meant if n in own]
    if here:
        return f"here it is {' or '.join(here)}"
    near = difflib.get_close_matches(key.lower(), dict.fromkeys((*own, *elsewhere)), n=1, cutoff=0.8)
    there = [n for n in (*meant[:1], *([key] if key in elsewhere else []), *near) if n in elsewhere and n not in own]
    if there and not (near and near[0] in own):
        owners = elsewhere[there[0]]
        return f"{there[0]} is an argument of {', '.join(owners[:4])}{' and others' if len(owners) > 4 else ''}"
    return suggest(key, own)
