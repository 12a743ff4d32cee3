"""Scatter search: global search with local fits."""
