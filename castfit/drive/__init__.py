"""Drivers: what takes many fits, be it to find an optimum, to say how sure it is, or to compare models.

In flows a problem or the result of one fit, and what a run may take: workers, time, a checkpoint.  Out comes a result
that prints what was found.  `run` is the loop that all share; `search` looks for the optimum, `uncertainty` asks how
far estimates can be trusted, `population` fits many individuals, `checkup` and `model_comparison` judge.  Read
`run.loop` first, then `search.multistart.multistart`, the plainest driver.
"""
