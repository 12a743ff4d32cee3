"""Portfolio search (`castfit.estimate`): several strategies share the time according to their success.

Input: a problem, limits of the starting points, and a time limit.  Output: a `PortfolioResult`.  ``allocation`` plans
the next order, ``strategies`` carries it out (with the strategies of `castfit.fit.strategies`, from many points, at
search accuracy), and ``search`` records the outcome.  Read ``portfolio.py`` first, then ``allocation.py``.
"""
