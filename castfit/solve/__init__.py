"""Solvers of staged least-squares problems: matrices, never models or integrators.

In flows a `StagedProblem` (staged.py: chains of stages, and what may be asked of them at a point) with a `Control`, out
flows a `Solution` (solution.py).  Between them the linearized problem is condensed to a small dense one (condensing.py,
subproblem.py) and that is solved within bounds (bounded_lsq.py); `GaussNewton`, `Sqp` and `Ipopt` are the methods.
Read staged.py first, then condensing.py and gauss_newton.py.
"""
