"""Models from SBML and Antimony (extra `petab`)."""

from castfit.formats.sbml.load import load, load_antimony
from castfit.problem.imported_model import Loaded, Species, Start

__all__ = ["Loaded", "Species", "Start", "load", "load_antimony"]
