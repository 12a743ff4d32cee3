"""Mixed effects: local parameters of many experiments with a population distribution, by Laplace's approximation.

Input: a problem whose experiments are individuals, and a `Population` (``spec``).  Output: a `MixedEffectsResult`.
``compiled`` builds the two-level problem; ``likelihoods``, ``batched`` and ``distributed`` compute the costs of
individuals; ``laplace`` fits each individual and integrates over the random effects, ``search`` maximises the
likelihood and computes standard errors.  Read ``mixed_effects.py`` first, then ``laplace.py``.
"""
