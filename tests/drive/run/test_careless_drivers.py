"""Whatever a careless user passes to a driver, what comes back is a result or one InputError in words."""

from __future__ import annotations

import warnings
from contextlib import suppress

import numpy as np
import pytest

import castfit as cf
from castfit._support.status import InputError
from tests.builders import decay_problem
from tests.junk import THINGS

SINGLE, ONE_STEP = cf.SingleShooting(), cf.GaussNewton(max_iter=1, homotopy="never")
BOUNDED = decay_problem(parameters={"k": cf.Parameter(0.5, lower=0.1, upper=2.0)})
METHOD = {"problem": BOUNDED, "transcription": SINGLE, "solver": ONE_STEP}
RUN = ("max_time", "callback", "verbose", "checkpoint", "resume")
DRIVERS = {
    cf.multistart: (
        {**METHOD, "starts": 1, "max_draws": 1},
        ("starts", "rng", "sampling", "limits", "start_strategy", "max_draws", "workers", "fit_max_time", *RUN),
    ),
    cf.incremental: (
        {**METHOD, "horizons": [4.0], "coarse": False},
        ("start", "horizons", "break_fraction", "bound_confidence_level", "bound_relaxation", "coarse", "fallback",
         "max_time", "callback", "absolute_sigma", "confidence_level", "verbose"),
    ),
    cf.scatter_search: (
        {**METHOD, "max_eval": 5, "max_time": 1.0, "dim_refset": 3, "n_diverse": 3},
        ("rng", "max_eval", "vtr", "log_vars", "include_guess", "local_start", "join_reach", "workers",
         "dim_refset", "n_diverse", "local_n1", "balance", "first_refset", "aggressive", "restart_after", *RUN),
    ),
    cf.compare: (
        {"problem": BOUNDED, "methods": ["single"], "starts": 1},
        ("methods", "starts", "rng", "sampling", "limits", "reference", "workers", "fit_max_time", "max_time",
         "callback", "verbose"),
    ),
}  # fmt: skip
CASES = [(driver, name) for driver, (good, names) in DRIVERS.items() for name in {**good, **dict.fromkeys(names)}]
MORE = [{"k": "a"}, {"q": (0, 1)}, {"k": (0, None)}, {"k": (2, 1)}, [{"k": 1.0}, 3], [{"k": [1, 2]}], ["single", 1],
        [["single"]], {"a": None}]  # fmt: skip


@pytest.mark.parametrize(("driver", "name"), CASES, ids=lambda case: getattr(case, "__name__", case))
def test_drivers_with_invalid_arguments_raise_input_error(driver, name, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)  # a checkpoint may be called "x"
    good, _ = DRIVERS[driver]
    for thing in [*THINGS, *MORE]:
        if _is_expensive(name, thing) or (callable(thing) and name in ("callback", "sampling", "methods")):
            continue  # what is callable is called, and may raise
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with suppress(InputError):
                driver(**{**good, name: thing})


def _is_expensive(name, thing):
    """Whether it would start processes, or take long."""
    return name in ("workers", "starts", "dim_refset") and isinstance(thing, (int, np.integer)) and thing > 1


def test_all_mistakes_of_a_run_are_listed_at_once():
    with pytest.raises(InputError) as caught:
        cf.incremental(
            BOUNDED, coarse=1, fallback="no", max_time="1 h", callback=3, verbose=9, break_fraction=2, horizons=[]
        )  # type: ignore[arg-type]
    text = "\n".join(caught.value.problems)
    for word in ("coarse is 1", "fallback is 'no'", "max_time is '1 h'", "callback is 3", "verbose is 9",
                 "break_fraction is 2", "horizons is []"):  # fmt: skip
        assert word in text
