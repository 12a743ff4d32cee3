"""Optimal design of experiments: choice of the next measurements, with bounds on the loss to the best design.

Input: prior information (a fit, guesses or a sample) and `Candidate`s.  Output: a `Design` with the selected
measurements, the expected accuracy, and a bound on the best possible criterion.  ``criteria`` defines the objectives,
``interior_point`` minimises and certifies them, ``exact`` rounds weights to numbers of measurements.  Read
``design.py`` first.
"""
