"""Count names, docstring summaries, sentences and constants that break the language rules of CONTRIBUTING.md.

Run from the root of a checkout:

    python -m tests.docs.language [PATH ...]     print each finding
    python -m tests.docs.language --lower        write today's counts into language_ceiling.tsv; counts may only fall
"""

import ast
import collections
import io
import pathlib
import re
import sys
import tokenize

ROOT = pathlib.Path(__file__).resolve().parents[2]
CEILING = pathlib.Path(__file__).with_name("language_ceiling.tsv")
FOLDERS = ("castfit", "bench", "problems", "examples", "tests", "docs", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")

# Words that say nothing when they stand alone as a name.
WEAK_NAMES = frozenset(pathlib.Path(__file__).with_name("weak_names.txt").read_text().split())
WEAK_SUMMARY = re.compile(
    r"^(Return|Yield|Give|Find|Show|Read|Make|Take|Write|Hold|Keep)s? "
    r"(them|it|the same|what|whether that|how|where|why|which|those|so|of)\b"
    r"|^(What|Who|How|Where|Which|That|Those|Whatever|The same|Of|Tell|Say|Let|Ask|Put)\b"
)
PHRASES = {
    "begins with 'of'": re.compile(r"(?:^|[.;:] )[Oo]f (?!course|interest|note)[^.;:,]{2,60}, "),
    "begins with 'where'": re.compile(r"(?:^|[.;] )(Where|Whatever|Whichever) [^.;]{3,70}, "),
    "'what' without a noun": re.compile(
        r"(?<![Ss]ee )\b[Ww]hat (is|was|are|were|has|had|comes|came|holds|ends|begins|no)\b(?![^.]*\?)"
    ),
    "'those of', 'that which'": re.compile(r"\b[Tt]hose of\b|\bthat which\b"),
    "programs do not speak": re.compile(
        r"\b(is|are|was|were|be|been) (told|said)\b(?! to\b)|\btolds? (by|apart|so)"
        r"|\b(tells?|says?) (of|so|nothing|how|what)\b|\bspeaks? (for|against)\b"
    ),
    "'nobody', 'somebody'": re.compile(r"\b([Nn]obody|[Ww]hoever|[Ss]omebody)\b"),
    "'alike'": re.compile(r"\balike (in time|over)\b|\b(are|be|may be) alike\b"),
    "archaic": re.compile(
        r"\b(hitherto|thereof|wherever|nought|for want of|as it were|is (?:no|none) (?:optimum|success|density))\b"
    ),
}
MAX_SENTENCE_WORDS = 35  # of one sentence in docstrings, comments, messages and pages
ONE_WORD_CONSTANTS = {"EPS", "TOLERANCE", "PI", "SEED", "VERSION", "FORMAT", "DPI", "DEGREE", "ORDER", "GAMMA"}


def find_in_prose(text, line):
    """Yield (line, kind, sentence) for each sentence of a text that breaks a rule."""
    text = re.sub(r"``[^`]*``|`[^`\n]*`|\$[^$]*\$|:\w+:", "X", text)
    for block in re.finditer(r"(?:[^\n]|\n(?!\s*\n))+", text):
        if re.search(r">>>|^\s*(-{3,}|={3,}|\.\. )|^\s*\w+( :|: )\s*\w+.*$\s{4}", block.group(), re.MULTILINE):
            continue  # code, headings, and lists of arguments
        for match in re.finditer(r"\S.*?(?:[.!?](?=\s|$)|\Z)", block.group(), re.DOTALL):
            sentence = " ".join(match.group().split())
            sentence_line = line + text[: block.start() + match.start()].count("\n")
            for rule, pattern in PHRASES.items():
                if pattern.search(sentence):
                    yield sentence_line, "phrase", f"{rule}: {sentence}"
            if len(re.findall(r"[A-Za-z][\w'-]*", sentence)) > MAX_SENTENCE_WORDS and sentence.count("|") < 2:
                yield sentence_line, "long", sentence


def is_number(node):
    """Return whether an expression consists of numbers only."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and not isinstance(node.value, bool)
    children = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    return isinstance(node, ast.UnaryOp | ast.BinOp) and all(map(is_number, children))


def find_constants(tree, comments):
    """Yield numeric constants of a module that are named by one word or have no comment."""
    for node, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        if (
            not isinstance(target, ast.Name)
            or not target.id.isupper()
            or node.value is None
            or not is_number(node.value)
        ):
            continue
        words = target.id.strip("_").split("_")
        has_docstring = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        is_explained = has_docstring or any(comments.get(k) for k in (node.lineno - 1, node.lineno, node.end_lineno))
        if len(words) == 1 and len(words[0]) > 2 and words[0] not in ONE_WORD_CONSTANTS:
            yield node.lineno, "constant", f"{target.id}: name its role and unit"
        elif not is_explained:
            yield node.lineno, "constant", f"{target.id}: explain in a comment what it limits"


def find_in_module(text):
    """Yield the findings of a Python module."""
    tree = ast.parse(text)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = {token.start[0]: token.string.lstrip("#: ") for token in tokens if token.type == tokenize.COMMENT}
    for line, comment in comments.items():
        yield from find_in_prose(comment, line)
    yield from find_constants(tree, comments)
    formatted = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if part is not node
    }
    docstrings = set()
    for node in ast.walk(tree):  # a docstring is visited after its owner
        name = (
            node.id
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            else node.arg
            if isinstance(node, ast.arg)
            else ""
        )
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = getattr(node, "name", "")
            if docstring := ast.get_docstring(node, clean=False):
                constant = node.body[0].value
                docstrings.add(id(constant))
                if WEAK_SUMMARY.search(docstring.strip()):
                    yield constant.lineno, "summary", " ".join(docstring.strip().split("\n\n")[0].split())
                yield from find_in_prose(docstring, constant.lineno)
        if name.strip("_").lower() in WEAK_NAMES and not name.isupper():
            yield node.lineno, "name", name
        if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in formatted | docstrings:
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            message = "".join(part.value if isinstance(getattr(part, "value", None), str) else "X" for part in parts)
            if len(re.findall(r"[A-Za-z]{2,}", message)) >= 4 and "\n" not in message.strip():
                yield from find_in_prose(message, node.lineno)


def find_in_page(text):
    """Yield the findings of a Markdown page, without its code, tables and headings."""
    text = re.sub(
        r"^(```|~~~).*?^\1", lambda code: re.sub(r"[^\n]+", "", code.group()), text, flags=re.DOTALL | re.MULTILINE
    )
    yield from find_in_prose(re.sub(r"^\s*([|#>]|[-*+] |\d+[.] |:::|\[).*$", "", text, flags=re.MULTILINE), 1)


def count_findings(paths=FOLDERS, report=None):
    """Return a Counter of findings by (folder, kind); `report` is called with each finding."""
    counts = collections.Counter()
    for path in sorted(
        file for name in paths for file in ([ROOT / name] if (ROOT / name).is_file() else (ROOT / name).rglob("*"))
    ):
        if path.suffix not in (".py", ".md") or path == pathlib.Path(__file__).resolve() or "build" in path.parts:
            continue
        relative = path.relative_to(ROOT)
        text = path.read_text(encoding="utf-8")
        for line, kind, finding in sorted({*(find_in_module if path.suffix == ".py" else find_in_page)(text)}):
            counts["/".join(relative.parts[:-1][:2]) or relative.name, kind] += 1
            if report is not None:
                report(f"{relative}:{line}: {kind}: {finding[:160]}")
    return counts


def read_ceiling():
    """Return the largest allowed count by (folder, kind)."""
    rows = (line.split("\t") for line in CEILING.read_text(encoding="utf-8").splitlines())
    return {(folder, kind): int(count) for folder, kind, count in rows}


def main(arguments):
    """Print the findings, or lower the ceiling."""
    if arguments == ["--lower"]:
        allowed = read_ceiling() if CEILING.exists() else collections.defaultdict(lambda: sys.maxsize)
        counts = {
            key: min(count, allowed.get(key, 0) if CEILING.exists() else count)
            for key, count in count_findings().items()
        }
        lines = [f"{folder}\t{kind}\t{count}\n" for (folder, kind), count in sorted(counts.items()) if count]
        CEILING.write_text("".join(lines), encoding="utf-8")
    else:
        count_findings(arguments or FOLDERS, report=lambda finding: sys.stdout.write(finding + "\n"))


if __name__ == "__main__":
    main(sys.argv[1:])
