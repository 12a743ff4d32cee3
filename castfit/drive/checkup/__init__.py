"""Checks before a fit is trusted: `doctor`, and `stiffness` of a model along a trajectory.

In flows a problem, which is fitted first, or a result.  Out comes a `Checkup`: one line for each examination, fine or
what to do about it; and a `Stiffness` with time constants and the integrator that they ask for.  Nothing is raised for
what an examination finds.  Read `examinations` first, whose last lines are the list of them in their order.
"""
