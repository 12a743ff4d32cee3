"""Common machinery of runs of many fits: execution, progress reports, and checkpoints on disk.

Input: tasks (a function and arguments) and `RunOptions`.  Output: the outcomes in the order in which they finish.  The
driver enters each outcome as a row; the loop reports it, passes it to the callback and appends it to the checkpoint.
An interrupt, the callback or the time limit ends a run, and the rows so far are kept.  ``run_result`` is the base class
of all results, ``optima`` summarises the optima of many fits.  Read ``loop.py`` first.
"""
