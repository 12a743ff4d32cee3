"""The page of outcomes: how a fit may end, in the words that it says so, and what to do then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from castfit._support.status import Status
from castfit.integrate.failure_diagnosis import REASONS

TEXT = """# Outcomes and messages

## How a fit ends

`result.status` is one of these; `result.success` is true for the first two. Whatever happened, the result holds the
best point so far, and `result.message` says what was tried.

| status | what happened | what to do |
|---|---|---|
{statuses}

A status of success is only given if the model itself, integrated with error control, reproduces the objective. It is
the solver's word, about an optimum: whether the model describes the data there says `result.is_adequate`. Where it does
not, what `print` shows ends with "A poor optimum: chi2/n = 430; ...", and commands end with exit status 1: look at
`result.goodness`, and for a better optimum by `cf.estimate`.

## What can fail on the way

`result.failures` counts evaluations that did not succeed, by cause:

| cause | what happened |
|---|---|
{causes}

A few are normal far from the solution; each costs a shorter step. A fit that is full of them asks for bounds.

## Mistakes in the input

Everything that is misused raises `cf.InputError` before anything is solved. It lists all mistakes at once, each
with the name of the thing and the remedy; `error.problems` has them one by one.

## Files

| written by | format | read by |
|---|---|---|
| `result.save("fit.json")` | JSON: estimates, statistics, trajectories, the problem's fingerprint | `cf.Result.load` |
| `checkpoint="run.jsonl"` of drivers | JSON, a record a line | the same call with `resume=True` |
| `castfit ... --json FILE` | JSON: what the table shows | |
| `castfit compare ... --csv FILE` | CSV: one row for each start and method | |

Files of an earlier version are read as long as the problem's fingerprint agrees; otherwise the message says what
differs.
"""


def write(app: Sphinx) -> None:
    """Write the page."""
    rows = [f"| `{status.value}` | {status.message} | {status.advice} |" for status in Status]
    causes = [f"| `{cause}` | {reason} |" for cause, reason in REASONS.items()]
    path = Path(app.srcdir) / "reference" / "outcomes.md"
    path.write_text(TEXT.format(statuses="\n".join(rows), causes="\n".join(causes)), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the page before Sphinx looks for pages."""
    app.connect("builder-inited", write, priority=100)
    return {"parallel_read_safe": True}
