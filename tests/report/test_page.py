"""Pages of results: whole by themselves, safe from names, right in a browser and on paper."""

from __future__ import annotations

import base64
import gc
import json
import re
import xml.etree.ElementTree as ET
from contextlib import nullcontext
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure
from matplotlib.mathtext import MathTextParser

import castfit as cf
from castfit.plots._canvas import new_figure
from castfit.plots._figure import arrange
from castfit.report.figures import figure
from tests.report.chromium import asked, opened

EVIL = "<script>alert(1)</script>"
VOID = {"br", "img", "input", "link", "meta"}


def problem(name="dose", *, units=None, output="y", several=(1.0, 2.0)):
    x, k, m = cf.symbols("x k_1 m")
    model = cf.Model({x: -k * x}, parameters=[k, m], outputs={output: m * x})
    t = np.linspace(0.5, 4, 8)
    experiments = [
        cf.Experiment(
            {output: 2 * x0 * np.exp(-0.7 * t) + 0.03 * np.sin(9 * t + x0)},
            time=t, sigma=0.03, initial={"x": x0}, name=f"{name} {x0:g}",
        )
        for x0 in several
    ]  # fmt: skip
    guess = {"k_1": cf.Parameter(0.5, bounds=(0.01, 10.0), prior=cf.Normal(0.6, 1)),
             "m": cf.Parameter(1.5, lower=0.1, upper=9, scale="log")}  # fmt: skip
    return cf.Problem(model, experiments, parameters=guess, units=units)


@pytest.fixture(scope="module")
def result():
    return cf.fit(problem(units={"time": "h", "y": "mg"}), cf.MultipleShooting(3))


@pytest.fixture(scope="module")
def failed():
    x, k = cf.symbols("x k")
    model = cf.Model({x: k * x**2}, parameters=[k], initial={x: 1})  # has a pole at t = 1 / k
    exploding = cf.Problem(model, cf.Experiment({"x": [1.1, 1.3, 1.6]}, time=[1, 2, 3]), parameters={"k": 0.5})
    return cf.fit(exploding, cf.SingleShooting(), cf.GaussNewton(max_iter=1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def page(result, folder):
    return result.report(folder / "fit.html", title="Decay", notes="First.\n\nSecond.", command="castfit report x")


class Checker(HTMLParser):
    """Finds elements that are not closed, marks that are there twice, and links that lead nowhere or outside."""

    def __init__(self, text):
        super().__init__()
        self.open, self.wrong, self.marks, self.links = [], [], [], []
        self.feed(text)
        self.wrong += [f"{name} is not closed" for name in self.open]

    def handle_starttag(self, tag, attributes):
        values_by_name = dict(attributes)
        self.marks += [values_by_name["id"]] if "id" in values_by_name else []
        self.links += [values_by_name[key] for key in ("href", "src", "xlink:href") if values_by_name.get(key)]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if not self.open or self.open[-1] != tag:
            self.wrong.append(f"{tag} ends within {self.open[-3:]}")
        else:
            self.open.pop()


def test_a_page_is_whole_by_itself(page):
    text = page.read_text(encoding="utf-8")
    checker = Checker(text)
    assert checker.wrong == []
    assert len(checker.marks) == len(set(checker.marks))
    assert all(link.startswith(("#", "data:")) for link in checker.links)
    assert {link[1:] for link in checker.links if link.startswith("#")} <= set(checker.marks)
    assert not re.search(r"https?://(?!www\.w3\.org)", text)
    assert len(text.encode()) < 2_000_000


def test_report_sections_are_in_order(page, result):
    text = page.read_text(encoding="utf-8")
    titles = re.findall(r"<h2>(.*?)</h2>", text)
    assert titles == [
        "The question", "Data and fit", "Estimates", "Precision of the estimates", "Residual tests",
        "Suggested measurements", "Solver", "Reproducing this page",
    ]  # fmt: skip
    for phrase in ("<p>First.</p><p>Second.</p>", "castfit report x", result.transcription, "time (h)", "y (mg)"):
        assert phrase in text
    for one in result:
        assert f"{result.standard_errors[one]:.2g}" in text
    for package, version in result.versions.items():
        assert re.search(rf"{package}</th><td>{re.escape(version)}", text)


def test_report_suggests_measurements(page, result):
    text = page.read_text(encoding="utf-8")
    section = re.search(r"Suggested measurements</h2><p>(.*?)</p><figure", text)[1]
    candidate = cf.Candidate(np.linspace(0, 4, 61)[1:], repeats=True, name="more")
    design = cf.design(result, candidate, budget=3)
    assert str(design).splitlines()[0][1:] in section
    for name, sd in design.after.items():
        assert f"{name} from ±{100 * design.before[name]:.3g} % to ±{100 * sd:.3g} %" in section
    assert "the residual tests reject it" not in section


def test_report_without_suggestion_gives_reason(result):
    from castfit.report.result_sections import Figures, measured_next

    x, k, m = cf.symbols("x k m")
    model = cf.Model({x: -k * m * x}, parameters=[k, m], initial={x: 1})
    data = cf.Experiment({"x": [0.6, 0.4, 0.2]}, [1, 2, 3], sigma=0.03)
    product = cf.fit(cf.Problem(model, data, parameters={"k": 0.5, "m": 1.0}))
    assert "No suggestion: " in measured_next(product, Figures())
    several = cf.fit(problem(several=(1.0, 1.5, 2.0, 2.5, 3.0)))
    assert "too large for a suggestion" in measured_next(several, Figures())


def test_the_files_in_it_can_be_read_again(page, result, tmp_path):
    text = page.read_text(encoding="utf-8")
    saved = base64.b64decode(re.search(r"data:application/json;base64,([^\"]+)", text)[1])
    (tmp_path / "result.json").write_bytes(saved)
    loaded_result = cf.Result.load(tmp_path / "result.json").with_problem(result.problem)
    assert loaded_result.parameters == result.parameters
    assert json.loads(saved)["question"]
    lines = base64.b64decode(re.search(r"data:text/csv;base64,([^\"]+)", text)[1]).decode().splitlines()
    assert lines[0].startswith("experiment,output,time,replicate,value,prediction")
    assert len(lines) == 1 + result.n_data


def test_no_name_becomes_a_part_of_the_page(tmp_path):
    evil_problem = problem(EVIL, output="y", units={"y": EVIL, "time": EVIL})
    result = cf.fit(evil_problem, cf.SingleShooting())
    text = result.report(tmp_path / "evil.html", title=EVIL, notes=EVIL, command=EVIL, source=EVIL,
                        further={EVIL: EVIL}).read_text(encoding="utf-8")  # fmt: skip
    assert text.count("<script>") == 1  # ours
    assert "alert(1)</script>" not in text
    assert Checker(text).wrong == []
    outputs, console = asked(tmp_path / "evil.html", "say('alive', 1)", profile=tmp_path / "profile")
    assert outputs == {"alive": "1"}
    assert console == []


def test_figures_are_vectors_without_marks_in_common(page):
    graphics = re.findall(r"<svg.*?</svg>", page.read_text(encoding="utf-8"), re.DOTALL)
    assert len(graphics) >= 5
    for graphic in graphics:
        root = ET.fromstring(graphic)
        marks = {e.get("id") for e in root.iter() if e.get("id")}
        used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', graphic))
        assert {a or b for a, b in used} <= marks


DRAWN = pytest.mark.parametrize(
    "draw",
    [lambda r: r.plot(), cf.plots.residuals, cf.plots.ellipses, cf.plots.correlation],
    ids=["fit", "residuals", "ellipses", "correlation"],
)


@DRAWN
def test_ticks_that_are_worked_out_once_are_those_of_matplotlib(result, draw, monkeypatch):
    fast_figure, plain_figure = draw(result), draw(result)
    fast_svg = str(figure(fast_figure, 1, "as it is"))
    assert not any("_update_ticks" in vars(axis) for axes in fast_figure.axes for axis in (axes.xaxis, axes.yaxis))
    monkeypatch.setattr("castfit.plots._figure.ticks_once", nullcontext)
    assert fast_svg == str(figure(plain_figure, 1, "as it is"))


@DRAWN
def test_panels_are_placed_where_matplotlib_places_them(result, draw, monkeypatch):
    fast_figure, plain_figure = draw(result), draw(result)
    arrange(fast_figure)
    assert not any("get_tightbbox" in vars(axes) for axes in fast_figure.axes)
    monkeypatch.setattr("castfit.plots._figure._margins_once", nullcontext)
    arrange(plain_figure)
    places = [
        np.array([axes.get_position().extents for axes in drawing.axes]) for drawing in (fast_figure, plain_figure)
    ]
    np.testing.assert_allclose(*places, atol=1e-3)


def test_a_report_leaves_garbage_and_pyplot_as_they_were(failed, page, tmp_path):
    assert gc.get_freeze_count() > 0  # the tests themselves, and still after the page
    gc.unfreeze()
    try:
        failed.report(tmp_path / "page.html")
        assert gc.get_freeze_count() == 0
    finally:
        gc.freeze()
    assert pyplot.get_fignums() == []


def test_a_browser_opens_it_without_complaint(page, folder):
    script = """
      say('switches', document.querySelectorAll('.switches input').length);
      say('broken', [...document.images].filter((i) => !i.complete || !i.naturalWidth).length);
      say('overflow', document.documentElement.scrollWidth - innerWidth);
      const drawn = [...document.querySelectorAll('figure svg')];
      say('flat', drawn.filter((s) => s.getBoundingClientRect().height < 60).length);
      const views = [...document.querySelectorAll('figure .view')];
      say('sideways', views.filter((v) => v.scrollWidth > v.clientWidth + 1).length);
      const short = [...document.querySelectorAll('table.sortable')].filter((t) => t.tBodies[0].rows.length <= 12);
      say('tables', short.filter((t) => t.scrollWidth > t.parentElement.clientWidth + 1).length);
      say('formulas', [...document.querySelectorAll('math')].every((m) => m.getBoundingClientRect().width > 4));
    """
    for width in (1280, 400):
        outputs, console = asked(page, script, profile=folder / "profile", width=width)
        assert console == []
        assert int(outputs["switches"]) > 5
        assert (outputs["broken"], outputs["flat"], outputs["formulas"]) == ("0", "0", "true")
        assert (outputs["sideways"], outputs["tables"]) == ("0", "0")
        assert int(outputs["overflow"]) <= 0


def test_report_dark_mode_follows_browser(page, folder):
    script = """
      const light = (c) => c.match(/\\d+/g).slice(0, 3).map(Number).reduce((a, b) => a + b);
      say('page', light(getComputedStyle(document.body).backgroundColor));
      say('ink', light(getComputedStyle(document.body).color));
      say('figure', getComputedStyle(document.querySelector('figure .view')).filter);
    """
    light, _ = asked(page, script, profile=folder / "profile")
    dark, _ = asked(page, script, profile=folder / "profile", dark=True)
    assert int(light["page"]) == 765
    assert light["figure"] == "none"
    assert int(dark["page"]) < 150 < 600 < int(dark["ink"])
    assert "invert" in dark["figure"]


def test_tables_sort_curves_switch_and_figures_grow(page, folder):
    script = """
      const table = document.querySelector('#estimates table.sortable');
      const column = (j) => [...table.tBodies[0].rows].map((r) => r.cells[j].textContent).join();
      const button = (j) => table.querySelectorAll('thead button')[j];
      button(0).click(); say('up', column(0)); button(0).click(); say('down', column(0));
      button(1).click(); say('values', column(1)); say('order', button(1).parentNode.getAttribute('aria-sort'));
      const box = [...document.querySelectorAll('#fit .switches label')].find((l) => l.textContent.trim() === 'model');
      const parts = document.getElementsByClassName(box.firstChild.dataset.series);
      say('parts', parts.length);
      box.firstChild.click(); say('hidden', [...parts].every((p) => p.style.display === 'none'));
      box.firstChild.click(); say('shown', [...parts].every((p) => p.style.display === ''));
      const svg = document.querySelector('#fit svg'), before = svg.getAttribute('viewBox');
      document.querySelector('#fit [data-zoom=in]').click();
      say('zoomed', svg.viewBox.baseVal.width < +before.split(' ')[2]);
      document.querySelector('#fit [data-zoom=reset]').click(); say('back', svg.getAttribute('viewBox') === before);
    """
    outputs, console = asked(page, script, profile=folder / "profile")
    assert console == []
    assert (outputs["up"], outputs["down"]) == ("k_1,m", "m,k_1")
    assert [float(v) for v in outputs["values"].split(",")] == sorted(float(v) for v in outputs["values"].split(","))
    assert outputs["order"] == "ascending"
    assert int(outputs["parts"]) == 2  # a curve in each of two panels
    assert (outputs["hidden"], outputs["shown"], outputs["zoomed"], outputs["back"]) == ("true",) * 4


def test_report_prints(page, folder):
    target = folder / "fit.pdf"
    _, console = opened(page, f"--print-to-pdf={target}", "--no-pdf-header-footer", profile=folder / "profile")
    assert console == []
    printed = target.read_bytes()
    assert printed.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 12


@pytest.mark.parametrize(
    ("run", "title"),
    [
        (lambda p: cf.compare(p, ["single", "multiple"], starts=1, rng=1), "Performance of the methods"),
        *(
            pytest.param(run, title, marks=pytest.mark.slow)
            for run, title in (
                (lambda p: cf.multistart(p, cf.SingleShooting(), starts=4, rng=1), "Optima found"),
                (cf.incremental, "Horizon by horizon"),
                (lambda p: cf.scatter_search(p, rng=1, max_eval=150), "The search"),
            )
        ),
    ],
    ids=["few", "many", "grown", "searched"],
)
def test_many_fits_have_pages_too(folder, run, title):
    page = run(problem(several=(1.0,))).report(folder / "runs.html")
    text = page.read_text(encoding="utf-8")
    titles = re.findall(r"<h2>(.*?)</h2>", text)
    assert title in titles[:2]
    assert titles[-1] == "Reproducing this page"
    assert Checker(text).wrong == []
    assert len(text.encode()) < 2_000_000
    _, console = asked(page, "say('a', 1)", profile=folder / "profile")
    assert console == []


def test_report_failed_and_loaded_results_have_available_sections(tmp_path, result, failed):
    assert not failed.success
    text = failed.report(tmp_path / "failed.html").read_text(encoding="utf-8")
    assert "The fit failed" in text
    assert Checker(text).wrong == []
    result.save(tmp_path / "saved.json")
    text = cf.Result.load(tmp_path / "saved.json").report(tmp_path / "loaded.html").read_text(encoding="utf-8")
    assert "Estimates" in text
    assert "The question" not in text


@pytest.mark.slow
def test_further_chapters_come_before_the_residuals(tmp_path, result):
    class Other:
        def summary(self):
            return "a < b"

        def plot(self):
            return result.plot()

    further = {"Words": "One.\n\nTwo.", "A picture": result.plot(), "Both": Other()}
    text = result.report(tmp_path / "more.html", further=further).read_text(encoding="utf-8")
    titles = re.findall(r"<h2>(.*?)</h2>", text)
    assert titles[4:8] == ["Words", "A picture", "Both", "Residual tests"]
    assert "<pre>a &lt; b</pre>" in text
    assert Checker(text).wrong == []


def test_mistakes_are_listed_before_anything_is_written(tmp_path, result):
    with pytest.raises(cf.InputError, match="4 mistakes") as caught:
        result.report(tmp_path / "fit.pdf", title=3, notes=None, further={"a": 1})
    assert "must end in .html" in str(caught.value)
    with pytest.raises(cf.InputError, match="does not exist; create it first"):
        result.report(tmp_path / "nowhere" / "fit.html")
    with pytest.raises(cf.InputError, match="no argument 'titel'; did you mean 'title'"):
        result.report(tmp_path / "fit.html", titel="red")
    assert list(tmp_path.iterdir()) == []


def test_a_figure_is_drawn_once_and_labels_of_ticks_are_letters(monkeypatch):
    """To write it with its layout would draw it for that as well; a formula takes as long as the rest of an axis."""
    figures, formulas = [], []
    draw, parse = Figure.draw, MathTextParser.parse
    monkeypatch.setattr(Figure, "draw", lambda self, renderer: figures.append(self) or draw(self, renderer))
    monkeypatch.setattr(
        MathTextParser, "parse", lambda self, s, *arguments: formulas.append(s) or parse(self, s, *arguments)
    )
    picture = new_figure(4, 3)
    axes = picture.subplots(1, 2)
    axes[0].plot([1e-3, 1e4], [1, 2])
    axes[0].set_xscale("log")
    axes[0].set_xticks([1e-3, 1.0])  # which decades have labels depends on the version of Matplotlib
    axes[1].plot([1e-7, 2e-7], [1, 2])
    axes[1].ticklabel_format(axis="both", style="sci", scilimits=(-3, 4), useMathText=True)
    text = str(figure(picture, 1, "powers"))
    assert len(figures) == 1
    assert not formulas
    assert "10⁻³" in text
    assert "×10⁻⁷" in text
