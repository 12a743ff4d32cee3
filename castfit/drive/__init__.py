"""Drivers: they decide where fits start, on which horizon, how often, and where they run."""
