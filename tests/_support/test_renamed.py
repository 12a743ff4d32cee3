"""Old names do what the new ones do, and say what to write; new ones say nothing (warnings are errors here)."""

from __future__ import annotations

import argparse
import inspect

import pytest

import castfit as cf
from castfit._support.renamed import accept_old_names, renamed_attribute
from castfit.cli.command import Command


@accept_old_names(level="confidence_level")
def limits(confidence_level: float = 0.95) -> float:
    """Some function."""
    return confidence_level


class Limits:
    confidence_level = 0.9
    level = renamed_attribute("level", "confidence_level")


def test_an_option_is_taken_by_its_old_name_with_a_warning():
    with pytest.warns(
        FutureWarning, match=r"limits\(level=\.\.\.\) was renamed to limits\(confidence_level=\.\.\.\)"
    ) as record:
        assert limits(level=0.5) == 0.5  # pyright: ignore[reportCallIssue]
    assert record[0].filename == __file__
    assert limits(confidence_level=0.5) == limits(0.5) == 0.5
    assert str(inspect.signature(limits)) == "(confidence_level: 'float' = 0.95) -> 'float'"


def test_an_option_is_not_given_by_both_names():
    with (
        pytest.warns(FutureWarning),
        pytest.raises(TypeError, match="got both 'level' and 'confidence_level', which are the same"),
    ):
        limits(confidence_level=0.5, level=0.5)  # pyright: ignore[reportCallIssue]


def test_an_attribute_is_read_by_its_old_name_with_a_warning():
    with pytest.warns(FutureWarning, match=r"Limits\.level was renamed to Limits\.confidence_level") as record:
        assert Limits().level == 0.9
    assert record[0].filename == __file__


@pytest.mark.parametrize(("old", "new"), [("check", "doctor"), ("table", "compare_models")])
def test_a_function_goes_on_by_its_old_name_with_a_warning(old, new):
    with pytest.warns(FutureWarning, match=rf"castfit\.{old} was renamed to castfit\.{new}") as record:
        assert getattr(cf, old) is getattr(cf, new)
    assert record[0].filename == __file__
    assert new in cf.__all__
    assert old not in cf.__all__


@pytest.fixture(scope="module")
def problem():
    return cf.problems.load("bellman").problem


@pytest.fixture(scope="module")
def result(problem):
    return cf.fit(problem)


@pytest.mark.parametrize(
    "ask",
    [
        lambda fit, **options: fit.confidence_intervals(**options),
        lambda fit, **options: fit.confidence_region(**options).marginal.tolist(),
        lambda fit, **options: fit.predict([1.0], bands="linear", **options)["experiment 1"]["z lower"].tolist(),
        lambda fit, **options: cf.coverage(fit, samples=1, **options).confidence_level,
    ],
    ids=["intervals", "region", "bands", "coverage"],
)
def test_a_level_is_a_confidence_level(ask, result):
    new = ask(result, confidence_level=0.8)
    with pytest.warns(FutureWarning, match=r"\(confidence_level=\.\.\.\)"):
        assert ask(result, level=0.8) == new


def test_results_know_their_level_by_both_names(result):
    with pytest.warns(FutureWarning, match=r"Estimate\.confidence_level"):
        assert result["k1"].level == result["k1"].confidence_level == 0.95
    with pytest.warns(FutureWarning, match=r"ConfidenceRegion\.confidence_level"):
        assert result.confidence_region(0.8).level == 0.8


def test_a_profile_has_confidence_levels(result):
    with pytest.warns(FutureWarning, match=r"profile\(confidence_levels=\.\.\.\)"):
        profiles = cf.profile(result, "k1", levels=0.9)  # pyright: ignore[reportCallIssue]
    with pytest.warns(FutureWarning, match=r"limits\(confidence_level=\.\.\.\)"):
        assert profiles.limits(level=0.9) == profiles.limits(confidence_level=0.9)  # pyright: ignore[reportCallIssue]
    with pytest.warns(FutureWarning, match=r"Profiles\.confidence_levels"):
        assert profiles.levels == profiles.confidence_levels == (0.9,)


def test_the_time_of_a_start_is_that_of_a_fit(problem):
    limits = {"k1": (0, 1e-4), "k2": (0, 1e-3)}
    with pytest.warns(FutureWarning, match=r"multistart\(fit_max_time=\.\.\.\)"):
        search_result = cf.multistart(problem, starts=1, limits=limits, start_max_time=60)  # pyright: ignore[reportCallIssue]
    assert search_result.header["fit_max_time"] == 60
    with pytest.warns(FutureWarning, match=r"compare\(fit_max_time=\.\.\.\)"):
        cf.compare(problem, ["single"], starts=1, limits=limits, start_max_time=60)  # pyright: ignore[reportCallIssue]


def test_the_command_line_takes_old_options():
    parser = argparse.ArgumentParser()
    Command("some", "", lambda _: 0, {"fit_max_time": 60.0}, problem=False).add_to(parser)
    assert parser.parse_args([]).fit_max_time == 60.0
    assert parser.parse_args(["--start-max-time", "5"]).fit_max_time == 5.0
    assert parser.parse_args(["--fit-max-time", "5"]).fit_max_time == 5.0
    assert "--start-max-time" not in parser.format_help()
