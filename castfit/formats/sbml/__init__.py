"""Models from SBML and Antimony (extra `petab`).

`load` reads a file or its text, `load_antimony` Antimony's text; both return a `Loaded`: a `castfit.Model` whose
states, parameters and outputs have the identifiers of the file, the file's parameter values, and its events.
"""

from castfit.formats.sbml.load import load, load_antimony
from castfit.problem.imported_model import Loaded, Species, Start

__all__ = ["Loaded", "Species", "Start", "load", "load_antimony"]
