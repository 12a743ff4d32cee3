"""Experiments that begin at rest
==============================

Steady states: a signalling cascade at rest, its derivatives, and an experiment that begins there.

A receptor's signal u activates a kinase K, which phosphorylates a protein S twice; the protein makes the phosphatase P
that undoes it.  All of K and all of S are conserved.

1. The steady state, against the end of a long simulation: values, and derivatives by all parameters and totals.
2. What they cost, by the implicit function theorem and by integration.
3. Cells that have rested without much signal are stimulated: the fit needs no initial states, only the total of S.
4. The same cells, measured at rest under five signals, with no time at all.
"""

from __future__ import annotations

import time

import numpy as np

import castfit as cf

VALUES = {"on": 1.0, "off": 0.4, "k1": 0.8, "k2": 0.6, "d1": 0.5, "d2": 0.3, "km": 0.2, "make": 0.2, "lose": 0.25}
LONG, EXACT = 2000.0, cf.IntegratorOptions(relative_tolerance=1e-12, absolute_tolerance=1e-14)


def cascade() -> cf.Model:
    K, Ka, S, S1, S2, P, u = cf.symbols("K Ka S S1 S2 P u")
    on, off, k1, k2, d1, d2, km, make, lose = cf.symbols("on off k1 k2 d1 d2 km make lose")
    activation = on * u * K - off * Ka
    first_step = k1 * Ka * S / (km + S) - d1 * P * S1 / (km + S1)
    second_step = k2 * Ka * S1 / (km + S1) - d2 * P * S2 / (km + S2)
    return cf.Model(
        {
            K: -activation,
            Ka: activation,
            S: -first_step,
            S1: first_step - second_step,
            S2: second_step,
            P: make * (1 + S2) - lose * P,
        },
        parameters=[on, off, k1, k2, d1, d2, km, make, lose],
        inputs=[u],
        initial={K: 1, Ka: 0, S: 2, S1: 0, S2: 0, P: 0.5},
    )


def long_simulation(model: cf.Model, values, options=EXACT, **initial) -> np.ndarray:
    trajectories = cf.simulate(model, values, [0.0, LONG], inputs={"u": 0.6}, initial=initial, integrator=options)
    return np.array([trajectories[n][-1] for n in model.states])


def derivatives() -> None:
    model = cascade()
    steady_state = cf.steady_state(model, VALUES, inputs={"u": 0.6})
    print(steady_state)
    columns = []
    for name, value in VALUES.items():
        h = 1e-3 * value
        ends = [long_simulation(model, {**VALUES, name: value + m * h}) for m in (-2, -1, 1, 2)]
        columns.append((ends[0] - 8 * ends[1] + 8 * ends[2] - ends[3]) / (12 * h))
    by_total = (long_simulation(model, VALUES, S=2.001) - long_simulation(model, VALUES, S=1.999)) / 0.002
    scale = np.abs(steady_state.jacobian).max()
    error = np.abs(steady_state.jacobian - np.column_stack(columns)).max() / scale
    print(f"\nlargest difference to a simulation over {LONG:g}: values "
          f"{np.abs(np.array(list(steady_state.states.values())) - long_simulation(model, VALUES)).max():.1e}, "
          f"derivatives {error:.1e}")  # fmt: skip
    assert error < 1e-6
    assert np.allclose(steady_state.by_initial[:, 2], by_total, atol=1e-5)


def cost() -> None:
    """Time the link of an experiment that begins at rest, and the sensitivities of a simulation that leads there."""
    model, total = cascade(), cf.symbols("total")
    names = {n: cf.Parameter(v, scale="log") for n, v in VALUES.items()} | {"total": 2.0}
    steady_state = cf.steady_state(inputs={"u": 0.6}, initial={"S": total})
    steady_experiment = cf.Experiment({"S2": [0.5]}, time=[1], initial=steady_state, inputs={"u": 0.6})
    long_experiment = cf.Experiment({"S2": [0.5]}, time=[LONG], initial={"S": total}, inputs={"u": 0.6})
    link = cf.Problem(model, steady_experiment, parameters=names).posed.conditions[0].link
    compiled_problem = cf.Problem(model, long_experiment, parameters=names).posed
    staged = cf.SingleShooting().transcribe(compiled_problem, compiled_problem.guess)

    def differences(q):
        return [staged.evaluate(q + h * e) for e in np.eye(q.size) for h in (-1e-4, 1e-4)]

    seconds = {}
    for label, evaluate in (("rest", link.natural), ("sensitivities", staged.linearize), ("differences", differences)):
        evaluate(compiled_problem.guess)
        durations = []
        for k in range(7):
            began = time.process_time()
            evaluate(compiled_problem.guess * (1 + 1e-9 * (k + 1)))
            durations.append(time.process_time() - began)
        seconds[label] = np.median(durations)
    print(f"\nvalues and 10 derivatives: at rest {1e3 * seconds['rest']:.1f} ms, by forward sensitivities "
          f"of a long simulation {1e3 * seconds['sensitivities']:.1f} ms, by central differences of it "
          f"{1e3 * seconds['differences']:.1f} ms")  # fmt: skip
    print(f"times as fast: {seconds['sensitivities'] / seconds['rest']:.1f} and "
          f"{seconds['differences'] / seconds['rest']:.1f}")  # fmt: skip
    assert seconds["differences"] > 4 * seconds["rest"]


def stimulation() -> None:
    model, total = cascade(), cf.symbols("total")
    times, rng = np.linspace(0.5, 20, 20), np.random.default_rng(1)
    truth = {**VALUES, "total": 1.7}
    initial_states = cf.steady_state(model, VALUES, inputs={"u": 0.05}, initial={"S": truth["total"]}).states
    exact = cf.simulate(model, VALUES, times, inputs={"u": 0.6}, initial=initial_states)
    data = {n: exact[n] + 0.01 * rng.standard_normal(times.size) for n in ("Ka", "S1", "S2", "P")}
    experiment = cf.Experiment(
        data, times, sigma=0.01, initial=cf.steady_state(inputs={"u": 0.05}, initial={"S": total}), inputs={"u": 0.6}
    )
    free = {n: cf.Parameter(2 * v, lower=1e-3, upper=100, scale="log") for n, v in VALUES.items() if n != "km"}
    problem = cf.Problem(model, experiment, parameters={**free, "km": cf.Parameter(0.2, fixed=True), "total": 1.0})
    results = [cf.fit(problem, method) for method in ("single", "multiple", "collocation")]
    print(f"\n{results[-1]}")
    results[-1].plot()
    for result in results:
        assert result.success
        assert np.isclose(result.chi2, results[0].chi2, rtol=1e-6)
    assert all(abs(v - truth[n]) < 4 * results[0].standard_errors[n] for n, v in results[0].values.items())


def dose_response() -> None:
    """At rest the activity Ka / (K + Ka) = u / (u + off / on): only the ratio of two rates can be known."""
    model = cascade()
    experiments = []
    for u in (0.05, 0.2, 0.5, 1.0, 3.0):
        steady_states = cf.steady_state(model, VALUES, inputs={"u": u}).states
        experiments.append(cf.Experiment({"Ka": [steady_states["Ka"]]}, time=[np.inf], sigma=0.01, inputs={"u": u}))
    fixed = {n: cf.Parameter(v, fixed=True) for n, v in VALUES.items() if n != "off"}
    result = cf.fit(cf.Problem(model, experiments, parameters={**fixed, "off": cf.Parameter(1.0, lower=0)}))
    print(f"\nat rest: off = {result.parameters['off']:.5f} +- {result.standard_errors['off']:.5f} if on = 1")
    assert result.success
    assert np.isclose(result.parameters["off"], 0.4, rtol=1e-6)


if __name__ == "__main__":
    derivatives()
    cost()
    stimulation()
    dose_response()
