"""pyPESTO with AMICI beside castfit: what was measured once, or what they do now in an interpreter of their own."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from textwrap import shorten
from typing import Any

import castfit

_COMPILE_SECONDS = 900.0  # allowance in seconds of real time: AMICI compiles for one to several minutes
_N_ERROR_LINES = 3  # number of lines of an error message that are quoted


@dataclass(frozen=True)
class Peer:
    """What pyPESTO and AMICI do on a problem.

    Attributes
    ----------
    hits : int or None
        Starts that end within 0.1 of the best value known.
    seconds : float or None
        CPU seconds of all starts.
    value, gradient : float or None
        CPU milliseconds of one value and of one gradient by forward sensitivities.
    starts : int
    nominal : float or None
        AMICI's negative log likelihood at the nominal parameters; priors included.
    versions : str
        Of both, where they were run now; nothing for the figures that were measured once.
    castfit : mapping
        Of castfit's objective in pyPESTO's problem, evaluated in turns with AMICI's: "value" and "gradient" with its
        value, "amici_value" and "amici_gradient", in CPU milliseconds; "off" and "gradient_off", relative differences
        from AMICI at tight tolerances, where it can be had, and "amici_off" and "amici_gradient_off", those of AMICI as
        it was timed; "amici_failed", how many of its evaluations failed, which do not count; "trouble" where castfit
        could not be run there.
    trouble : str
        Why they could not be run.
    """

    hits: int | None = None
    seconds: float | None = None
    value: float | None = None
    gradient: float | None = None
    starts: int = 10
    nominal: float | None = None
    versions: str = ""
    trouble: str = ""
    castfit: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def ratio(self) -> float | None:
        """The time of castfit's gradient, with its value, over that of AMICI's, both in pyPESTO."""
        castfit_gradient, amici_gradient = (self.castfit.get(name) for name in ("gradient", "amici_gradient"))
        return None if castfit_gradient is None or not amici_gradient else castfit_gradient / amici_gradient


PEERS = {
    "Boehm_JProteomeRes2014": Peer(1, 7.0, 0.67, 3.9),
    "Borghans_BiophysChem1997": Peer(0, 3.0, 3.3, 63.0),
    "Bruno_JExpBot2016": Peer(6, 4.0, 1.6, 6.5),
    "Crauste_CellSystems2017": Peer(0, 15.0, 0.9, 11.0),
    "Elowitz_Nature2000": Peer(0, 50.0, 2.0, 34.0),
    "Fiedler_BMCSystBiol2016": Peer(value=1.5, gradient=20.0),
    "Fujita_SciSignal2010": Peer(0, 350.0, 4.2, 65.0),
    "Raia_CancerResearch2011": Peer(value=4.7, gradient=95.0),
    "Schwen_PONE2014": Peer(value=8.8, gradient=106.0),
    "Sneyd_PNAS2002": Peer(2, 19.0, 4.1, 43.0),
    "Weber_BMC2015": Peer(0, 330.0, 2.2, 91.0),
}
"""pyPESTO 0.7 with AMICI 1.0, ten starts by the best of fides, trf and L-BFGS-B, on one core."""


def interpreter_mistakes(interpreter: str | None) -> list[str]:
    """Find what is wrong with the path of an interpreter."""
    if interpreter is None or os.access(interpreter, os.X_OK):
        return []
    return [f"--pypesto '{interpreter}' is no program; name the Python in which pyPESTO, AMICI and fides are installed"]


def live(interpreter: str, problem: Path, best: float, margin: float, starts: int, seed: int, limit: float) -> Peer:
    """Let pyPESTO and AMICI work on a problem, with an interpreter of their own.

    Parameters
    ----------
    interpreter : str
        Path of the Python in which they are installed.
    problem : Path
        The YAML file.
    best, margin : float
        A start hits that ends at or below `best` plus `margin`.
    starts, seed : int
    limit : float
        CPU seconds after which no further start begins.
    """
    script = resources.files(__package__ or "bench").joinpath("pypesto_amici.py")
    folder = str(Path(interpreter).absolute().parent)
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    environment |= {"PATH": os.pathsep.join([folder, environment.get("PATH", "")]), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as compiled, resources.as_file(script) as file:
        # The path stays as it is given: what a link in a virtual environment points to has none of its packages.
        command = [interpreter, str(file), str(problem.absolute()), f"{compiled}/model", str(starts), str(seed)]
        home = str(Path(castfit.__file__).parents[1])
        try:
            process = subprocess.run(
                [*command, str(limit), home], capture_output=True, encoding="utf-8", env=environment, check=False,
                timeout=_COMPILE_SECONDS + 10.0 * limit,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return Peer(trouble=shorten(str(error), 200))
    try:
        answer: dict[str, Any] = json.loads(process.stdout)
    except ValueError:
        error_lines = [line for line in process.stderr.splitlines() if line.strip()][-_N_ERROR_LINES:]
        return Peer(trouble=shorten(" ".join(error_lines) or f"it ended with {process.returncode}", 300))
    values = [v for v in answer["values"] if v is not None]
    versions = ", ".join(f"{name} {version}" for name, version in answer["versions"].items())
    return Peer(
        sum(v <= best + margin for v in values) if starts else None,
        sum(answer["seconds"]) if starts else None,
        answer["value"],
        answer["gradient"],
        len(answer["values"]),
        answer["nominal"],
        versions,
        castfit=answer.get("castfit", {}),
    )
