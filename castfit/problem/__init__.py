"""Estimation problem: estimated quantities, experiments, bounds, constraints and priors, and their compiled form.

In flow a model, experiments, and what is said of parameters.  A `Problem` keeps that as it was said; its `posed` is the
compiled form that transcriptions, solvers and drivers work with: the quantities of theta, the map from theta to
parameters, initial states and events of each experiment, constraints as rows, priors as rows.  Other questions about
the same model are pure functions of it.  Read problem.py first, then compiled_problem.py.
"""
