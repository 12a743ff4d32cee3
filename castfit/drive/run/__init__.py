"""Common machinery of runs of many fits: execution, progress reports, and checkpoints on disk.

In flow tasks (a function, arguments) and `RunOptions`.  Out come their outcomes one by one, each entered as a row by
the driver, reported, shown to the callback, and appended to the checkpoint; a run ends early by keyboard, callback or
time, with what it has.  `run_result` is the base of all results, `optima` says what many fits mean together.  Read
`loop` first.
"""
