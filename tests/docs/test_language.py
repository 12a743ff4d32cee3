"""The language rules of CONTRIBUTING.md: counts of findings by folder may only fall."""

import pytest

from tests.docs.language import count_findings, find_in_module, find_in_page, find_in_prose, read_ceiling


def test_findings_of_each_folder_do_not_exceed_the_ceiling():
    allowed = read_ceiling()
    excess = {key: count for key, count in count_findings().items() if count > allowed.get(key, 0)}
    assert not excess, "run `python -m tests.docs.language` to list the findings"


@pytest.mark.parametrize(
    ("source", "kinds"),
    [
        ("def solve(found):\n    return found\n", ["name"]),
        ("def solve(solution):\n    return solution\n", []),
        ('def read():\n    """What is in the file."""\n', ["phrase", "summary"]),
        ('def read():\n    """Return the rows of the file."""\n', []),
        ("LIMIT = 3\n", ["constant"]),
        ("MAX_STEPS = 3\n", ["constant"]),
        ("MAX_STEPS = 3  # steps of one search\n", []),
        ("raise ValueError('Of hidden states, both may have missed it')\n", ["phrase"]),
        ("text = f'nobody has measured {name} at this time'\n", ["phrase"]),
    ],
)
def test_module_findings_have_the_expected_kinds(source, kinds):
    assert sorted({kind for _, kind, _ in find_in_module(source)}) == kinds


def test_code_and_tables_of_a_page_are_not_prose():
    assert not list(find_in_page("# What is it\n\n| what is it | a table |\n\n```python\n# what is it\n```\n"))
    assert [line for line, _, _ in find_in_page("A line.\n\nThe fit does what was asked.\n")] == [3]


def test_long_sentence_is_found():
    assert [kind for _, kind, _ in find_in_prose("word " * 36 + "end.", 1)] == ["long"]
