"""Names, titles and notes are text in every page: none ends a script, opens a comment, or adds an element."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser

import casadi as ca
import pytest

import castfit as cf

HARMLESS = "alpha"
HOSTILE = [
    "<!--<script>", "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\"><b>bold</b>", "]]>--!>",
    "&lt;i&gt;", "`${alert(1)}`", "\\u003cscript\\u003e", "\u2028\u2029", "'-alert(1)-'",
]  # fmt: skip


class Elements(HTMLParser):
    """Counts of elements, attributes and comments."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.counts, self.comments, self.attributes = Counter[str](), 0, Counter[str]()
        self.feed(page)

    def handle_starttag(self, tag, attrs) -> None:
        self.counts[tag] += 1
        self.attributes.update(name for name, _ in attrs)

    def handle_comment(self, data) -> None:
        self.comments += 1


def pages(name: str, folder) -> list[str]:
    """Write a report, an explorer, and the pages of a plan and of a population, with one name everywhere."""
    x, k, u, output = ca.SX.sym("x"), ca.SX.sym(name), ca.SX.sym("u"), f"out {name}"
    model = cf.Model({x: -k * x}, parameters=[k], outputs={output: 2 * x}, initial={x: 1.0})
    people = [
        cf.Experiment({output: [1.2, 0.7, 0.45 - 0.1 * i]}, [1.0, 2.0, 3.0], sigma=0.1, name=f"{name} {i}")
        for i in range(3)
    ]
    problem = cf.Problem(model, people, parameters={name: cf.Parameter(0.5, lower=0.01)}, units={output: name})
    drive = cf.Model({x: u - x}, inputs=[u], outputs={output: x}, initial={x: 1.0})
    plan = cf.control(
        drive, horizon=1.0, minimise=cf.integral(x**2 + u**2), inputs={"u": cf.Input.free(4)},
        constraints=[cf.along(x <= 2.0, name=name)],
    )  # fmt: skip
    population = cf.mixed_effects(
        problem.replace(parameters={name: cf.Parameter(0.5, local=True)}), cf.Population({name: cf.Individual()})
    )
    result, texts = cf.fit(problem), {"title": name, "notes": f"{name}\n\n{name}"}
    result.report(folder / "report.html", **texts, command=name, source=name, further={name: name})
    cf.explore(result, folder / "explorer.html", title=name)
    plan.report(folder / "plan.html", **texts)
    population.report(folder / "population.html", **texts)
    files = ("report", "explorer", "plan", "population")
    return [(folder / f"{file}.html").read_text(encoding="utf-8") for file in files]


@pytest.fixture(scope="module")
def harmless(tmp_path_factory) -> list[Elements]:
    return [Elements(page) for page in pages(HARMLESS, tmp_path_factory.mktemp("harmless"))]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_add_nothing_to_pages(name, harmless, tmp_path):
    for page, expected in zip(pages(name, tmp_path), harmless, strict=True):
        elements = Elements(page)
        for element in ("script", "img", "b", "i", "style", "link", "meta", "iframe", "svg"):
            assert elements.counts[element] == expected.counts[element], element
        assert page.count("<script") == page.count("</script") == expected.counts["script"]
        assert "<!--" not in page
        assert elements.comments == elements.attributes["onerror"] == 0
