"""Transcriptions: from a compiled problem to a staged one, which the solvers of castfit.solve can solve.

Input: a `CompiledProblem` and a starting point theta.  Output: a `StagedProblem` of integrated stages
(`SingleShooting`, `MultipleShooting`; ``shooting_problem.py``) or of polynomials (`Collocation`;
``collocation_problem.py``).  ``transcribed_problem.py`` has their common part, ``observation.py`` turns states into
rows, and ``stage_division.py`` divides an experiment into stages.  Read ``multiple_shooting.py`` first, then
``shooting_problem.py``.
"""
