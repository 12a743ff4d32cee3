"""Models from SBML and Antimony (extra `petab`)."""

from castfit.formats.sbml.load import load, load_antimony
from castfit.problem.imported_model import ImportedModel, ImportedStart, Species

__all__ = ["ImportedModel", "ImportedStart", "Species", "load", "load_antimony"]
