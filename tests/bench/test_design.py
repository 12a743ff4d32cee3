"""``castfit bench design``: published designs, and promises beside repeated fits."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest

import castfit as cf
from castfit._bench import design
from tests.builders import refused


def numbers(text):
    return [float(n) for n in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", text)]


def test_published_designs_are_reached():
    rows = list(design.published())
    assert {row.case for row in rows} >= {"Box-Lucas, D", "Michaelis-Menten, D", "one compartment, D", "area", "height"}
    for row in rows:
        np.testing.assert_allclose(numbers(row.reached), numbers(row.right), rtol=0.012, atol=1e-4)


@pytest.mark.slow
def test_populations_are_poped_s():
    rows = list(design.populations((8,)))
    for row in rows[:8]:
        np.testing.assert_allclose(numbers(row.reached), numbers(row.right), atol=1e-6)
    for row in rows[8:]:
        assert 1.1 < float(row.reached) <= numbers(row.right)[0]


@pytest.mark.slow
def test_a_rival_is_as_far_from_simulations_as_promised():
    *_, value, evenly, simulated = design.told_apart(100, 0)
    assert float(value.reached) == pytest.approx(float(value.right), abs=0.4)
    assert evenly.reached == evenly.right
    assert float(simulated.reached) == pytest.approx(float(simulated.right), abs=6)


def test_promises_stand_beside_repeated_fits():
    rows = list(design.promised(2, 0))
    assert [row.case for row in rows if row.case] == ["sigma known", "equidistant", "sigma unknown", "sigma of B"]
    assert all(float(row.reached) > 0 and 0.002 < float(row.right) < 0.2 for row in rows)
    assert "k1, 2 fits" in rows[0].what


@pytest.mark.slow
def test_trials_of_a_population_stand_beside_their_promise():
    rows = list(design.trials(2, 0))
    assert [row.what.split(",")[0] for row in rows] == ["scatter of k", "scatter of noise", "scatter of omega(k)"]
    assert all(float(row.reached) > 0 and 0.01 < float(row.right) < 0.05 for row in rows)


@pytest.mark.slow
def test_two_hundred_fits_scatter_as_promised():
    for row in design.promised(200, 0):
        assert float(row.reached) == pytest.approx(float(row.right), rel=0.1)


@pytest.mark.slow
def test_a_hundred_draws_and_twenty_wrong_guesses_are_as_in_the_table():
    local, mean, worst = (float(row.reached) for row in design.for_draws(0))
    assert local < 0.3
    assert mean < 0.45
    assert 0.64 < worst < 0.66
    one_shot_row, even_row, rounds_row = design.in_rounds(20, 0)
    assert float(one_shot_row.reached) < 0.25 < float(even_row.reached) < 0.5
    assert numbers(rounds_row.reached)[0] > 0.72


@pytest.mark.slow
def test_draws_have_a_bound_and_many_candidates_a_gap():
    local, mean, worst = (row for row in design.for_draws(0, draws=6))
    (bound,) = numbers(worst.right)
    assert float(local.reached) <= float(worst.reached) <= bound <= 1
    assert float(mean.reached) <= bound
    (row,) = design.many(((200, 4),), 0)
    assert float(row.reached) <= 1e-6


def test_rounds_are_better_than_one_shot_from_a_wrong_guess():
    one_shot_row, even_row, rounds_row = design.in_rounds(1, 0)
    assert float(one_shot_row.reached) < float(even_row.reached) < numbers(rounds_row.reached)[0] <= 1


@pytest.mark.slow
def test_the_whole_table():
    report = design.KIND.run("design", lambda _: None, starts=2)
    assert len({row["case"] for row in report.record["rows"]}) >= 14


def test_bench_design_names_mistakes():
    with refused("starts is 0"):
        design.KIND.run("design", lambda _: None, starts=0)


def test_choices_are_better_than_published_ones():
    rows = design.choices(1)
    early, chosen = next(rows), next(rows)
    assert early.reached == early.right
    assert float(chosen.reached) > float(chosen.right) + 0.13
    with pytest.raises(cf.InputError, match="bench design: 1 mistake found"):
        design.beside_pyomo(sys.executable)


@pytest.mark.slow
def test_fish_and_yeast_are_known_better_by_choices():
    *_, no_catch_row, _, catch_row, yeast_row, fed_yeast_row = design.choices(4)
    np.testing.assert_allclose(float(no_catch_row.reached), float(no_catch_row.right), atol=3e-6)
    assert float(catch_row.reached) < float(catch_row.right)
    assert float(fed_yeast_row.reached) < float(yeast_row.reached) - 20
