"""Sigma and smoothness, neither of which is known, chosen together: the Nile with a knot at every datum."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

import castfit as cf

# Annual flow at Aswan from 1871 on, in 1e8 cubic metres: Cobb 1978; Durbin and Koopman 2012, section 2.2.5.
FLOW = np.array([
    1120, 1160, 963, 1210, 1160, 1160, 813, 1230, 1370, 1140, 995, 935, 1110, 994, 1020, 960, 1180, 799, 958, 1140,
    1100, 1210, 1150, 1250, 1260, 1220, 1030, 1100, 774, 840, 874, 694, 940, 833, 701, 916, 692, 1020, 1050, 969,
    831, 726, 456, 824, 702, 1120, 1100, 832, 764, 821, 768, 845, 864, 862, 698, 845, 744, 796, 1040, 759,
    781, 865, 845, 944, 984, 897, 822, 1010, 771, 676, 649, 846, 812, 742, 801, 1040, 860, 874, 848, 890,
    744, 749, 838, 1050, 918, 986, 797, 923, 975, 815, 1020, 906, 901, 1170, 912, 746, 919, 718, 714, 740,
], dtype=float)  # fmt: skip


def walk(values, sigma):
    x, u = cf.symbols("x u")
    model = cf.Model({x: 0}, inputs=[u], outputs={"flow": u}, initial={x: 0})
    times = np.arange(float(values.size))
    level = cf.Input.estimated(times, "linear", smoothness="auto", order=1, guess=float(values[0]))
    experiment = cf.Experiment({"flow": values}, time=times, sigma=sigma, start=0.0, inputs={"u": level})
    return cf.Problem(model, experiment)


def diffuse(values):
    """The most likely (sigma^2, q) of a random walk with errors and an unknown level: dense, of all differences."""
    n = values.size
    D = np.diff(np.eye(n), axis=0)
    walk_part = np.tril(np.ones((n, n)))[:, 1:]

    def cost(log):
        S = D @ (np.exp(log[0]) * np.eye(n) + np.exp(log[1]) * walk_part @ walk_part.T) @ D.T
        d = D @ values
        return d @ np.linalg.solve(S, d) + np.linalg.slogdet(S)[1]

    start = np.log([np.var(values) / 2, np.var(values) / 20])
    return np.exp(scipy.optimize.minimize(cost, start, method="Nelder-Mead", options={"xatol": 1e-6}).x)


@pytest.mark.slow
def test_the_nile():
    result = cf.fit(walk(FLOW, cf.unknown()))
    variance, q = diffuse(FLOW)
    assert variance == pytest.approx(15099, rel=1e-3)
    assert q == pytest.approx(1469, rel=1e-3)
    assert result.errors.sigma**2 == pytest.approx(variance, rel=2e-3)
    assert 1.0 / (result.smoothness["u"] * 99.0) == pytest.approx(q, rel=2e-3)
    assert "was estimated together with the smoothness" in result.message


def test_the_first_forty_years(tmp_path):
    """Alike in other units, and a result that is kept answers the problem that was asked."""
    values = FLOW[10:50]
    variance, q = diffuse(values)
    for sigma, unit in ((cf.unknown(), 1.0), (None, 1e-3)):
        problem = walk(unit * values, sigma)
        result = cf.fit(problem)
        assert result.success
        assert result.errors.sigma == pytest.approx(unit * np.sqrt(variance), rel=5e-3)
        assert 1.0 / (result.smoothness["u"] * 39.0) == pytest.approx(unit**2 * q, rel=2e-2)
    result.save(tmp_path / "result.json")
    loaded_result = cf.Result.load(tmp_path / "result.json").with_problem(problem)
    assert loaded_result.errors == result.errors
    assert loaded_result.estimated_inputs()["experiment 1"]["u"] == pytest.approx(
        result.estimated_inputs()["experiment 1"]["u"]
    )
