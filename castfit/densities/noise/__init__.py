"""Noise models: what a measured value says about its prediction."""
