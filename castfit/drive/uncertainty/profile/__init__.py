"""Profile likelihoods: how the objective rises along one quantity when all others are fitted anew."""
