"""Every public name has an example in its docstring that runs and prints what it says, and a place in the reference."""

from __future__ import annotations

import doctest
import inspect
import re

import pytest

import castfit as cf
from castfit.model import functions
from tests.paths import ROOT

PRIORS = (
    "Beta",
    "Gamma",
    "Laplace",
    "LogNormal",
    "Normal",
    "Truncated",
    "Uniform",
    "lasso",
    "multivariate_normal",
    "tikhonov",
)
MODULES = {"noise", "petab", "plots", "priors", "problems", "sbml"}
PUBLIC = {
    **{name: getattr(cf, name) for name in cf.__all__ if name not in MODULES},
    **{f"priors.{name}": getattr(cf.priors, name) for name in PRIORS},
    **{f"petab.{name}": getattr(cf.petab, name) for name in cf.petab.__all__},
    **{f"sbml.{name}": getattr(cf.sbml, name) for name in cf.sbml.__all__},
    **{f"plots.{name}": getattr(cf.plots, name) for name in cf.plots.__all__},
}
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL


@pytest.mark.parametrize("name", PUBLIC)
def test_the_example_of_a_name_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = inspect.getdoc(PUBLIC[name]) or ""
    assert ">>> " in text, f"{name} has no example"
    example = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    output: list[str] = []
    failed, _ = doctest.DocTestRunner(optionflags=OPTIONS).run(example, out=output.append)
    assert not failed, "".join(output)


def test_every_name_is_in_the_reference():
    pages = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "docs" / "reference").glob("*.md"))
    listed = set(re.findall(r"^   (\w+)$", pages, re.MULTILINE))
    assert {name.split(".")[-1] for name in PUBLIC} | set(functions.__all__) <= listed


@pytest.mark.parametrize("values", [(), (None,), ("x", "y", "z", "a")])
@pytest.mark.parametrize("name", functions.__all__)
def test_functions_of_symbols_say_what_they_take(name, values):
    with pytest.raises(cf.InputError, match=rf"cf\.{name}[^(]*mistake[^(]*\((x|y, x|x, y|condition, .*)\) are symbols"):
        getattr(cf, name)(*values)
