"""Symbolic model: an ODE or DAE over named symbols, and features that are reduced to one.

In flow expressions of a user's symbols: right-hand sides, algebraic equations, outputs, delayed values, outputs with an
unknown scale, counts per interval.  Out flows a `Model`, checked, frozen and picklable, whose `system` is all that
integrators see; what is derived from it, with switches or rates as more parameters, is a new model.  Read model.py
first.
"""
