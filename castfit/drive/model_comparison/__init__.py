"""Model comparison: tables of results, search among candidate models, model averages, evidence.

Input: results of fits to the same data (`compare_models`, `likelihood_ratio`), problems, or one problem with
alternatives of its parameters (`select`).  Output: tables and messages about the preferred model and the strength of
the evidence.  ``candidates`` lists the models and fits one, ``search`` orders them by forecasts of their criterion,
``selection_result`` summarises, ``evidence`` combines models.  Read ``select.py`` first.
"""
