"""Structural identifiability by exact arithmetic."""
