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

# Usual mistakes, at least five an exercise: what the solution says, what a student may write instead.
MISTAKES = {
    "unit_1": [
        ("+ k_off * c, c:", ", c:"),
        ("- (k_off + k_cat) * c", "- k_cat * c"),
        ("- (k_off + k_cat) * c", "+ (k_off + k_cat) * c"),
        ("-k_on * (E0 - c) * s + k_off", "-k_on * E0 * s + k_off"),
        ("-k_on * (E0 - c) * s + k_off", "k_on * (E0 - c) * s + k_off"),
        ("c: 0}", "c: E0}"),
        ("x + h * f(x)", "x + f(x)"),
        ("x + h * f(x)", "x - h * f(x)"),
        ("x + h * f(x)", "x + h * f(x + h * f(x))"),
        ("x + h * f(x)", "h * f(x)"),
        ("x + h * f(x)", "x * (1 - h)"),
        ("2 / abs(eigenvalue)", "1 / abs(eigenvalue)"),
        ("2 / abs(eigenvalue)", "2 / eigenvalue"),
        ("2 / abs(eigenvalue)", "2 * abs(eigenvalue)"),
        ("2 / abs(eigenvalue)", "0.04"),
        ("2 / abs(eigenvalue)", "abs(eigenvalue) / 2"),
        ("np.eye(len(x)) - h * A", "np.eye(len(x)) + h * A"),
        ("np.eye(len(x)) - h * A", "h * A - np.eye(len(x))"),
        ("np.eye(len(x)) - h * A", "np.eye(len(x)) - h * A.T"),
        ("np.eye(len(x)) - h * A", "np.eye(len(x)) - A"),
        ("np.linalg.solve(np.eye(len(x)) - h * A, x)", "x + h * A @ x"),
        ("(k_off + k_cat) / k_on", "k_off / k_on"),
        ("(k_off + k_cat) / k_on", "k_cat / k_on"),
        ("(k_off + k_cat) / k_on", "(k_off + k_cat) * k_on"),
        ("(k_off + k_cat) / k_on", "k_on / (k_off + k_cat)"),
        ("(k_off + k_cat) / k_on", "k_off / k_cat"),
        ("(k_off + k_cat) / k_on", "1.0"),
    ],
    "unit_2": [
        ("f_x * S_r + x * (1 - x / K)", "f_x * S_r"),
        ("f_x * S_r + x * (1 - x / K)", "x * (1 - x / K)"),
        ("f_x * S_K + r * x**2", "f_x * S_K - r * x**2"),
        ("/ K**2", "/ K"),
        ("r * (1 - 2 * x / K)", "r * (1 - x / K)"),
        ("r * x * (1 - x / K), f_x", "r * x, f_x"),
        ("(y[0] - measured) / SIGMA", "(measured - y[0]) / SIGMA"),
        ("(y[0] - measured) / SIGMA", "y[0] - measured"),
        ("(y[0] - measured) / SIGMA", "(y[1] - measured) / SIGMA"),
        ("y[1:].T / SIGMA", "y[1:].T"),
        ("y[1:].T / SIGMA", "y[1:] / SIGMA"),
        ("y[1:].T / SIGMA", "-y[1:].T / SIGMA"),
        ("y[1:].T / SIGMA", "y[:0:-1].T / SIGMA"),
        ("(J, -r, rcond", "(J, r, rcond"),
        ("np.linalg.lstsq(J, -r, rcond=None)[0]", "-J.T @ r"),
        ("np.linalg.lstsq(J, -r, rcond=None)[0]", "-r"),
        ("np.linalg.lstsq(J, -r, rcond=None)[0]", "np.linalg.lstsq(J, -r, rcond=None)[0] / 2"),
        ("np.linalg.lstsq(J, -r, rcond=None)[0]", "np.zeros(2)"),
        ("step = step / 2", "step = step / 8"),
        ("step = step / 2", "step = step"),
        ("return theta + step\n", "return theta + 8 * step\n"),
        ("return theta + step\n", "return theta + step / 2\n"),
        ("if np.sum(residuals(theta + step)[0] ** 2) < old:", "if True:"),
        ("for _ in range(30):", "while True:"),
        ("for _ in range(30):", "for _ in range(2):"),
        ("for _ in range(30):", "for _ in range(5):"),
        ("old = np.sum(residuals(theta)[0] ** 2)", "old = np.sum(np.abs(residuals(theta)[0]))"),
    ],
    "unit_3": [
        ("stage(k, s[:-1])[0] - s[1:]", "s[1:] - stage(k, s[:-1])[0]"),
        ("stage(k, s[:-1])[0] - s[1:]", "stage(k, s[:-1])[1] - s[1:]"),
        ("stage(k, s[:-1])[0] - s[1:]", "stage(k, s[:-1])[0] - s[:-1]"),
        ("stage(k, s[:-1])[0] - s[1:]", "stage(k, s)[0] - s"),
        ("stage(k, s[:-1])[0] - s[1:]", "stage(0.3, s[:-1])[0] - s[1:]"),
        ("X[j] * G[j] + np.array([P[j], 0])", "X[j] * G[j]"),
        ("X[j] * G[j] + np.array([P[j], 0])", "X[j] * G[j] + np.array([0, P[j]])"),
        ("X[j] * g[j] + h[j]", "h[j]"),
        ("X[j] * g[j] + h[j]", "X[j] * g[j] - h[j]"),
        ("G[0] = [0, 1]", "G[0] = [1, 0]"),
        ("-(new_s - measured + g) / SIGMA", "-(new_s - measured) / SIGMA"),
        ("-(new_s - measured + g) / SIGMA", "(new_s - measured + g) / SIGMA"),
        ("-(new_s - measured + g) / SIGMA", "-(new_s - measured + g)"),
        ("g + G @ dq", "G @ dq"),
        ("g + G @ dq", "g - G @ dq"),
        ("dk, ds = dq[0]", "dk, ds = dq[1]"),
        ("return 1 - damping", "return damping"),
        ("return 1 - damping", "return 0.75"),
        ("return 1 - damping", "return (1 - damping) ** 2"),
        ("return 1 - damping", "return 1 - damping**2"),
        ("return 1 - damping", "return 1 + damping"),
        ("simplified(k, s, k + damping * dk, s + damping * ds)", "step(k + damping * dk, s + damping * ds)"),
        ("simplified(k, s, k + damping * dk, s + damping * ds)", "simplified(k, s, k + dk, s + ds)"),
        ("simplified(k, s, k + damping * dk, s + damping * ds)", "simplified(k, s, k, s)"),
        ("next_nodes**2 + nodes @ nodes", "nodes @ nodes"),
        ("next_nodes**2 + nodes @ nodes", "np.sqrt(next_nodes**2 + nodes @ nodes)"),
        ("-(new_s - measured + g) / SIGMA", "-(s - measured + g) / SIGMA"),
    ],
    "unit_4": [
        ("for polynomial in polynomials] for point in c]", "for point in c] for polynomial in polynomials]"),
        ("polynomial.deriv()(point)", "polynomial(point)"),
        ("polynomial.deriv()(point)", "-polynomial.deriv()(point)"),
        ("polynomial.deriv()(point)", "2 * polynomial.deriv()(point)"),
        ("    n = len(c)", "    c = POINTS\n    n = len(c)"),
        ("- h * f(x[1:])", "- f(x[1:])"),
        ("- h * f(x[1:])", "+ h * f(x[1:])"),
        ("D[1:] @ x - h * f(x[1:])", "D @ x - h * f(x)"),
        ("D[1:] @ x - h * f(x[1:])", "h * D[1:] @ x - f(x[1:])"),
        ("D[1:] @ x - h * f(x[1:])", "D[1:] @ x - 0.5 * f(x[1:])"),
        ("errors[-2] / errors[-1]", "errors[-1] / errors[-2]"),
        ("np.log2(errors[-2]", "np.log(errors[-2]"),
        ("np.log2(errors[-2]", "(errors[-2]"),
        ("errors[-2] / errors[-1]", "errors[0] / errors[-1]"),
        ("np.log2(errors[-2] / errors[-1])", "3.0"),
        ("1 + elements * degree, elements * degree", "elements * degree, elements * degree"),
        ("1 + elements * degree, elements * degree", "1 + elements * degree, elements"),
        ("1 + elements * degree, elements * degree", "17, 16"),
        ("1 + elements * degree, elements * degree", "1 + elements * (degree + 1), elements * degree"),
        ("1 + elements * degree, elements * degree", "1 + elements * degree, elements * (degree + 1)"),
        ("ca.vertcat(k, *states)", "ca.vertcat(*states)"),
        ("ca.vertcat(k, *states)", "ca.vertcat(*states, k)"),
        ("0.5 * ca.sumsqr", "ca.sumsqr"),
        ("(inner[1] - value)", "(inner[0] - value)"),
        ("(inner[1] - value) / SIGMA", "(inner[1] - value)"),
        ("ca.vertcat(*equations)", "-ca.vertcat(*equations)"),
        ("D[1:] @ x - h * f(x[1:])", "D[1:] @ x + h * x[1:] ** 2"),
    ],
    "unit_5": [
        ("np.exp(np.log(lower) + share * (np.log(upper) - np.log(lower)))", "lower + share * (upper - lower)"),
        ("np.exp(np.log(lower) + share * (np.log(upper) - np.log(lower)))", "np.exp(share)"),
        ("np.exp(np.log(lower) + share * (np.log(upper) - np.log(lower)))", "lower * upper**share"),
        ("rng.uniform(size", "np.random.default_rng(0).uniform(size"),
        ("rng.uniform(size=(n, len(lower)))", "rng.beta(2, 2, size=(n, len(lower)))"),
        ("size=(n, len(lower))", "size=(n, 1)"),
        ("int(np.ceil(", "int(np.floor("),
        ("int(np.ceil(", "1 + int(np.ceil("),
        ("np.log(1 - share)", "np.log(share)"),
        ("int(np.ceil(np.log(1 - confidence) / np.log(1 - share)))", "np.log(1 - confidence) / np.log(1 - share)"),
        ("int(np.ceil(np.log(1 - confidence) / np.log(1 - share)))", "int(np.ceil(confidence / share))"),
        ("int(np.ceil(np.log(1 - confidence) / np.log(1 - share)))", "int(np.ceil(1 / share))"),
        ("costs[np.isfinite(costs)]", "costs"),
        ("found[-1][1] + 1", "found[-1][1]"),
        ("in np.sort(costs", "in (costs"),
        ("tolerance * found[-1][0]", "1e-3 * found[-1][0]"),
        ("return found\n", "return found[::-1]\n"),
        ("range(5, 61, 5)", "(60,)"),
        ("range(5, 61, 5)", "range(5, 31, 5)"),
        ("range(5, 61, 5)", "range(60, 4, -5)"),
        ("w = least_squares(residuals, w, args=(n,)).x[0]", "w = least_squares(residuals, 4.0, args=(n,)).x[0]"),
        ("return w\n", "return 3.0\n"),
    ],
    "unit_6": [
        ("return np.linalg.inv(J.T @ J)", "return J.T @ J"),
        ("return np.linalg.inv(J.T @ J)", "return np.linalg.inv(J.T @ J) * len(J)"),
        ("return np.linalg.inv(J.T @ J)", "return 1 / (J.T @ J)"),
        ("return np.linalg.inv(J.T @ J)", "return np.sqrt(np.abs(np.linalg.inv(J.T @ J)))"),
        ("return np.linalg.inv(J.T @ J)", "return np.linalg.pinv(J @ J.T)"),
        ("(1 + level) / 2", "level"),
        ("(1 + level) / 2", "0.975"),
        ("np.sqrt(np.diag(C))", "np.diag(C)"),
        ("np.sqrt(np.diag(C))", "np.sqrt(np.abs(C).sum(axis=1))"),
        ("[estimates - half, estimates + half]", "[estimates, estimates + half]"),
        ("[estimates - half, estimates + half]", "[estimates + half, estimates - half]"),
        ("[2][-1]", "[2][0]"),
        ("[2][-1]", "[2][:, -1]"),
        ("[2][-1]", "[0][:3, -1]"),
        ("np.linalg.svd(J)[2][-1]", "2 * np.linalg.svd(J)[2][-1]"),
        ("np.linalg.svd(J)[2][-1]", "np.array([1.0, -1.0, 0.0]) / np.sqrt(2)"),
        ("return 2 * fitted.cost", "return fitted.cost"),
        ("return 2 * fitted.cost", "return fitted.x[0]"),
        ("return 2 * fitted.cost", "return 2 * fitted.cost * SIGMA**2"),
        ("return 2 * fitted.cost", "return 2 * best.cost"),
        ("np.array([ka, ke[0]])", "np.array([ka, theta[1]])"),
        ("np.argmin([covariance", "np.argmax([covariance"),
        ("covariance(J)[0, 0] for", "covariance(J)[1, 1] for"),
        ("covariance(J)[0, 0] for", "np.linalg.det(covariance(J)) for"),
        ("return candidates[np.argmin(", "return rows[np.argmin("),
        ("candidates[np.argmin([covariance(J)[0, 0] for J in rows])]", "candidates[len(candidates) // 2]"),
    ],
    "unit_7": [
        ("gain = P / (P + R)\n    return", "gain = R / (P + R)\n    return"),
        ("gain = P / (P + R)\n    return", "gain = P / R\n    return"),
        ("m + gain * (value - m), (1 - gain) * P", "m - gain * (value - m), (1 - gain) * P"),
        ("m + gain * (value - m), (1 - gain) * P", "gain * value, (1 - gain) * P"),
        ("m + gain * (value - m), (1 - gain) * P", "m + gain * (value - m), P + R"),
        ("m + gain * (value - m), (1 - gain) * P", "m + gain * (value - m), gain * P"),
        ("S = P + R", "S = P"),
        ("S = P + R", "S = P + Q + R"),
        ("np.log(2 * np.pi * S)", "0.0"),
        ("(value - m) ** 2 / S +", "(value - m) ** 2 / R +"),
        ("(1 - gain) * P + Q", "(1 - gain) * P"),
        ("m, P = m + gain * (value - m), (1 - gain) * P + Q", "P = (1 - gain) * P + Q"),
        ("gain = P / (P + Q)", "gain = P / Q"),
        ("gain = P / (P + Q)", "gain = Q / (P + Q)"),
        ("gain * (m_next - m)", "gain * m_next"),
        ("gain**2 * (P_next - P - Q)", "gain * (P_next - P - Q)"),
        ("gain**2 * (P_next - P - Q)", "gain**2 * (P_next - P)"),
        ("gain**2 * (P_next - P - Q)", "gain**2 * P_next"),
        ("variance = 1 / (1 / P + 1 / R)", "variance = P"),
        ("variance = 1 / (1 / P + 1 / R)", "variance = P + R"),
        ("(m / P + value / R), variance + Q", "(m / P + value / R), variance"),
        ("(m / P + value / R), variance + Q", "(m / P + value / R), variance - Q"),
        ("(m / P + value / R), variance + Q", "(m / P), variance + Q"),
        ("(m / P + value / R), variance + Q", "(value / R), variance + Q"),
    ],
    "unit_8": [
        ("-b * lam / (2 * r)", "b * lam / (2 * r)"),
        ("-b * lam / (2 * r)", "-b * lam / r"),
        ("-b * lam / (2 * r)", "-lam / (2 * r)"),
        ("return u, -2 * q * x - a * lam", "return u, 2 * q * x + a * lam"),
        ("return u, -2 * q * x - a * lam", "return u, -2 * q * x"),
        ("return u, -2 * q * x - a * lam", "return u, -2 * q * x - a"),
        ("return u, -2 * q * x - a * lam", "return u"),
        ("gain = b * P / r", "gain = 2 * b * P / r"),
        ("gain = b * P / r", "gain = -b * P / r"),
        ("gain = b * P / r", "gain = P / r"),
        ("gain * b * P - 2 * a * P - q", "-(gain * b * P - 2 * a * P - q)"),
        ("gain * b * P - 2 * a * P - q", "gain * b * P - a * P - q"),
        ("gain * b * P - 2 * a * P - q", "gain * b * P - 2 * a * P"),
        ("gain * b * P - 2 * a * P - q", "gain * P - 2 * a * P - q"),
        ("2 * H * Q * x[k + 1]", "2 * H * Q * x[k]"),
        ("2 * H * Q * x[k + 1]", "2 * Q * x[k + 1]"),
        ("2 * H * Q * x[k + 1] + PHI * lam", "2 * H * Q * x[k + 1]"),
        ("2 * H * Q * x[k + 1] + PHI * lam", "2 * H * Q * x[k + 1] + lam"),
        ("2 * H * R * u[k] + GAMMA * lam", "GAMMA * lam"),
        ("2 * H * R * u[k] + GAMMA * lam", "2 * H * R * u[k] - GAMMA * lam"),
        ("2 * H * R * u[k] + GAMMA * lam", "2 * H * R * u[k] + lam"),
        ("return g\n", "return g[::-1]\n"),
        ("stopping_position = x + v * abs(v) / 2", "stopping_position = x"),
        ("stopping_position = x + v * abs(v) / 2", "stopping_position = x + v"),
        ("stopping_position = x + v * abs(v) / 2", "stopping_position = x + v**2 / 2"),
        ("stopping_position = x + v * abs(v) / 2", "stopping_position = x - v * abs(v) / 2"),
        ("stopping_position = x + v * abs(v) / 2", "stopping_position = x + v * abs(v)"),
        ("-np.sign(stopping_position)", "np.sign(stopping_position)"),
        ("-np.sign(stopping_position)", "-stopping_position"),
        ("stopping_position = x + v * abs(v) / 2", "stopping_position = x + v**3 / 2"),
        ("stopping_position = x + v * abs(v) / 2", "stopping_position = x + v * abs(v) / 4"),
        ("stopping_position = x + v * abs(v) / 2", "stopping_position = x + v / 2"),
    ],
    "unit_9": [
        ("J.T @ (w[:, None] * J)", "J.T @ J"),
        ("J.T @ (w[:, None] * J)", "J.T @ (w[:, None] ** 2 * J)"),
        ("J.T @ (w[:, None] * J)", "J.T @ J / len(w)"),
        ("J.T @ (w[:, None] * J)", "J @ J.T"),
        ("J.T @ (w[:, None] * J)", "np.linalg.inv(J.T @ (w[:, None] * J))"),
        ("J.T @ (w[:, None] * J)", "J.T @ w"),
        ("np.sum(J * np.linalg.solve(M, J.T).T, axis=1)", "np.sum(J * (J @ M), axis=1)"),
        ("np.sum(J * np.linalg.solve(M, J.T).T, axis=1)", "np.sum(J * np.linalg.solve(M, J.T).T)"),
        ("np.sum(J * np.linalg.solve(M, J.T).T, axis=1)", "J @ np.linalg.solve(M, J.T)"),
        ("np.sum(J * np.linalg.solve(M, J.T).T, axis=1)", "np.sum(J**2, axis=1)"),
        ("np.sum(J * np.linalg.solve(M, J.T).T, axis=1)", "np.full(len(J), 3.0)"),
        ("w * h / n", "w * h"),
        ("w * h / n", "w / h"),
        ("w * h / n", "h / np.sum(h)"),
        ("w * h / n", "w * h**2 / np.sum(w * h**2)"),
        ("w * h / n", "(w + h / n) / 2"),
        ("w * h / n", "w @ h / n"),
        ("np.exp(-gap / n)", "np.exp(gap / n)"),
        ("np.exp(-gap / n)", "np.exp(-gap)"),
        ("np.exp(-gap / n)", "1 - gap / n"),
        ("np.exp(-gap / n)", "np.exp(-h / n)"),
        ("np.max(h) - n", "np.max(h)"),
        ("np.max(h) - n", "np.mean(h) - n"),
        ("w * h / n", "w * h / 3"),
        ("w * h / n", "w * np.sqrt(h / n)"),
    ],
}
UNITS = [pytest.param(folder, id=folder.name) for folder in units()]


def sources(folder, *, solved):
    """Return the code cells of the notebook that is offered for download."""
    content = json.loads(notebook(read(folder / "lesson.py"), solved=solved))
    return [cell["source"] for cell in content["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("folder", UNITS)
def test_solutions_pass_and_gaps_and_mistakes_get_a_hint(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "lesson"}
    todo, exercises, hints = list(MISTAKES[folder.name]), 0, set()
    for solved, gapped in zip(sources(folder, solved=True), sources(folder, solved=False), strict=True):
        if solved != gapped:
            assert "check_" in solved, f"an exercise without a check:\n{solved}"
            exercises += 1
            mistakes = [(old, new) for old, new in todo if old in solved]
            todo = [pair for pair in todo if pair not in mistakes]
            assert len(mistakes) >= 5, f"only {len(mistakes)} mistakes are tried in\n{solved}"
            for attempt in (gapped, *(solved.replace(old, new) for old, new in mistakes)):
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


def test_the_method_of_unit_2_ends_from_every_start(monkeypatch, tmp_path):
    """Also where the integrator gives up, and where no step leads down."""
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "lesson"}
    for source in sources(DOCS / "course" / "unit_2", solved=True):
        exec(compile(source, "unit_2", "exec"), names)
        if source.endswith("\ncheck_damped(damped)"):
            break
    residuals, step, damped, np = (names[name] for name in ("residuals", "gauss_newton_step", "damped", "np"))
    for theta in np.random.default_rng(3).uniform(-2, 6, size=(10, 2)):
        with np.errstate(all="ignore"):
            r, J = residuals(theta)
            if np.all(np.isfinite(r)):
                next_theta = damped(residuals, theta, step(r, J))
                assert np.sum(residuals(next_theta)[0] ** 2) <= np.sum(r**2) * (1 + 1e-6)
