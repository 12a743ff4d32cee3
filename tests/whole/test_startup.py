"""What a script imports before it can begin, counted: modules, never seconds."""

from __future__ import annotations

import subprocess
import sys

import castfit as cf

FIRST_FIT = """
t = [0.0, 1.0, 2.0, 4.0, 8.0]
x, k = cf.symbols("x k")
experiment = cf.Experiment({"x": [2.0, 1.3, 0.7, 0.3, 0.1]}, time=t, initial={"x": cf.free(1.0)})
result = cf.fit(cf.Problem(cf.Model({x: -k * x}, parameters=[k]), experiment, parameters={"k": 1.0}))
assert result.success
str(result)
"""
REPORT = """
import sys
print(*sorted(sys.modules))
"""


def imported(script: str) -> set[str]:
    """Return the modules that a fresh process has imported when the script has ended."""
    command = [sys.executable, "-c", f"import castfit as cf\n{script}{REPORT}"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def of(package: str, modules: set[str]) -> list[str]:
    return sorted(name for name in modules if name.partition(".")[0] == package)


def test_importing_castfit_imports_what_every_script_needs_and_no_more():
    modules = imported("")
    assert len(of("castfit", modules)) <= 25, of("castfit", modules)
    assert not of("scipy", modules) + of("matplotlib", modules) + of("rich", modules)


def test_a_first_fit_imports_no_driver_and_no_picture_and_of_scipy_only_lapack():
    modules = imported(FIRST_FIT)
    assert len(of("castfit", modules)) <= 158, of("castfit", modules)
    rooms = {name.split(".")[1] for name in of("castfit", modules) if "." in name}
    assert not rooms & {"cli", "drive", "formats", "plots", "report"}
    assert not of("matplotlib", modules) + of("rich", modules)
    # Nor what takes longer to import than to fit: LAPACK is called as it is, and distribution functions are castfit's.
    subpackages = ("interpolate", "integrate", "linalg", "optimize", "sparse", "special", "stats")
    assert not {f"scipy.{room}" for room in subpackages} & modules
    assert not {"numpy.f2py", "numpy.testing", "importlib.metadata"} & modules


def test_public_names_are_importable_and_listed():
    listed = set(dir(cf))
    assert listed == {*cf.__all__, "__version__"}
    script = """
from castfit import *
assert fit.__module__ == simulate.__module__ == "castfit" and callable(fit) and callable(simulate)
import castfit.fit.fit, castfit.simulate.simulate
assert cf.fit is fit and cf.simulate is simulate and cf.Result is Result
missing = [name for name in cf.__all__ if name not in globals() or getattr(cf, name) is not globals()[name]]
assert not missing, missing
"""
    assert imported(script)


def test_unknown_name_raises_attribute_error():
    script = """
try:
    cf.nothing
except AttributeError as error:
    assert str(error) == "module 'castfit' has no attribute 'nothing'"
else:
    raise AssertionError
"""
    assert imported(script)


def test_result_classes_have_public_address_before_import():
    script = (
        FIRST_FIT
        + """
assert "Result" not in vars(cf) and type(result).__module__ == "castfit", type(result)
import pickle
assert type(pickle.loads(pickle.dumps(result))) is cf.Result
"""
    )
    assert imported(script)


def test_misspelt_argument_is_explained_at_first_use():
    script = """
try:
    cf.Model({}, samples=3)
except cf.InputError as error:
    assert "samples is an argument of cf.bootstrap" in str(error), error
else:
    raise AssertionError
"""
    assert imported(script)
