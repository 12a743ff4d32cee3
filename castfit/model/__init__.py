"""Symbolic model: an ODE or DAE over named symbols, and features that are reduced to one.

Input: expressions of the user's symbols: right-hand sides, algebraic equations, outputs, delayed values, outputs with
unknown scale, counts per interval.  Output: a checked, frozen and picklable `Model`.  Integrators see only its
``system``.  A reduction, for instance with switches or rates as additional parameters, is a new model.  Read
``model.py`` first.
"""
