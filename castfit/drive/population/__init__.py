"""Mixed effects: own parameters of many experiments with a population distribution, by Laplace's approximation."""
