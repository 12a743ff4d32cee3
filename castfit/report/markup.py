"""HTML from parts: whatever is text is escaped, so that no name of a model or an experiment becomes part of a page."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from typing import Any, TypeAlias, Union

Content: TypeAlias = Union["Markup", str, Iterable["Content"], None]

_EMPTY = frozenset({"br", "img", "input", "link", "meta"})  # elements without content


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def escaped(text: object) -> Markup:
    """Turn text into HTML."""
    return Markup(html.escape(str(text), quote=True))


def json_block(content: Any) -> Markup:
    """Return JSON for a script element; no name in it can end the element, or open a comment."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def joined(*parts: Content) -> Markup:
    """Return parts one after the other, escaping those that are plain text."""
    pieces: list[str] = []
    for part in parts:
        if part is None:
            continue
        if isinstance(part, Markup):
            pieces.append(str.__str__(part))
        elif isinstance(part, str):
            pieces.append(str.__str__(escaped(part)))
        else:
            pieces += [str.__str__(joined(inner)) for inner in part]
    return Markup("".join(pieces))


def tag(element: str, /, *content: Content, **attributes: object) -> Markup:
    """Return an element.

    Parameters
    ----------
    element : str
        Its name.
    *content : Markup, str, or iterables of these
    **attributes
        ``class_`` and ``for_`` stand for words that Python keeps; an underscore is a hyphen; None and False leave an
        attribute out, True gives it no value.
    """
    attribute_texts: list[str] = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        word = key.rstrip("_").replace("_", "-")
        attribute_texts.append(f" {word}" if value is True else f' {word}="{escaped(value)}"')
    opened = f"<{element}{''.join(attribute_texts)}>"
    return Markup(opened if element in _EMPTY else f"{opened}{joined(*content)}</{element}>")
