"""Experiments: data with their times and errors, inputs, events, initial states, and conditions before the start.

Input: the user's description of one experiment as numbers, tables, dates, and expressions of the model's symbols.
Output: a checked `Experiment`.  The problem is not known here, so names of its parameters are checked when the problem
is built.  ``steady`` computes steady states.  Read ``experiment.py`` first.
"""
