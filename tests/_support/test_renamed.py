"""Old names do what the new ones do, and say what to write; new ones say nothing (warnings are errors here)."""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import pickle
from types import SimpleNamespace

import pytest

import castfit as cf
from castfit._support.json_codec import decode_object
from castfit._support.renamed import accept_old_names, renamed_attribute
from castfit.cli.command import Command
from castfit.result.residuals import Grade


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


RENAMED_ATTRIBUTES = {
    "castfit._support.status:Status": {"sentence": "message", "remedy": "advice"},
    "castfit.control.plan:Plan": {"found": "solution"},
    "castfit.densities.noise.density:Noise": {
        "beyond": "censoring_side",
        "heavy": "is_heavy_tailed",
        "plain": "is_residual_noise",
    },
    "castfit.densities.priors.distributions:PriorDistribution": {"to_plain": "to_dict"},
    "castfit.drive.checkup.check:CheckResult": {"fine": "ok"},
    "castfit.drive.checkup.check:Checkup": {"fine": "ok"},
    "castfit.drive.design.candidate:Candidate": {
        "same": "repeats",
        "together": "cost_unit",
        "between": "continuous_times",
    },
    "castfit.drive.design.proposal:Design": {"known": "information", "bought": "selection", "goal": "design_goal"},
    "castfit.drive.design.trials:EstimateScatter": {"promised": "predicted_sd", "held": "fraction_at_bound"},
    "castfit.drive.model_comparison.candidates:CandidateModel": {"of": "problem_name"},
    "castfit.drive.model_comparison.selection_log:SelectionProgress": {"last": "last_fit"},
    "castfit.drive.population.result:MixedEffectsResult": {"seen": "data_evaluation"},
    "castfit.drive.search.compare.result:MethodRow": {"wrong": "n_other_optimum"},
    "castfit.drive.search.multistart.result:MultistartProgress": {"last": "last_row", "found": "n_found"},
    "castfit.drive.search.multistart.result:MultistartResult": {"described": "is_adequate"},
    "castfit.drive.search.portfolio.result:StrategySummary": {"tried": "n_tried"},
    "castfit.drive.search.portfolio.result:SearchCandidate": {"begun": "start_theta"},
    "castfit.drive.search.portfolio.result:PortfolioResult": {
        "sure": "stopping_rule_met",
        "ways": "strategies",
        "finds": "hits",
        "described": "is_adequate",
    },
    "castfit.drive.search.scatter.result:ScatterResult": {"sweeps": "n_sensitivity_evaluations"},
    "castfit.drive.uncertainty.profile.profile:ProfileProgress": {"last": "last_label"},
    "castfit.drive.uncertainty.profile.result:Profile": {"levels": "confidence_levels", "others": "nuisance"},
    "castfit.drive.uncertainty.profile.result:Profiles": {"levels": "confidence_levels", "by": "statistic"},
    "castfit.drive.uncertainty.refits.coverage:CoverageResult": {"level": "confidence_level"},
    "castfit.drive.uncertainty.refits.run:Refit": {"found": "requested_pairs", "elsewhere": "has_other_optimum"},
    "castfit.drive.uncertainty.refits.run:RefitProgress": {"last": "last_refit"},
    "castfit.drive.uncertainty.sample.result:SampleResult": {"effective": "ess"},
    "castfit.model.model:Model": {"said": "definition", "told": "to_system_symbols"},
    "castfit.problem.constraints:Constraint": {"shown": "text"},
    "castfit.problem.problem:Problem": {"own_model": "original_model", "measured_by": "with_format_measure"},
    "castfit.problem.quantities:Quantity": {"of": "symbol_name"},
    "castfit.result.block_matrix:BlockMatrix": {"further": "extra_rows"},
    "castfit.result.confidence_region:ConfidenceRegion": {"level": "confidence_level"},
    "castfit.result.constraint_table:ConstraintTable": {"what": "objective_name"},
    "castfit.result.diagnostics:Outlier": {"named": "describe"},
    "castfit.result.diagnostics:ResidualTest": {"found": "is_finding"},
    "castfit.result.diagnostics:OutputTests": {"found": "findings"},
    "castfit.result.diagnostics:Diagnostics": {
        "several": "has_many_experiments",
        "heavy": "heavy_tailed_outputs",
        "suspicious": "has_findings",
        "sentences": "messages",
        "remedy": "advice",
    },
    "castfit.result.estimate:Estimate": {"level": "confidence_level"},
    "castfit.result.experimental_design:MeasurementSuggestion": {"before": "error_before", "after": "error_after"},
    "castfit.result.influence:InfluentialValue": {"named": "describe"},
    "castfit.result.path_result:PathResult": {"described": "is_adequate"},
    "castfit.result.result:Result": {
        "described": "is_adequate",
        "refuted": "is_contradicted",
        "ended": "with_status",
        "answering": "with_known_problem",
        "found_by": "method",
        "to_plain": "to_dict",
    },
    "castfit.solve.homotopy:GaussNewtonState": {"rough": "is_low_accuracy"},
}
"""By class, old and new names of attributes."""


@pytest.mark.parametrize(
    ("address", "old", "new"),
    [(address, old, new) for address, names in RENAMED_ATTRIBUTES.items() for old, new in names.items()],
)
def test_an_old_attribute_warns_and_gives_the_new_one(address: str, old: str, new: str) -> None:
    module, _, name = address.partition(":")
    kind = getattr(importlib.import_module(module), name)
    assert hasattr(kind, new) or any(new in vars(base).get("__annotations__", {}) for base in kind.__mro__)
    alias = inspect.getattr_static(kind, old)
    value = object()
    with pytest.warns(FutureWarning, match=rf"\.{old} was renamed to .*\.{new}; ") as record:
        assert alias.fget(SimpleNamespace(**{new: value})) is value
    assert record[0].filename == __file__


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("castfit.sbml", "Loaded", "ImportedModel"),
        ("castfit.sbml", "Start", "ImportedStart"),
        ("castfit.result.diagnostics", "Check", "ResidualTest"),
        ("castfit.result.diagnostics", "Checks", "OutputTests"),
    ],
)
def test_an_old_class_name_warns_and_gives_the_class(module: str, old: str, new: str) -> None:
    home = importlib.import_module(module)
    with pytest.warns(FutureWarning, match=rf"{module}\.{old} was renamed to {module}\.{new}; "):
        assert getattr(home, old) is getattr(home, new)


def test_old_arguments_of_a_candidate_are_accepted() -> None:
    with pytest.warns(FutureWarning, match=r"Candidate\((same|together|between)=\.\.\.\) was renamed"):
        old = cf.Candidate([1, 2], same=True, together="time", between=True)  # pyright: ignore[reportCallIssue]
    assert repr(old) == repr(cf.Candidate([1, 2], repeats=True, cost_unit="time", continuous_times=True))


def test_strategies_of_a_search_are_accepted_by_their_old_name(problem) -> None:
    with (
        pytest.warns(FutureWarning, match=r"estimate\(strategies=\.\.\.\)"),
        pytest.raises(cf.InputError, match="sailing"),
    ):
        cf.estimate(problem, ways=["sailing"])  # pyright: ignore[reportCallIssue]


def test_a_constraint_is_described_by_its_old_argument() -> None:
    with pytest.warns(FutureWarning, match=r"Constraint\(text=\.\.\.\)"):
        assert cf.Constraint(cf.symbols("k"), lower=0.0, shown="k >= 0").text == "k >= 0"  # pyright: ignore[reportCallIssue]


def test_a_result_is_read_from_a_dictionary_by_the_old_name(result) -> None:
    content = json.loads(json.dumps(result.to_dict()), object_hook=decode_object)
    with pytest.warns(FutureWarning, match=r"Result\.from_dict"):
        assert cf.Result.from_plain(content).values == result.values


@pytest.mark.parametrize("name", ["trust_region", "trust-region"])
def test_the_trust_region_has_two_names(name: str) -> None:
    assert cf.GaussNewton(name) == cf.GaussNewton("box")


@pytest.mark.parametrize(("old", "new"), [("shown", "significant"), ("nothing", "none")])
def test_a_grade_equals_its_old_word_with_a_warning(old: str, new: str) -> None:
    grade = Grade(new)
    with pytest.warns(FutureWarning, match=f"'{old}' was renamed to '{new}'"):
        assert grade == old
    assert grade == new
    assert grade != "suspected"
    assert {new: 1}[grade] == 1
    assert pickle.loads(pickle.dumps(grade)) == new
