"""Records are dataclasses: what can be asked of those made by the standard library has the same answer."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import FrozenInstanceError, field
from typing import Any, get_type_hints

import pytest

from castfit._support.records import dataclass


def fields_of(make: Any, **options: Any) -> Any:
    class Made:
        """What is compared."""

        x: int
        y: list[int] = field(default_factory=list, repr=False)
        z: float = field(default=1.5, compare=False)
        w: int = field(default=0, init=False)
        u: tuple[int, ...] = field(default=(), kw_only=True)

        def __post_init__(self) -> None:
            object.__setattr__(self, "w", self.x + 1)

    return make(**options)(Made)


@pytest.mark.parametrize("options", [{}, {"frozen": True}, {"eq": False}, {"repr": False, "frozen": True}])
def test_a_record_answers_as_a_dataclass_of_the_standard_library(options):
    ours, theirs = fields_of(dataclass, **options), fields_of(dataclasses.dataclass, **options)
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert get_type_hints(ours.__init__) == get_type_hints(theirs.__init__)
    seen = []
    for cls in (ours, theirs):
        one, other = cls(1, [2], u=(3,)), cls(1, [2], 9.0, u=(3,))
        moved = dataclasses.replace(copy.deepcopy(one), x=4)
        text = repr(one) if options.get("repr", True) else ""
        frozen = "" if options.get("frozen") else "no"
        if not frozen:
            with pytest.raises(FrozenInstanceError, match="'x'") as error:
                one.x = 2
            frozen = str(error.value)
            with pytest.raises(FrozenInstanceError, match="cannot delete field 'x'"):
                del one.x
        hashed = cls.__hash__ is None, cls.__hash__ is object.__hash__
        seen.append((one == other, one == moved, dataclasses.asdict(moved), text, frozen, hashed, cls.__match_args__))
        assert cls(0).y is not cls(0).y
    assert seen[0] == seen[1]
    for wrong in ((), (1, 2, 3, 4)):
        with pytest.raises(TypeError, match=r"Made.__init__\(\)"):
            ours(*wrong)


def test_hashes_are_those_of_what_is_compared():
    @dataclass(frozen=True)
    class Of:
        x: int
        y: float = field(default=0.0, compare=False)

    assert hash(Of(1, 2.0)) == hash(Of(1, 3.0))
    assert Of(1) == Of(1, 5.0) != Of(2)
    assert Of(1) != (1,)


def test_what_a_class_defines_itself_stays():
    @dataclass(frozen=True)
    class Own:
        x: int

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

    assert (repr(Own(1)), Own(1) == 3, hash(Own(1))) == ("own", True, 7)


def test_others_may_inherit():
    base = fields_of(dataclass, frozen=True)

    @dataclass(frozen=True)
    class Wider(base):
        v: int = 3

    @dataclasses.dataclass(frozen=True)
    class Theirs(base):
        v: int = 4

    class Plain(base):
        pass

    assert (Wider(1, v=5).v, Theirs(1).v, Theirs(1).w) == (5, 4, 2)
    thing = Plain(1)
    thing.note = "free"  # what is no field
    with pytest.raises(FrozenInstanceError):
        thing.x = 2
    with pytest.raises(TypeError, match="non-frozen"):
        dataclasses.dataclass(type("Loose", (base,), {"__annotations__": {}}))


def test_records_pickle():
    from castfit import SingleShooting

    assert pickle.loads(pickle.dumps(SingleShooting())) == SingleShooting()
