"""What pages say in passing is so: names of castfit between backticks exist, their arguments too, options are valid."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import castfit as cf
from tests.paths import ROOT

FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"(?<![`{}\w])`([^`\n]+)`(?!`)")
WRITTEN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]  # not the changelog
HISTORY = ROOT / "docs" / "compared" / "history_of_measurements.md"
ELSEWHERE = {"cf": cf, "castfit": cf}


def expressions() -> Iterator[tuple[str, str]]:
    """Yield the inline code of all pages that looks like an expression of castfit, with where it is."""
    for page in WRITTEN:
        if page == HISTORY or "build" in page.parts:
            continue
        text = FENCE.sub(lambda match: "\n" * match[0].count("\n"), page.read_text(encoding="utf-8"))
        for match in SPAN.finditer(text):
            code = match[1].strip()
            if re.match(r"(cf|castfit)\.[A-Za-z]|[A-Z][A-Za-z]*\(", code) and code != "cf.name":
                yield f"{page.relative_to(ROOT)}:{text[: match.start()].count(chr(10)) + 1}", code


def resolved(node: ast.expr) -> Any:
    """Return the object of castfit that a name or chain of attributes means; None for those of others."""
    if isinstance(node, ast.Name):
        return ELSEWHERE.get(node.id, getattr(cf, node.id, None) if node.id[0].isupper() else None)
    if isinstance(node, ast.Attribute):
        owner = resolved(node.value)
        return None if owner is None else getattr(owner, node.attr)
    return None


def is_plain(node: ast.expr) -> bool:
    """Tell whether an argument can be evaluated as it stands: literals, and classes of castfit called with such."""
    if isinstance(node, ast.Call):
        return isinstance(resolved(node.func), type) and all(map(is_plain, arguments(node)))
    try:
        ast.literal_eval(node)
        return not any(isinstance(part, ast.Constant) and part.value is ... for part in ast.walk(node))
    except ValueError:
        return False


def arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def mistakes(code: str) -> Iterator[str]:
    """Say what is wrong with an expression."""
    try:
        tree = ast.parse(code, mode="eval")
    except SyntaxError:
        return  # a pattern such as `cf.fit(...)[name]`, a command, a sentence
    for node in ast.walk(tree):
        try:
            if isinstance(node, ast.Attribute):
                resolved(node)
            elif isinstance(node, ast.Call) and callable(function := resolved(node.func)):
                yield from wrong_arguments(node, function)
        except AttributeError as error:
            yield str(error)


def wrong_arguments(call: ast.Call, function: Any) -> Iterator[str]:
    try:
        signature = inspect.signature(function)
    except ValueError:  # CasADi's
        return
    parameters = signature.parameters.values()
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        names = {p.name for p in parameters}
        yield from (f"no argument {k.arg!r}" for k in call.keywords if k.arg and k.arg not in names)
    if isinstance(function, type) and call.args + call.keywords and is_plain(call):
        try:
            instance = eval(ast.unparse(call), {**{name: getattr(cf, name) for name in cf.__all__}, **ELSEWHERE})
            yield from instance.mistakes() if hasattr(instance, "mistakes") and needs_nothing(instance.mistakes) else []
        except (TypeError, cf.InputError) as error:
            yield str(error)


def needs_nothing(method: Any) -> bool:
    return all(p.default is not p.empty for p in inspect.signature(method).parameters.values())


def test_inline_code_of_all_pages_is_right():
    messages = [f"{where}: `{code}`: {message}" for where, code in expressions() for message in mistakes(code)]
    assert not messages, "\n".join(messages)
    assert sum(1 for _ in expressions()) > 100


@pytest.mark.parametrize(
    "code", ["cf.Gaussian(lower=0.1)", "cf.fits(problem)", "GaussNewton('l1')", "cf.fit(problem, maxiter=3)"]
)
def test_what_is_wrong_is_found(code):
    assert list(mistakes(code))
