"""A misspelt or foreign argument of a public function names the right one; signatures and stacks stay as they are."""

from __future__ import annotations

import inspect
import pickle

import pytest

import castfit as cf
from castfit.fit.fit import fit
from tests.builders import decay_problem, refused

PROBLEM = decay_problem()
CALLS = [
    (cf.fit, {"maxiter": 9}, "cf.fit has no argument 'maxiter'; max_iter is an argument of "),
    (cf.fit, {"max_itr": 9}, "cf.fit has no argument 'max_itr'; max_iter is an argument of "),
    (cf.fit, {"x0": {}}, "cf.fit has no argument 'x0'; use start"),
    (cf.fit, {"method": "single"}, "cf.fit has no argument 'method'; use transcription or solver"),
    (cf.fit, {"bounds": (0, 1)}, "cf.fit has no argument 'bounds'; bounds is an argument of "),
    (cf.fit, {"verbos": 1}, "cf.fit has no argument 'verbos'; did you mean 'verbose'?"),
    (cf.fit, {"tol": 1e-3}, "cf.fit has no argument 'tol'; tolerance is an argument of "),
    (cf.multistart, {"seed": 1}, "cf.multistart has no argument 'seed'; use rng"),
    (cf.multistart, {"n_jobs": 1}, "cf.multistart has no argument 'n_jobs'; use workers"),
    (cf.GaussNewton, {"maxiter": 9}, "cf.GaussNewton has no argument 'maxiter'; use max_iter"),
    (cf.IntegratorOptions, {"rtol": 1}, "cf.IntegratorOptions has no argument 'rtol'; use relative_tolerance"),
    (cf.Parameter, {"initial_guess": 1}, "cf.Parameter has no argument 'initial_guess'; use value"),
    (cf.Input.linear, {"tmies": 1}, "cf.Input.linear has no argument 'tmies'; did you mean 'times'?"),
    (PROBLEM.robust, {"lost": "huber"}, "cf.Problem.robust has no argument 'lost'; did you mean 'loss'?"),
    (cf.petab.load, {"pathe": 1}, "cf.petab.load has no argument 'pathe'; use file"),
    (cf.petab.load, {"quux": 1}, "cf.petab.load has no argument 'quux'; choose from file, verbose"),
    (cf.Experiment, {"time": [0]}, "missing a required argument: 'data'; the arguments are data, time"),
]


@pytest.mark.parametrize(
    ("function", "options", "message"), CALLS, ids=[message.partition(";")[0] for *_, message in CALLS]
)
def test_unknown_keyword_message_suggests_the_right_one(function, options, message):
    with refused(message):
        function(**options)


def test_unknown_keywords_are_all_listed():
    with refused("no argument 'maxiter'", "no argument 'x0'"):
        cf.fit(PROBLEM, maxiter=3, x0={})  # type: ignore[call-arg]


def test_exception_of_user_callback_is_passed_through():
    def callback(_):
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        cf.fit(PROBLEM, "single", callback=callback)


def test_signatures_and_addresses_stay():
    assert inspect.signature(cf.fit) == inspect.signature(fit)
    assert next(iter(inspect.signature(cf.Parameter).parameters)) == "value"
    assert pickle.loads(pickle.dumps(cf.fit)) is cf.fit
    assert pickle.loads(pickle.dumps(fit)) is fit
    assert cf.noise.Gaussian.__init__ is cf.Gaussian.__init__


def test_old_names_of_options_are_warned_of_where_they_are_written():
    with pytest.warns(FutureWarning, match="confidence_level") as record:
        cf.fit(PROBLEM, "single").confidence_intervals(level=0.9)  # type: ignore[call-arg]
    assert record[0].filename == __file__
