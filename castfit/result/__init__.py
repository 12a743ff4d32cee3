"""Result of a fit, and everything that is computed from it without another fit.

In flows where a search ended, linearized there (`castfit.fit.build_result` collects it); out flows a `Result`:
estimates, covariance, verdicts in words, tests of the residuals, confidence regions, bands of predictions, files.  Read
`result.py` first, then `covariance.py` for what the data say, and `identifiability.py` for how it is put in words.
"""
