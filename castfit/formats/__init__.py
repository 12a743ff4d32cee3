"""Problems and models in the formats of others: PEtab's tables, SBML and Antimony.

In flow files; out flow a `Problem` or a `Loaded` model, or all mistakes at once, each with its file and line; and the
same the other way.  Nothing else in castfit imports this room, but its doors and the command line.  Read first
petab/loading.py, which goes from tables (problem_tables.py) to a problem, and sbml/load.py, from a document to a model.
"""
