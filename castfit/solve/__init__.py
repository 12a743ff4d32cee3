"""Solvers of staged least-squares problems; they see blocks of matrices, never models or integrators."""
