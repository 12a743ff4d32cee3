"""Model comparison: tables of results, search among candidates, model averages, evidence.

In flow results of fits to the same data (`compare_models`, `likelihood_ratio`), or problems, or one problem with
alternatives of its parameters (`select`).  Out come tables whose sentences say which model to prefer and how sure that
is.  `candidates` says what is to be fitted, `search` in which order, `candidate_fit` does it, `selection_result` reads
it; `forecast` knows what a fit would come to, `averaging` and `evidence` what models say together.  Read `select`
first.
"""
