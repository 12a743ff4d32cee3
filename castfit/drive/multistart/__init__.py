"""Fits from many starts."""
