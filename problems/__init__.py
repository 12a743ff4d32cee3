"""The problem library: benchmarks with equations, data, sources and reference optima, one file each.

``castfit.problems.load(name)`` loads one; `castfit.problems` describes what a file contains.
"""
