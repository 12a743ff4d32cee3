"""Names and numbers in MathML."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable

from castfit.report.markup import Markup, joined, tag

_GREEK = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "zeta": "ζ", "eta": "η", "theta": "θ",
    "iota": "ι", "kappa": "κ", "lambda": "λ", "lam": "λ", "mu": "μ", "nu": "ν", "xi": "ξ", "pi": "π", "rho": "ρ",
    "sigma": "σ", "tau": "τ", "phi": "φ", "chi": "χ", "psi": "ψ", "omega": "ω", "Gamma": "Γ", "Delta": "Δ",
    "Theta": "Θ", "Lambda": "Λ", "Xi": "Ξ", "Pi": "Π", "Sigma": "Σ", "Phi": "Φ", "Psi": "Ψ", "Omega": "Ω",
}  # fmt: skip
_NUMBERED = re.compile(rf"({'|'.join(sorted(_GREEK, key=len, reverse=True))}|[A-Za-z])(\d+)")


Spelling = Callable[[str], Markup]
"""How names are shown."""


def spelling(names: Iterable[str]) -> Spelling:
    """Return a function that typesets names: k_1 stays as it is written if there is a k1 as well."""
    name_by_key: dict[str, str] = {}
    upright_names: dict[str, Markup] = {}
    for text in sorted(dict.fromkeys(names), key=lambda n: (n.count("_"), n)):
        if name_by_key.setdefault(visual_key(name(text)), text) != text:
            upright_names[text] = tag("mi", text, mathvariant="normal")
    return lambda text: upright_names.get(text) or name(text)


def visual_key(markup: Markup) -> str:
    """Return a key that is equal for markup of equal appearance."""
    return re.sub(r"</?mrow>", "", markup)


def name(text: str) -> Markup:
    """Typeset a name: ``k1`` and ``k_cat`` with a subscript, ``tau`` as a letter, words upright."""
    numbered = _NUMBERED.fullmatch(text)
    if numbered:
        return tag("msub", _letters(numbered[1]), tag("mn", numbered[2]))
    base, *below = [part for part in text.split("_") if part] or [text]
    if below and not text.startswith("_") and re.fullmatch(r"\w+", text):
        marks = [mark for part in below for mark in (tag("mo", ","), _upright(part))][1:]
        return tag("msub", name(base), tag("mrow", marks))
    return _letters(text)


def is_letter(text: str) -> bool:
    """Check whether a name is typeset as a letter, with or without an index, so that a product needs no dot."""
    base = text.partition("_")[0]
    return _NUMBERED.fullmatch(base) is not None or base in _GREEK or (len(base) == 1 and base.isalpha())


def number(value: float) -> Markup:
    """Typeset a number, with a power of ten where it is needed."""
    if value in (math.pi, math.e):
        return tag("mi", "π" if value == math.pi else "e")
    sign = tag("mo", "−", form="prefix") if value < 0 else None
    if math.isinf(value):
        return joined(sign, tag("mi", "∞"))
    mantissa, _, exponent = f"{abs(value):.12g}".partition("e")
    if not exponent:
        return joined(sign, tag("mn", mantissa))
    power = int(exponent)
    raised = tag("mrow", tag("mo", "−", form="prefix") if power < 0 else None, tag("mn", str(abs(power))))
    front = [] if mantissa == "1" else [tag("mn", mantissa), tag("mo", "·")]
    return joined(sign, *front, tag("msup", tag("mn", "10"), raised))


def _letters(text: str) -> Markup:
    if text in _GREEK:
        return tag("mi", _GREEK[text])
    if len(text) == 1 and text.isalpha():
        return tag("mi", text)
    return _upright(text) if re.fullmatch(r"\w+", text) else tag("mtext", text)


def _upright(text: str) -> Markup:
    return tag("mn", text) if text.isdigit() else tag("mi", _GREEK.get(text, text), mathvariant="normal")
