"""The default fit ends where a fit without castfit ends, for twelve tasks that newcomers bring (tests/newcomer.py)."""

import pytest

from tests.newcomer import EXAMPLES, TASKS, compare

QUICK = ("outlier",)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in TASKS]
)
def test_the_default_fit_finds_what_scipy_finds(name):
    comparison = compare(TASKS[name])
    assert comparison.result.success, comparison.result.message
    assert comparison.ours == pytest.approx(comparison.theirs, rel=1e-5)
    assert comparison.apart < 0.01


def test_there_are_twelve_and_each_has_its_page():
    assert len(TASKS) == 12
    order = (EXAMPLES / "ORDER.txt").read_text("utf-8").split()
    assert {task.page for task in TASKS.values()} <= set(order)


def test_the_table_of_the_site_has_all_of_them():
    page = (EXAMPLES.parent / "docs" / "trust" / "how_we_test.md").read_text("utf-8")
    for name, task in TASKS.items():
        assert f"| {name} | [](../gallery/{task.page}.rst) |" in page
