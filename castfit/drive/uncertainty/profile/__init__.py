"""Profile likelihoods: how the objective rises along one quantity when all others are fitted anew.

In goes the result of a fit; out come limits of quantities (`profile`, `result`), of pairs (`contours`), of predictions
(`bands`).  What is held is a target (`targets`, `predictions`, read by `reading`); every task begins at the fit
(`tasks`), follows solutions (`continuation`, `corrector`) along branches, off which limits are read (`branches`).
Read `profile` first, then `continuation`.
"""
