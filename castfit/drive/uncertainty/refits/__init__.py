"""Fits of one problem to other data: redrawn (`bootstrap`, `coverage`), or with some left out (`leave_out`).

Input: a result; a recipe such as ``resampling`` makes the data of each fit.  Output: one row per fit, and a summary per
driver: errors, intervals, bias, coverage.  Read ``run.py`` first (the plan, the row and the loop that all three share),
then ``leave_out.py``, the shortest driver.
"""
