"""Small problems of the files that castfit 0.3 wrote, by the public interface.

Data are formulas plus listed numbers, rounded to four digits, so that every version builds identical data.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import castfit as cf

PETAB_FILE = Path(__file__).parent.parent / "data" / "0.3" / "petab_chain" / "problem.yaml"
"""PEtab problem that castfit 0.3 wrote."""

ERRORS = np.array(
    [
        0.91,
        0.8,
        -0.43,
        0.17,
        -0.45,
        -1.85,
        1.35,
        0.08,
        -1.03,
        -1.14,
        0.58,
        1.21,
        1.12,
        1.34,
        -0.4,
        0.87,
        -0.1,
        -1.17,
        -1.25,
        0.42,
        0.15,
        1.38,
        -0.5,
        0.55,
        0.43,
        0.54,
        -0.14,
        -0.52,
        -0.28,
        -0.96,
        -0.54,
        0.2,
        -1.09,
        1.06,
        -1.64,
        0.34,
        -1.67,
        -0.75,
        -0.54,
        2.24,
        -1.23,
        0,
        -1.3,
        -0.17,
        0.37,
        0.4,
        -1.88,
        -0.64,
        -0.11,
        -0.49,
        -2.03,
        -0.28,
        -0.53,
        1.41,
        -1.05,
        0.72,
        0.01,
        1.11,
        0.8,
        0.78,
        -2,
        -1.39,
        0.33,
        1.31,
        0.77,
        -1.43,
        1.25,
        2.33,
        -1.83,
        -0.89,
        -0.27,
        -0.71,
        -0.48,
        0.52,
        -0.63,
        -0.72,
        -2.33,
        1.07,
        0.04,
        1.22,
        -0.13,
        -0.04,
        -0.32,
        -0.62,
        0.2,
        -2.2,
        0.11,
        -1.03,
        -0.89,
        -0.8,
        1.79,
        -1.47,
        -1.21,
        1.08,
        0.66,
        0.39,
    ]
)
"""Draws of a standard normal distribution."""


def perturb(exact, size, offset=0):
    """Add normal errors of a size to exact values, and round the sum to four digits."""
    exact = np.asarray(exact, dtype=float)
    return np.round(exact + size * ERRORS[offset : offset + exact.size].reshape(exact.shape), 4)


# ------------------------------------------------------------------------------------------------- one state


def decay_model():
    """Return exponential decay."""
    x, k = cf.symbols("x k")
    return cf.Model({x: -k * x}, parameters=[k])


def decay(sigma=0.05, times=None, **noise):
    """Pose exponential decay from an unknown initial value; `sigma` and `noise` go to the experiment."""
    times = np.arange(0.5, 5.5, 0.5) if times is None else times
    data = perturb(2.0 * np.exp(-0.6 * times), 0.05)
    experiment = cf.Experiment(
        {"x": data}, time=times, sigma=sigma, start=0.0, initial={"x": cf.free(1.5, lower=0.0, upper=10.0)}, **noise
    )
    parameters = {"k": cf.Parameter(0.4, lower=0.01, upper=5.0, scale="log")}
    return cf.Problem(decay_model(), experiment, parameters=parameters)


def decay_unknown_sigma():
    """Pose exponential decay with one unknown standard deviation for all values."""
    return decay(sigma=None)


def decay_relative_sigma():
    """Pose exponential decay with standard deviations relative to the values."""
    return decay(sigma=cf.relative(0.05, floor=0.01))


def decay_correlated():
    """Pose exponential decay with errors that are autocorrelated in time, with a given time constant."""
    return decay(sigma=cf.correlated(0.05, time=1.0))


def decay_correlation_time_unknown():
    """Pose exponential decay with autocorrelated errors of unknown time constant and size."""
    times = np.round(np.arange(1, 31) * 0.2, 10)
    drift = np.zeros(30)
    for i in range(1, 30):
        drift[i] = 0.7 * drift[i - 1] + 0.05 * ERRORS[i]
    data = np.round(2.0 * np.exp(-0.6 * times) + drift, 4)
    sigma = {"x": cf.correlated(time=cf.unknown())}
    experiment = cf.Experiment({"x": data}, time=times, sigma=sigma, start=0.0, initial={"x": cf.free(1.5)})
    return cf.Problem(decay_model(), experiment, parameters={"k": 0.4})


def decay_covariance():
    """Pose exponential decay with a given covariance matrix of its errors."""
    times = np.arange(0.5, 5.5, 0.5)
    matrix = np.round(0.0025 * np.exp(-np.abs(times[:, None] - times) / 0.8), 8)
    return decay(sigma={"x": cf.covariance(matrix)})


def decay_cauchy():
    """Pose exponential decay with the loss of Cauchy, which is not a likelihood."""
    return decay(sigma=None, noise=cf.Cauchy(0.05))


def decay_huber():
    """Pose exponential decay with the loss of Huber."""
    return decay(sigma=None, noise=cf.Huber(0.05, f_scale=1.5))


def decay_laplace():
    """Pose exponential decay with errors of Laplace's distribution of unknown scale."""
    return decay(sigma=None, noise=cf.Laplace(cf.unknown()))


def decay_censored():
    """Pose exponential decay with values below a limit of quantification."""
    return decay(sigma=None, noise=cf.Gaussian(0.05, below=0.3))


def decay_student():
    """Pose exponential decay with errors of Student's distribution of unknown scale."""
    return decay(sigma=None, noise=cf.StudentT(cf.unknown(), df=4.0))


def decay_log_normal():
    """Pose exponential decay with errors of the logarithm, of unknown size."""
    return decay(sigma=None, noise=cf.LogNormal(sigma=cf.unknown()))


def decay_counts():
    """Pose exponential decay of counts, which have Poisson's distribution."""
    times = np.arange(0.5, 5.5, 0.5)
    counts = np.round(40.0 * np.exp(-0.6 * times) + 3.0 * ERRORS[:10]).clip(0.0)
    experiment = cf.Experiment(
        {"x": counts}, time=times, noise=cf.Poisson(), start=0.0, initial={"x": cf.free(30.0, lower=1.0, upper=200.0)}
    )
    parameters = {"k": cf.Parameter(0.4, lower=0.01, upper=5.0, scale="log")}
    return cf.Problem(decay_model(), experiment, parameters=parameters)


def decay_sigma_law():
    """Pose exponential decay with a standard deviation that depends on the state and on an estimated parameter."""
    x, k, share = cf.symbols("x k share")
    model = cf.Model({x: -k * x}, parameters=[k])
    times = np.arange(0.5, 5.5, 0.5)
    data = perturb(2.0 * np.exp(-0.6 * times), 0.05)
    experiment = cf.Experiment(
        {"x": data}, time=times, sigma={"x": 0.01 + share * x}, start=0.0, initial={"x": cf.free(1.5)}
    )
    parameters = {"k": 0.4, "share": cf.Parameter(0.05, lower=0.001, scale="log")}
    return cf.Problem(model, experiment, parameters=parameters)


def decay_from_pole():
    """Pose a growth whose solution at the guess has a pole before the first datum."""
    x, k = cf.symbols("x k")
    model = cf.Model({x: k * x**2}, parameters=[k], initial={x: 1.0})
    experiment = cf.Experiment({"x": [1.1, 1.2, 1.4]}, time=[1.0, 2.0, 3.0], sigma=0.05, start=0.0)
    return cf.Problem(model, experiment, parameters={"k": cf.Parameter(5.0, lower=-1.0, upper=10.0)})


def two_rates():
    """Pose a decay by two reactions; the data determine only the sum of the rates."""
    x, a, b = cf.symbols("x a b")
    model = cf.Model({x: -(a + b) * x}, parameters=[a, b], initial={x: 2.0})
    times = np.arange(0.5, 5.5, 0.5)
    experiment = cf.Experiment({"x": perturb(2.0 * np.exp(-0.6 * times), 0.05)}, time=times, sigma=0.05, start=0.0)
    parameters = {"a": cf.Parameter(0.2, lower=0.0, upper=5.0), "b": cf.Parameter(0.2, lower=0.0, upper=5.0)}
    return cf.Problem(model, experiment, parameters=parameters)


def decay_at_bound():
    """Pose exponential decay whose estimated rate is at its upper bound."""
    times = np.arange(0.5, 5.5, 0.5)
    data = perturb(2.0 * np.exp(-0.6 * times), 0.05)
    experiment = cf.Experiment({"x": data}, time=times, sigma=0.05, start=0.0, initial={"x": cf.free(1.5)})
    return cf.Problem(decay_model(), experiment, parameters={"k": cf.Parameter(0.4, lower=0.0, upper=0.5)})


# ----------------------------------------------------------------------------------------------- several states


CHAIN_TIMES = np.array([0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def chain_data(size=0.03):
    """Return perturbed amounts of the substances a and b of the chain a -> b -> c."""
    a = np.exp(-CHAIN_TIMES)
    b = 1.0 / (0.4 - 1.0) * (np.exp(-CHAIN_TIMES) - np.exp(-0.4 * CHAIN_TIMES))
    return {"a": perturb(a, size), "b": perturb(b, size, 10)}


def chain(sigma=0.03, constraints=(), priors=None, state_bounds=None, bounds=(0.01, 20.0)):
    """Pose the chain a -> b -> c with two rates on logarithmic scale, between finite bounds."""
    a, b, k1, k2 = cf.symbols("a b k1 k2")
    model = cf.Model({a: -k1 * a, b: k1 * a - k2 * b}, parameters=[k1, k2], initial={a: 1.0, b: 0.0})
    experiment = cf.Experiment(chain_data(), time=CHAIN_TIMES, sigma=sigma, start=0.0)
    rate = {"bounds": bounds, "scale": "log"}
    options = {}
    if constraints:
        options["constraints"] = constraints
    if priors is not None:
        options["priors"] = priors
    if state_bounds is not None:
        options["state_bounds"] = state_bounds
    parameters = {"k1": cf.Parameter(0.5, **rate), "k2": cf.Parameter(0.8, **rate)}
    return cf.Problem(model, experiment, parameters=parameters, **options)


def chain_unknown_sigmas():
    """Pose the chain with an unknown standard deviation for each output."""
    return chain(sigma=cf.unknown())


def chain_shared_sigma():
    """Pose the chain with one named unknown standard deviation."""
    return chain(sigma={"a": cf.unknown("balance"), "b": cf.unknown("balance")})


def chain_robust():
    """Pose the chain with the loss of `fit(..., loss="soft_l1", f_scale=1.5)`."""
    return chain().robust("soft_l1", 1.5)


def chain_joint_covariance():
    """Pose the chain with an unknown covariance matrix between the errors of its outputs."""
    return chain(sigma=cf.unknown("joint"))


def chain_given_covariance():
    """Pose the chain with a given covariance matrix between the errors of its outputs."""
    return chain(sigma=cf.covariance([[0.0009, 0.0003], [0.0003, 0.0012]]))


def chain_constraints():
    """Pose the chain with constraints of all kinds, some active at the solution."""
    a, b, k1, k2 = cf.symbols("a b k1 k2")
    relations = [
        k1 == 2.2 * k2,
        cf.at(8.0, b <= 0.5),
        cf.along(b <= 0.52),
        cf.along(cf.between(0.0, a, 1.5)),
        cf.monotone(a, increasing=False),
    ]
    return chain(constraints=relations, state_bounds={"b": (0.0, 2.0)})


def chain_priors():
    """Pose the chain with priors on single quantities, on an expression and on two quantities jointly."""
    a, b, k1, k2 = cf.symbols("a b k1 k2")
    model = cf.Model({a: -k1 * a, b: k1 * a - k2 * b}, parameters=[k1, k2], initial={a: 1.0})
    experiment = cf.Experiment(
        chain_data(), time=CHAIN_TIMES, sigma=0.03, start=0.0, initial={"b": cf.free(0.05, prior=cf.Normal(0.0, 0.05))}
    )
    parameters = {
        "k1": cf.Parameter(
            0.5, lower=0.01, scale="log", prior=cf.priors.LogNormal(0.0, 0.3), starts=cf.priors.LogNormal(0.0, 1.0)
        ),
        "k2": cf.Parameter(0.8, lower=0.01, upper=3.0, prior=cf.priors.Gamma(4.0, 0.1)),
    }
    joint_prior = cf.priors.multivariate_normal({"k1": 0.0, "k2": -0.9}, [[0.25, 0.05], [0.05, 0.25]], on="log")
    priors = [{k1 * k2: cf.Normal(0.4, 0.2)}, joint_prior, cf.tikhonov("k2", 1.0, towards=0.5)]
    return cf.Problem(model, experiment, parameters=parameters, priors=priors)


def chain_other_priors():
    """Pose the chain with a truncated, a uniform, a beta and a Laplace prior."""
    a, b, k1, k2 = cf.symbols("a b k1 k2")
    model = cf.Model({a: -k1 * a, b: k1 * a - k2 * b}, parameters=[k1, k2])
    free_a = cf.free(0.9, prior=cf.priors.Truncated(cf.Normal(1.0, 0.1), 0.5, 2.0))
    free_b = cf.free(0.1, prior=cf.priors.Beta(2.0, 8.0))
    experiment = cf.Experiment(
        chain_data(), time=CHAIN_TIMES, sigma=0.03, start=0.0, initial={"a": free_a, "b": free_b}
    )
    parameters = {
        "k1": cf.Parameter(0.5, lower=0.01, scale="log", prior=cf.priors.Uniform(-3.0, 3.0, on="log")),
        "k2": cf.Parameter(0.8, lower=0.01, upper=3.0, prior=cf.priors.Laplace(0.4, 0.1)),
    }
    return cf.Problem(model, experiment, parameters=parameters)


def growth_and_decay():
    """Pose a predator and its prey, both measured, with four bounded rates."""
    x, y, r, p, q, d = cf.symbols("x y r p q d")
    model = cf.Model({x: r * x - p * x * y, y: q * x * y - d * y}, parameters=[r, p, q, d])
    prey = [0.58462429, 1.480323792, 1.941197515, 1.266090393, 0.68499583, 0.435253441]
    predators = [1.653802752, 1.898433328, 0.791087389, 0.402385741, 0.435968041, 0.725707829]
    experiment = cf.Experiment(
        {"x": predators, "y": prey}, time=[1, 2, 3, 4, 5, 6], sigma=0.05, start=0.0, initial={"x": 1.0, "y": 0.4}
    )
    rate = {"bounds": (0.05, 5.0), "scale": "log"}
    return cf.Problem(model, experiment, parameters={name: cf.Parameter(0.8, **rate) for name in ("r", "p", "q", "d")})


def absorption():
    """Pose absorption and elimination of a dose; exchanging the two rates gives a second optimum."""
    gut, blood, ka, ke, v = cf.symbols("gut blood ka ke v")
    model = cf.Model(
        {gut: -ka * gut, blood: ka * gut - ke * blood},
        parameters=[ka, ke, v],
        outputs={"conc": blood / v},
        initial={gut: 10.0, blood: 0.0},
    )
    times = np.array([0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0])
    exact = 10.0 / 5.0 * 1.2 / (1.2 - 0.3) * (np.exp(-0.3 * times) - np.exp(-1.2 * times))
    experiment = cf.Experiment({"conc": perturb(exact, 0.03)}, time=times, sigma=0.03, start=0.0)
    parameters = {
        "ka": cf.Parameter(1.0, bounds=(0.05, 10.0), scale="log"),
        "ke": cf.Parameter(0.4, bounds=(0.05, 10.0), scale="log"),
        "v": cf.Parameter(4.0, bounds=(0.5, 50.0), scale="log", prior=cf.Normal(3.5, 2.0)),
    }
    return cf.Problem(model, experiment, parameters=parameters)


# ------------------------------------------------------------------------ several experiments, inputs and events


def driven_experiments():
    """Pose a driven system in three experiments with different inputs and one local rate each."""
    x, u, gain, rate = cf.symbols("x u gain rate")
    model = cf.Model({x: gain * u - rate * x}, parameters=[gain, rate], inputs=[u])
    times = np.array([0.5, 1.0, 2.0, 3.0, 4.0, 6.0])
    recordings = [
        ("constant", 1.0, [0.72, 1.18, 1.63, 1.87, 1.92, 2.03]),
        ("steps", cf.Input.piecewise_constant([0.0, 2.0], [2.0, 0.5]), [1.39, 2.31, 3.05, 2.22, 1.80, 1.33]),
        ("ramp", cf.Input.linear([0.0, 6.0], [0.0, 3.0]), [0.10, 0.33, 1.05, 1.80, 2.61, 4.30]),
    ]
    experiments = [
        cf.Experiment(
            {"x": data}, time=times, sigma=0.05, start=0.0, inputs={"u": signal}, name=name,
            initial={"x": cf.free(0.1, lower=-1.0, upper=1.0)} if name == "ramp" else {"x": 0.0},
        )
        for name, signal, data in recordings
    ]  # fmt: skip
    parameters = {
        "gain": cf.Parameter(1.0, lower=0.0, upper=10.0),
        "rate": cf.Parameter(0.8, lower=0.01, upper=10.0, scale="log", local=True),
    }
    return cf.Problem(model, experiments, parameters=parameters)


def doses_and_event():
    """Pose doses with an unknown lag, and a dilution at a time."""
    gut, blood, ka, ke, lag = cf.symbols("gut blood ka ke lag")
    model = cf.Model({gut: -ka * gut, blood: ka * gut - ke * blood}, parameters=[ka, ke], initial={gut: 0, blood: 0})
    times = np.array([0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 9.0, 10.0, 12.0, 14.0])
    data = [1.02, 3.55, 5.35, 4.63, 3.24, 2.18, 4.95, 5.82, 2.40, 1.75]
    events = [
        cf.Doses(into=gut, amount=10.0, times=0.0, every=8.0, count=2, lag=lag),
        cf.Event(11.0, {blood: blood / 2}),
    ]
    experiment = cf.Experiment({"blood": data}, time=times, sigma=0.2, start=0.0, events=events)
    parameters = {"ka": 0.8, "ke": 0.3, "lag": cf.Parameter(0.3, bounds=(0.0, 0.9))}
    return cf.Problem(model, experiment, parameters=parameters)


def refilled_tank():
    """Pose a tank that is refilled if it is nearly empty: an event triggered by the state."""
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 1.0})
    times = np.arange(0.5, 5.5, 0.5)
    data = [0.79, 0.63, 0.5, 0.8, 0.64, 0.51, 0.81, 0.65, 0.52, 0.82]
    refill = cf.Event(when=x < 0.49, changes={x: 1.0})
    experiment = cf.Experiment({"x": data}, time=times, sigma=0.02, start=0.0, events=[refill])
    return cf.Problem(model, experiment, parameters={"k": cf.Parameter(0.47, lower=0.3, upper=0.6)})


def unknown_input():
    """Pose a system whose input is estimated at knots, with estimated smoothness."""
    x, u, d = cf.symbols("x u d")
    model = cf.Model({x: u - d * x}, parameters=[d], inputs=[u], initial={x: 0.0})
    times = np.arange(0.5, 8.5, 0.5)
    exact = 1.0 - np.cos(times * 0.7) * np.exp(-0.1 * times)
    signal = cf.Input.estimated(np.linspace(0.0, 8.0, 7), "linear", guess=0.5, smoothness="auto")
    experiment = cf.Experiment({"x": perturb(exact, 0.03)}, time=times, sigma=0.03, start=0.0, inputs={"u": signal})
    return cf.Problem(model, experiment, parameters={"d": cf.Parameter(0.5, fixed=True)})


def start_at_rest():
    """Pose an experiment that begins in a steady state."""
    x, u, k, h = cf.symbols("x u k h")
    model = cf.Model({x: k * u * (1 - x) - h * x}, parameters=[k, h], inputs=[u], initial={x: 0.0})
    times = np.array([0.5, 1.0, 2.0, 3.0, 5.0])
    stimulated = cf.Experiment(
        {"x": [0.52, 0.69, 0.79, 0.80, 0.81]}, time=times, sigma=0.02, start=0.0, inputs={"u": 2.0},
        initial=cf.steady_state(inputs={"u": 0.2}), name="stimulated",
    )  # fmt: skip
    return cf.Problem(
        model, stimulated, parameters={"k": cf.Parameter(0.8, lower=0.01), "h": cf.Parameter(0.5, lower=0.01)}
    )


def algebraic_start():
    """Pose a DAE with a consistent initial state."""
    base, acid, rate = cf.symbols("base acid rate")
    model = cf.Model({base: -rate * base}, algebraic={acid: base - acid**2}, parameters=[rate])
    times = np.array([0.5, 1.0, 1.5, 2.0, 3.0])
    exact = 1.2 * np.exp(-0.25 * times)
    experiment = cf.Experiment(
        {"acid": perturb(exact, 0.02)}, time=times, sigma=0.02, start=0.0,
        initial={"acid": 1.2, "base": cf.consistent(1.0)},
    )  # fmt: skip
    return cf.Problem(model, experiment, parameters={"rate": cf.Parameter(0.3, lower=0.01, upper=3.0)})


def delayed_growth():
    """Pose logistic growth with a delay."""
    x, r, tau = cf.symbols("x r tau")
    model = cf.Model({x: r * x * (1 - cf.delay(x, tau, history=0.1))}, parameters=[r, tau], initial={x: 0.1})
    times = np.arange(1.0, 9.0)
    data = [0.38, 1.02, 1.37, 1.05, 0.83, 0.95, 1.07, 1.0]
    experiment = cf.Experiment({"x": data}, time=times, sigma=0.04, start=0.0)
    parameters = {"r": cf.Parameter(1.2, lower=0.0, upper=5.0), "tau": cf.Parameter(0.6, bounds=(0.05, 3.0))}
    return cf.Problem(model, experiment, parameters=parameters)


def scaled_blots():
    """Pose two experiments whose outputs have an unknown scale and offset each."""
    x, u, k, h = cf.symbols("x u k h")
    model = cf.Model(
        {x: k * u * (1 - x) - h * x}, parameters=[k, h], inputs=[u],
        outputs={"blot": cf.scaled(x, offset=True, per_experiment=True)},
    )  # fmt: skip
    times = np.array([0.5, 1.0, 2.0, 3.0, 5.0, 8.0])
    rows = {"weak": (0.4, [0.62, 0.81, 1.07, 1.22, 1.35, 1.41]), "strong": (2.0, [3.1, 4.6, 6.2, 6.8, 7.05, 7.1])}
    experiments = [
        cf.Experiment(
            {"blot": data},
            time=times,
            sigma=cf.unknown(name),
            start=0.0,
            initial={"x": 0.0},
            inputs={"u": level},
            name=name,
        )
        for name, (level, data) in rows.items()
    ]
    rate = {"lower": 1e-3, "upper": 10.0, "scale": "log"}
    return cf.Problem(model, experiments, parameters={"k": cf.Parameter(0.3, **rate), "h": cf.Parameter(0.2, **rate)})


def patients_with_lasso():
    """Pose four patients with a lasso penalty on the differences of their rates."""
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 1.0})
    times = np.array([0.5, 1.0, 2.0, 4.0])
    rates = {"A": 0.3, "B": 0.3, "C": 0.6, "D": 0.3}
    patients = [
        cf.Experiment({"x": perturb(np.exp(-rate * times), 0.03, 4 * i)}, time=times, sigma=0.03, start=0.0, name=name)
        for i, (name, rate) in enumerate(rates.items())
    ]
    parameters = {"k": cf.Parameter(0.4, lower=0.01, upper=10.0, scale="log", local=True)}
    return cf.Problem(model, patients, parameters=parameters, priors=cf.lasso("k", 8.0, towards="equal", on="log"))


# ------------------------------------------------------------------- process noise, control, populations, choices


def random_walk():
    """Pose a random walk: a model with process noise, in one experiment."""
    x, w, s = cf.symbols("x w s")
    model = cf.Model({x: s * w}, parameters=[s], noises=[w])
    data = [1.1, 0.9, 1.6, 2.2, 1.9, 2.4, 3.3, 3.1, 2.6, 2.9, 3.5, 4.1]
    experiment = cf.Experiment({"x": data}, time=range(1, 13), sigma=0.2, start=0, initial={"x": cf.Normal(0, 10)})
    return cf.Problem(model, experiment, parameters={"s": cf.Parameter(0.3, scale="log")})


def noisy_decay():
    """Pose a decay with process noise in two experiments with an unknown standard deviation."""
    x, w, k, s = cf.symbols("x w k s")
    model = cf.Model({x: -k * x + s * w}, parameters=[k, s], noises=[w], outputs={"y": 2 * x})
    data_first = [3.5, 3.1, 2.2, 2.0, 1.4, 1.5, 0.9, 0.7]
    data_second = [1.8, 1.2, 1.3, 0.8, 0.6, 0.65, 0.2, 0.4]
    experiments = [
        cf.Experiment({"y": data}, time=range(1, 9), sigma=cf.unknown(), start=0, initial={"x": guess}, name=name)
        for name, data, guess in (("first", data_first, cf.free(2.0)), ("second", data_second, 1.0))
    ]
    parameters = {"k": cf.Parameter(0.3, lower=0.0, prior=cf.Normal(0.3, 0.2)), "s": cf.Parameter(0.2, scale="log")}
    return cf.Problem(model, experiments, parameters=parameters)


def plan_minimal_time():
    """Plan the fastest transfer of a point mass between two positions at zero velocity."""
    x, v, a = cf.symbols("x v a")
    model = cf.Model({x: v, v: a}, inputs=[a], initial={x: 0, v: 0})
    return cf.control(
        model,
        horizon=cf.free(3.0, lower=0.1),
        inputs={"a": cf.Input.free(6, bounds=(-1, 1))},
        minimise=cf.final_time(),
        constraints=[cf.at_end(x) == 1, cf.at_end(v) == 0],
    )


def plan_with_path_constraint():
    """Plan a van der Pol oscillator with a bounded state and a piecewise linear input."""
    x0, x1, u = cf.symbols("x0 x1 u")
    model = cf.Model({x0: (1 - x1**2) * x0 - x1 + u, x1: x0}, inputs=[u], initial={x0: 0, x1: 1})
    return cf.control(
        model,
        horizon=5,
        inputs={"u": cf.Input.free(5, "linear", bounds=(-1, 1))},
        minimise=cf.integral(x0**2 + x1**2 + u**2),
        constraints=[cf.along(x1 >= -0.4)],
    )


def plan_for_scenarios():
    """Plan one input for two values of a parameter."""
    x, u, k = cf.symbols("x u k")
    model = cf.Model({x: -k * x + u}, parameters=[k], inputs=[u], initial={x: 1.0})
    return cf.control(
        model,
        horizon=2,
        inputs={"u": cf.Input.free(4, bounds=(-2, 2))},
        minimise=cf.integral((x - 0.5) ** 2 + 0.1 * u**2),
        parameters=[{"k": 0.8}, {"k": 1.2}],
        scenarios="worst",
    )


def patients():
    """Pose six patients with individual clearances for mixed effects."""
    blood, clearance, volume = cf.symbols("blood clearance volume")
    model = cf.Model(
        {blood: -clearance / volume * blood}, parameters=[clearance, volume], outputs={"conc": blood / volume}
    )
    times = np.array([0.5, 2.0, 6.0])
    experiments = [
        cf.Experiment(
            {"conc": perturb(5.0 * np.exp(-4.0 * np.exp(0.3 * ERRORS[i]) / 20.0 * times), 0.05, 20 + 3 * i)},
            time=times, sigma=cf.unknown(), start=0.0, initial={"blood": 100.0}, name=f"patient {i + 1}",
        )
        for i in range(6)
    ]  # fmt: skip
    parameters = {"clearance": cf.Parameter(3.0, local=True), "volume": cf.Parameter(15.0, scale="log")}
    return cf.Problem(model, experiments, parameters=parameters)


def patient_population():
    """Return the distribution of the clearances over the patients."""
    return cf.Population({"clearance": cf.Individual(omega=0.4)})


def decay_with_drift():
    """Pose a decay with a constant drift, for model selection."""
    x, k, m = cf.symbols("x k m")
    model = cf.Model({x: -k * x - m}, parameters=[k, m], initial={x: 2})
    data = [1.49, 1.09, 0.83, 0.59, 0.46, 0.33]
    experiment = cf.Experiment({"x": data}, time=[1, 2, 3, 4, 5, 6], sigma=0.02, start=0)
    return cf.Problem(model, experiment, parameters={"k": 0.5, "m": 0.1})


def drift_choices():
    """Return the alternatives of the parameters of the decay with drift."""
    return {"k": [0, cf.estimated], "m": [0, cf.estimated]}


def candidate_models():
    """Return two models of the same data, by name."""
    x, k, n = cf.symbols("x k n")
    data = [1.49, 1.09, 0.83, 0.59, 0.46, 0.33]
    experiment = cf.Experiment({"x": data}, time=[1, 2, 3, 4, 5, 6], sigma=0.02, start=0)
    linear = cf.Model({x: -k * x}, parameters=[k], initial={x: 2})
    power = cf.Model({x: -k * x**n}, parameters=[k, n], initial={x: 2})
    return {
        "first order": cf.Problem(linear, experiment, parameters={"k": 0.5}),
        "power law": cf.Problem(power, experiment, parameters={"k": 0.5, "n": cf.Parameter(1.2, bounds=(0.5, 3.0))}),
    }


def petab_chain():
    """Load the chain from PEtab files that castfit 0.3 wrote."""
    return cf.petab.load(PETAB_FILE)


def sample_start(rng):
    """Draw a start of the predator and its prey, as a user-defined function."""
    return {name: float(rng.uniform(0.2, 3.0)) for name in ("r", "p", "q", "d")}


def shorten_intervals(result, level):
    """Return intervals half as wide as linear ones, as a user-defined function."""
    intervals = result.confidence_intervals(level)
    return {name: (0.75 * low + 0.25 * high, 0.25 * low + 0.75 * high) for name, (low, high) in intervals.items()}
