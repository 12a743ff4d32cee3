"""How long something will go on, in words; nothing where nobody asked."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import castfit as cf
from castfit._support.progress_line import duration, time_left


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.0 s"),
        (9.4, "9.4 s"),
        (12.3, "12 s"),
        (100.0, "2 min"),
        (3600.0, "60 min"),
        (7200.0, "2.0 h"),
    ],
)
def test_durations_in_words(seconds, words):
    assert duration(seconds) == words


def test_the_time_left_is_that_of_the_pace_so_far():
    assert time_left(30.0, 3, 6) == ", about 60 s left"
    assert time_left(30.0, 0, 6) == time_left(30.0, 3, 0) == time_left(np.inf, 1, 1) == ""


class Terminal:
    """A standard error that says that it is a terminal."""

    def __init__(self, to):
        self._to = to

    def isatty(self):
        return True

    def __getattr__(self, name):
        return getattr(self._to, name)


def test_a_fit_on_a_terminal_tells_its_pace(monkeypatch, tmp_path):
    path = tmp_path / "terminal.txt"
    problem = cf.problems.load("bellman").problem
    with path.open("w+") as file:
        monkeypatch.setattr(sys, "stderr", Terminal(file))
        loud = cf.fit(problem, "multiple", verbose=1, max_time=500)
        file.flush()
        said = path.read_text()
        quiet = cf.fit(problem, "multiple", max_time=500)
        file.flush()
        assert path.read_text() == said
    assert loud.success
    assert "s an iteration, at most " in said
    assert loud.theta.tobytes() == quiet.theta.tobytes()


def test_profiles_tell_how_long_the_rest_takes(capfd):
    result = cf.fit(cf.problems.load("bellman").problem, "multiple")
    cf.profile(result, verbose=1)
    lines = [line for line in capfd.readouterr().out.splitlines() if "sides" in line]
    assert len(lines) == 4
    assert all("about" in line for line in lines[:-1])
    assert "left" not in lines[-1]
    assert capfd.readouterr().out == ""
