"""Solvers of staged least-squares problems: matrices, never models or integrators.

Input: a `StagedProblem` (``staged.py``: chains of stages, evaluated at a point) and a `SolveControl`.  Output: a
`Solution` (``solution.py``).  The linearized problem is condensed to a small dense one (``condensing.py``,
``subproblem.py``), which is solved within bounds (``bounded_lsq.py``).  The methods are `GaussNewton`, `Sqp` and
`Ipopt`.  Read ``staged.py`` first, then ``condensing.py`` and ``gauss_newton.py``.
"""
