"""Mixed effects: own parameters of many experiments with a population distribution, by Laplace's approximation.

In go a problem whose experiments are individuals and a `Population` (`spec`); out comes a `MixedEffectsResult`.  On the
way `compiled` makes both one question with two levels; `likelihoods`, `batched` and `distributed` say what individuals'
data cost; `modes` fits each of them, `laplace` integrates over them, `search` maximises, `errors` differentiates twice.
Read `mixed_effects` first, then `laplace`.
"""
