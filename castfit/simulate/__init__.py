"""Simulation of a model at given values, without a fit to data.

Input: a problem or a model, values of its parameters, and times.  Output: model outputs, steady states, or outputs with
their derivatives with respect to theta.  Trajectories are integrated from node to node
(`castfit.transcribe.experiment_trajectories`), so they stay accurate for unstable systems.  Read ``simulate.py`` first,
then ``steady_state.py``; ``output_sensitivities.py`` transcribes an experiment as if outputs were measured.
"""
