"""PEtab problems: published models with their data, conditions and noise, in tables that many tools read."""

from castfit.petab.likelihood import negative_log_likelihood
from castfit.petab.loading import load

__all__ = ["load", "negative_log_likelihood"]
