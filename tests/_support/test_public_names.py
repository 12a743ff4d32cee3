"""What users meet first: the names that castfit shows."""

from __future__ import annotations

import ast
from importlib import import_module
from inspect import unwrap
from pathlib import Path

import castfit as cf
from castfit.model import functions


def test_public_modules_list_only_names_for_users() -> None:
    assert set(dir(cf)) == {*cf.__all__, "__version__"}
    for hidden in ("densities", "drive", "solve", "annotations", "TYPE_CHECKING"):
        assert hidden not in dir(cf)


def test_noise_and_priors_of_one_name_have_homes() -> None:
    assert cf.noise.Laplace is cf.Laplace
    assert cf.noise.LogNormal is cf.LogNormal
    assert cf.priors.Laplace is not cf.noise.Laplace
    assert cf.priors.Normal is cf.Normal
    assert all(getattr(cf, name) is getattr(cf.noise, name) for name in cf.noise.__all__)
    assert cf.Gaussian.__module__ == "castfit"  # the short name stays the address


def test_stub_declares_every_public_name_with_its_address() -> None:
    stub = ast.parse(Path(cf.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    addresses = {(alias.asname, f"{node.module}", alias.name) for node in imports for alias in node.names}
    exported = {name: (module, source) for name, module, source in addresses if name is not None}
    assert (None, functions.__name__, "*") in addresses
    assert {*exported, "Prior", *functions.__all__} == {*cf.__all__, "__version__"}
    for name, (module, source) in exported.items():
        expected = import_module(f"castfit.{name}") if module == "castfit" else getattr(import_module(module), source)
        assert unwrap(getattr(cf, name)) is unwrap(expected)
