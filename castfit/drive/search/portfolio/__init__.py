"""Estimation without choices: several ways to search, of which those go on that pay."""
