"""Estimation problem: estimated quantities, experiments, bounds, constraints and priors, and their compiled form.

Input: a model, experiments, and settings of parameters.  A `Problem` keeps the user's statement; its ``posed`` is the
compiled form for transcriptions, solvers and drivers: the quantities of theta, the map from theta to parameters,
initial states and events of each experiment, and constraints and priors as rows.  Changes of a compiled problem are
pure functions.  Read ``problem.py`` first, then ``compiled_problem.py``.
"""
