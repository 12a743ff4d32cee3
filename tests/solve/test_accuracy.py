"""Accuracy that a step deserves: coarse far from the solution, fine near it; nothing follows from coarse values."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import castfit as cf
from castfit._support.status import InputError
from castfit.solve.solution import CountingProblem
from castfit.solve.staged import Evaluation
from castfit.solve.step_control import NaturalLevel, TrustRegion
from tests.builders import LOTKA_VOLTERRA_POLE, lotka_volterra
from tests.solve.toys import Formula

multiple, single = cf.MultipleShooting(5), cf.SingleShooting()


def states_of(transcription, **options):
    problem = lotka_volterra().posed
    staged = transcription.transcribe(problem, problem.guess)
    return staged, list(cf.GaussNewton(**options).iterate(staged))


@pytest.mark.parametrize("transcription", [multiple, single], ids=["multiple", "single"])
@pytest.mark.parametrize("rule", ["natural_level", "levenberg_marquardt", "box"])
def test_the_answer_is_that_of_full_accuracy(transcription, rule):
    problem = lotka_volterra()
    full, deserved = (
        cf.fit(problem, transcription, cf.GaussNewton(rule, tolerance=1e-14, accuracy=accuracy))
        for accuracy in ("full", "deserved")
    )
    assert full.success
    assert deserved.success
    for name, value in full.parameters.items():
        assert abs(deserved.parameters[name] - value) <= 1e-6 * full.standard_errors[name]
    assert deserved.chi2 == pytest.approx(full.chi2, rel=1e-9)


@pytest.mark.parametrize("transcription", [multiple, single], ids=["multiple", "single"])
def test_search_compares_points_at_one_accuracy(transcription):
    staged, states = states_of(transcription)
    rough = [state for state in states if state.is_low_accuracy]
    close = [state for state in states if not state.is_low_accuracy]
    assert rough, "the start is far from the solution"
    assert close
    assert [state.is_low_accuracy for state in states] == [True] * len(rough) + [False] * len(close)
    coarse = staged.low_accuracy()
    for state in rough:
        assert state.status is None
        assert state.evaluation.cost == coarse.evaluate(state.v).cost
    for state in close:
        assert state.evaluation.cost == staged.evaluate(state.v).cost
    assert states[-1].status is not None
    assert states[-1].status.success


def test_the_step_to_full_accuracy_starts_where_the_search_is():
    """A coarse point is valued again before a step from there is compared with it."""
    staged, states = states_of(single, step_control="box")
    coarse_state, accurate_state = next(
        (a, b) for a, b in itertools.pairwise(states) if a.is_low_accuracy and not b.is_low_accuracy
    )
    assert (
        accurate_state.iteration == coarse_state.iteration + 1
    )  # the step that was made there is one at full accuracy
    assert accurate_state.evaluation.cost <= staged.evaluate(coarse_state.v).cost


@pytest.mark.parametrize("name", ["lotka_volterra", "alpha_pinene"])
def test_no_point_is_differentiated_at_both_accuracies(name):
    """Where the step before says that the solution is close, its end is looked at with full accuracy at once."""
    result = cf.fit(cf.problems.load(name).problem, single)
    assert result.success
    assert result.evaluations["jacobians"] == result.iterations + 1


def test_costs_of_a_search_are_not_remembered_beyond_it():
    memory = {"cost 0": 1.0, "cost 1": 2.0, "lowest": 1.0, "since": 3.0, "radius": 0.25}
    assert TrustRegion().memory_after_accuracy_change(memory) == {"radius": 0.25}
    assert NaturalLevel().memory_after_accuracy_change({"omega": 2.0}) == {"omega": 2.0}


def test_full_accuracy_is_kept_throughout_where_it_is_asked_for():
    _, states = states_of(multiple, accuracy="full")
    assert not any(state.is_low_accuracy for state in states)


def test_search_has_no_low_accuracy_phase_if_the_user_tolerance_is_low():
    rough = cf.IntegratorOptions(relative_tolerance=1e-3, absolute_tolerance=1e-5)
    _, states = states_of(replace(multiple, integrator=rough))
    assert not any(state.is_low_accuracy for state in states)


class Biased(Formula):
    """Half the square of q - 2, and one less wherever it is evaluated coarsely."""

    def __init__(self, bias: float = 0.0) -> None:
        super().__init__(lambda q: q - 2.0, np.atleast_2d, [0.0])
        self.bias = bias

    def evaluate(self, v: np.ndarray) -> Evaluation:
        return replace(super().evaluate(v), excess=-self.bias)

    def low_accuracy(self) -> Biased:
        return Biased(1.0)


def test_best_point_is_evaluated_at_full_accuracy():
    """What a coarse search calls better than everything is not, if it is so by its errors only."""
    ledger = CountingProblem(Biased())
    ledger.evaluate(np.array([1.9]))
    assert ledger.low_accuracy.evaluate(np.array([1.5])).cost < ledger.evaluate(np.array([1.9])).cost
    assert ledger.best is not None
    assert ledger.best[0] == 1.9
    ledger.low_accuracy.evaluate(np.array([1.99]))
    assert ledger.best[0] == 1.99


def test_an_unknown_accuracy_is_refused():
    with pytest.raises(InputError, match="accuracy is 'fast'; choose 'deserved' or 'full'"):
        cf.GaussNewton(accuracy="fast")


def test_a_start_that_cannot_be_integrated_is_said_as_before():
    problem = lotka_volterra(LOTKA_VOLTERRA_POLE)
    result = cf.fit(problem, single, cf.GaussNewton(), retry=False)
    reference = cf.fit(problem, single, cf.GaussNewton(accuracy="full"), retry=False)
    assert result.status == reference.status
    assert result.message == reference.message
