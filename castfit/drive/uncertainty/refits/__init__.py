"""Fits of one problem to other data: newly drawn (`bootstrap`, `coverage`), or with some left out (`leave_out`).

In flows a result; a recipe makes the data of each fit, such as `resampling`.
Out comes a row for each fit, and per driver what the rows say together: errors, intervals, bias, shares.
Read `run` first: the plan, the row and the loop that all three share; then `leave_out`, the shortest of them.
"""
