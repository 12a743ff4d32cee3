"""Starts by decomposition: which equations can be estimated apart, and their estimation."""
