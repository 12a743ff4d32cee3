"""Probability densities of one number: noise of a datum given its prediction, priors of a quantity.

In flow what users say of errors and of knowledge; out flow costs -log p, and for solvers rows whose squares are their
local models.  Noise is written as CasADi graphs of prediction, spread and datum, priors as plain numbers.  Read first
noise/density.py (what a density tells of one datum), then noise/gaussian.py and noise/robust.py; of priors
priors/distributions.py, and priors/joint.py for those on several quantities.
"""
