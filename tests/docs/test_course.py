"""The course: with its solutions every lesson runs; at a gap, or a usual mistake, a check says what to do."""

from __future__ import annotations

import json
import re
import sys

import pytest

from tests.paths import ROOT

DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "_extensions"))
from lessons import notebook, read, units  # noqa: E402

# Usual mistakes: what the solution says, what a student may write instead.
MISTAKES = {
    "unit_1": [
        ("+ k_off * c, c:", ", c:"),
        ("- (k_off + k_cat) * c", "- k_cat * c"),
        ("x + h * f(x)", "x + f(x)"),
        ("2 / abs(eigenvalue)", "1 / abs(eigenvalue)"),
        ("2 / abs(eigenvalue)", "2 / eigenvalue"),
        ("np.eye(len(x)) - h * A", "np.eye(len(x)) + h * A"),
        ('TRUTH["k_off"] + TRUTH["k_cat"]', 'TRUTH["k_off"]'),
    ],
    "unit_2": [
        ("f_x * S_r + x * (1 - x / K)", "f_x * S_r"),
        ("f_x * S_K + r * x**2", "f_x * S_K - r * x**2"),
        ("(y[0] - measured) / SIGMA", "(measured - y[0]) / SIGMA"),
        ("y[1:].T / SIGMA", "y[1:].T"),
        ("y[1:].T / SIGMA", "y[1:] / SIGMA"),
        ("(J, -r, rcond", "(J, r, rcond"),
        ("step = step / 2", "step = step / 8"),
        ("return theta + step\n", "return theta + 8 * step\n"),
    ],
    "unit_3": [
        ("stage(k, s[:-1])[0] - s[1:]", "s[1:] - stage(k, s[:-1])[0]"),
        ("X[j] * G[j] + np.array([P[j], 0])", "X[j] * G[j]"),
        ("X[j] * g[j] + h[j]", "h[j]"),
        ("G[0] = [0, 1]", "G[0] = [1, 0]"),
        ("-(new_s - measured + g) / SIGMA", "-(new_s - measured) / SIGMA"),
        ("g + G @ dq", "G @ dq"),
        ("share = 1 - 0.25", "share = 0.25"),
        ("simplified(k, s, k + damping * dk, s + damping * ds)", "step(k + damping * dk, s + damping * ds)"),
    ],
    "unit_4": [
        ("for polynomial in polynomials] for point in c]", "for point in c] for polynomial in polynomials]"),
        ("polynomial.deriv()(point)", "polynomial(point)"),
        ("- h * f(x[1:])", "- f(x[1:])"),
        ("- h * f(x[1:])", "+ h * f(x[1:])"),
        ("errors[-2] / errors[-1]", "errors[-1] / errors[-2]"),
        ("np.log2(errors[-2]", "np.log(errors[-2]"),
        ("= 1 + 8 * 2, 8 * 2", "= 8 * 2, 8 * 2"),
        ("= 1 + 8 * 2, 8 * 2", "= 1 + 8 * 2, 8"),
        ("ca.vertcat(k, *states)", "ca.vertcat(*states)"),
        ("0.5 * ca.sumsqr", "ca.sumsqr"),
    ],
    "unit_5": [
        ("np.exp(np.log(lower) + share * (np.log(upper) - np.log(lower)))", "lower + share * (upper - lower)"),
        ("size=(n, len(lower))", "size=(n, 1)"),
        ("int(np.ceil(", "int(np.floor("),
        ("np.log(1 - share)", "np.log(share)"),
        ("costs[np.isfinite(costs)]", "costs"),
        ("found[-1][1] + 1", "found[-1][1]"),
        ("in np.sort(costs", "in (costs"),
        ("range(5, 61, 5)", "(60,)"),
        ("range(5, 61, 5)", "range(5, 31, 5)"),
    ],
    "unit_6": [
        ("return np.linalg.inv(J.T @ J)", "return J.T @ J"),
        ("(1 + level) / 2", "level"),
        ("np.sqrt(np.diag(C))", "np.diag(C)"),
        ("[2][-1]", "[2][0]"),
        ("[2][-1]", "[2][:, -1]"),
        ("return 2 * fitted.cost", "return fitted.cost"),
        ("np.array([ka, ke[0]])", "np.array([ka, theta[1]])"),
        ("np.argmin([covariance", "np.argmax([covariance"),
        ("covariance(J)[0, 0] for", "covariance(J)[1, 1] for"),
    ],
}
UNITS = [pytest.param(folder, id=folder.name) for folder in units()]


def sources(folder, *, solved):
    """Return the code cells of the notebook that is offered for download."""
    made = json.loads(notebook(read(folder / "lesson.py"), solved=solved))
    return [cell["source"] for cell in made["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("folder", UNITS)
def test_solutions_pass_and_gaps_and_mistakes_get_a_hint(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "lesson"}
    todo, exercises, hints = list(MISTAKES[folder.name]), 0, set()
    for solved, gapped in zip(sources(folder, solved=True), sources(folder, solved=False), strict=True):
        if solved != gapped:
            assert "check_" in solved, f"an exercise without a check:\n{solved}"
            exercises += 1
            wrong = [(old, new) for old, new in todo if old in solved]
            todo = [pair for pair in todo if pair not in wrong]
            for attempt in (gapped, *(solved.replace(old, new) for old, new in wrong)):
                with pytest.raises(AssertionError) as caught:
                    exec(compile(attempt, f"{folder.name}: gap", "exec"), dict(names))
                hint = str(caught.value)
                assert len(re.findall(r"\w+", hint)) > 5, f"no hint but {hint!r} for\n{attempt}"
                assert (attempt == gapped) == hint.startswith("The dots are still there"), f"{hint!r} for\n{attempt}"
                hints.add(hint)
        exec(compile(solved, folder.name, "exec"), names)
    assert todo == [], "mistakes that no exercise has"
    assert exercises >= 4
    assert len(hints) > exercises  # not one sentence for everything
    assert capsys.readouterr().out.count("Right.") == exercises


@pytest.mark.parametrize("folder", UNITS)
def test_the_notebook_with_gaps_gives_nothing_away(folder):
    cells = read(folder / "lesson.py")
    gapped = notebook(cells, solved=False)
    for cell in cells:
        for solution in cell.solutions:
            lines = [line.strip() for line in solution.splitlines() if len(line.strip()) > 20]
            assert not [line for line in lines if json.dumps(line)[1:-1] in gapped]
    assert "# solution:" not in gapped
    assert "# end" not in gapped


@pytest.mark.parametrize("folder", UNITS)
def test_a_unit_has_theory_reading_exercises_and_both_notebooks(folder):
    page = (folder / "index.md").read_text(encoding="utf-8")
    assert page.count("$$") >= 4
    assert "](../../understand/" in page
    assert "## Exercises" in page
    for notebook_ in (f"{folder.name}.ipynb", f"{folder.name}_solutions.ipynb"):
        assert f"<{notebook_}>`" in page


def test_the_index_lists_the_units_that_there_are():
    index = (DOCS / "course" / "index.md").read_text(encoding="utf-8")
    assert re.findall(r"^(unit_\d)/index$", index, re.MULTILINE) == [folder.name for folder in units()]
    assert sorted(MISTAKES) == [folder.name for folder in units()]


def test_notebooks_are_valid():
    format_ = pytest.importorskip("nbformat")
    for folder in units():
        for solved in (False, True):
            format_.validate(format_.reads(notebook(read(folder / "lesson.py"), solved=solved), as_version=4))
