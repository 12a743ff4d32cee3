"""`cf.estimate`: estimation without choices, by several strategies at once, of which those go on that pay.

In flow a problem, limits to draw between, and the time; `allocation` plans what to try next, `strategies` carries it
out (those of `castfit.fit.strategies`, from many points, at the accuracy of a search), `search` enters what came of it.
Out flows a `PortfolioResult`.  Read portfolio.py first, then allocation.py.
"""
