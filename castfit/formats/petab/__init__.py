"""PEtab problems: published models with their data, conditions and noise, in tables that many tools read."""

from castfit.formats.petab.exporting import save
from castfit.formats.petab.likelihood import negative_log_likelihood
from castfit.formats.petab.loading import load
from castfit.formats.petab.pypesto_objective import to_pypesto
from castfit.formats.petab.saving import save_parameters, save_simulations

__all__ = ["load", "negative_log_likelihood", "save", "save_parameters", "save_simulations", "to_pypesto"]
