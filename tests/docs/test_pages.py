"""What the pages of the documentation show runs: the Python blocks of a page, one after the other, as one script."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.paths import ROOT
from tests.report.chromium import asked, browser

WRITTEN = (
    "start",
    "how_to",
    "understand",
    "compared",
    "reference",
    "trust",
    "course",
)  # by hand; all other pages are made when the site is built
PAGES = sorted(page for folder in WRITTEN for page in (ROOT / "docs" / folder).rglob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def script(page):
    """Return all Python blocks of a page, each at its own line, so that a traceback leads there."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * text.count("\n")
    for block in BLOCK.finditer(text):
        first_line = text[: block.start(1)].count("\n")
        code = block[1].splitlines()
        lines[first_line : first_line + len(code)] = code
    return "\n".join(lines)


@pytest.mark.parametrize("page", [pytest.param(p, id=f"{p.parent.name}/{p.stem}") for p in PAGES if script(p).strip()])
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(script(page), str(page), "exec"), {"__name__": "page"})


def test_every_page_is_reached_from_the_front_page():
    reached_pages, todo = set(), [ROOT / "docs" / "index.md"]
    while todo:
        page = todo.pop()
        if page in reached_pages or not page.exists():
            continue
        reached_pages.add(page)
        for tree in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            todo += [(page.parent / f"{line}.md").resolve() for line in tree.split("\n") if line and line[0] != ":"]
    missing = [str(page.relative_to(ROOT)) for page in PAGES if page not in reached_pages]
    assert not missing


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("sphinx_gallery")
    folder = tmp_path_factory.mktemp("built") / "site"
    process = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "docs", str(folder)],
        cwd=ROOT,
        env={**os.environ, "CASTFIT_DOCS": "quick", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_site_builds_without_a_warning_and_its_pages_fit_every_width(site, tmp_path):
    browser()  # or skip
    script = """
      const root = document.documentElement;
      const parts = [...document.querySelectorAll('pre, dt.sig, h1, p')];
      const wide = parts.filter((e) => e.scrollWidth > e.clientWidth + 1);
      say('overflow', root.scrollWidth - root.clientWidth);
      say('cut', wide.filter((e) => getComputedStyle(e).display !== 'inline').map((e) => e.textContent).join('|'));
      const beyond = (e) => e.getBoundingClientRect().right > innerWidth + 1;
      const scrolls = (e) => e && (getComputedStyle(e).overflowX === 'auto' || scrolls(e.parentElement));
      const words = [...document.querySelectorAll('main p, main dd, main li, main img, main table')];
      say('beyond', words.filter((e) => beyond(e) && !scrolls(e)).map((e) => e.textContent || e.src).join('|'));
      say('pictures', [...document.images].filter((i) => i.complete && i.naturalWidth === 0).length);
      if (matchMedia('(prefers-color-scheme: dark)').matches) root.dataset.theme = 'dark';  // as the theme will do
      const paints = [document.body, root].map((e) => getComputedStyle(e).backgroundColor);
      const paint = paints.find((c) => !c.endsWith(', 0)')) || 'rgb(255, 255, 255)';
      say('dark', paint.match(/\\d+/g).slice(0, 3).map(Number).reduce((a, b) => a + b) < 200);
    """
    for width, dark in ((1280, False), (400, True)):
        for name in ("index", "gallery/quickstart", "how_to/data", "how_to/profiles", "problems/bellman",
                     "trust/how_we_test", "course/exam", "understand/condensing", "reference/generated/castfit.fit",
                     "reference/generated/castfit.multistart", "course/iterations"):  # fmt: skip
            values, console = asked(site / f"{name}.html", script, profile=tmp_path / "profile", width=width, dark=dark)
            assert [line for line in console if "[PST]" not in line] == [], name  # what the theme tells
            expected = {"overflow": "0", "cut": "", "beyond": "", "pictures": "0", "dark": str(dark).lower()}
            assert values == expected, (name, width)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("words", "page"),
    [("multiple dosing", "inputs_and_doses"), ("timeout", "parallel"), ("BLQ", "noise"), ("covariate", "populations")],
)
def test_the_search_finds_what_users_call_things(site, words, page):
    from snowballstemmer import stemmer  # Sphinx's, which stems what is sought in the same way

    text = (site / "how_to" / f"{page}.html").read_text(encoding="utf-8")
    index = (site / "searchindex.js").read_text(encoding="utf-8").lower()
    for word in words.split():
        assert word in text
        assert f'"{stemmer("porter").stemWord(word.lower())}":' in index


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_site_has_a_whole_text(site):
    text = (site / "llms-full.txt").read_text(encoding="utf-8")
    assert all(f"castfit.{name}" in text for name in ("fit", "estimate", "Experiment", "plots.fit"))
    for target in re.findall(r"\]\(([\w/.-]+)\)", (site / "llms.txt").read_text(encoding="utf-8")):
        assert (site / target).exists(), target


def test_a_broken_link_is_found(tmp_path):
    pytest.importorskip("sphinx")
    sys.path.insert(0, str(ROOT / "docs" / "_extensions"))
    from links import broken

    (tmp_path / "deep").mkdir()
    (tmp_path / "index.html").write_text(
        '<a href="deep/page.html#here">1</a> <a href="deep/page.html#there">2</a> <a href="#top">3</a>'
        '<a href="https://example.org/x#y">4</a> <img src="deep/none.png"> <h1 id="top">t</h1>',
        encoding="utf-8",
    )
    (tmp_path / "deep" / "page.html").write_text('<p id="here"></p><a href="../index.html">b</a>', encoding="utf-8")
    assert list(broken(tmp_path)) == [
        "index.html: the link deep/page.html#there leads to no place on its page",
        "index.html: the link deep/none.png leads to no file",
    ]
