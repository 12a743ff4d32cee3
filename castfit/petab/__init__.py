"""PEtab problems: published models with their data, conditions and noise, in tables that many tools read."""

from castfit.petab.loading import load

__all__ = ["load"]
