"""Optimal control: the inputs, parameters and initial states of a model that make an objective best, without data.

In flows a `Model`, free inputs on pieces of a horizon, an objective and constraints, as a user says them; out flows a
`Plan`.  `terms` are the symbols of objectives, `question` reads what was asked, `stages` writes the equations of one
stage as a graph, `program` puts all stages together and hands them to IPOPT, `refinement` divides elements until the
integrator agrees, and `verification` lets the integrator judge.  Read control.py first.
"""
