"""Uncertainty of the estimates of a fit, and identifiability.

Input: a result that succeeded, with its problem.  Output: intervals, draws, verdicts and bands from likelihood profiles
(``profile``), from fits to other data (``refits``: `bootstrap`, `leave_out`, `coverage`), from draws of the posterior
(``sample``), from identifiability, and from the influence of priors.  Read ``refits/run.py`` first, then
``refits/bootstrap.py``.
"""
