"""Noise models: the distribution of a measured value given its prediction."""
