"""The interactive page of the course, in a browser: its sliders move what they say they move."""

from __future__ import annotations

import json
import re
import sys
from itertools import pairwise

import pytest

from tests.paths import ROOT
from tests.report.chromium import asked, browser

DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "_extensions"))
import iterations  # noqa: E402


@pytest.fixture(scope="module")
def text():
    return iterations.page(iterations.SHARES[3::3])  # a start that is not far, and the farthest


@pytest.fixture(scope="module")
def data(text):
    return json.loads(re.search(r"^const DATA = (.*);$", text, re.MULTILINE)[1])


@pytest.fixture(scope="module")
def page(text, tmp_path_factory):
    browser()  # or skip
    path = tmp_path_factory.mktemp("course") / "iterations.html"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_page_is_whole_by_itself(text):
    assert not re.findall(r"(?:src|href)=\"(?!data:)", text)
    assert "import(" not in text
    assert "fetch(" not in text
    assert len(text.encode()) < 1_000_000


def test_ten_stages_get_there_from_every_start_and_gaps_close(data):
    solution = [0.98374, 0.98039, 1.01691, 1.02271]
    for run in data["runs"]["multiple"]:
        assert run["success"]
        assert run["points"][-1]["p"] == pytest.approx(solution, abs=2e-5)
        assert run["points"][0]["gap"] > 0.1
        assert run["points"][-1]["gap"] < 1e-7
    assert not data["runs"]["single"][-1]["success"]


def test_what_is_drawn_agrees_with_what_was_solved(data):
    """The drawn ends of stages are apart by the solver's gaps, and the level falls as (1 - lambda)^2 in the end."""
    for run in data["runs"]["multiple"]:
        last_point = run["points"][-1]
        stages = last_point["stages"]
        assert len(stages) == 10
        for stage, next_stage in pairwise(stages):
            assert stage["t"][-1] == next_stage["t"][0]
            for i in range(2):
                assert stage["x"][i][-1] == pytest.approx(next_stage["x"][i][0], abs=3e-4)
        assert last_point["damping"] is None
        levels = run["points"][-2]["level"]
        assert levels == pytest.approx([(1 - damping) ** 2 for damping in data["lambda"]], abs=0.02)


@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_steps_through_it_without_complaint(page, tmp_path, width):
    script = """
      const set = (id, value) => { by(id).value = value; by(id).dispatchEvent(new Event('input')); };
      const gaps = () => [...document.querySelectorAll('#trajectory .gap')]
        .reduce((sum, e) => sum + Math.abs(e.getAttribute('y1') - e.getAttribute('y2')), 0);
      say('overflow', document.documentElement.scrollWidth - innerWidth);
      say('flat', [...document.querySelectorAll('svg')].filter((s) => s.getBoundingClientRect().height < 100).length);
      say('open', gaps());
      set('iteration', by('iteration').max); say('closed', gaps()); say('end', by('status').textContent);
      set('start', by('start').max); say('again', by('iteration').value); say('farther', gaps());
      by('method').value = 'single'; by('method').dispatchEvent(new Event('change'));
      say('failed', by('status').className + by('status').textContent); say('alone', gaps());
      say('nan', [...document.querySelectorAll('svg, #status')].some((e) => e.outerHTML.includes('NaN')));
    """
    values, console = asked(page, script, profile=tmp_path / "profile", width=width)
    assert console == []
    assert int(values["overflow"]) <= 0
    assert values["flat"] == "0"
    assert float(values["open"]) > 100
    assert float(values["closed"]) < 2
    assert "hold to the requested tolerance" in values["end"]
    assert values["again"] == "0"
    assert float(values["farther"]) > float(values["open"])
    assert values["failed"].startswith("bad")
    assert float(values["alone"]) == 0
    assert values["nan"] == "false"
