"""Experiments: data with their times and errors, inputs, events, initial states, and conditions before the start.

In flows what a user knows of one experiment, as numbers, tables, dates, and expressions of the model's symbols.  Out
flows an `Experiment`, read and checked but not worked out: no problem is known here, so that names which only the
problem's parameters explain are checked there.  `steady` finds where a model comes to rest.  Read experiment.py first.
"""
