"""Simulation of a model at given values, without a fit to data.

In flow a problem or a model, values of its parameters, and times; out flow its outputs there, states at rest, or
outputs with their derivatives by theta.  Trajectories go from node to node
(castfit.transcribe.experiment_trajectories), so that they stay accurate where a system is unstable.  Read first
simulate.py, then steady_state.py; output_sensitivities.py poses an experiment by single shooting as if outputs were
measured.
"""
