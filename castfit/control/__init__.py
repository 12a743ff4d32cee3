"""Optimal control: inputs, parameters and initial states of a model that minimise an objective, without data.

Input: a `Model`, free inputs on pieces of a horizon, an objective and constraints.  Output: a `Plan`.  ``terms``
defines the symbols of objectives, ``question`` checks the user's statement, ``stages`` builds the equations of one
stage as a graph, ``grid`` divides the horizon, ``program`` assembles the nonlinear program and calls IPOPT,
``trajectory`` integrates the model with the solution, and ``verdict`` compares both.  Read ``control.py`` first.
"""
