"""Optimal control: the inputs, parameters and initial states of a model that make an objective best, without data.

In flows a `Model`, free inputs on pieces of a horizon, an objective and constraints, as a user says them; out flows a
`Plan`.  `terms` are the symbols of objectives, `question` reads what was asked, `stages` writes the equations of one
stage as a graph, `grid` places the stages, `program` puts all of them together and hands them to IPOPT, `trajectory`
integrates the model under what was found, and `verdict` says what that tells of the plan.  Read control.py first.
"""
