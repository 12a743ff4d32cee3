"""Models from SBML and Antimony (extra `petab`).

`load` reads a file or its text, `load_antimony` Antimony's text; both return a `ImportedModel`: a `castfit.Model` whose
states, parameters and outputs have the identifiers of the file, the file's parameter values, and its events.
"""

from castfit._support.public_names import assign_public_addresses as _publish
from castfit._support.renamed import old_module_names as _old_module_names
from castfit.formats.sbml import ImportedModel, ImportedStart, Species, load, load_antimony

__all__ = ["ImportedModel", "ImportedStart", "Species", "load", "load_antimony"]

_publish(__name__, __all__, globals())
__getattr__ = _old_module_names(__name__, globals(), Loaded="ImportedModel", Start="ImportedStart")
