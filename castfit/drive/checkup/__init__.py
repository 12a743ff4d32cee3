"""Checks before a fit is trusted: `doctor`, and the stiffness of a model along a trajectory.

Input: a problem, which is fitted first, or a result.  Output: a `Checkup` with one line per examination, and a
`Stiffness` with time constants and the recommended integrator.  A finding never raises an exception.  Read
``examinations.py`` first; its last lines list the examinations in order.
"""
