"""Profile likelihoods: how the objective rises along one quantity when all others are fitted anew.

In goes the result of a fit; out come limits of quantities (`profile`, `result`), of pairs (`contours`), of predictions
(`bands`).  What is held is a target (`targets`, `predictions`, read by `reading`), put into the staged problem by
`constrained_problem`; every run begins at the fit (`warm_start`), follows solutions (`continuation`, `corrector`,
`points`) and reads limits and verdicts off them (`limits`, `cross_check`).  Read `profile` first, then `continuation`.
"""
