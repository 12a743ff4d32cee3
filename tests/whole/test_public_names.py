"""Classes and functions say where users import them, in messages and in pickles; inner paths are nobody's business."""

import inspect
import pickle

import pytest

import castfit as cf

DOORS = {"castfit": cf, "castfit.priors": cf.priors, "castfit.petab": cf.petab, "castfit.sbml": cf.sbml}
PUBLIC = {
    f"{door}.{name}": getattr(module, name)
    for door, module in DOORS.items()
    for name in module.__all__
    if inspect.isclass(getattr(module, name)) or inspect.isfunction(getattr(module, name))
}
OURS = {address: thing for address, thing in PUBLIC.items() if not thing.__module__.startswith("casadi")}


@pytest.mark.parametrize("address", OURS)
def test_a_public_name_is_its_address(address):
    thing = OURS[address]
    qualified_name = f"{thing.__module__}.{thing.__qualname__}"
    assert qualified_name in (address, f"castfit.{thing.__qualname__}")  # what the package itself exports, too
    assert PUBLIC[qualified_name] is thing
    assert pickle.loads(pickle.dumps(thing)) is thing


def test_errors_are_shown_by_the_name_that_one_catches():
    with pytest.raises(cf.InputError) as caught:
        cf.fit(3)  # type: ignore[arg-type]
    assert str(type(caught.value)) == "<class 'castfit.InputError'>"
