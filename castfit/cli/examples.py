"""``castfit list``, ``demo`` and ``new``: the problem library, two of its problems, a script to begin with."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from castfit._support.status import Status, raise_if_mistakes
from castfit.cli.command import Command, argument, print_line
from castfit.cli.fit import FitCall, find_exit_status, make_transcription, read_start
from castfit.cli.source import load
from castfit.fit.methods import TRANSCRIPTIONS

if TYPE_CHECKING:
    from castfit.result.result import Result


def _list(arguments: argparse.Namespace) -> int:
    """Show the problem library."""
    from castfit import problems
    from castfit.cli import console as screen

    screen.make_console().print(screen.build_library_table(problems.load(name) for name in problems.names()))
    screen.make_console().print(
        screen.build_control_table(problems.load_control(name) for name in problems.control_names())
    )
    return 0


def _demo(arguments: argparse.Namespace) -> int:
    """Fit two problems with measured data by every transcription."""
    from castfit import plots
    from castfit.cli import console as screen

    results: dict[str, dict[str, Result]] = {}
    for name in ("stat5", "alpha_pinene"):
        source = load(name, [])
        for kind in TRANSCRIPTIONS:
            transcription = make_transcription(source, kind, {})
            label = transcription.label.partition(" (")[0]
            result = FitCall(source, transcription, "gauss-newton", read_start(source, kind, None, 0)).run()
            if result.status is Status.INTERRUPTED:
                raise KeyboardInterrupt
            results.setdefault(name, {})[label] = result
    console = screen.make_console()
    console.print(screen.stack_tables(screen.build_demonstration_table(results)))
    console.print(
        "alpha_pinene starts as in the literature: all rate constants 0.5, up to 25,000 times too large. Its sigma is "
        "unknown, so its objective is -2 log L; the objective of stat5 is chi2."
    )
    plots.gallery(results, arguments.plot)
    console.print(f"Data, models and residuals are in {arguments.plot}.", markup=False)
    return find_exit_status([result for group in results.values() for result in group.values()])


LIST = Command("list", "list the problems of the library", _list, problem=False)
DEMO = Command(
    "demo",
    "fit two problems with every transcription; print a table, write a figure",
    _demo,
    {"plot": "castfit-demo.png"},
    problem=False,
)


_SCRIPT = '''"""NAME: what is measured, and what is to be learned from it.

    python NAME.py           fit, table, and the picture NAME.png
    castfit fit NAME.py      the same from the command line; castfit fit --help has the options
"""

import csv
from pathlib import Path

import castfit as cf

# 1. The data: a column of times, and one for each thing that was measured; empty cells were not measured.
text = Path(__file__).with_name("NAME.csv").read_text(encoding="utf-8-sig")
if ";" in text.splitlines()[0]:  # as Excel writes it where numbers have decimal commas
    text = text.replace(",", ".").replace(";", ",")
table = list(csv.DictReader(text.splitlines(), skipinitialspace=True))
times = [float(row["time"]) for row in table]
measured = {name: [float(row[name] or "nan") for row in table] for name in ("a", "b")}

# 2. The model: a state for each thing that changes, with the expression that its derivative is equal to.
#    Functions of symbols are castfit's: cf.exp, cf.sqrt, cf.if_else ...
a, b, k1, k2 = cf.symbols("a b k1 k2")
model = cf.Model(
    {a: -k1 * a, b: k1 * a - k2 * b},
    parameters=[k1, k2],
    # outputs={"total": a + b},          what is measured, where that is no state
    # inputs=[u],                        what is known as a function of time; see cf.Input
    # algebraic={z: z - a * b},          equations without derivatives: each expression is zero
)

# 3. The experiment: data, what is known of their errors, and where the states begin.
experiment = cf.Experiment(
    measured,
    time=times,
    sigma=cf.unknown(),  # one for each output, estimated; a number or an array where it is known
    initial={"a": cf.free(10.0, lower=0), "b": 0},  # free: estimated from this guess
    start=0,
)

# 4. The question: which parameters, from which guess.
problem = cf.Problem(
    model,
    experiment,  # or a list of experiments
    parameters={
        "k1": cf.Parameter(1.0, bounds=(1e-3, 1e3), scale="log"),  # log: only the order of magnitude is known
        "k2": cf.Parameter(1.0, bounds=(1e-3, 1e3), scale="log"),
    },
)

# 5. The answer.
if __name__ == "__main__":
    result = cf.fit(problem)
    print(result)
    result.plot("NAME.png")
'''

_DATA = """time,a,b
0.5,8.22,1.71
1,6.68,3.00
1.5,5.61,3.84
2,4.51,
3,2.98,5.27
4,2.05,5.30
5,1.31,5.18
6,0.92,4.75
8,,3.92
10,0.24,2.94
12,0.05,2.29
15,0.07,1.45
"""


def _new(arguments: argparse.Namespace) -> int:
    """Write the files, and print the next steps."""
    name = arguments.name.removesuffix(".py")
    mistakes = [] if name.isidentifier() else [f"'{name}' is not a valid script name; use letters, digits and _"]
    files = {Path(f"{name}.py"): _SCRIPT.replace("NAME", name), Path(f"{name}.csv"): _DATA}
    mistakes += [f"'{path}' exists; remove it, or choose another name" for path in files if path.exists()]
    raise_if_mistakes("new", mistakes)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    print_line(
        f"Created {name}.py and {name}.csv, a working example. "
        f"Replace the model and the data, then run: python {name}.py",
        sys.stdout,
    )
    return 0


NEW = Command(
    "new",
    "write a commented script with data as a template",
    _new,
    arguments=(argument("name", metavar="NAME", help="of the script: NAME.py and NAME.csv are written, here"),),
    examples=("castfit new decay",),
    problem=False,
)
