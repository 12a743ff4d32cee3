"""Draws from the posterior of the estimates by ensembles of walkers that start at the fit.

Input: a result that succeeded.  ``posterior`` turns its cost into a density, including priors and bounds.  Output:
chains (``result``), convergence diagnostics, and an export to ArviZ.  Read ``sample.py`` first: its proposals and one
chain.
"""
