"""The posterior of the estimates, by a sampler that begins at the fit and is scaled by its covariance."""
