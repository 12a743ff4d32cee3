"""Profiles against linear models, where they are parabolas, and against scans by SciPy, where they are not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import numpy as np
import pytest
from scipy import optimize, stats

import castfit as cf
from castfit._support.status import InputError
from castfit.cli import main
from tests.builders import refused


def line(sigma=None, n=9, **changes):
    """x' = a from x(0) = b: measured values are linear in what is estimated."""
    x, a = cf.symbols("x a")
    t = np.linspace(0.0, 4.0, n)
    noise = np.random.default_rng(3).standard_normal(n)
    experiment = cf.Experiment({"x": 1.0 + 0.5 * t + 0.1 * noise}, time=t, sigma=sigma, initial={"x": cf.free(0.8)})
    return cf.Problem(cf.Model({x: a + 0 * x}, parameters=[a]), experiment, parameters={"a": 0.4}, **changes)


def product(lower=-np.inf, scale="linear"):
    """x' = -k1 k2 x: only the product can be known."""
    x, k1, k2 = cf.symbols("x k1 k2")
    t = np.linspace(0.0, 5.0, 12)
    data = np.exp(-0.5 * t) + 0.02 * np.random.default_rng(0).standard_normal(12)
    experiment = cf.Experiment({"x": data}, time=t, sigma=0.02, initial={"x": 1.0})
    parameter = cf.Parameter(0.7, lower=lower, scale=scale)
    return cf.Problem(
        cf.Model({x: -k1 * k2 * x}, parameters=[k1, k2]), experiment, parameters={"k1": parameter, "k2": parameter}
    )


TIMES = np.array([0.5, 1.0, 1.5, 2.0, 3.0])
VALUES = np.array([0.62, 1.18, 1.47, 1.90, 2.31])
SIGMA = 0.12


def banana():
    """x' = (A - x) k from 0, measured before it levels off: A and k hardly apart, and far from linear."""
    x, A, k = cf.symbols("x A k")
    experiment = cf.Experiment({"x": VALUES}, time=TIMES, sigma=SIGMA, initial={"x": 0.0})
    return cf.Problem(
        cf.Model({x: k * (A - x)}, parameters=[A, k]),
        experiment,
        parameters={"A": cf.Parameter(3.0, lower=0.1, upper=1e3, scale="log"),
                    "k": cf.Parameter(0.5, lower=1e-4, upper=1e2, scale="log")},
    )  # fmt: skip


def scanned(k):
    """Return chi2 of the banana minimised over A, in which the solution is linear, for each k."""
    shape = 1.0 - np.exp(-np.outer(k, TIMES))
    best = shape @ VALUES / np.sum(shape**2, axis=1)
    return np.sum(((best[:, None] * shape - VALUES) / SIGMA) ** 2, axis=1)


def waves():
    """x'' = -w^2 x at few times: frequencies far from the true one fit nearly as well."""
    x, v, w = cf.symbols("x v w")
    t = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    data = np.cos(1.3 * t) + np.array([0.02, -0.05, 0.03, 0.01, -0.02])
    experiment = cf.Experiment({"x": data}, time=t, sigma=0.3, initial={"x": 1.0, "v": 0.0})
    model = cf.Model({x: v, v: -(w**2) * x}, parameters=[w])
    return cf.Problem(model, experiment, parameters={"w": cf.Parameter(1.2, lower=0.2, upper=6.5)}), t, data


@pytest.fixture(scope="module")
def banana_fit():
    return cf.fit(banana())


@pytest.mark.parametrize("transcription", ["collocation", "multiple", "single"])
@pytest.mark.parametrize("sigma", [None, 0.1])
def test_limits_of_a_linear_model_are_the_linear_ones(transcription, sigma):
    result = cf.fit(line(sigma))
    profiles = cf.profile(result, transcription=transcription, confidence_levels=(0.68, 0.95))
    for level in (0.68, 0.95):
        for name, interval in result.confidence_intervals(level).items():
            np.testing.assert_allclose(profiles[name].limits(level), interval, rtol=1e-4)
            assert [side.kind for side in profiles[name].sides(level)] == ["bounded", "bounded"]
    one = profiles["a"]
    parabola = one.approximation(one.values)
    expected = parabola if sigma is not None else 9 * np.log1p(parabola / 9)
    np.testing.assert_allclose(one.objective, expected, rtol=1e-4, atol=1e-4)
    assert profiles.complete
    assert profiles.statistic == ("F" if sigma is None else "chi2")


def test_a_parabola_has_the_thresholds_of_chi_square():
    result = cf.fit(line(0.1))
    profiles = cf.profile(result, "a", confidence_levels=(0.5, 0.9, 0.99))
    for level in (0.5, 0.9, 0.99):
        assert profiles["a"].threshold(level) == pytest.approx(stats.chi2.ppf(level, 1))
        low, high = profiles["a"].limits(level)
        np.testing.assert_allclose(profiles["a"].at(np.array([low, high])), profiles["a"].threshold(level), rtol=5e-3)


@pytest.mark.parametrize("transcription", ["collocation", "multiple", "single"])
def test_limits_of_a_banana_agree_with_a_scan(banana_fit, transcription):
    profile = cf.profile(banana_fit, "k", transcription)["k"]
    minimum_chi2 = optimize.minimize_scalar(lambda k: scanned(np.array([k]))[0], bounds=(0.01, 2), method="bounded").fun
    low, high = (
        optimize.brentq(lambda k: scanned(np.array([k]))[0] - minimum_chi2 - profile.threshold(), *ends)
        for ends in ((0.01, banana_fit.parameters["k"]), (banana_fit.parameters["k"], 3.0))
    )
    np.testing.assert_allclose(profile.limits(), (low, high), rtol=2e-3)
    linear = banana_fit.confidence_intervals()["k"]
    assert abs(linear[0] - low) > 0.03 * low  # where linear intervals are wrong
    np.testing.assert_allclose(profile.objective, scanned(profile.values) - minimum_chi2, atol=2e-3)
    grid = np.geomspace(low, high, 50)
    np.testing.assert_allclose(profile.at(grid), scanned(grid) - minimum_chi2, atol=0.05)


def test_profile_refits_other_quantities(banana_fit):
    profile = cf.profile(banana_fit, "k")["k"]
    shape = 1.0 - np.exp(-np.outer(profile.values, TIMES))
    np.testing.assert_allclose(profile.nuisance["A"], shape @ VALUES / np.sum(shape**2, axis=1), rtol=2e-3)
    np.testing.assert_allclose(profile.nuisance["k"], profile.values, rtol=1e-12)


def test_profile_of_expression_has_scale_and_limits_of_its_value(banana_fit):
    profiles = cf.profile(banana_fit, ["A * k", "k", "1 / k"])
    assert profiles["1 / k"].scale == "log"
    low, high = profiles["k"].limits()
    np.testing.assert_allclose(profiles["1 / k"].limits(), (1 / high, 1 / low), rtol=1e-3)
    # A k, the rate at the beginning, is known far better than its factors.
    low, high = profiles["A * k"].limits()
    assert high / low < 1.7
    A, k = cf.symbols("A k")
    rate_profiles = cf.profile(banana_fit, {"rate": A * k})
    np.testing.assert_allclose(rate_profiles["rate"].limits(), (low, high), rtol=1e-6)


def test_profile_of_difference_agrees_with_linear_interval():
    result = cf.fit(line(0.1))
    profile = cf.profile(result, "x(0) - a")["x(0) - a"]
    (i, j), C = [result.names.index(n) for n in ("x(0)", "a")], result.covariance
    error = np.sqrt(C[i, i] + C[j, j] - 2 * C[i, j])
    value = result.values["x(0)"] - result.values["a"]
    reach = stats.norm.ppf(0.975) * error
    np.testing.assert_allclose(profile.limits(), (value - reach, value + reach), rtol=1e-4)
    np.testing.assert_allclose(profile.linear["0.95"], (value - reach, value + reach), rtol=1e-4)


def test_an_eliminated_sigma_has_the_profile_of_its_likelihood():
    result = cf.fit(line(None, n=30))
    profile = cf.profile(result, "sigma", limits="chi2")["sigma"]
    best = result.sigmas["sigma"]
    expected = 2 * 30 * np.log(profile.values / best) + 30 * ((best / profile.values) ** 2 - 1)
    np.testing.assert_allclose(profile.objective, expected, atol=1e-3)
    low, high = (
        optimize.brentq(lambda r: 60 * np.log(r) + 30 * (r**-2 - 1) - profile.threshold(), *ends) * best
        for ends in ((0.3, 1.0), (1.0, 3.0))
    )
    np.testing.assert_allclose(profile.limits(), (low, high), rtol=2e-3)


@pytest.mark.parametrize(
    ("transcription", "scale", "lower"),
    [
        pytest.param("collocation", "linear", -np.inf, marks=pytest.mark.slow),
        ("collocation", "log", 0.0),
        ("single", "log", 0.0),
        pytest.param("collocation", "linear", 0.0, marks=pytest.mark.slow),
        pytest.param("single", "linear", -np.inf, marks=pytest.mark.slow),
        pytest.param("single", "linear", 0.0, marks=pytest.mark.slow),
    ],
)
def test_profile_of_factors_of_a_product_is_flat(transcription, scale, lower):
    result = cf.fit(product(lower, scale))
    profiles = cf.profile(result, ["k1", "k2", "k1 * k2"], transcription)
    for name in ("k1", "k2"):
        assert profiles[name].flat
        assert profiles[name].limits()[1] == np.inf
        assert profiles[name].limits()[0] in (0.0, -np.inf)
        assert "not identifiable" in profiles[name].sentence
    x = -np.log(0.5)
    low, high = profiles["k1 * k2"].limits()
    assert low < 0.5 < high < low + 0.06 < x
    assert "not identifiable" in str(profiles)


def test_another_optimum_is_found_beyond_the_limits():
    problem, t, data = waves()
    result = cf.fit(problem, "single")
    profiles = cf.profile(result, "w", "single", everywhere=True)
    grid = np.linspace(0.2, 6.5, 4001)
    chi2 = np.sum(((np.cos(np.outer(grid, t)) - data) / 0.3) ** 2, axis=1)
    inside = grid[chi2 - chi2.min() <= profiles["w"].threshold()]
    jumps = np.flatnonzero(np.diff(inside) > 0.01)
    expected = np.split(inside, jumps + 1)
    assert len(expected) > 1
    regions = profiles["w"].regions()
    assert len(regions) == len(expected)
    for region, expected_region in zip(regions, expected, strict=True):
        np.testing.assert_allclose(region, (expected_region[0], expected_region[-1]), atol=4e-3)
    other_minima = [o.values["w"] for o in profiles.optima]
    minima = grid[1:-1][(chi2[1:-1] < chi2[:-2]) & (chi2[1:-1] < chi2[2:])]
    for minimum in minima:
        if abs(minimum - result.parameters["w"]) > 0.1:
            assert min(abs(w - minimum) for w in other_minima) < 0.01
    assert "Other optimum" in str(profiles)


def test_profile_restarts_from_a_better_fit():
    problem, t, data = waves()
    poor = cf.fit(problem, "single", start={"w": 3.4}, retry=False, second_start=False)
    good = cf.fit(problem, "single")
    assert poor.success
    assert poor.chi2 > good.chi2 + 0.1
    profiles = cf.profile(poor, "w", "single", everywhere=True)
    assert profiles.best.chi2 == pytest.approx(min(np.sum(((np.cos(w * t) - data) / 0.3) ** 2)
                                                for w in np.linspace(0.2, 6.5, 20001)), rel=1e-4)  # fmt: skip
    assert profiles.improved == pytest.approx(poor.chi2 - profiles.best.chi2, rel=1e-3)
    assert "better fit" in str(profiles)


def test_side_at_a_bound_within_the_threshold_has_its_own_kind(banana_fit):
    tight = banana().posed.with_bounds(np.log([0.1, 0.3]), np.log([1e3, 1e2]))
    profile = cf.profile(cf.fit(tight), "k")["k"]
    lower, upper = profile.sides()
    assert (lower.kind, upper.kind) == ("at a bound", "bounded")
    assert lower.limit == pytest.approx(0.3)
    assert "down to the bound 0.3" in lower.sentence


def test_limits_not_reproduced_by_integration_are_nan(banana_fit):
    fine = cf.profile(banana_fit, "k", cf.Collocation(degree=2, elements=6))["k"]
    coarse = cf.profile(banana_fit, "k", cf.Collocation(degree=1, elements=3))["k"]
    np.testing.assert_allclose(fine.limits(), cf.profile(banana_fit, "k")["k"].limits(), rtol=2e-3)
    assert [side.kind for side in coarse.sides()] == ["not reproduced"] * 2
    assert np.isnan(coarse.limits()).all()
    assert "another objective" in coarse.sentence
    bound = cf.profile(cf.fit(banana().posed.with_bounds(np.log([0.1, 0.3]), np.log([1e3, 1e2]))), "k",
                       cf.Collocation(degree=1, elements=3))["k"]  # fmt: skip
    assert bound.sides()[0].kind == "not reproduced"


@pytest.mark.slow
def test_profile_of_scale_and_initial_state_follows_their_product():
    """A scale and an initial value of which only the product is well known: the valley is straight in logarithms."""
    x, k, s = cf.symbols("x k s")
    t = np.linspace(0.0, 4.0, 9)
    data = 2.0 * np.exp(-0.4 * t) * (1 + 0.01 * np.random.default_rng(5).standard_normal(9))
    problem = cf.Problem(
        cf.Model({x: -k * x}, parameters=[k, s], outputs={"y": s * x}),
        cf.Experiment({"y": data}, time=t, sigma=0.02, initial={"x": cf.free(4.0, lower=0)}),
        parameters={"k": 0.5, "s": cf.Parameter(0.5, bounds=(0.1, 10.0))},
    )
    profiles = cf.profile(cf.fit(problem), ["x(0)", "s"])
    assert profiles.verdicts == {"x(0)": ("bounded", "bounded"), "s": ("at a bound", "at a bound")}
    # x(0) = (s x(0)) / s: between the limits of the product at the bounds of s.
    product = cf.profile(cf.fit(problem), "s * x(0)")["s * x(0)"].limits()
    np.testing.assert_allclose(profiles["x(0)"].limits(), (product[0] / 10.0, product[1] / 0.1), rtol=1e-2)
    assert profiles["s"].objective.max() < 1e-3
    assert profiles.solves < 45


def test_profiles_saved_and_loaded_are_equal(banana_fit, tmp_path):
    profiles = cf.profile(banana_fit, confidence_levels=(0.68, 0.95))
    profiles.save(tmp_path / "profiles.json")
    loaded_profiles = cf.Profiles.load(tmp_path / "profiles.json")
    assert str(loaded_profiles) == str(profiles)
    assert loaded_profiles.limits() == profiles.limits()
    assert loaded_profiles.with_problem(banana_fit.problem).best.problem is banana_fit.problem
    np.testing.assert_array_equal(loaded_profiles["k"].values, profiles["k"].values)
    cf.profile(banana_fit, "k", checkpoint=tmp_path / "run.json", max_time=1e-9)
    with pytest.raises(InputError, match="does not contain"):
        cf.Profiles.load(tmp_path / "run.json")


def numbers(profiles):
    return {n: [p.values.tolist(), p.objective.tolist(), p.limits()] for n, p in profiles.items()}


def test_parallel_is_serial(banana_fit, two_workers):
    serial, parallel = cf.profile(banana_fit), cf.profile(banana_fit, workers=two_workers)
    assert numbers(serial) == numbers(parallel)


def test_profile_resumed_after_callback_gives_the_same_numbers(banana_fit, tmp_path):
    path = tmp_path / "run.json"
    stopped_profiles = cf.profile(banana_fit, checkpoint=path, callback=lambda progress: progress.finished == 2)
    assert not stopped_profiles.complete
    assert "callback" in stopped_profiles.message
    with pytest.raises(InputError, match="resume=True"):
        cf.profile(banana_fit, checkpoint=path)
    resumed_profiles = cf.profile(banana_fit, checkpoint=path, resume=True)
    full_profiles = cf.profile(banana_fit)
    assert numbers(resumed_profiles) == numbers(full_profiles)
    assert resumed_profiles.solves == full_profiles.solves
    with pytest.raises(InputError, match=r"confidence_levels = 0\.95"):
        cf.profile(banana_fit, checkpoint=path, resume=True, confidence_levels=0.9)


def test_profile_at_time_limit_returns_no_sides(banana_fit):
    profiles = cf.profile(banana_fit, max_time=1e-9)
    assert len(profiles) == 0
    assert not profiles.complete
    assert "time limit" in profiles.message
    assert "time limit" in str(profiles)


def test_a_table_a_picture_and_html(banana_fit, tmp_path):
    profiles = cf.profile(banana_fit, confidence_levels=(0.68, 0.95))
    table = profiles.table
    assert len({column.size for column in table.values()}) == 1
    assert set(table) == {"quantity", "value", "objective", "optimum", "A", "k"}
    profiles.plot(tmp_path / "profiles.png")
    assert (tmp_path / "profiles.png").stat().st_size > 10_000
    assert "<td>k</td>" in profiles._repr_html_()
    assert repr(profiles).startswith("Profiles(2 quantities")
    with pytest.raises(KeyError, match="did you mean 'k'"):
        profiles["kk"]


def test_misuse_is_refused(banana_fit):
    with refused("limits is 'f'", "confidence_levels is 1.5", "'kk'"):
        cf.profile(banana_fit, ["kk"], confidence_levels=1.5, limits="f")
    with refused("'k3'", "'k +'"):
        cf.profile(banana_fit, ["k / k3", "k +"])
    with refused("expected the Result of a fit"):
        cf.profile(banana())  # pyright: ignore[reportArgumentType]
    with refused("twice"):
        cf.profile(banana_fit, ["k", "k"])
    with refused("contains no estimated quantity"):
        cf.profile(banana_fit, "2 + 1")
    with pytest.raises(InputError, match=r"computed for 0\.95"):
        cf.profile(banana_fit, "k")["k"].limits(0.5)


CENTRES = {"u": 1.0, "v": 1.2, "w": 1.0}


def two_valleys(spread):
    """a + b and b^2 are measured: b = 1 and b = -1 are two optima, the latter less likely by what is known of b."""
    x, a, b = cf.symbols("x a b")
    model = cf.Model({x: 0 * x}, parameters=[a, b], outputs={"u": b**2, "v": a + b, "w": b}, initial={x: 1.0})
    sigma = {"u": spread, "v": 0.3, "w": 2.0}
    experiment = cf.Experiment({n: [value] for n, value in CENTRES.items()}, time=[1.0], sigma=sigma)
    parameters = {"a": cf.Parameter(0.2, bounds=(-3.0, 6.0)), "b": cf.Parameter(0.9, bounds=(-4.0, 4.0))}
    return cf.Problem(model, experiment, parameters=parameters)


def scan(spread, a):
    """Return chi2 minimised over b by trying all, for each a."""
    b = np.linspace(-4.0, 4.0, 16001)
    fixed = ((b**2 - CENTRES["u"]) / spread) ** 2 + ((b - CENTRES["w"]) / 2.0) ** 2
    return np.array([np.min(fixed + ((value + b - CENTRES["v"]) / 0.3) ** 2) for value in a])


def within(spread, top):
    """Return the intervals of a that the scan does not exclude."""
    a = np.linspace(-3.0, 6.0, 3601)
    inside = a[scan(spread, a) <= top]
    parts = np.split(inside, np.flatnonzero(np.diff(inside) > 0.01) + 1)
    return [(part[0], part[-1]) for part in parts]


@pytest.mark.slow
def test_another_optimum_takes_over_where_the_first_one_ends():
    profile = cf.profile(cf.fit(two_valleys(0.3)), "a", everywhere=True)["a"]
    expected = within(0.3, profile.threshold())
    assert len(expected) == 2
    np.testing.assert_allclose(profile.regions(), expected, atol=6e-3)
    np.testing.assert_allclose(profile.objective, scan(0.3, profile.values), atol=5e-3)
    assert set(profile.optimum) > {0}


def test_profile_follows_lower_branch_found_by_another_profile():
    """The profile of b passes both optima; that of a, followed from one, would not know of the other."""
    profiles = cf.profile(cf.fit(two_valleys(0.5)), ["a", "b"], confidence_levels=0.99)
    expected = within(0.5, profiles["a"].threshold())
    assert len(profiles["a"].regions()) == len(expected)
    np.testing.assert_allclose(profiles["a"].regions(), expected, atol=6e-3)
    np.testing.assert_allclose(profiles["a"].objective, scan(0.5, profiles["a"].values), atol=5e-3)
    assert min(o.values["b"] for o in profiles.optima) < -0.9


def test_the_command_line_profiles_a_problem_of_the_library(tmp_path, capsys):
    files = {kind: tmp_path / f"out.{kind}" for kind in ("json", "png", "save")}
    arguments = [
        "--names",
        "p1,p1/p2",
        "--levels",
        "0.68,0.95",
        "--json",
        str(files["json"]),
        "--plot",
        str(files["png"]),
    ]
    assert main(["profile", "lotka_volterra", *arguments, "--save", str(files["save"])]) == 0
    assert "p1/p2" in capsys.readouterr().out
    record = json.loads(files["json"].read_text())["profiles"]
    assert cf.Profiles.load(files["save"])["p1"].limits(0.68) == tuple(record["p1"]["limits"]["0.68"])
    assert files["png"].stat().st_size > 10_000
    assert main(["profile", "lotka_volterra", "--names", "p9"]) == 2
    assert main(["profile", "lotka_volterra", "--confidence-levels", "high"]) == 2


KILLED = """
import sys
import castfit as cf
from tests.drive.uncertainty.test_profile import banana

result = cf.fit(banana())
cf.profile(result, checkpoint=sys.argv[1], resume=True, callback=lambda now: print(now.finished, flush=True))
"""


@pytest.mark.slow
def test_profile_resumed_after_kill_gives_the_same_numbers(banana_fit, tmp_path):
    path = tmp_path / "run.json"
    with subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "1\n"
        run.send_signal(signal.SIGKILL)
    resumed_profiles, full_profiles = cf.profile(banana_fit, checkpoint=path, resume=True), cf.profile(banana_fit)
    assert numbers(resumed_profiles) == numbers(full_profiles)
    assert resumed_profiles.solves == full_profiles.solves


def test_bands_of_a_linear_model_are_the_linear_ones():
    for sigma in (None, 0.1):
        result = cf.fit(line(sigma))
        for noise in (False, True):
            times = np.array([0.0, 1.7, 4.0, 6.0])
            linear = result.predict(times, bands="linear", noise=noise)["experiment 1"]
            band = result.predict(times, bands="profile", noise=noise)["experiment 1"]
            for key in ("x lower", "x upper"):
                np.testing.assert_allclose(band[key], linear[key], rtol=1e-3)


@pytest.mark.slow
def test_bands_of_a_banana_agree_with_a_scan(banana_fit):
    """What all (A, k) that are not excluded predict; new values scatter about that."""
    times = np.array([0.0, 1.0, 6.0])
    band = banana_fit.predict(times, bands="profile")["experiment 1"]
    A, k = np.meshgrid(np.geomspace(1.5, 40, 1500), np.geomspace(0.01, 2.0, 1500))
    shape = 1.0 - np.exp(-np.multiply.outer(k, TIMES))
    chi2 = np.sum(((A[..., None] * shape - VALUES) / SIGMA) ** 2, axis=-1)
    rise = chi2 - chi2.min()
    inside = rise <= stats.chi2.ppf(0.95, 1)
    assert band["x lower"][0] == band["x upper"][0] == 0.0  # known
    for i in (1, 2):
        y = (A * (1 - np.exp(-k * times[i])))[inside]
        np.testing.assert_allclose((band["x lower"][i], band["x upper"][i]), (y.min(), y.max()), rtol=4e-3)
    new_value_band = banana_fit.predict(times, bands="profile", noise=True)["experiment 1"]
    y = A * (1 - np.exp(-k * times[2]))
    z = np.linspace(1.0, 12.0, 2201)
    near_mask = rise < 12.0
    profile_rise = np.array([np.min(rise[near_mask] + ((value - y[near_mask]) / SIGMA) ** 2) for value in z])
    expected = z[profile_rise <= stats.chi2.ppf(0.95, 1)]
    np.testing.assert_allclose(
        (new_value_band["x lower"][2], new_value_band["x upper"][2]), (expected[0], expected[-1]), rtol=1e-2
    )
    reach = stats.norm.ppf(0.975) * SIGMA
    np.testing.assert_allclose((new_value_band["x lower"][0], new_value_band["x upper"][0]), (-reach, reach), rtol=1e-6)


@pytest.mark.parametrize(
    "transcription", ["collocation", *(pytest.param(n, marks=pytest.mark.slow) for n in ("multiple", "single"))]
)
def test_a_prediction_is_profiled_like_a_quantity(banana_fit, transcription):
    profiles = cf.profile(banana_fit, [cf.OutputAt("x", 6.0), "A", cf.OutputAt("x", 1.0)], transcription)
    assert list(profiles) == ["x(t = 6)", "A", "x(t = 1)"]
    band = banana_fit.predict(np.array([1.0, 6.0]), bands="profile")["experiment 1"]
    for i, name in enumerate(("x(t = 1)", "x(t = 6)")):
        np.testing.assert_allclose(profiles[name].limits(), (band["x lower"][i], band["x upper"][i]), rtol=1e-3)
    np.testing.assert_allclose(profiles["A"].limits(), cf.profile(banana_fit, "A")["A"].limits(), rtol=1e-3)
    with refused(
        "'y' is no output", "'b' is no experiment", "before the start of the experiment at 0", "does not depend"
    ):
        cf.profile(
            banana_fit, [cf.OutputAt("y", 1), cf.OutputAt("x", 1, "b"), cf.OutputAt("x", -1), cf.OutputAt("x", 0.0)]
        )


def test_profile_limits_returns_intervals_of_all_quantities(banana_fit):
    limits = cf.profile_limits(banana_fit, 0.9)
    assert limits == cf.profile(banana_fit, confidence_levels=0.9).limits()
    coverage = cf.coverage(banana_fit, samples=1, intervals=cf.profile_limits)
    assert coverage.fitted == 1
    assert coverage.table["k lower"][0] > 0.0


@pytest.mark.parametrize("sigma", [None, 0.1])
def test_contours_of_a_linear_model_are_ellipses(sigma):
    result = cf.fit(line(sigma))
    contours = cf.contours(result, "a", "x(0)", confidence_levels=0.9, slices=6)
    points = contours.lines[0.9] - np.array(contours.estimate)
    order = [result.names.index(n) for n in contours.names]
    C = result.covariance[np.ix_(order, order)]
    distance = np.einsum("ni,ij,nj->n", points, np.linalg.inv(C), points)
    expected = stats.chi2.ppf(0.9, 2) if sigma is not None else 2 * stats.f.ppf(0.9, 2, result.dof)
    np.testing.assert_allclose(distance, expected, rtol=2e-3)
    assert contours.closed[0.9]
    assert contours.complete
    np.testing.assert_array_equal(points[0], points[-1])
    if sigma is not None:
        oval = contours.ellipses[0.9] - np.array(contours.estimate)
        np.testing.assert_allclose(np.einsum("ni,ij,nj->n", oval, np.linalg.inv(C), oval), expected, rtol=1e-3)


def test_contours_of_a_banana_agree_with_chi2(banana_fit, tmp_path):
    contours = cf.contours(banana_fit, "A", "k", confidence_levels=(0.68, 0.95), slices=4)
    for level, points in contours.lines.items():
        shape = 1.0 - np.exp(-np.outer(points[:, 1], TIMES))
        chi2 = np.sum(((points[:, :1] * shape - VALUES) / SIGMA) ** 2, axis=1)
        np.testing.assert_allclose(chi2 - banana_fit.chi2, stats.chi2.ppf(level, 2), rtol=1e-2)
    contours.plot(tmp_path / "contours.png")
    assert (tmp_path / "contours.png").stat().st_size > 10_000
    assert "A, k" in repr(contours)
    assert not cf.contours(banana_fit, "A", "k", max_time=1e-9).complete
    with refused("confidence_levels is 2", "slices is 1"):
        cf.contours(banana_fit, "A", "k", slices=1, confidence_levels=2)
    with refused("'B'"):
        cf.contours(banana_fit, "A", "B")


@pytest.mark.slow
def test_contours_in_parallel_and_resumed_are_those_of_one_process(banana_fit, tmp_path):
    path = tmp_path / "run.json"
    options = {"confidence_levels": (0.68, 0.95), "slices": 4}
    full_contours = cf.contours(banana_fit, "A", "k", **options, checkpoint=path)
    parallel = cf.contours(banana_fit, "A", "k", **options, workers=2)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-2]))  # as if it had been killed after two of four halves
    resumed = cf.contours(banana_fit, "A", "k", **options, checkpoint=path, resume=True)
    for other in (parallel, resumed):
        assert other.complete
        assert other.solves == full_contours.solves
        for level, points in full_contours.lines.items():
            np.testing.assert_array_equal(other.lines[level], points)
            np.testing.assert_array_equal(other.ellipses[level], full_contours.ellipses[level])
    with pytest.raises(InputError, match="slices"):
        cf.contours(banana_fit, "A", "k", confidence_levels=0.95, slices=5, checkpoint=path, resume=True)
    coarse = cf.contours(banana_fit, "A", "k", cf.Collocation(degree=1, elements=3), confidence_levels=0.95, slices=4)
    assert "another objective" in coarse.message
    assert not coarse.closed[0.95]
    with refused("resume=True continues a checkpoint", "workers is 0"):
        cf.contours(banana_fit, "A", "k", workers=0, resume=True)


@pytest.mark.slow
def test_bands_in_parallel_are_those_of_one_process(banana_fit):
    times = np.array([1.0, 6.0])
    serial_band, parallel_band = (banana_fit.predict(times, bands="profile", workers=n)["experiment 1"] for n in (1, 2))
    for key, column in serial_band.items():
        np.testing.assert_array_equal(parallel_band[key], column)
    with refused("workers is 2; it has an effect only with bands='profile'"):
        banana_fit.predict(times, bands="linear", workers=2)
    with refused("workers is 0; pass a number of processes"):
        banana_fit.predict(times, bands="profile", workers=0)


def growth(scale: str) -> cf.Result:
    """Growth, capacity and loss enter only as r - loss and r / cap."""
    x, r, cap, loss = cf.symbols("x r cap loss")
    model = cf.Model({x: r * x * (1 - x / cap) - loss * x}, parameters=[r, cap, loss])
    times = np.linspace(0.25, 4.0, 12)
    exact = cf.simulate(model, times=times, parameters={"r": 2.0, "cap": 1.0, "loss": 0.3}, initial={"x": 0.1})["x"]
    data = exact + 0.01 * np.random.default_rng(0).standard_normal(times.size)
    experiment = cf.Experiment({"x": data}, time=times, sigma=0.01, initial={"x": 0.1})
    lower = 0.0 if scale == "linear" else 1e-6
    start = {name: cf.Parameter(value, lower, scale=scale) for name, value in (("r", 2.5), ("cap", 1.2), ("loss", 0.4))}
    return cf.fit(cf.Problem(model, experiment, parameters=start))


def test_profile_of_flat_valley_has_no_other_optimum():
    """What nobody followed is not excluded: else it is followed again from where others came."""
    messages: list[str] = []
    profiles = cf.profile(growth("linear"), callback=lambda progress: messages.append(progress.last_label))
    assert [sides[1] for sides in profiles.verdicts.values()] == ["flat"] * 3
    assert not profiles.optima
    assert not [message for message in messages if "beside" in message]


@pytest.mark.parametrize("transcription", ["single", "multiple", "collocation"])
def test_profile_uses_transcription_of_the_result(transcription, tmp_path):
    result = cf.fit(cf.problems.load("bellman").problem, transcription)
    profiles = cf.profile(result, ["k1"])
    assert profiles.transcription == result.transcription
    result.save(tmp_path / "fit.json")
    loaded = cf.Result.load(tmp_path / "fit.json").with_problem(result.problem)
    loaded_profiles = cf.profile(loaded, ["k1"])
    np.testing.assert_allclose(loaded_profiles["k1"].limits(0.95), profiles["k1"].limits(0.95), rtol=1e-5)
    assert cf.profile(result, ["k1"], "collocation").transcription.startswith("collocation")


@pytest.mark.slow
def test_contour_of_product_extends_far_along_the_valley():
    """Far along the valley a step fell off it, and no slice held its start."""
    contours = cf.contours(growth("log"), "r", "loss", confidence_levels=0.68, slices=8)
    line = contours.lines[0.68]
    assert np.isfinite(line).all()
    r, loss = line.T
    assert np.ptp(r - loss) < 0.5 * (r - loss).mean()  # which is what growth shows
    assert r.max() > 100.0


def test_limits_beside_an_event_that_states_trigger():
    """A tank that empties is refilled by 2 at a threshold: limits are where chi2 of the closed form has risen."""

    def level(k, top):
        first_time, period = np.log(4.0 / top) / k, np.log(1.0 + 2.0 / top) / k
        later = (top + 2.0) * np.exp(-k * np.mod(times - first_time, period))
        return np.where(times < first_time, 4.0 * np.exp(-k * times), later)

    def rise(k):
        best = optimize.minimize_scalar(lambda top: np.sum((level(k, top) - data) ** 2) / 0.01**2,
                                        bounds=(1.07, 1.13), method="bounded", options={"xatol": 1e-9})  # fmt: skip
        return best.fun - result.chi2

    x, k, top = cf.symbols("x k top")
    times = np.array([0.5, 1.1, 1.9, 2.9, 3.5, 4.1, 5.2, 5.8, 6.6])
    data = level(0.5, 1.1) + 0.01 * np.random.default_rng(2).standard_normal(times.size)
    refill = cf.Event(when=x < top, changes={x: x + 2})
    experiment = cf.Experiment({"x": data}, time=times, sigma=0.01, initial={"x": 4.0}, events=refill)
    result = cf.fit(
        cf.Problem(cf.Model({x: -k * x}, parameters=[k, top]), experiment, parameters={"k": 0.49, "top": 1.1})
    )
    limits = cf.profile(result, ["k"])["k"].limits(0.95)
    assert [rise(limit) for limit in limits] == pytest.approx([stats.chi2.ppf(0.95, 1)] * 2, rel=0.01)
