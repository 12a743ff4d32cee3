"""Values below a limit of detection may be recorded as any number up to the limit."""

import numpy as np
import pytest

import castfit as cf

LIMIT = 0.1


def fit_decay(recorded, noise):
    """Fit a decay whose last values are below the limit and were recorded as the same number."""
    x, k, s = cf.symbols("x k s")
    time = np.arange(0.0, 13.0)
    values = 50 * np.exp(-0.6 * time) * 10 ** (0.05 * np.random.default_rng(1).standard_normal(time.size))
    assert (values < LIMIT).any()
    values[values < LIMIT] = recorded
    model = cf.Model({x: -k * x}, parameters=[k, s], initial={x: 1}, outputs={"y": s * x})
    experiment = cf.Experiment({"y": values}, time=time, noise={"y": noise})
    return cf.fit(cf.Problem(model, experiment, parameters={"k": 0.1, "s": 10}))


@pytest.mark.parametrize(
    "noise", [cf.LogNormal(below=LIMIT), cf.LogNormal(base=10, below=LIMIT), cf.Gaussian(below=LIMIT)]
)
@pytest.mark.parametrize("recorded", [0.0, -0.02, LIMIT])
def test_fit_does_not_depend_on_the_number_recorded_below_the_limit(noise, recorded):
    expected = fit_decay(0.5 * LIMIT, noise)
    result = fit_decay(recorded, noise)
    assert result.success
    assert result.neg2loglik == pytest.approx(expected.neg2loglik, abs=1e-8)
    assert result.values == pytest.approx(expected.values, rel=1e-6)
    assert "nan" not in str(result)


def test_values_without_logarithm_need_a_limit():
    with pytest.raises(cf.InputError, match="LogNormal needs positive values"):
        fit_decay(0.0, cf.LogNormal())
