"""What every test shares: reproducible examples, one thread per process, no display."""

from __future__ import annotations

import os
import sys

from hypothesis import HealthCheck, settings

# Before numpy and matplotlib are imported: pytest-xdist fills the cores with processes already.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("MPLBACKEND", "Agg")
# Scripts, command lines and workers that tests start take half the time if they need not compile all modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Shared machines are slow at times, so no example has a deadline. CI draws the same examples in every run.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("local"), derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "local")
