"""The posterior of the estimates, drawn by ensembles of walkers that begin at the fit, scaled by its covariance.

In flows a result that succeeded; `posterior` makes its cost a density, priors and bounds included.  Out come chains
(`result`), whether they have converged, and ArviZ's form of them.  Read `sample` first: its proposals and one chain.
"""
