"""Uncertainty of the estimates of a fit, and identifiability: what the data determine.

In flows a result that succeeded, with its problem.  Out come intervals, draws, verdicts and bands: by likelihood
profiles (`profile`), by fits to other data (`refits`: `bootstrap`, `leave_out`, `coverage`), by draws from the
posterior (`sample`), by identifiability, and by what priors did to the fit.  `drive.run` carries out the many fits.
Read `refits.run` first, then `refits.bootstrap`.
"""
