"""PEtab's formulas read: from text to operations in the order in which a stack of operands carries them out.

The syntax is that of PEtab's specification: `^` binds strongest, and to the right; then signs and `!`, products, sums,
comparisons; last `&&` and `||`, which bind alike.  All others bind to the left.
"""

from __future__ import annotations

import re
from functools import cache

from castfit._support.status import suggest

Operation = tuple[str, int]
"""What it is called, and how many operands it takes."""

NEGATIVE, NOT, PIECEWISE = "negative", "!", "piecewise"
RESERVED = frozenset({"inf", "nan", "true", "false"})

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)|(?P<sign>\|\||&&|[<>=!]=|[-+*/^<>!(),]))",
    re.ASCII,
)
_LITERALS = {"inf": float("inf"), "true": 1.0, "false": 0.0}
_STRENGTH = {
    **dict.fromkeys(("||", "&&"), 1),
    **dict.fromkeys(("==", "!=", "<", ">", "<=", ">="), 2),
    **dict.fromkeys(("+", "-"), 3),
    **dict.fromkeys(("*", "/"), 4),
    "^": 6,
}
_PREFIX_PRECEDENCE = 5  # precedence of prefix operators
_NUMBERS_OF_OPERANDS = {"log": (1, 2), **dict.fromkeys(("pow", "min", "max"), (2,))}  # of functions; 1 otherwise


class FormulaError(ValueError):
    """A formula that cannot be read or expressed; the message says why."""


@cache
def parsed(text: str, functions: frozenset[str]) -> tuple[float | str | Operation, ...]:
    """Return a formula's numbers, names and operations, operands before what takes them.

    Raises FormulaError: if it cannot be read, or calls something that is none of `functions`.
    """
    reader = _Parser(text, functions)
    try:
        reader.read(0)
    except RecursionError as error:
        raise FormulaError(f"'{text}' cannot be read: it is nested too deeply") from error
    if reader.next:
        raise reader.build_error()
    return tuple(reader.found)


class _Parser:
    """Parser state: the remaining text of a formula and the operations found so far."""

    def __init__(self, text: str, functions: frozenset[str]) -> None:
        self.text, self.functions, self.at = text, functions, 0
        self.found: list[float | str | Operation] = []
        self.next = self.kind = ""
        self.advance()

    def build_error(self) -> FormulaError:
        """Return the error for an unexpected token or an early end of the formula."""
        reason = (
            f"'{self.next}' was not expected at position {self.at - len(self.next) + 1}"
            if self.next
            else "it ends early"
        )
        fix = "; write powers as a ^ b" if "**" in self.text else ""
        return FormulaError(f"'{self.text}' cannot be read: {reason}{fix}")

    def advance(self) -> str:
        """Go on to the next token; return the present one."""
        token, match = self.next, _TOKEN.match(self.text, self.at)
        if match is not None:
            self.kind, self.next, self.at = match.lastgroup or "", match[match.lastgroup or 0], match.end()
            return token
        remainder = self.text[self.at :].strip()
        if remainder:
            raise FormulaError(f"'{self.text}' cannot be read: '{remainder[0]}' is no part of formulas")
        self.kind = self.next = ""
        return token

    def read(self, min_strength: int) -> None:
        """Read an operand, and all that operators that bind at least so strongly join to it."""
        self.operand()
        while self.kind == "sign" and (strength := _STRENGTH.get(self.next, -1)) >= max(min_strength, 1):
            sign = self.advance()
            self.read(strength if sign == "^" else strength + 1)
            self.found.append((sign, 2))

    def operand(self) -> None:
        """Read one operand: a number, name, function call, prefixed operand or parenthesised formula."""
        kind, token = self.kind, self.next
        if kind == "number":
            self.found.append(float(self.advance()))
        elif kind == "name":
            self.advance()
            if self.next == "(":
                self.call(token)
            elif token in _LITERALS:
                self.found.append(_LITERALS[token])
            elif token.lower() in RESERVED:
                raise FormulaError(f"'{self.text}' cannot be read: '{token}' is reserved")
            else:
                self.found.append(token)
        elif token in ("+", "-", "!"):
            self.advance()
            self.read(_PREFIX_PRECEDENCE)
            if token != "+":
                self.found.append((NOT if token == "!" else NEGATIVE, 1))
        elif token == "(":
            self.advance()
            self.read(0)
            self.close()
        else:
            raise self.build_error()

    def call(self, name: str) -> None:
        """Read the operands of a function."""
        if name not in self.functions:
            raise FormulaError(f"'{self.text}' cannot be read: the function '{name}' is unknown: "
                               f"{suggest(name, sorted(self.functions))}")  # fmt: skip
        self.advance()
        self.read(0)
        count = 1
        while self.next == ",":
            self.advance()
            self.read(0)
            count += 1
        self.close()
        allowed_counts = _NUMBERS_OF_OPERANDS.get(name, (1,))
        if count % 2 == 0 if name == PIECEWISE else count not in allowed_counts:
            expected = "an odd number of operands" if name == PIECEWISE else " or ".join(map(str, allowed_counts))
            raise FormulaError(f"'{self.text}' cannot be read: '{name}' takes {expected}, not {count}")
        self.found.append((name, count))

    def close(self) -> None:
        """Go past a closing parenthesis."""
        if self.next != ")":
            raise self.build_error()
        self.advance()
