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
    record_class, standard_class = fields_of(dataclass, **options), fields_of(dataclasses.dataclass, **options)
    assert str(inspect.signature(record_class)) == str(inspect.signature(standard_class))
    assert get_type_hints(record_class.__init__) == get_type_hints(standard_class.__init__)
    results = []
    for cls in (record_class, standard_class):
        first_record, equal_record = cls(1, [2], u=(3,)), cls(1, [2], 9.0, u=(3,))
        changed_record = dataclasses.replace(copy.deepcopy(first_record), x=4)
        text = repr(first_record) if options.get("repr", True) else ""
        frozen = "" if options.get("frozen") else "no"
        if not frozen:
            with pytest.raises(FrozenInstanceError, match="'x'") as error:
                first_record.x = 2
            frozen = str(error.value)
            with pytest.raises(FrozenInstanceError, match="cannot delete field 'x'"):
                del first_record.x
        hashed = cls.__hash__ is None, cls.__hash__ is object.__hash__
        results.append(
            (
                first_record == equal_record,
                first_record == changed_record,
                dataclasses.asdict(changed_record),
                text,
                frozen,
                hashed,
                cls.__match_args__,
            )
        )
        assert cls(0).y is not cls(0).y
    assert results[0] == results[1]
    for arguments in ((), (1, 2, 3, 4)):
        with pytest.raises(TypeError, match=r"Made.__init__\(\)"):
            record_class(*arguments)


def test_hashes_are_those_of_what_is_compared():
    @dataclass(frozen=True)
    class Point:
        x: int
        y: float = field(default=0.0, compare=False)

    assert hash(Point(1, 2.0)) == hash(Point(1, 3.0))
    assert Point(1) == Point(1, 5.0) != Point(2)
    assert Point(1) != (1,)


def test_record_keeps_methods_defined_by_its_class():
    @dataclass(frozen=True)
    class CustomRecord:
        x: int

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

    assert (repr(CustomRecord(1)), CustomRecord(1) == 3, hash(CustomRecord(1))) == ("own", True, 7)


def test_others_may_inherit():
    base = fields_of(dataclass, frozen=True)

    @dataclass(frozen=True)
    class Wider(base):
        v: int = 3

    @dataclasses.dataclass(frozen=True)
    class StandardRecord(base):
        v: int = 4

    class PlainSubclass(base):
        pass

    assert (Wider(1, v=5).v, StandardRecord(1).v, StandardRecord(1).w) == (5, 4, 2)
    instance = PlainSubclass(1)
    instance.note = "free"  # what is no field
    with pytest.raises(FrozenInstanceError):
        instance.x = 2
    with pytest.raises(TypeError, match="non-frozen"):
        dataclasses.dataclass(type("Loose", (base,), {"__annotations__": {}}))


def test_records_pickle():
    from castfit import SingleShooting

    assert pickle.loads(pickle.dumps(SingleShooting())) == SingleShooting()
