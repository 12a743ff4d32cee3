"""What castfit does for most users, on a system that lacks what Windows lacks; workers, which are spawned, lack it too.

Run by `test_portable.py`, in a folder of its own.
"""

from __future__ import annotations

import concurrent.futures.process  # what Python and libraries do by forks, locks and users is there before these go
import logging
import multiprocessing.popen_spawn_posix
import multiprocessing.resource_tracker
import multiprocessing.spawn
import os
import random
import select
import shutil
import signal
import sys
import tempfile

import casadi
import matplotlib.pyplot
import scipy

STAYS = (casadi, concurrent.futures, logging, matplotlib, multiprocessing, random, scipy, shutil, tempfile)
MISSING = {
    os: "fork forkpty geteuid getuid getgid getegid getpgid getpgrp killpg nice setsid uname register_at_fork "
    "O_DIRECTORY O_NONBLOCK O_NOFOLLOW set_blocking sched_getaffinity sched_setaffinity mkfifo chown fchmod",
    signal: "SIGALRM SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGCHLD alarm setitimer pthread_kill",
    select: "poll epoll",
}
MODULES = ("crypt", "fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty")

for module, names in MISSING.items():
    for name in names.split():
        module.__dict__.pop(name, None)
sys.modules.update(dict.fromkeys(MODULES))  # importing them raises ImportError


def main() -> None:
    import castfit as cf
    from castfit._support.time_limit import available_memory
    from castfit.cli import main as command

    problem = cf.problems.load("bellman").problem
    result = cf.fit(problem, "multiple")
    assert result.success
    result.save("fit.json")
    assert cf.Result.load("fit.json").parameters == result.parameters
    result.report("fit.html")
    cf.explore(result, "model.html")
    many = cf.multistart(problem, starts=4, rng=1, workers=2, checkpoint="starts.jsonl")
    assert abs(many.best.objective - result.objective) < 1e-6 * (1 + result.objective)
    assert available_memory() > 0
    for words in (["list"], ["bench", "--list"], ["fit", "bellman"]):
        assert command(words) == 0


if __name__ == "__main__":
    main()
