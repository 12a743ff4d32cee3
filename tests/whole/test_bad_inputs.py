"""Bad inputs to all public callables end in a sentence, or in a sound result: never in a traceback, never in a hang."""

from __future__ import annotations

import pytest

import castfit as cf
from castfit.model import functions
from tests.bad_inputs import CALLS, sampled, verdict

# Made by castfit alone: their methods are names_with_calls.  Modules have names of their own.
RECORDS = {
    "Axis", "BlockMatrix", "CastfitError", "Checkup", "CoverageResult", "Discrimination", "Estimate", "EvidenceTable",
    "IncrementalResult", "InputError", "Iteration", "LaplaceCheck", "LeaveOutResult", "LikelihoodRatio", "ModelTable",
    "OnlineEstimate", "PathBand", "SimulationError", "Status", "SteadyState", "SteadyStateError", "VarianceOf",
    "VerifiedPopulation",
}  # fmt: skip
N_TEST_PARTS = 10  # parts of a sample that run as tests of their own


def test_every_public_callable_has_a_valid_call() -> None:
    names_with_calls = {part for name in CALLS for part in name.split(".")}
    names = {n for n in cf.__all__ if callable(getattr(cf, n))} - {*functions.__all__, *RECORDS}
    assert names - names_with_calls == {"final_time"}


def check(count: int, part: int, seed: int) -> None:
    faults = {str(case): verdict(case) for case in sampled(count, seed)[part::N_TEST_PARTS]}
    assert {case: fault for case, fault in faults.items() if fault not in ("refused", "accepted", "skipped")} == {}


@pytest.mark.parametrize("part", range(N_TEST_PARTS))
def test_bad_inputs_end_in_words(part: int) -> None:
    check(150, part, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(N_TEST_PARTS))
def test_1500_bad_inputs_end_in_words(part: int) -> None:
    check(1500, part, seed=2)
