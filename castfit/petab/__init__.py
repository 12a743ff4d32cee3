"""PEtab problems: published models with their data, conditions and noise, in tables that many tools read."""

from castfit.petab.exporting import save
from castfit.petab.likelihood import negative_log_likelihood
from castfit.petab.loading import load
from castfit.petab.saving import save_parameters, save_simulations

__all__ = ["load", "negative_log_likelihood", "save", "save_parameters", "save_simulations"]
