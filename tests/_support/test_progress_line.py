"""How long something will go on, in words; a line that comes when it takes long, and goes."""

from __future__ import annotations

import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

import castfit as cf
from castfit._support import progress_line
from castfit._support.progress_line import duration, open_progress_line, time_left
from castfit._support.time_limit import check_deadline, with_deadline


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
    """A standard stream that says that it is a terminal."""

    def __init__(self, to):
        self._to = to

    def isatty(self):
        return True

    def write(self, text):
        self._to.write(text)
        self._to.flush()
        return len(text)

    def __getattr__(self, name):
        return getattr(self._to, name)


@pytest.fixture
def terminal(monkeypatch, tmp_path):
    """Return what makes both standard streams one terminal, if they are not, and tells what was written to it."""
    path = tmp_path / "terminal.txt"
    monkeypatch.setenv("TERM", "xterm")
    with path.open("a") as file:

        def written():
            if not isinstance(sys.stderr, Terminal):  # pytest gives every phase of a test its own streams
                monkeypatch.setattr(sys, "stdout", Terminal(file))
                monkeypatch.setattr(sys, "stderr", Terminal(file))
            return path.read_bytes().decode()

        yield written


def screen(written):
    """Return the lines that a terminal shows in the end."""
    lines, column = [""], 0
    for part in re.split(r"(\r|\n|\x1b\[K)", written):
        if part == "\r":
            column = 0
        elif part == "\n":
            lines.append("")
            column = 0
        elif part == "\x1b[K":
            lines[-1] = lines[-1][:column]
        else:
            lines[-1] = lines[-1][:column].ljust(column) + part + lines[-1][column + len(part) :]
            column += len(part)
    return lines


def wait_until(true):
    """Return whether something becomes true soon; a standing clock does not matter."""
    return any(true() or threading.Event().wait(0.01) for _ in range(1000))


def counting(function, calls):
    def counted(*arguments):
        calls.append(arguments)
        return function(*arguments)

    return counted


def decay():
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 1})
    experiment = cf.Experiment({"x": [0.6, 0.35, 0.2]}, time=[1, 2, 3], sigma=0.02)
    return cf.Problem(model, experiment, parameters={"k": cf.Parameter(0.4, bounds=(0.1, 2.0))})


def herd():
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 10.0})
    rates = 0.3 * np.exp(0.4 * np.random.default_rng(1).standard_normal(6))
    times = np.array([1.0, 2.0, 4.0])
    rng = np.random.default_rng(2)
    data = [10 * np.exp(-r * times) + 0.2 * rng.standard_normal(3) for r in rates]
    animals = [cf.Experiment({"x": values}, times, sigma=0.2) for values in data]
    problem = cf.Problem(model, animals, parameters={"k": cf.Parameter(0.5, local=True)})
    return problem, cf.Population({"k": cf.Individual(omega=0.5)})


RUNS = {
    "fit": (lambda **o: cf.fit(decay(), "single", **o), "iteration 1: chi2 = "),
    "multistart": (lambda **o: cf.multistart(decay(), "single", starts=4, rng=1, **o), "2 of 4 starts"),
    "estimate": (lambda **o: cf.estimate(decay(), **o), "candidates: chi2 "),
    "incremental": (lambda **o: cf.incremental(decay(), horizons=[1, 2, 3], **o), "until 1: converged"),
    "mixed_effects": (lambda **o: cf.mixed_effects(*herd(), **o), "iteration 1: "),
    "bootstrap": (lambda **o: cf.bootstrap(cf.fit(decay(), "single", verbose=0), samples=4, rng=1, **o), " of 4 data "),
}


@pytest.mark.parametrize("kind", RUNS)
def test_progress_line_of_long_task_appears_and_is_erased(kind, terminal, clock, monkeypatch):
    assert terminal() == ""
    run, words = RUNS[kind]
    run(callback=lambda progress: clock.sleep(1.9 if clock.now == 0.0 else 0.0))
    assert terminal() == ""
    clock.now = 0.0
    run(callback=lambda progress: (clock.sleep(1.2), sys.stdout.write(f"told {clock.now:.1f}\n"))[0])
    assert words in terminal()
    assert all(re.fullmatch(r"told \d+\.\d", line) for line in screen(terminal())[:-1])  # no line is glued to another
    assert screen(terminal())[-1] == ""
    assert sys.stderr.write("") == 0
    assert isinstance(sys.stderr, Terminal)


@pytest.mark.parametrize("kind", RUNS)
def test_progress_line_is_absent_if_silent_or_not_a_terminal(kind, terminal, clock, monkeypatch, capfd):
    assert terminal() == ""
    run, _ = RUNS[kind]
    run(callback=lambda progress: clock.sleep(3.0), verbose=0)
    assert terminal() == ""
    monkeypatch.setattr(Terminal, "isatty", lambda self: False)
    run(callback=lambda progress: clock.sleep(3.0))
    assert terminal() == ""


def test_a_line_moves_while_something_comes_by_nowhere(terminal, monkeypatch):
    monkeypatch.setattr(progress_line, "_TIMER_SECONDS", 0.02)
    assert terminal() == ""
    threads = threading.active_count()
    with open_progress_line(keep=False) as show:
        show("building a function")
        initial_count = terminal().count("building a function")
        assert wait_until(lambda: terminal().count("building a function") > initial_count + 2)
    assert screen(terminal()) == [""]
    assert threading.active_count() == threads


def test_a_line_that_waits_is_not_written_before_its_time(terminal, clock, monkeypatch):
    monkeypatch.setattr(progress_line, "_TIMER_SECONDS", 0.001)
    assert terminal() == ""
    ticks = []
    monkeypatch.setattr(progress_line._ProgressLine, "renew", counting(progress_line._ProgressLine.renew, ticks))
    with open_progress_line(keep=False, delay=2.0) as show:
        show("building a function")
        assert wait_until(lambda: len(ticks) > 3)
        assert terminal() == ""
        clock.sleep(2.5)
        assert wait_until(lambda: "2.5 s: building a function" in terminal())


def test_a_line_moves_while_nothing_ends(terminal, clock):
    assert terminal() == ""
    with open_progress_line(keep=False, delay=2.0) as show, with_deadline():
        show("nothing has ended yet")
        with open_progress_line(keep=False, delay=2.0) as inner:
            inner("iteration 3")
            for _ in range(5):
                clock.sleep(0.9)
                check_deadline()
        check_deadline()
        clock.sleep(1.0)
        check_deadline()
    lines = [line.rstrip() for line in re.split(r"\r\x1b\[K", terminal()) if line]
    assert lines == [
        "2.7 s: nothing has ended yet; iteration 3",
        "3.6 s: nothing has ended yet; iteration 3",
        "4.5 s: nothing has ended yet; iteration 3",
        "5.5 s: nothing has ended yet",
    ]


def test_progress_line_is_shared_by_threads(terminal, clock):
    assert terminal() == ""
    with ThreadPoolExecutor(1) as pool:
        cf.multistart(decay(), "single", starts=4, rng=1, workers=pool, callback=lambda progress: clock.sleep(1.2))
    assert "2 of 4 starts" in terminal()
    assert "iteration" not in terminal()
    assert screen(terminal()) == [""]


def test_a_line_is_gone_after_an_error(terminal, clock):
    assert terminal() == ""

    def fails(progress):
        clock.sleep(1.5)
        if clock.now > 4:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cf.multistart(decay(), "single", starts=4, rng=1, callback=fails)
    assert "2 of 4 starts" in terminal()
    assert screen(terminal()) == [""]


def test_a_notebook_has_a_place_for_the_line(terminal, clock, monkeypatch):
    assert terminal() == ""
    ipython = pytest.importorskip("IPython")
    display = pytest.importorskip("IPython.display")
    displays = []
    place = SimpleNamespace(update=lambda data, **_: displays.append(data))
    monkeypatch.setattr(ipython, "get_ipython", lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setattr(display, "display", lambda data, **_: (displays.append(data), place)[1])
    cf.fit(decay(), "single", callback=lambda iteration: clock.sleep(0.1), verbose=0)
    cf.fit(decay(), "single", callback=lambda iteration: clock.sleep(0.1))
    assert displays == []
    cf.fit(decay(), "single", callback=lambda iteration: clock.sleep(1.2))
    assert "iteration 1: chi2 = " in displays[0]["text/plain"]
    assert displays[-1] == {"text/html": ""}
    assert terminal() == ""


def test_progress_line_of_fit_shows_pace(monkeypatch, tmp_path, clock):
    path = tmp_path / "terminal.txt"
    problem = cf.problems.load("bellman").problem
    with path.open("w+") as file:
        monkeypatch.setattr(sys, "stderr", Terminal(file))
        verbose_result = cf.fit(
            problem, "multiple", verbose=1, max_time=500, callback=lambda iteration: clock.sleep(1.0)
        )
        file.flush()
        output = path.read_text()
        quiet_result = cf.fit(problem, "multiple", max_time=500)
        file.flush()
        assert path.read_text() == output
    assert verbose_result.success
    assert "s an iteration, at most " in output
    iteration_texts = [part for part in output.split("iteration ") if part[:1].isdigit()]
    assert "(infeasible by " in iteration_texts[0]  # stages do not meet yet: the number is not that of a trajectory
    assert "infeasible" not in iteration_texts[-1]
    assert verbose_result.theta.tobytes() == quiet_result.theta.tobytes()


def test_progress_line_of_profile_shows_remaining_time(capfd):
    result = cf.fit(cf.problems.load("bellman").problem, "multiple")
    cf.profile(result, verbose=1)
    lines = [line for line in capfd.readouterr().out.splitlines() if "sides" in line]
    assert len(lines) == 4
    assert all("about" in line for line in lines[:-1])
    assert "left" not in lines[-1]
    assert capfd.readouterr().out == ""
