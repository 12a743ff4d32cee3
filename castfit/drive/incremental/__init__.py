"""Fits on growing horizons."""
