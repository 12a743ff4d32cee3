"""Draw the figures of paper.md beside it: `python docs/paper/figures.py [fit] [profiles]` (default: all)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import castfit as cf

HERE = Path(__file__).parent
HOURS = [0.27, 0.58, 1.02, 2.02, 3.62, 5.08, 7.07, 9, 12.15, 24.17]
MEASURED = [4.4, 6.9, 8.2, 7.8, 7.5, 6.2, 5.3, 4.9, 3.7, 1.05]


def fit(path: Path) -> None:
    """Theophylline in one subject, as on the front page."""
    gut, blood, ka, ke, V = cf.symbols("gut blood ka ke V")
    model = cf.Model(
        {gut: -ka * gut, blood: ka * gut - ke * blood}, parameters=[ka, ke, V], outputs={"level": blood / V}
    )
    dose = cf.Experiment({"level": MEASURED}, time=HOURS, initial={"gut": 4.53, "blood": 0})
    result = cf.fit(cf.Problem(model, dose, parameters={"ka": 1, "ke": 0.1, "V": 0.5}))
    result.plot(path, bands="linear", noise=True)


def profiles(path: Path) -> None:
    """Likelihood against its quadratic approximation."""
    cf.profile(cf.fit(cf.problems.load("stat5").problem)).plot(path)


FIGURES: dict[str, Callable[[Path], None]] = {"fit": fit, "profiles": profiles}

if __name__ == "__main__":
    unknown = [name for name in sys.argv[1:] if name not in FIGURES]
    if unknown:
        raise SystemExit(f"there is no figure {', '.join(unknown)}; the figures are {', '.join(FIGURES)}")
    for name in sys.argv[1:] or FIGURES:
        FIGURES[name](HERE / f"{name}.png")
