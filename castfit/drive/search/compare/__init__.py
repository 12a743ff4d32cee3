"""Comparison of methods from the same starting points."""
