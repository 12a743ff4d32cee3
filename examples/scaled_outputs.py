"""Blots in their own units
========================

A protein level in units of a blot: unknown scales and offsets that are eliminated, beside explicit parameters.

A kinase phosphorylates a protein while there is a stimulus u; a phosphatase undoes it::

    x' = k u (1 - x) - h x,    x(0) = 0

with the phosphorylated fraction x and a stimulus that ends after 15 minutes.  It is measured on two blots, each in
units of its own exposure over its own background, for two strengths of the stimulus.  The scales say nothing about the
biology, but without them nothing can be compared, and a guess of them that is wrong by decades is where many fits end.

`castfit.scaled` needs no guess: at every point of the search scale and offset have the values that are best there.
The second fit has them as parameters; begun at the optimum it agrees, begun elsewhere it depends on where.
"""

import numpy as np

import castfit as cf

times = np.array([1.0, 2, 4, 6, 9, 12, 15, 17, 20, 24, 30])
truth = {"k": 0.30, "h": 0.18}
exposures = {"weak": (820.0, 60.0), "strong": (95.0, 25.0)}  # scale and background of each blot
stimuli = {name: cf.Input.piecewise_constant([0.0, 15.0], [u, 0.0]) for name, u in (("weak", 0.4), ("strong", 2.0))}

x, u = cf.symbols("x u")
k, h = cf.symbols("k h")
rate = {x: k * u * (1 - x) - h * x}
sizes = {name: 0.02 * scale for name, (scale, _) in exposures.items()}


def measured():
    """Simulate the blots, with errors of 2 % of the scale."""
    rng = np.random.default_rng(7)
    model = cf.Model(rate, parameters=[k, h], inputs=[u])
    blots = {}
    for name, (scale, background) in exposures.items():
        trajectory = cf.simulate(model, times=times, parameters=truth, inputs={"u": stimuli[name]}, initial={"x": 0.0})
        blots[name] = scale * trajectory["x"] + background + sizes[name] * rng.standard_normal(times.size)
    return blots


blots = measured()
guesses = {n: cf.Parameter(0.1, lower=1e-4, upper=10.0, scale="log") for n in truth}


def experiments():
    """Return both blots, whose errors are unknown, each of its own size."""
    return [
        cf.Experiment(
            {"blot": values},
            time=times,
            sigma=cf.unknown(name),
            initial={"x": 0.0},
            inputs={"u": stimuli[name]},
            name=name,
        )
        for name, values in blots.items()
    ]


# Eliminated: one scale and one offset for each experiment.
blot = cf.scaled(x, offset=True, per_experiment=True)
scaled = cf.Model(rate, parameters=[k, h], inputs=[u], outputs={"blot": blot})
problem = cf.Problem(scaled, experiments(), parameters=guesses)
result = cf.fit(problem)
print(result)
figure = result.plot()

# The same with parameters, begun at that optimum.
s, o = cf.symbols("s o")
explicit_model = cf.Model(rate, parameters=[k, h, s, o], inputs=[u], outputs={"blot": s * x + o})


def explicit(scale, offset):
    """Pose the problem with scale and offset as local parameters, begun at {experiment: value}."""
    local_parameters = {"s": cf.Parameter(scale, local=True), "o": cf.Parameter(offset, local=True)}
    return cf.Problem(explicit_model, experiments(), parameters={**guesses, **local_parameters})


best = {e: (result.parameters[f"scale(blot)[{e}]"], result.parameters[f"offset(blot)[{e}]"]) for e in blots}
explicit_fit = cf.fit(explicit({e: v[0] for e, v in best.items()}, {e: v[1] for e, v in best.items()}))
print(explicit_fit)

for name in truth:
    assert abs(result.parameters[name] - truth[name]) < 3 * result.standard_errors[name], name
    np.testing.assert_allclose(explicit_fit.parameters[name], result.parameters[name], rtol=1e-4)
    np.testing.assert_allclose(explicit_fit.standard_errors[name], result.standard_errors[name], rtol=1e-3)
for name, (scale, background) in exposures.items():
    for parameter_kind, value, other in (("scale", scale, "s"), ("offset", background, "o")):
        label = f"{parameter_kind}(blot)[{name}]"
        assert abs(result.parameters[label] - value) < 3 * result.standard_errors[label], label
        np.testing.assert_allclose(
            explicit_fit.standard_errors[f"{other}[{name}]"], result.standard_errors[label], rtol=1e-3
        )

# Where a guess stands makes no difference.
for guess in (1e-6, 1.0, 1e6):
    refit = cf.fit(problem, start={f"scale(blot)[{name}]": guess for name in blots})
    assert refit.iterations == result.iterations
    np.testing.assert_allclose(list(refit.parameters.values()), list(result.parameters.values()), rtol=1e-6)
    other = cf.fit(explicit(guess, 0.0))
    print(f"scales begun at {guess:g}: eliminated {refit.iterations} iterations, chi2 as before; "
          f"as parameters {other.iterations} iterations, {other.status.value}")  # fmt: skip
