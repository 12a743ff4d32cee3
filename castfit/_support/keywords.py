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

_ADVICE = {  # of functions in which the word means something else
    ("cf.control", key): "guesses are arguments of cf.Input.free, cf.free and cf.Parameter"
    for key in ("x0", "p0", "guess", "initial_guess", "theta0")
}


def call_mistakes(
    function: Callable[..., Any],
    name: str,
    args: Iterable[Any],
    kwargs: Mapping[str, Any],
    functions: Iterable[tuple[str, Callable[..., Any]]],
    raised: object,
) -> list[str]:
    """Return error messages for a call that raised `raised`; `functions` lists the public functions to suggest from."""
    valid_names = argument_names(function)
    unknown_names = [key for key in kwargs if key not in valid_names]
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        if not unknown_names:
            return [f"{error}; the arguments are {', '.join(valid_names)}"]
    else:  # **options were passed on to a function that has no such one
        unknown_names = [key for key in unknown_names if f"unexpected keyword argument '{key}'" in str(raised)]
    owners_by_argument: dict[str, list[str]] = {}
    for owner, f in functions if unknown_names else ():
        if owner.count(".") == 1 and not owner.endswith("Result"):  # which users call: neither methods nor results
            for option in argument_names(f):
                owners_by_argument.setdefault(option, []).append(owner)
    return [
        f"{name} has no argument '{key}'; "
        f"{_ADVICE.get((name, key)) or _suggest_call(key, valid_names, owners_by_argument)}"
        for key in unknown_names
    ]


def argument_names(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's arguments."""
    hidden = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = inspect.signature(function).parameters
    return [n for n, p in parameters.items() if p.kind not in hidden and n not in ("self", "cls")]


def _suggest_call(key: str, valid_names: list[str], owners_by_argument: Mapping[str, list[str]]) -> str:
    """Return advice on the argument to use in place of an unknown one."""
    intended_names = next(
        (_MEANT[word] for word in difflib.get_close_matches(key.lower(), _MEANT, n=1, cutoff=0.88)), ()
    )
    own_matches = [n for n in intended_names if n in valid_names]
    if own_matches:
        return f"use {' or '.join(own_matches)}"
    close_names = difflib.get_close_matches(
        key.lower(), dict.fromkeys((*valid_names, *owners_by_argument)), n=1, cutoff=0.8
    )
    other_matches = [
        n
        for n in (*intended_names[:1], *([key] if key in owners_by_argument else []), *close_names)
        if n in owners_by_argument and n not in valid_names
    ]
    if other_matches and not (close_names and close_names[0] in valid_names):
        owners = owners_by_argument[other_matches[0]]
        return f"{other_matches[0]} is an argument of {', '.join(owners[:4])}{' and others' if len(owners) > 4 else ''}"
    return suggest(key, valid_names)
