"""Strict readers of numbers and names in user arguments: other values are rejected, never guessed or rounded.

NumPy would turn the text "1.5" into a number, True into 1, and a date into nanoseconds.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, ValuesView
from contextlib import ContextDecorator
from dataclasses import fields
from datetime import date, timedelta
from pathlib import Path
from types import TracebackType, UnionType
from typing import Any, ClassVar, Union, cast, get_args, get_origin

import casadi as ca
import numpy as np
from numpy.typing import NDArray

from castfit._support.keywords import call_mistakes
from castfit._support.status import CastfitError, InputError, raise_if_mistakes
from castfit._support.views import views


def read_reals(value: Any) -> NDArray[np.float64] | None:
    """Read an array of real numbers as a copy; None, pandas.NA and masked entries become NaN.

    Returns None if anything in it is no real number: text, bool, complex, dates, symbols, ragged rows.
    """
    if isinstance(value, np.ma.MaskedArray):
        masked = cast("np.ma.MaskedArray[Any, Any]", value)
        unmasked = read_reals(np.asarray(masked.data))
        return None if unmasked is None else np.where(np.ma.getmaskarray(masked), np.nan, unmasked)
    if isinstance(value, (Iterator, ValuesView)):
        value = list(cast("Iterator[Any]", value))
    if isinstance(value, (ca.SX, ca.MX)):
        return None
    try:
        array: NDArray[Any] = np.asarray(value)
    except (TypeError, ValueError):
        return None
    if array.dtype.kind in "iuf":
        return array.astype(float)
    if array.dtype.kind != "O":
        return None
    entries = [_entry(e) for e in array.ravel().tolist()]
    if any(e is None for e in entries):
        return None
    return np.array(entries, dtype=float).reshape(array.shape)


# Of which some would be numbers to `float`: 1, the real part, nanoseconds.
_OTHERS = (bool, np.bool_, str, bytes, complex, np.complexfloating, np.datetime64, np.timedelta64, ca.SX, ca.MX)


def _entry(value: Any) -> float | None:
    if _is_missing(value):
        return np.nan
    if isinstance(value, _OTHERS):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _is_missing(value: Any) -> bool:
    """Check whether a value is None or pandas.NA, which has no truth value."""
    return value is None or type(value).__name__ == "NAType"


def read_real(value: Any) -> float | None:
    """Read one real number, which may be infinite or NaN; None if it is anything else, such as an array."""
    if _is_missing(value) or isinstance(value, Iterator):  # which is no number, and may be read once only
        return None
    array = read_reals(value)
    return float(array) if array is not None and array.ndim == 0 else None


def plain_numbers(record: Any) -> None:
    """Turn fields of a dataclass that are numbers of other types into floats, with which a Decimal does not mix."""
    for f in fields(record):
        value = getattr(record, f.name)
        if not isinstance(value, (int, float, np.integer)) and (number := read_real(value)) is not None:
            vars(record)[f.name] = number


def is_count(value: Any, lower: float = 0, upper: float = np.inf) -> bool:
    """Check whether a value is an integer, not a bool, from `lower` to `upper`."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(lower <= value <= upper)


def is_within(value: Any, lower: float = -np.inf, upper: float = np.inf, *, strictly: bool = False) -> bool:
    """Check whether a value is a real number from `lower` to `upper`, or strictly between them."""
    number = read_real(value)
    return number is not None and (lower < number < upper if strictly else lower <= number <= upper)


def option_mistakes(*rules: tuple[str, Any, bool, str]) -> list[str]:
    """Find options that are not right, from rules (name, value, whether it is right, what to give instead)."""
    return [f"{name} is {shorten_repr(value)}; {remedy}" for name, value, is_valid, remedy in rules if not is_valid]


def within_reason(name: str, value: Any, upper: int) -> tuple[str, Any, bool, str]:
    """Return the rule that an option is from 1 to `upper`: more than any machine has memory or time for is a slip."""
    return name, value, is_count(value, 1, upper), f"give at least 1, and at most {upper}"


def tolerance_rule(tolerance: Any) -> tuple[str, Any, bool, str]:
    """Return the rule for the tolerance of a solver; with 1 or more every point would be a solution."""
    return "tolerance", tolerance, is_within(tolerance, 0.0, 1.0, strictly=True), "give a positive number below 1"


def level_rule(argument: Any, level: Any) -> tuple[str, Any, bool, str]:
    """Return the rule for a confidence level `level`, which was passed as `argument`."""
    return "confidence_level", argument, is_within(level, 0.0, 1.0, strictly=True), "it must be between 0 and 1"


def read_level(where: str, argument: Any, default: float) -> float:
    """Return the confidence level that is asked for, by default the usual one; InputError if there is none such."""
    level = default if argument is None else read_real(argument)
    raise_if_mistakes(where, option_mistakes(level_rule(argument, level)))
    assert level is not None
    return level


def flag_mistakes(**flags: Any) -> list[str]:
    """Return an error message for each flag that is neither True nor False."""
    return option_mistakes(
        *((name, value, is_one_of(value, True, False), "give True or False") for name, value in flags.items())
    )


class ExhaustedMemoryError(MemoryError):
    """A MemoryError that names the call, with the first error as its second argument."""

    def __str__(self) -> str:
        return str(self.args[0])


class CallGuard(ContextDecorator):
    """Decorator of public functions that replaces errors of impossible calls by an InputError with an explanation.

    It costs nothing in a call that succeeds: it looks at arguments only after an error that is not castfit's own, and
    passes the error on if no argument explains it.
    """

    functions_by_name: ClassVar[dict[str, Callable[..., Any]]] = {}

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.function, self.name = function, name
        self.functions_by_name[name] = function

    def __enter__(self) -> None:
        """Do nothing before the call."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        if trace is None or not isinstance(error, Exception) or isinstance(error, CastfitError):
            return
        if isinstance(error, MemoryError) or "bad_alloc" in str(error):
            remedy = "use single shooting, fewer elements, times or draws, or a machine with more memory"
            cause = error.args[1] if isinstance(error, ExhaustedMemoryError) else error  # of a guard within this call
            raise ExhaustedMemoryError(
                f"{self.name} needs more memory than is available ({cause}); {remedy}", cause
            ) from None
        wrapper_locals = trace.tb_frame.f_locals  # contextlib's wrapper has the arguments
        call_arguments = wrapper_locals.get("args", ()), wrapper_locals.get("kwds", {})
        mistakes: list[str] = []
        if kind is TypeError:
            views().names  # so that every public function has a door  # noqa: B018
            mistakes = call_mistakes(
                self.function, self.name, *call_arguments, tuple(self.functions_by_name.items()), error
            )
        mistakes = mistakes or _kind_mistakes(self.function, *call_arguments, error)
        if mistakes:
            raise InputError(self.name, mistakes) from None


def _kind_mistakes(function: Callable[..., Any], args: Any, kwargs: Any, error: Exception) -> list[str]:
    """Return an error message for each argument of another type than the annotated one, or that names a bad file."""
    mistakes: list[str] = []
    signature = inspect.signature(function)
    names = getattr(inspect.unwrap(function), "__globals__", {})
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        parameter = signature.parameters[name]
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or name == "self":
            continue
        documented = re.search(rf"^ *{name} : ([^{{\n]+?)(?:, optional)?$", function.__doc__ or "", re.MULTILINE)
        expected = documented[1] if documented else str(parameter.annotation).replace(" | ", " or ")
        has_kind = _has_kind(value, parameter.annotation, names)
        if has_kind is None and (classes := re.fullmatch(_DOCUMENTED_CLASSES, expected)):
            has_kind = _has_kind(value, re.sub(", | or ", "|", classes[1]), names)
        if has_kind is False:
            mistakes.append(f"{name} is {describe_rejected(value, f'expected {expected}')}")
        elif isinstance(value, (str, Path)) and _is_bad_path(value, error):
            mistakes.append(f"{name} is {shorten_repr(value)}: {getattr(error, 'strerror', None) or error}")
    return mistakes


def _is_bad_path(path: str | Path, error: Exception) -> bool:
    return getattr(error, "filename", None) in (path, str(path)) or ("null byte" in str(error) and "\0" in str(path))


_DOCUMENTED_CLASSES = r"((?:mapping|[A-Z]\w+)(?:(?:, | or )[A-Z]\w+)*)(?: from .*)?"  # nothing but classes
_KIND_CHECKS: dict[str, Callable[[Any], bool]] = {
    "float": lambda value: read_real(value) is not None,
    "int": lambda value: is_count(value, -np.inf),
    "bool": lambda value: isinstance(value, (bool, np.bool_)),
    "str": lambda value: isinstance(value, str),
    "Path": lambda value: isinstance(value, (str, Path)),
    "None": lambda value: value is None,
    **dict.fromkeys(("Mapping", "mapping"), lambda value: isinstance(value, Mapping)),
    "Callable": callable,
    **dict.fromkeys(("Sequence", "Iterable"), lambda value: read_sequence(value) is not None),
    **dict.fromkeys(
        ("Array", "ArrayLike", "NDArray"),
        lambda value: not isinstance(value, Iterator) and read_reals(value) is not None,
    ),
}


def _has_kind(value: Any, annotation: Any, names: Mapping[str, Any]) -> bool | None:
    """Check a value against an annotation; None if the annotation has unknown names.  Entries are not checked."""
    if annotation in (Any, inspect.Parameter.empty) or getattr(annotation, "_is_protocol", False):
        return None
    if isinstance(annotation, type):
        return isinstance(value, annotation)
    kinds: Sequence[Any] = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ()
    if isinstance(annotation, str):
        kinds = re.split(r"\s*\|\s*(?![^\[]*\])", annotation)
    if len(kinds) > 1:
        answers = {_has_kind(value, kind, names) for kind in kinds}
        return next((answer for answer in (True, None) if answer in answers), False)
    if not isinstance(annotation, str):
        return None
    name = annotation.partition("[")[0].rpartition(".")[2]
    if name in _KIND_CHECKS:
        return _KIND_CHECKS[name](value)
    if name in views().names or name in ("SX", "Generator", "Executor"):
        return any(base.__name__ == name for base in type(value).__mro__)
    return _has_kind(value, names.get(name), names)


def read_sequence(value: Any) -> list[Any] | None:
    """Read several things; None if there are none to be had: text, mappings, CasADi matrices."""
    if isinstance(value, (str, bytes, Mapping, ca.SX, ca.MX, ca.DM)):
        return None
    try:
        return list(value)
    except TypeError:
        return None


def read_names(
    label: str, names: Any, default: Iterable[str], mistakes: list[str], *, may_be_empty: bool = False
) -> list[Any]:
    """Read names, of which None stands for the default; `unknown_names` finds entries that are no names."""
    if names is None:
        return list(default)
    entries = [names] if isinstance(names, str) else read_sequence(names)
    if not (entries or (may_be_empty and entries == [])):
        mistakes.append(f"{label} is {shorten_repr(names)}; expected names")
    return entries or []


def as_reusable(value: Any) -> Any:
    """Return a list of the items of an iterator, which can be read only once, or any other value unchanged."""
    return list(cast("Iterator[Any]", value)) if isinstance(value, Iterator) else value


def is_one_of(value: Any, *choices: Any) -> bool:
    """Check whether a value is one of several choices; values of other types are never compared."""
    return any(isinstance(value, type(choice)) and value == choice for choice in choices)


def rng_mistakes(rng: Any) -> list[str]:
    """Return the error message for an invalid seed or generator."""
    try:
        if isinstance(rng, (bool, np.bool_, Mapping)) or np.ndim(getattr(rng, "__array__", lambda: rng)()) > 1:
            raise TypeError
        np.random.default_rng(rng)
    except (TypeError, ValueError):
        return [f"rng is {shorten_repr(rng)}; expected a non-negative integer or a numpy.random.Generator"]
    return []


def shorten_repr(value: Any) -> str:
    """Return a value in one shortened line, for a message."""
    line = " ".join(repr(value).split())
    return line if len(line) <= 60 else f"{line[:57]}..."


def describe_non_numbers(value: Any) -> str:
    """Describe the non-numeric entries of a column and their positions, or any other value as a whole."""
    entries = read_sequence(value)
    if entries is None or getattr(value, "ndim", 1) != 1:
        return shorten_repr(value)
    is_series = hasattr(value, "iloc")  # a pandas Series, whose rows have labels
    labels = value.index if is_series else range(len(entries))
    invalid_entries = [
        f"{e!r} at index {label}" for label, e in zip(labels, entries, strict=True) if not reads_as_number(e)
    ]
    if not invalid_entries or len(invalid_entries) == len(entries):
        return shorten_repr(entries if is_series else value)
    return ", ".join(invalid_entries[:3]) + (
        f", and {len(invalid_entries) - 3} more" if len(invalid_entries) > 3 else ""
    )


def stop_query(callback: Any) -> Any:
    """Return a function that calls a callback and returns whether it requests to stop; None for None."""

    def requests_stop(progress: Any) -> bool:
        answer = callback(progress)
        try:
            return bool(answer)
        except (TypeError, ValueError, RuntimeError):  # arrays and symbols have no truth value
            remedy = "expected True to stop, and otherwise False or None"
            raise InputError("callback", [f"the callback returned {shorten_repr(answer)}; {remedy}"]) from None

    return None if callback is None else requests_stop


def reads_as_number(entry: Any) -> bool:
    """Check whether an entry is a number, or text that spells one."""
    try:
        return _entry(float(entry) if isinstance(entry, (str, bytes)) else entry) is not None
    except ValueError:
        return False


def describe_rejected(value: Any, remedy: str) -> str:
    """Return the text for an unusable value with its remedy; a value's attribute `instead` overrides `remedy`."""
    return f"{shorten_repr(value)}; {getattr(value, 'instead', remedy)}"


def number_remedy(value: Any, default: str) -> str:
    """Describe the conversion of a date or a time difference to a number; return `default` for any other value."""
    first_entry = (read_sequence(value) or [value])[0]
    if isinstance(first_entry, (date, np.datetime64)):  # datetime and pandas.Timestamp are dates
        return "count dates from the start of the experiment, such as (dates - start) / pandas.Timedelta('1h')"
    if isinstance(first_entry, (timedelta, np.timedelta64)):
        return "divide by the model's unit of time, such as pandas.Timedelta('1h')"
    return default


def read_mapping(label: str, mapping: Any, mistakes: list[str]) -> dict[str, Any]:
    """Read a mapping from names to anything; a CasADi symbol stands for its name, None for an empty mapping."""
    if mapping is None:
        return {}
    if not isinstance(mapping, Mapping):
        remedy = getattr(mapping, "instead", "give a mapping from names, {name: ...}")
        mistakes.append(f"{label} is a {type(mapping).__name__}; {remedy}")
        return {}
    values_by_name: dict[str, Any] = {}
    for key, value in cast("Mapping[Any, Any]", mapping).items():
        name = symbol_or_text_name(key)
        if name is None:
            mistakes.append(f"{label} has the key {shorten_repr(key)}; give a name")
        elif name in values_by_name:
            mistakes.append(f"{label} names '{name}' twice")
        else:
            values_by_name[name] = value
    return values_by_name


def symbol_or_text_name(key: Any) -> str | None:
    """Return a name that is given as text or as a CasADi symbol; None if it is neither."""
    if isinstance(key, str):
        return str(key)
    return key.name() if isinstance(key, ca.SX) and key.is_scalar() and key.is_symbolic() else None
