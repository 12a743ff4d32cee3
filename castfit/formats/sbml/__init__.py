"""Models from SBML and Antimony (extra `petab`)."""

from castfit.formats.sbml.load import load, load_antimony
from castfit.problem.imported_model import ImportedModel, Species, ImportedStart

__all__ = ["ImportedModel", "Species", "ImportedStart", "load", "load_antimony"]
