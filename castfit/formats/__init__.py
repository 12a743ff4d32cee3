"""Problems and models in external formats: PEtab tables, SBML and Antimony.

Input: files.  Output: a `Problem` or a `Loaded` model, or one error with all mistakes, each with its file and line; and
the reverse for export.  Only the public modules ``castfit.petab`` and ``castfit.sbml`` and the command line import this
package.  Read ``petab/loading.py`` first (from tables to a problem), and ``sbml/load.py`` (from a document to a model).
"""
