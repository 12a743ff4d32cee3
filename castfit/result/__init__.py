"""Result of a fit, and everything that is computed from it without another fit.

Input: the final point of a search with its linearization (`castfit.fit.build_result`).  Output: a `Result` with
estimates, covariance, identifiability, residual tests, confidence regions, bands of predictions, and files.  Read
``result.py`` first, then ``covariance.py`` and ``identifiability.py``.
"""
