"""PEtab problems: published models with their data, conditions and noise, in tables that many tools read."""

from castfit._support.public_names import assign_public_addresses as _publish
from castfit.drive.model_comparison.petab_selection import select
from castfit.formats.petab import load, negative_log_likelihood, save, save_parameters, save_simulations, to_pypesto

__all__ = ["load", "negative_log_likelihood", "save", "save_parameters", "save_simulations", "select", "to_pypesto"]

_publish(__name__, __all__, globals())
