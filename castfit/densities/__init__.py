"""Probability densities of one number: noise of a datum given its prediction, and priors of a quantity.

Input: noise models and priors as the user states them.  Output: costs -log p, and for solvers rows whose squares are a
local model of these costs.  Noise is a CasADi graph of prediction, sigma and datum; priors are plain numbers.  Read
``noise/density.py`` first, then ``noise/gaussian.py`` and ``noise/robust.py``; for priors, ``priors/distributions.py``
and ``priors/joint.py``.
"""
