"""Optimal design of experiments: choice of the next measurements, with bounds on the loss to the best design.

What is known (a fit, guesses, a sample) and `Candidate`s come in, a `Design` comes out: what to measure, how well
everything is known afterwards, and a bound on what any other design could reach.  `criteria` says what is made small,
`interior_point` makes it so and certifies it, `exact` turns weights into numbers of measurements.  Begin with `design`.
"""
