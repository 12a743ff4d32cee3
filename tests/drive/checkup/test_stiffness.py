"""Stiffness: eigenvalues known in closed form, verdicts, DAEs, units, plots, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import castfit as cf
from castfit import problems
from castfit.integrate.esdirk_binding import missing_integrator_reason
from tests.builders import decay_problem, refused

TIMES = np.linspace(0, 10, 21)


def usual(without_a_compiler):
    return without_a_compiler if missing_integrator_reason() else "esdirk"


def linear(matrix) -> cf.Model:
    n = len(matrix)
    x = cf.symbols(" ".join(f"x{i}" for i in range(n)))
    x = x if n > 1 else (x,)
    return cf.Model({x[i]: sum(float(a) * s for a, s in zip(matrix[i], x, strict=True)) for i in range(n)},
                    initial={s: 1 for s in x})  # fmt: skip


def test_stiffness_of_a_linear_model_has_the_eigenvalues_of_its_matrix():
    matrix = np.array([[-1000.0, 1.0, 0.0], [0.0, -2.0, 5.0], [0.0, -5.0, -2.0]])
    stiffness = cf.stiffness(linear(matrix), times=TIMES)
    for values in stiffness.eigenvalues:
        assert np.allclose(np.sort_complex(values), np.sort_complex(np.linalg.eigvals(matrix)))
    assert np.isclose(stiffness.ratio, 500)
    assert np.isclose(stiffness.steps, 1000 * 10 / 2.785, rtol=1e-6)
    assert stiffness.growth == 0
    assert np.allclose(stiffness.time_constants[:, 0], 1e-3)


@given(fast=st.floats(1e-3, 1e6), slow=st.floats(1e-3, 1e6), unit=st.sampled_from([1e-9, 1.0, 1e12]))
def test_stiffness_ratio_is_independent_of_units(fast, slow, unit):
    matrix = np.array([[-fast, 0.0], [slow * unit, -slow]])
    values = np.linalg.eigvals(matrix)
    stiffness = cf.stiffness(linear(matrix), times=[0.0, 1e-9])
    assert np.isclose(stiffness.ratio, values.real.min() / values.real.max(), rtol=1e-6)


def test_stiffness_ignores_zero_eigenvalues_of_conserved_sums():
    a, b = cf.symbols("a b")
    model = cf.Model({a: -3 * a + b, b: 3 * a - b}, initial={a: 1, b: 0})
    stiffness = cf.stiffness(model, times=TIMES)
    assert (stiffness.eigenvalues[:, 1] == 0).all()
    assert np.isinf(stiffness.time_constants[:, 1]).all()
    assert stiffness.ratio == 1
    assert stiffness.sentence.startswith("Not stiff")


def test_stiffness_eliminates_algebraic_states():
    x, y, z = cf.symbols("x y z")
    dae = cf.Model({x: -z, y: -7 * y}, algebraic={z: 2 * z - 4 * x}, initial={x: 1, y: 1})
    stiffness = cf.stiffness(dae, times=TIMES)
    assert np.allclose(stiffness.eigenvalues, [-7, -2])
    assert stiffness.suggested == usual("idas")


def test_stiffness_sentence_and_suggestion_by_kind():
    assert cf.stiffness(linear([[-1.0]]), times=TIMES).sentence.startswith("Not stiff: decay rates differ by a factor")
    stiff = cf.stiffness(linear([[-1e5, 0], [0, -1]]), times=TIMES)
    assert stiff.suggested == usual("cvodes")
    assert not stiff.oscillating
    assert stiff.sentence.startswith("Stiff: decay rates differ by a factor of up to 1e+05; an explicit method would")
    ringing = cf.stiffness(linear([[-10.0, 1e2], [-1e2, -10.0]]), times=TIMES)
    assert ringing.suggested == usual("rosenbrock")
    assert ringing.oscillating
    assert "Oscillating" in ringing.sentence
    unstable = cf.stiffness(linear([[3.0]]), times=TIMES)
    assert np.isclose(unstable.growth, 30)
    assert "Use MultipleShooting or Collocation" in unstable.sentence
    assert "MultipleShooting" not in stiff.sentence


def test_stiffness_of_escep_exceeds_hemkers_bound():
    """Hemker's bounds: the ratio exceeds (p + s)^2 / (epsilon (p - q)) (Eq. 1.19), which is 10^5 at its least."""
    benchmark = problems.load("escep")
    (stiffness,) = cf.stiffness(benchmark.problem, benchmark.reference.parameters).values()
    path = cf.simulate(benchmark.problem, benchmark.reference.parameters)["experiment 1"]
    q, difference = benchmark.reference.parameters["q"], benchmark.reference.parameters["p_minus_q"]
    inverse = benchmark.reference.parameters["inverse_epsilon"]
    bound = (q + difference + path["s"]) ** 2 * inverse / difference
    assert (stiffness.ratios > bound).all()
    assert stiffness.ratio > 1000
    assert "Stiff" in str(stiffness)


def test_stiffness_of_a_result_uses_its_estimates():
    problem = decay_problem()
    result = cf.fit(problem)
    (stiffness,) = cf.stiffness(result).values()
    assert np.allclose(stiffness.eigenvalues, -result.parameters["k"])
    with refused("parameters are part of the result"):
        cf.stiffness(result, {"k": 1.0})


def test_stiffness_of_a_delay_approximates_its_characteristic_roots():
    x, tau = cf.symbols("x tau")
    model = cf.Model({x: -cf.delay(x, tau, history=1)}, parameters=[tau], initial={x: 1})
    stiffness = cf.stiffness(model, {"tau": 1.0}, TIMES)
    # The rightmost roots of  lambda = -exp(-lambda)  are -0.3181 +- 1.3372 i.
    slowest = stiffness.eigenvalues[0][np.argsort(-stiffness.eigenvalues[0].real)[:2]]
    assert np.allclose(np.sort(slowest.imag), [-1.33723570, 1.33723570], atol=1e-6)
    assert np.allclose(slowest.real, -0.31813151, atol=1e-6)


def test_stiffness_plot_has_two_axes(tmp_path):
    figure = cf.stiffness(linear([[-1e3, 0], [0, 0.1]]), times=TIMES).plot(tmp_path / "stiffness.png")
    assert (tmp_path / "stiffness.png").read_bytes()[:4] == b"\x89PNG"
    assert len(figure.axes) == 2


def test_stiffness_with_invalid_arguments_lists_all_mistakes():
    with refused("integrator is 3", "times is missing", "unknown parameter 'k'"):
        cf.stiffness(linear([[-1.0]]), {"k": 1.0}, integrator=3)
    with refused("the first argument is 2"):
        cf.stiffness(2)
    x = cf.symbols("x")
    blowing_up = cf.Model({x: x**2}, initial={x: 1})
    with pytest.raises(cf.SimulationError):
        cf.stiffness(blowing_up, times=TIMES)
