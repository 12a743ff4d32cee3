"""Transcriptions: a compiled problem becomes a staged one, which solvers of castfit.solve can solve.

In flows a `Posed` problem with a starting point theta, out flows a `StagedProblem`: of stages that are integrated
(`SingleShooting`, `MultipleShooting`; shooting_problem.py) or of polynomials (`Collocation`; collocation_problem.py).
What both share is in transcribed_problem.py, how states become rows in observation.py, how an experiment is divided
into stages in stage_division.py.  Read multiple_shooting.py first, then shooting_problem.py.
"""
