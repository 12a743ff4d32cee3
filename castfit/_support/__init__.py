"""Support code for every package, independent of models and data.

The package reads user arguments and bounds, formats messages, reprs and text tables, encodes JSON, evaluates CasADi
functions on fixed arrays, silences solvers, and handles time limits, interrupts, worker processes and BLAS threads.
Read ``status.py`` first (how a run ends and how mistakes are reported), then ``arguments.py``.
"""
