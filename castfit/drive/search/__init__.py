"""Searches for the best optimum: where fits start, how many there are, which go on.

In flows a problem; out comes a `SearchResult`, with the best fit and all that was tried.  `multistart` fits from drawn
starts, `incremental` along growing horizons, `scatter` combines good points and fits from the most promising ones,
`portfolio` (`castfit.estimate`) spends its time on what pays, `compare` lets methods race from the same starts.  Read
`multistart.multistart` first.
"""
