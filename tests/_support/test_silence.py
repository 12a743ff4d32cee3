"""`capture_output` silences everything, keeps it, and always gives the streams back."""

# ruff: noqa: T201  (what print writes is the subject)

from __future__ import annotations

import io
import os
import subprocess
import sys
import textwrap
import threading

import casadi as ca
import pytest

from castfit._support.silence import capture_output, release_output


def run(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a new interpreter, whose streams are pipes."""
    code = "import os, sys\nfrom castfit._support.silence import capture_output, release_output\n" + textwrap.dedent(
        script
    )
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60, env=buffered
    )


def write(stream: int, text: str) -> None:
    os.write(stream, text.encode())


def test_capture_output_records_all_streams_in_order(capfd):
    with capture_output() as log:
        write(1, "native out\n")
        print("python out")
        write(2, "native err\n")
        print("python err", file=sys.stderr)
        subprocess.run([sys.executable, "-c", "print('child')"], check=True)
    assert log.tail(9) == ["native out", "python out", "native err", "python err", "child"]
    assert capfd.readouterr() == ("", "")


def test_casadi_warnings_are_silenced_and_recorded(capfd):
    x = ca.SX.sym("x")
    root = ca.rootfinder("root", "newton", {"x": x, "g": ca.sqrt(x)}, {"error_on_fail": False})
    with capture_output() as log:
        root(x0=-1.0)
    assert "NaN detected" in log.tail(1)[0]
    assert capfd.readouterr() == ("", "")


def test_streams_come_back(capfd):
    streams = sys.stdout, sys.stderr
    with capture_output():
        assert sys.stdout is not streams[0]
    assert (sys.stdout, sys.stderr) == streams
    print("again")
    write(2, "and again")
    assert capfd.readouterr() == ("again\n", "and again")


def test_streams_come_back_after_an_exception(capfd):
    log = capture_output()

    def fail() -> None:
        with log:
            print("before it")
            raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        fail()
    print("after it")
    assert log.tail(3) == ["before it"]
    assert capfd.readouterr().out == "after it\n"


def test_nested_blocks_keep_their_own_records(capfd):
    with capture_output() as outer:
        print("one")
        with capture_output() as inner:
            print("two")
        assert inner.tail(5) == ["two"]
        print("three")
        assert outer.tail(2) == ["two", "three"]
    assert outer.tail(5) == ["one", "two", "three"]
    assert capfd.readouterr().out == ""


def test_a_record_outlives_later_captures():
    with capture_output() as first_output:
        print("first")
    with capture_output() as second_output:
        print("second")
    assert (first_output.tail(2), second_output.tail(2)) == (["first"], ["second"])


def test_tail_counts_lines_that_are_not_blank():
    with capture_output() as log:
        print("a\n\n  \nb\nc")
    assert log.tail(2) == ["b", "c"]
    assert log.tail(0) == []
    with capture_output() as log:
        pass
    assert log.tail() == []


def test_a_flood_keeps_its_end_and_does_not_disturb_the_next_record():
    for _ in range(2):
        with capture_output() as log:
            for _ in range(6):
                write(2, "x" * 999_999 + "\n")
            write(2, "the end\n")
        assert log.tail(1) == ["the end"]


def test_released_gives_the_streams_back_for_a_moment(capfd):
    with capture_output() as log:
        print("silent")
        with release_output():
            print("heard")
        print("silent again")
    assert log.tail(5) == ["silent", "silent again"]
    assert capfd.readouterr().out == "heard\n"


def test_released_outside_a_capture_changes_nothing(capfd):
    with release_output():
        print("heard")
    assert capfd.readouterr().out == "heard\n"


@pytest.mark.parametrize("stream", [io.StringIO(), None], ids=["without a descriptor, as in Jupyter", "none"])
def test_unusual_standard_streams(monkeypatch, stream):
    monkeypatch.setattr(sys, "stdout", stream)
    with capture_output() as log:
        print("recorded")
    assert sys.stdout is stream
    assert log.tail(1) == ["recorded"]
    assert stream is None or stream.getvalue() == ""


def test_a_stream_closed_in_python(monkeypatch):
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stdout", stream)
    with capture_output() as log:
        print("recorded")
    assert sys.stdout is stream
    assert log.tail(1) == ["recorded"]


@pytest.mark.parametrize("closed", [(1,), (2,), (0, 1, 2)])
def test_closed_descriptors_stay_closed(closed):
    result = run(f"""
        copy = os.dup(2)  # to report through
        while copy < 3:
            copy = os.dup(copy)
        for descriptor in {closed}:
            os.close(descriptor)
        for _ in range(3):
            with capture_output() as log:
                os.write(1, b"one\\n")
                os.write(2, b"two\\n")
            assert log.tail(5) == ["one", "two"], log.tail(5)
        for descriptor in {closed}:
            try:
                os.fstat(descriptor)
            except OSError:
                continue
            os.write(copy, b"open")
        os.write(copy, b"done")
        os._exit(0)
    """)
    assert result.stderr == "done"


def test_capture_output_keeps_buffered_text_and_its_order():
    result = run("""
        import ctypes
        libc = ctypes.CDLL(None)
        libc.printf(b"c ")
        libc.fflush(None)
        print("before", end=" ")  # stays in Python's buffer: stdout is a pipe
        libc.printf(b"native ")   # stays in C's
        with capture_output() as log:
            print("inside")
            libc.printf(b"native inside")
        print("after", log.tail(3))
    """)
    assert result.returncode == 0, result.stderr
    # Python's text leaves Python's buffer, C's leaves C's: each in its own order.
    assert sorted(result.stdout.split("after")[0].split()) == ["before", "c", "native"]
    assert result.stdout.endswith("after ['inside', 'native inside']\n")


def test_threads_share_the_redirection(capfd):
    streams = sys.stdout, sys.stderr
    records: list[list[str]] = []

    def work(name: str) -> None:
        for i in range(50):
            with capture_output() as log:
                write(2, f"{name}{i}\n")
            if f"{name}{i}" not in log.tail(10_000):
                records.append(log.tail(10_000))

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert records == []
    assert (sys.stdout, sys.stderr) == streams
    assert capfd.readouterr() == ("", "")


def test_no_descriptor_leaks():
    with capture_output():
        pass
    initial_descriptor = os.dup(1)
    os.close(initial_descriptor)
    for _ in range(50):
        with capture_output():
            pass
    final_descriptor = os.dup(1)
    os.close(final_descriptor)
    assert final_descriptor == initial_descriptor


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_captures_on_its_own():
    result = run("""
        with capture_output() as log:
            print("parent")
            child = os.fork()
            if child == 0:
                sys.stdout.write("child is heard\\n")
                with capture_output() as own:
                    print("child")
                sys.stdout.write(f"{own.tail(5)}\\n")
                sys.stdout.flush()
                os._exit(0)
            os.waitpid(child, 0)
            print("parent again")
        print(log.tail(5))
    """)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "child is heard\n['child']\n['parent', 'parent again']\n"
