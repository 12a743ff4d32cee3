"""Searches for the best optimum: choice of starting points, number of fits, allocation of time.

Input: a problem.  Output: a `SearchResult` with the best fit and a row for every attempt.  ``multistart`` fits from
random starting points, ``incremental`` on growing horizons, ``scatter`` combines good points and refines the most
promising ones, ``portfolio`` (`castfit.estimate`) divides its time among strategies, and ``compare`` runs several
methods from the same starting points.  Read ``multistart/multistart.py`` first.
"""
