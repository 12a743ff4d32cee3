"""Formulas typeset: MathML from CasADi graphs, which browsers show without any script or font.

A graph is read by its instructions, each once.  What appears more than once and is long gets a name of its own,
v₁, v₂, ..., defined beside it; so the text grows with the graph, not with the tree that it unfolds to.  Sums are
returned term by term, so that a page can break the line between them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import casadi as ca

from castfit.model.graph_rewriting import MIN_POWER_BASE
from castfit.report.page import Markup, joined, tag

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
        if name_by_key.setdefault(visual_key(render_name(text)), text) != text:
            upright_names[text] = tag("mi", text, mathvariant="normal")
    return lambda text: upright_names.get(text) or render_name(text)


def visual_key(markup: Markup) -> str:
    """Return a key that is equal for markup of equal appearance."""
    return re.sub(r"</?mrow>", "", markup)


def render_name(text: str) -> Markup:
    """Typeset a name: ``k1`` and ``k_cat`` with a subscript, ``tau`` as a letter, words upright."""
    numbered = _NUMBERED.fullmatch(text)
    if numbered:
        return tag("msub", _letters(numbered[1]), tag("mn", numbered[2]))
    base, *below = [part for part in text.split("_") if part] or [text]
    if below and not text.startswith("_") and re.fullmatch(r"\w+", text):
        marks = [mark for part in below for mark in (tag("mo", ","), _upright(part))][1:]
        return tag("msub", render_name(base), tag("mrow", marks))
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


# How firmly the parts of a formula hold together; a weaker one gets brackets.
_SUM, _PRODUCT, _POWER, _ATOM = 1, 2, 3, 4
_MIN_SHARED_OPERATIONS = 12  # Operations from which on a subexpression that occurs twice gets a name.
_LETTERS = ("v", "w", "q", "h", "z", "u", "definition")  # of what gets a name: the first that the model does not use
_INPUTS = (ca.OP_INPUT, ca.OP_PARAMETER)
_SUMS = (ca.OP_ADD, ca.OP_SUB, ca.OP_NEG)
_POWERS = (ca.OP_SQ, ca.OP_POW, ca.OP_CONSTPOW)
_FUNCTIONS = {
    ca.OP_LOG: "ln", ca.OP_SIN: "sin", ca.OP_COS: "cos", ca.OP_TAN: "tan", ca.OP_ASIN: "arcsin", ca.OP_ACOS: "arccos",
    ca.OP_ATAN: "arctan", ca.OP_SINH: "sinh", ca.OP_COSH: "cosh", ca.OP_TANH: "tanh", ca.OP_ASINH: "arsinh",
    ca.OP_ACOSH: "arcosh", ca.OP_ATANH: "artanh", ca.OP_ERF: "erf", ca.OP_ERFINV: "erfinv", ca.OP_SIGN: "sign",
    ca.OP_FMIN: "min", ca.OP_FMAX: "max", ca.OP_ATAN2: "atan2", ca.OP_FMOD: "mod", ca.OP_COPYSIGN: "copysign",
    ca.OP_HYPOT: "hypot", ca.OP_REMAINDER: "remainder",
}  # fmt: skip
_BETWEEN = {ca.OP_FABS: "||", ca.OP_FLOOR: "⌊⌋", ca.OP_CEIL: "⌈⌉"}
_RELATIONS = {ca.OP_LT: "<", ca.OP_LE: "≤", ca.OP_EQ: "=", ca.OP_NE: "≠"}
_DENIED = {ca.OP_LT: "≥", ca.OP_LE: ">", ca.OP_EQ: "≠", ca.OP_NE: "="}
_TURNED = {"<": ">", "≤": "≥", ">": "<", "≥": "≤"}
_LOGIC = {ca.OP_AND: "and", ca.OP_OR: "or"}


@dataclass(frozen=True)
class Equation:
    """A left side, and the terms of the right side; each is the inside of a `math` element."""

    left: Markup
    terms: tuple[Markup, ...]

    @property
    def html(self) -> Markup:
        """Both sides as a row of a table: the right one may be broken between its terms."""
        left, *right = (tag("math", side, displaystyle="true") for side in (self.left, *self.terms))
        return tag("tr", tag("td", left), tag("td", "="), tag("td", [part for term in right for part in (term, " ")]))


def table(equations: Iterable[Equation]) -> Markup:
    """Return equations below each other, aligned at their relation."""
    return tag("table", (e.html for e in equations), class_="equations")


def formula(graph: ca.SX, spell: Spelling = render_name) -> Markup:
    """Typeset one expression as part of a sentence."""
    typeset = Typesetter([graph], spell=spell)
    where = [(", where ", tag("math", e.left, tag("mo", "="), e.terms)) for e in typeset.definitions]
    return joined(tag("math", typeset.terms(0)), *where)


@dataclass(frozen=True)
class _GraphNode:
    """An operation of a graph; its arguments are positions of nodes before it."""

    op: int
    arguments: tuple[int, ...] = ()
    constant: float = 0.0
    symbol: Markup | None = None
    letter: bool = False


class Typesetter:
    """Typesets expressions that may share parts, which it names.

    Parameters
    ----------
    expressions : sequence of scalar casadi.SX
    symbols : mapping from the hash of a symbol to Markup
        How symbols are shown that do not go by their own name.
    spell : callable
        How the names of the others are shown.
    """

    def __init__(
        self, expressions: Sequence[ca.SX], symbols: Mapping[int, Markup] | None = None, spell: Spelling = render_name
    ) -> None:
        self.definitions: list[Equation] = []
        """Named subexpressions, in the order in which they are needed."""
        self._nodes, self._ends = _read(expressions, symbols or {}, spell)
        self._named: dict[int, Markup] = {}
        uses, sizes = [0] * len(self._nodes), [1.0] * len(self._nodes)
        for i in self._ends:
            uses[i] += 1
        for i in reversed(range(len(self._nodes))):  # arguments come first
            for j in self._nodes[i].arguments if uses[i] else ():
                uses[j] += 1
        for i, node in enumerate(self._nodes):
            sizes[i] += sum(sizes[j] for j in node.arguments)
        used_symbols = {visual_key(node.symbol) for node in self._nodes if node.symbol is not None}
        numbers = range(1, len(self._nodes) + 1)
        letter = next(
            a for a in _LETTERS if not any(visual_key(render_name(f"{a}{k}")) in used_symbols for k in numbers)
        )
        for i, node in enumerate(self._nodes):
            if uses[i] > 1 and sizes[i] >= _MIN_SHARED_OPERATIONS and node.op != ca.OP_IF_ELSE_ZERO:
                terms = tuple(self._terms(i))
                self._named[i] = render_name(f"{letter}{len(self.definitions) + 1}")
                self.definitions.append(Equation(self._named[i], terms))

    def terms(self, k: int) -> tuple[Markup, ...]:
        """Return the terms of the k-th expression."""
        return tuple(self._terms(self._ends[k]))

    def _terms(self, i: int) -> list[Markup]:
        """Return the terms of a sum, each with its sign; of anything else itself."""
        terms: list[Markup] = []
        for sign, j in self._summands(i):
            term = self._at_least(j, _PRODUCT) if sign < 0 or terms else self._written(j)[0]
            form = "infix" if terms else "prefix"
            mark = tag("mo", "−" if sign < 0 else "+", form=form) if sign < 0 or terms else None
            terms.append(tag("mrow", mark, term))
        return terms

    def _summands(self, i: int, sign: int = 1) -> list[tuple[int, int]]:
        """Return the summands of a node with their signs."""
        node = self._nodes[i]
        if i in self._named or node.op not in _SUMS or self._cases(node):
            return [(sign, i)]
        if node.op == ca.OP_NEG:
            return self._summands(node.arguments[0], -sign)
        left, right = node.arguments
        return [*self._summands(left, sign), *self._summands(right, -sign if node.op == ca.OP_SUB else sign)]

    def _at_least(self, i: int, min_precedence: int) -> Markup:
        """Typeset a node, in brackets if it holds together less firmly."""
        markup, precedence = self._written(i)
        return markup if precedence >= min_precedence else _bracketed(markup)

    def _written(self, i: int) -> tuple[Markup, int]:
        """Typeset a node; return how firmly it holds together, too."""
        node = self._nodes[i]
        if i in self._named:
            return self._named[i], _ATOM
        if node.op in _INPUTS:
            assert node.symbol is not None
            return node.symbol, _ATOM
        if node.op == ca.OP_CONST:
            number_markup = number(node.constant)
            return tag(
                "mrow", number_markup
            ), _SUM if node.constant < 0 else _PRODUCT if "msup" in number_markup else _ATOM
        if node.op in _SUMS:
            cases = self._cases(node)
            return (_braces(cases), _SUM) if cases else (tag("mrow", self._terms(i)), _SUM)
        if node.op == ca.OP_MUL:
            return tag("mrow", self._product(self._factors(i))), _PRODUCT
        if node.op == ca.OP_DIV:
            return tag("mfrac", *(tag("mrow", self._written(j)[0]) for j in node.arguments)), _POWER
        return self._power(node) or self._call(i, node)

    def _power(self, node: _GraphNode) -> tuple[Markup, int] | None:
        """Typeset powers, roots, exponentials."""
        op, arguments = node.op, node.arguments
        if op in _POWERS:
            base, exponent = arguments[0], 2 if op == ca.OP_SQ else None
            while exponent and self._nodes[base].op == ca.OP_SQ and base not in self._named:  # (x²)² is x⁴
                base, exponent = self._nodes[base].arguments[0], 2 * exponent
            power = tag("mn", str(exponent)) if exponent else tag("mrow", self._written(arguments[1])[0])
            return tag("msup", self._at_least(base, _ATOM), power), _POWER
        if op in (ca.OP_EXP, ca.OP_EXPM1):
            grown = tag("msup", tag("mi", "e"), tag("mrow", self._written(arguments[0])[0]))
            less = tag("mrow", grown, tag("mo", "−"), tag("mn", "1"))
            return (grown, _POWER) if op == ca.OP_EXP else (less, _SUM)
        return (tag("msqrt", self._written(arguments[0])[0]), _ATOM) if op == ca.OP_SQRT else None

    def _call(self, i: int, node: _GraphNode) -> tuple[Markup, int]:
        """Typeset functions and relations."""
        op, arguments = node.op, node.arguments
        if op in _BETWEEN:
            left, right = _BETWEEN[op]
            return tag("mrow", tag("mo", left), self._written(arguments[0])[0], tag("mo", right)), _ATOM
        if op == ca.OP_LOG1P:
            bracketed_sum = _bracketed(joined(tag("mn", "1"), tag("mo", "+"), self._written(arguments[0])[0]))
            return tag("mrow", tag("mi", "ln"), bracketed_sum), _POWER
        if op == ca.OP_IF_ELSE_ZERO:
            condition, value = arguments
            return _braces([(self._written(value)[0], self._if(condition)), (tag("mn", "0"), _OTHERWISE)]), _SUM
        if op in _RELATIONS or op in _LOGIC or op == ca.OP_NOT:  # as a number: 1 where it holds, else 0
            return tag("mrow", tag("mo", "["), self._holds(i), tag("mo", "]")), _ATOM
        argument_list = [part for j in arguments for part in (tag("mo", ","), self._written(j)[0])][1:]
        function_name = _FUNCTIONS.get(op, f"f{op}")
        return tag("mrow", tag("mi", function_name, mathvariant="normal"), _bracketed(joined(argument_list))), _POWER

    def _factors(self, i: int) -> list[int]:
        node = self._nodes[i]
        if i in self._named or node.op != ca.OP_MUL:
            return [i]
        return [j for a in node.arguments for j in self._factors(a)]

    def _product(self, factors: Sequence[int]) -> list[Markup]:
        """Typeset a product: letters beside each other, a dot where that could be misread."""
        markups: list[Markup] = []
        previous_kind = ""
        for j in factors:
            kind = self._kind(j)
            if markups:
                close = "bracket" in (previous_kind, kind) or (
                    kind == "letter" and previous_kind in ("letter", "number")
                )
                thin = close and kind != "number"
                markups.append(tag("mspace", width="0.17em") if thin else tag("mo", "·"))
            markups.append(self._at_least(j, _PRODUCT))
            previous_kind = kind
        return markups

    def _kind(self, i: int) -> str:
        """Classify the appearance of a factor: a letter, a number, brackets, or anything else."""
        node = self._nodes[i]
        if i in self._named or node.letter or node.op == ca.OP_DIV:
            return "letter"
        if node.op == ca.OP_CONST:
            return "number" if node.constant >= 0 else "bracket"
        if node.op in _POWERS:
            base = self._kind(node.arguments[0])
            return base if base != "number" else "other"
        return "bracket" if self._written(i)[1] < _PRODUCT else "other"

    def _cases(self, node: _GraphNode) -> list[tuple[Markup, Markup]]:
        """Return the pairs (value, condition) of an `if_else` expression; empty for other expressions."""
        if node.op != ca.OP_ADD:
            return []
        yes, no = (self._nodes[j] for j in node.arguments)
        if not yes.op == no.op == ca.OP_IF_ELSE_ZERO:
            return []
        denied = self._nodes[no.arguments[0]]
        if denied.op != ca.OP_NOT or denied.arguments[0] != yes.arguments[0]:
            return []
        first_case = (self._written(yes.arguments[1])[0], self._if(yes.arguments[0]))
        return [first_case, (self._written(no.arguments[1])[0], _OTHERWISE)]

    def _if(self, i: int) -> Markup:
        return tag("mrow", tag("mtext", "if\u00a0"), self._holds(i))

    def _holds(self, i: int) -> Markup:
        """Typeset a condition."""
        node = self._nodes[i]
        if node.op == ca.OP_NOT:
            inner = self._nodes[node.arguments[0]]
            if inner.op in _DENIED:
                return self._related(inner, _DENIED[inner.op])
            return tag("mrow", tag("mtext", "not\u00a0"), self._holds(node.arguments[0]))
        if node.op in _LOGIC:
            left, right = (self._holds(j) for j in node.arguments)
            return tag("mrow", left, tag("mtext", f"\u00a0{_LOGIC[node.op]}\u00a0"), right)
        return self._related(node, _RELATIONS[node.op]) if node.op in _RELATIONS else self._written(i)[0]

    def _related(self, node: _GraphNode, sign: str) -> Markup:
        left, right = (self._written(j)[0] for j in node.arguments)
        if sign in _TURNED and self._nodes[node.arguments[0]].op == ca.OP_CONST:  # 1 < x is x > 1
            left, right, sign = right, left, _TURNED[sign]
        return tag("mrow", left, tag("mo", sign), right)


_OTHERWISE = tag("mtext", "otherwise")


def _bracketed(content: Markup) -> Markup:
    tall = None if "<mfrac>" in content or "<mtable>" in content else "false"  # as fonts differ, only where it must be
    return tag("mrow", tag("mo", "(", stretchy=tall), content, tag("mo", ")", stretchy=tall))


def _braces(cases: Iterable[tuple[Markup, Markup]]) -> Markup:
    rows = [tag("mtr", tag("mtd", value), tag("mtd", condition)) for value, condition in cases]
    return tag("mrow", tag("mo", "{"), tag("mtable", rows))


def _exponential(nodes: Sequence[_GraphNode], i: int) -> tuple[int, int] | None:
    """Return the base and the exponent of a power as castfit.model.graph_rewriting writes it; None if it is none."""

    def part(j: int, op: int) -> tuple[int, ...]:
        return nodes[j].arguments if nodes[j].op == op else ()

    for grown in part(i, ca.OP_MUL):
        for e in part(grown, ca.OP_EXP):
            product = part(e, ca.OP_MUL)
            for exponent, logarithm in zip(product, reversed(product), strict=True):
                for larger in part(logarithm, ca.OP_LOG):
                    inside = part(larger, ca.OP_FMAX)
                    if inside and nodes[inside[1]].op == ca.OP_CONST and nodes[inside[1]].constant == MIN_POWER_BASE:
                        branches = [part(b, ca.OP_IF_ELSE_ZERO) for b in part(inside[0], ca.OP_ADD)]
                        if len(branches) == 2 and all(branches):
                            return branches[1][1], exponent
    return None


def _read(
    expressions: Sequence[ca.SX], symbols: Mapping[int, Markup], spell: Spelling
) -> tuple[list[_GraphNode], list[int]]:
    """Return the operations of expressions, arguments first, and the positions at which the expressions end.

    A repeated subexpression is one node.  Some nodes may not be needed by any end.
    """
    column = ca.cse(ca.densify(ca.vertcat(*expressions))) if expressions else ca.SX(0, 1)
    free = ca.symvar(column)
    graph = ca.Function("graph", free, [column])
    nodes: list[_GraphNode] = []
    work: dict[int, int] = {}
    ends = [0] * len(expressions)
    for k in range(graph.n_instructions()):
        op, inputs, outputs = graph.instruction_id(k), graph.instruction_input(k), graph.instruction_output(k)
        if op == ca.OP_OUTPUT:
            ends[outputs[1]] = work[inputs[0]]
            continue
        if op == ca.OP_INPUT:
            symbol = free[inputs[0]]
            symbol_markup = symbols.get(hash(symbol))
            letter = symbol_markup is None and is_letter(symbol.name())
            node = _GraphNode(
                op, symbol=spell(symbol.name()) if symbol_markup is None else symbol_markup, letter=letter
            )
        elif op == ca.OP_CONST:
            value = float(graph.instruction_constant(k))
            node = _GraphNode(op, constant=abs(value))
            if value < 0.0:
                nodes.append(node)
                node = _GraphNode(ca.OP_NEG, (len(nodes) - 1,))
        elif op in (ca.OP_TWICE, ca.OP_INV):  # 2 x and 1 / x
            nodes.append(_GraphNode(ca.OP_CONST, constant=2.0 if op == ca.OP_TWICE else 1.0))
            node = _GraphNode(ca.OP_MUL if op == ca.OP_TWICE else ca.OP_DIV, (len(nodes) - 1, work[inputs[0]]))
        elif op == ca.OP_ASSIGN:
            work[outputs[0]] = work[inputs[0]]
            continue
        else:
            arguments = [work[j] for j in inputs]
            signs = [nodes[j].op == ca.OP_NEG for j in arguments] if op in (ca.OP_MUL, ca.OP_DIV) else []
            unsigned_arguments = [
                nodes[j].arguments[0] if s else j for j, s in zip(arguments, signs, strict=False)
            ] or arguments
            node = _GraphNode(op, tuple(unsigned_arguments))
            if sum(signs) == 1:  # the sign of a product stands before it
                nodes.append(node)
                node = _GraphNode(ca.OP_NEG, (len(nodes) - 1,))
        work[outputs[0]] = len(nodes)
        nodes.append(node)
        power = _exponential(nodes, len(nodes) - 1)
        if power is not None:
            nodes[-1] = _GraphNode(ca.OP_POW, power)
    return nodes, ends
