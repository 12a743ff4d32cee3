"""Outputs of unknown scale and offset: eliminated where that is exact, and then the same as explicit parameters."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import castfit as cf
from castfit.problem.fingerprint import fingerprint
from castfit.problem.linear_scales import eliminable_blocks
from castfit.transcribe.trajectory import known_states
from tests.builders import refused

TIMES = np.array([0.3, 0.8, 1.5, 2.4, 3.5, 5.0, 7.0, 9.0])
TRANSCRIPTIONS = [cf.SingleShooting(), cf.MultipleShooting(4), cf.Collocation()]
SOLVERS = [cf.GaussNewton(tolerance=1e-16), cf.Ipopt(tolerance=1e-11)]
TIGHT = cf.IntegratorOptions(relative_tolerance=1e-10, absolute_tolerance=1e-12)
SCALE, OFFSET = 37.0, 11.0
GUESSES = {"k1": 0.5, "k2": 0.3}


def label(x):
    return getattr(x, "label", None)


def levels(k1, k2, t=TIMES):
    """A protein that is made from a precursor, which decays: x' = -k1 x, y' = k1 x - k2 y from (1, 0)."""
    return np.exp(-k1 * t), k1 / (k2 - k1) * (np.exp(-k1 * t) - np.exp(-k2 * t))


def model_of(outputs, parameters=()):
    """Make the model; outputs are functions of the symbols of its states."""
    x, y, k1, k2 = cf.symbols("x y k1 k2")
    expressions = {n: build(x, y) for n, build in outputs.items()}
    return cf.Model({x: -k1 * x, y: k1 * x - k2 * y}, parameters=[k1, k2, *parameters], outputs=expressions)


def data_of(offset, *, log=False, seed=0, size=0.03, k=(0.7, 0.25)):
    """Measure the protein in units of its own, and the precursor."""
    rng = np.random.default_rng(seed)
    x, y = levels(*k)
    e, f = size * rng.standard_normal((2, TIMES.size))
    return {"p": SCALE * (y * np.exp(e) if log else y + e) + (OFFSET if offset else 0.0), "q": x + f}


def pose(outputs, data, parameters=(), *, guesses=None, **noise):
    """Pose the problem of one experiment."""
    experiment = cf.Experiment(data, time=TIMES, initial={"x": 1.0, "y": 0.0}, **noise)
    return cf.Problem(model_of(outputs, parameters), experiment, parameters={**GUESSES, **(guesses or {})})


def noise_of(kind, *, log):
    size = 0.03
    sigma = {
        "known": {"p": size if log else SCALE * size, "q": size},
        "each unknown": {"p": cf.unknown(), "q": cf.unknown()},
        "alike": {"p": cf.correlated(size if log else SCALE * size, time=2.0), "q": size},
    }[kind]
    return {"sigma": sigma, "noise": {"p": cf.LogNormal()} if log else None}


def implicit(kind="known", *, log=False, offset=True, **options):
    """Pose the problem with an output of unknown scale."""
    outputs = {"p": lambda x, y: cf.scaled(y, offset=offset, **options), "q": lambda x, y: x}
    return pose(outputs, data_of(offset, log=log), **noise_of(kind, log=log))


def explicit(kind="known", *, log=False, offset=True, s=1.0, o=0.0):
    """Pose the same problem with parameters."""
    a, b = cf.symbols("a b")
    outputs = {"p": lambda x, y: a * y + b if offset else a * y, "q": lambda x, y: x}
    guesses = {"a": s, "b": o} if offset else {"a": s}
    extra_parameters = [a, b] if offset else [a]
    return pose(outputs, data_of(offset, log=log), extra_parameters, guesses=guesses, **noise_of(kind, log=log))


def figures(result):
    """Return estimates and standard errors as arrays."""
    return np.array(list(result.parameters.values())), np.array(list(result.standard_errors.values()))


def agree(result, other, estimates=1e-6, errors=1e-4):
    """Compare two results whose quantities have different names but one order."""
    assert result.success, result.message
    assert other.success, other.message
    (a, da), (b, db) = figures(result), figures(other)
    np.testing.assert_allclose(a, b, rtol=estimates)
    np.testing.assert_allclose(da, db, rtol=errors)
    assert result.cost == pytest.approx(other.cost, rel=max(0.01 * estimates, 1e-8), abs=max(0.01 * estimates, 1e-8))


def eliminated(problem):
    return sorted(problem.names[j] for block in eliminable_blocks(problem.posed) for j in block.entries)


KINDS = {  # sigma, whether on the logarithm, whether with an offset; whether sigmas are ratios only
    "known": ("known", False, True, None),
    "each sigma unknown": ("each unknown", False, False, None),
    "logarithms": ("each unknown", True, False, None),
    "one sigma unknown": ("known", False, True, False),
}
ALIKE = {"alike in time": ("alike", False, True, None), "logarithms alike in time": ("alike", True, False, None)}


@pytest.mark.parametrize("case", KINDS)
@pytest.mark.parametrize("solver", SOLVERS, ids=label)
@pytest.mark.parametrize("transcription", TRANSCRIPTIONS, ids=label)
def test_the_same_as_explicit_parameters_begun_at_their_optimum(transcription, solver, case):
    """Nodes begin on the simulation: explicit parameters that are known would make the protein a measured state."""
    kind, log, offset, absolute = KINDS[case]
    if not isinstance(transcription, cf.SingleShooting):
        transcription = replace(transcription, states="simulation")
    chosen = (replace(transcription, integrator=TIGHT), solver)
    result = cf.fit(implicit(kind, log=log, offset=offset), *chosen, second_start=False, absolute_sigma=absolute)
    best = {"s": result.parameters["scale(p)"], "o": result.parameters.get("offset(p)", 0.0)}
    other = cf.fit(explicit(kind, log=log, offset=offset, **best), *chosen, second_start=False, absolute_sigma=absolute)
    agree(result, other)
    assert result.iterations <= other.iterations + 1  # extrapolated steps differ a little


@pytest.mark.parametrize("solver", [cf.GaussNewton(), cf.Ipopt()], ids=label)
@pytest.mark.parametrize("transcription", TRANSCRIPTIONS, ids=label)
def test_it_makes_no_difference_where_a_search_begins(transcription, solver):
    results = [
        cf.fit(implicit(), transcription, solver, start={"scale(p)": s, "offset(p)": o})
        for s, o in ((1e-6, -1e6), (1.0, 0.0), (1e6, 1e3))
    ]
    for other in results[1:]:
        agree(other, results[0], 1e-9, 1e-9)
        assert other.iterations == results[0].iterations


@pytest.mark.parametrize("case", ALIKE)
@pytest.mark.parametrize("transcription", TRANSCRIPTIONS, ids=label)
def test_scaled_output_with_correlated_errors_agrees_with_explicit_parameters(transcription, case):
    kind, log, offset, _ = ALIKE[case]
    problem = implicit(kind, log=log, offset=offset)
    assert eliminated(problem) == (["offset(p)"] if offset else []) + ["scale(p)"]
    agree(cf.fit(problem, transcription), cf.fit(explicit(kind, log=log, offset=offset, s=30.0), transcription), 1e-5)


@pytest.mark.parametrize("transcription", TRANSCRIPTIONS, ids=label)
@pytest.mark.parametrize("case", [*KINDS, *ALIKE])
def test_rows_have_the_gradient_of_the_cost_and_none_by_what_is_eliminated(transcription, case):
    kind, log, offset, absolute = (KINDS | ALIKE)[case]
    problem = implicit(kind, log=log, offset=offset).posed.with_absolute_sigma(absolute_sigma=absolute)
    staged = replace(transcription, integrator=TIGHT).transcribe(problem, problem.guess)
    assert sorted(staged.layout.names[j] for j in staged.eliminated) == eliminated(problem)
    rng = np.random.default_rng(1)
    v = staged.start + 0.02 * staged.scale * rng.standard_normal(staged.layout.n_v)
    linear, h = staged.linearize(v), 1e-5
    gradient = np.zeros(staged.layout.n_v)
    for chain, values, j in zip(staged.layout.chains, linear.values, linear.jacobians, strict=True):
        r = values.r if chain.whitening is None else (chain.whitening.T @ values.r.ravel()).reshape(values.r.shape)
        np.add.at(gradient, chain.theta, np.einsum("krq,kr->q", j.R_q, r))
        gradient[chain.nodes] += np.einsum("krs,kr->ks", j.R_s, r)
        gradient[chain.inner] += np.einsum("krw,kr->kw", j.R_w, r)
    scaled = gradient * staged.scale
    assert np.abs(scaled[staged.eliminated]).max() < 1e-9 * np.abs(scaled).max()
    for _ in range(3):
        direction = staged.scale * rng.standard_normal(staged.layout.n_v)
        ahead, behind = (staged.evaluate(v + sign * h * direction).cost for sign in (1, -1))
        assert gradient @ direction == pytest.approx((ahead - behind) / (2 * h), rel=1e-3, abs=1e-3)


@pytest.mark.slow
@given(st.floats(-6, 6), st.floats(-6, 6), st.integers(0, 1000))
@settings(max_examples=6, deadline=None)
def test_scaled_output_is_invariant_to_units(decades, shift, seed):
    """Other units of the data, another zero: the scale follows, everything else stays."""
    unit, data = 10.0**decades, data_of(True, seed=seed)
    outputs = {"p": lambda x, y: cf.scaled(y, offset=True), "q": lambda x, y: x}
    sigma = {"p": SCALE * 0.03, "q": 0.03}
    reference = cf.fit(pose(outputs, data, sigma=sigma))
    scaled_data = {**data, "p": unit * (data["p"] + shift)}
    other = cf.fit(pose(outputs, scaled_data, sigma={**sigma, "p": unit * sigma["p"]}))
    expected = dict(reference.parameters)
    expected["scale(p)"] *= unit
    expected["offset(p)"] = unit * (expected["offset(p)"] + shift)
    errors = {n: e * (unit if "(p)" in n else 1.0) for n, e in reference.standard_errors.items()}
    for name, error in errors.items():
        assert other.parameters[name] == pytest.approx(expected[name], abs=1e-3 * error)
        assert other.standard_errors[name] == pytest.approx(error, rel=1e-3)


def two(
    outputs,
    first_data,
    second_data,
    *,
    parameters=None,
    experiment_parameters=(None, None),
    measure=("p", "p"),
    **noise,
):
    """Pose two experiments from different precursor levels."""
    experiments = [
        cf.Experiment(
            {n: d[n] for n in (m, "q") if n in d}, time=TIMES, initial={"x": x0, "y": 0.0}, parameters=values, **noise
        )
        for d, x0, values, m in zip((first_data, second_data), (1.0, 2.0), experiment_parameters, measure, strict=True)
    ]
    return cf.Problem(model_of(outputs), experiments, parameters={**GUESSES, **(parameters or {})})


def of_two(s1, s2, seed=5):
    x, y = levels(0.7, 0.25)
    e = 0.01 * np.random.default_rng(seed).standard_normal((4, TIMES.size))
    return {"p": s1 * (y + e[0]), "q": x + e[1]}, {"p": s2 * (2 * y + e[2]), "q": 2 * x + e[3]}


WEIGHTS = {"sigma": {"p": 0.3, "q": 0.01}}


def test_a_scale_is_common_to_all_experiments_or_their_own():
    outputs = {"p": lambda x, y: cf.scaled(y), "q": lambda x, y: x}
    shared_scale = two(outputs, *of_two(30.0, 30.0), **WEIGHTS)
    assert eliminated(shared_scale) == ["scale(p)"]
    assert cf.fit(shared_scale).parameters["scale(p)"] == pytest.approx(30.0, rel=0.02)
    separate_scales = two(
        {**outputs, "p": lambda x, y: cf.scaled(y, per_experiment=True)}, *of_two(30.0, -4.0), **WEIGHTS
    )
    assert eliminated(separate_scales) == ["scale(p)[experiment 1]", "scale(p)[experiment 2]"]
    result = cf.fit(separate_scales)
    assert result.parameters["scale(p)[experiment 1]"] == pytest.approx(30.0, rel=0.02)
    assert result.parameters["scale(p)[experiment 2]"] == pytest.approx(-4.0, rel=0.1)


def test_outputs_of_one_name_share_their_scale_and_offset():
    data = data_of(True)
    outputs = {
        "p": lambda x, y: cf.scaled(y, offset=True, name="gel"),
        "q": lambda x, y: cf.scaled(x, offset=True, name="gel"),
    }
    data["q"] = SCALE * data["q"] + OFFSET
    problem = pose(outputs, data, sigma=SCALE * 0.03)
    assert problem.names == ("k1", "k2", "scale(gel)", "offset(gel)")
    assert eliminated(problem) == ["offset(gel)", "scale(gel)"]
    a, b = cf.symbols("a b")
    same = {"p": lambda x, y: a * y + b, "q": lambda x, y: a * x + b}
    agree(cf.fit(problem), cf.fit(pose(same, data, [a, b], guesses={"a": 30.0, "b": 10.0}, sigma=SCALE * 0.03)), 1e-5)


def test_an_experiment_may_know_its_own_scale():
    outputs = {"p": lambda x, y: cf.scaled(y), "q": lambda x, y: x}
    first_data, second_data = of_two(30.0, 7.0)
    one_known = two(outputs, first_data, second_data, experiment_parameters=(None, {"scale(p)": 7.0}), **WEIGHTS)
    assert eliminated(one_known) == ["scale(p)"]
    both_known = two(
        outputs, first_data, second_data, experiment_parameters=({"scale(p)": 30.0}, {"scale(p)": 7.0}), **WEIGHTS
    )
    assert both_known.names == ("k1", "k2")
    assert cf.fit(one_known).parameters["scale(p)"] == pytest.approx(30.0, rel=0.02)


PRIOR = cf.Normal(30.0, 10.0)


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({"lower": 0.0}, ["offset(p)"]),
        ({"bounds": (1.0, 1e3)}, ["offset(p)"]),
        ({"prior": PRIOR, "guess": 20.0}, ["offset(p)"]),
    ],
    ids=["lower bound", "bounds", "prior"],
)
def test_a_scale_of_which_something_is_known_is_a_parameter(settings, left):
    problem = implicit(**settings)
    assert eliminated(problem) == left
    result = cf.fit(problem, "single")
    a, b = cf.symbols("a b")
    options = {"value": 20.0, **{n: v for n, v in settings.items() if n != "guess"}}
    explicit_outputs = {"p": lambda x, y: a * y + b, "q": lambda x, y: x}
    guesses = {"a": cf.Parameter(**options), "b": 5.0}
    explicit_problem = pose(explicit_outputs, data_of(True), [a, b], guesses=guesses, **noise_of("known", log=False))
    agree(result, cf.fit(explicit_problem, "single"), 1e-5)  # two methods differ by their integration


@pytest.mark.parametrize("noise", [cf.StudentT(sigma=1.0), cf.Huber(sigma=1.0)], ids=["t", "huber"])
def test_other_densities_estimate_it_begun_where_least_squares_put_it(noise):
    outputs = {"p": lambda x, y: cf.scaled(y, offset=True), "q": lambda x, y: x}
    data = data_of(True)
    problem = pose(outputs, data, sigma={"q": 0.03}, noise={"p": noise})
    assert eliminated(problem) == []
    a, b = cf.symbols("a b")
    explicit_outputs = {"p": lambda x, y: a * y + b, "q": lambda x, y: x}
    other = pose(explicit_outputs, data, [a, b], guesses={"a": 37.0, "b": 11.0}, sigma={"q": 0.03}, noise={"p": noise})
    agree(cf.fit(problem), cf.fit(other), 1e-4, 1e-3)


def test_errors_that_depend_on_those_of_other_outputs_leave_it_a_parameter():
    size = {"p": SCALE * 0.03, "q": 0.03}
    C = np.array([[1.0, 0.6], [0.6, 1.0]]) * np.outer(list(size.values()), list(size.values()))
    problem = pose({"p": lambda x, y: cf.scaled(y), "q": lambda x, y: x}, data_of(False), sigma=C)
    assert eliminated(problem) == []
    a = cf.symbols("a")
    explicit_problem = pose(
        {"p": lambda x, y: a * y, "q": lambda x, y: x}, data_of(False), [a], guesses={"a": 30.0}, sigma=C
    )
    agree(cf.fit(problem), cf.fit(explicit_problem), 1e-5)


def test_several_unknown_sigmas_that_share_a_scale_leave_it_a_parameter():
    data = data_of(False)
    data["q"] = SCALE * data["q"]
    outputs = {"p": lambda x, y: cf.scaled(y, name="gel"), "q": lambda x, y: cf.scaled(x, name="gel")}
    sigma = {"p": cf.unknown(), "q": cf.unknown()}
    assert eliminated(pose(outputs, data, sigma=sigma)) == []
    assert eliminated(pose(outputs, data, sigma=cf.unknown("gel"))) == ["scale(gel)"]
    a = cf.symbols("a")
    explicit_outputs = {"p": lambda x, y: a * y, "q": lambda x, y: a * x}
    result = cf.fit(pose(outputs, data, sigma=sigma))
    agree(result, cf.fit(pose(explicit_outputs, data, [a], guesses={"a": 30.0}, sigma=sigma)), 1e-5)


def test_scale_used_elsewhere_becomes_parameter():
    """A spread that depends on the output, an offset of logarithms, a fixed scale, a bound from a driver."""
    p = cf.symbols("p")
    outputs = {"p": lambda x, y: cf.scaled(y, offset=True), "q": lambda x, y: x}
    assert eliminated(pose(outputs, data_of(True), sigma={"p": 0.5 + 0.01 * p, "q": 0.03})) == []
    assert eliminated(pose(outputs, data_of(True), sigma=0.1, noise={"p": cf.LogNormal()})) == []
    problem = implicit().posed
    assert eliminated(problem) == ["offset(p)", "scale(p)"]
    assert eliminated(problem.fix({"scale(p)": 37.0})) == ["offset(p)"]
    lower, upper = (end.copy() for end in problem.bounds)
    lower[2:], upper[2:] = 0.0, 100.0
    assert eliminated(problem.with_bounds(lower, upper)) == []
    a, b = cf.fit(problem), cf.fit(problem.with_bounds(lower, upper))
    agree(a, b, 1e-5)


def without_drug(effect, *, offset):
    """Measure an effect of a drug that is not given, and the decay of something else."""
    y, k, u = cf.symbols("y k u")
    model = cf.Model({y: -k * y}, parameters=[k], inputs=[u], outputs={"p": cf.scaled(effect(u, y), offset=offset)})
    data = {"p": np.full(TIMES.size, 0.1), "y": np.exp(-0.25 * TIMES)}
    experiment = cf.Experiment(data, time=TIMES, sigma=0.1, initial={"y": 1.0}, inputs={"u": 0.0})
    return cf.Problem(model, experiment, parameters={"k": 0.5})


@pytest.mark.parametrize("solver", [cf.GaussNewton(), cf.Ipopt()], ids=label)
@pytest.mark.parametrize("transcription", TRANSCRIPTIONS, ids=label)
def test_scale_of_zero_output_is_undetermined(transcription, solver):
    result = cf.fit(without_drug(lambda u, y: u * y, offset=False), transcription, solver)
    assert result.success, result.message
    assert result.identifiability["scale(p)"].kind == "not identifiable"
    assert result.parameters["k"] == pytest.approx(0.25, rel=1e-4)


@pytest.mark.parametrize("transcription", TRANSCRIPTIONS, ids=label)
def test_scale_and_offset_of_constant_output_are_not_identifiable(transcription):
    result = cf.fit(without_drug(lambda u, y: u * y + 2, offset=True), transcription)
    assert result.success, result.message
    assert result.identifiability.combinations[0].names == ("scale(p)", "offset(p)")
    assert 2 * result.parameters["scale(p)"] + result.parameters["offset(p)"] == pytest.approx(0.1)
    assert result.parameters["k"] == pytest.approx(0.25, rel=1e-4)


def test_rounding_errors_of_a_state_at_zero_are_not_scaled_up():
    data = {"p": np.full(TIMES.size, 0.1), "q": np.exp(-0.25 * TIMES)}
    experiment = cf.Experiment(data, time=TIMES, sigma=0.1, initial={"x": 0.0, "y": 1.0})
    parameters = {"k1": cf.Parameter(0.5, fixed=True), "k2": 0.5}
    model = model_of({"p": lambda x, y: cf.scaled(x), "q": lambda x, y: y})
    result = cf.fit(cf.Problem(model, experiment, parameters=parameters), cf.Collocation())
    assert result.success, result.message
    assert result.parameters["scale(p)"] == 1.0
    assert result.identifiability["scale(p)"].kind == "not identifiable"


def test_a_state_of_unknown_scale_is_not_measured_unless_its_scale_has_a_guess():
    for problem, expected in (
        (implicit(), {"x"}),
        (implicit(guess=30.0), {"x", "y"}),
        (implicit().replace(parameters={**GUESSES, "scale(p)": 30.0, "offset(p)": 5.0}), {"x", "y"}),
    ):
        (known_values,) = known_states(problem.posed, problem.guess, "data")
        assert set(known_values) == expected
        assert eliminated(problem) == ["offset(p)", "scale(p)"]


def test_an_unknown_scale_hides_the_unit_of_a_free_initial_state():
    """Neither the state's unit nor the scale can be known where nothing else has that unit."""
    outputs = {"p": lambda x, y: cf.scaled(y)}
    experiment = cf.Experiment({"p": data_of(False)["p"]}, time=TIMES, sigma=1.0, initial={"x": cf.free(2.0), "y": 0.0})
    result = cf.fit(cf.Problem(model_of(outputs), experiment, parameters=GUESSES))
    assert result.success
    (combination,) = result.identifiability.combinations
    assert set(combination.names) == {"scale(p)", "x(0)"}


def test_a_scale_is_not_known_where_nothing_of_it_is_measured():
    outputs = {"p": lambda x, y: cf.scaled(y, per_experiment=True), "q": lambda x, y: x, "r": lambda x, y: cf.scaled(x)}
    problem = two(outputs, *of_two(30.0, 30.0), measure=("p", "q"), sigma=0.3)
    assert problem.names == ("k1", "k2", "scale(p)[experiment 1]")
    for transcription in TRANSCRIPTIONS:
        result = cf.fit(problem, transcription)
        assert result.success
        prediction = result.predict(times=[1.0, 2.0])
        assert np.isfinite(prediction["experiment 1"]["p"]).all()
        assert np.isnan(prediction["experiment 2"]["p"]).all()
        assert np.isnan(prediction["experiment 1"]["r"]).all()


def test_problem_with_scaled_outputs_is_pickled_and_fingerprinted():
    problem = implicit("each unknown", per_experiment=True)
    copy = pickle.loads(pickle.dumps(problem))
    posed_copy = pickle.loads(pickle.dumps(problem.posed))
    for other in (copy, posed_copy):
        assert eliminated(other) == eliminated(problem) == ["offset(p)", "scale(p)"]
        agree(cf.fit(other), cf.fit(problem), 1e-9, 1e-9)
    assert fingerprint(copy) == fingerprint(problem)
    named_problem = implicit("each unknown", name="gel")
    assert fingerprint(named_problem) != fingerprint(problem)


def test_invalid_scaled_output_is_refused():
    x, k = cf.symbols("x k")
    with refused("offset='yes'; give True or False", "is named 3; give text", "has the guess 0"):
        cf.Model({x: -k * x}, parameters=[k], outputs={
            "a": cf.scaled(x, offset="yes"), "b": cf.scaled(x, name=3), "c": cf.scaled(x, guess=0.0)})  # fmt: skip
    with refused("'scale(gel)' is given in 2 different ways"):
        cf.Model({x: -k * x}, parameters=[k], outputs={
            "a": cf.scaled(x, name="gel"), "b": cf.scaled(x, name="gel", guess=2.0)})  # fmt: skip
    with refused("'scale(p)' is described by scaled(...) and in parameters"):
        implicit(guess=2.0).replace(parameters={**GUESSES, "scale(p)": 30.0})
    with refused("'scale(p)' differs between experiments"):
        implicit(per_experiment=True).replace(parameters={**GUESSES, "scale(p)": 30.0})
    with refused("scale(p)"):
        implicit(guess=-2.0, lower=0.0)
    with refused("output 'p' is"):
        model_of({"p": lambda x, y: cf.scaled(cf.scaled(x))})


def bounded(**options):
    """Pose the problem with finite bounds of all that is searched."""
    rates = {n: cf.Parameter(v, lower=0.01, upper=10.0, scale="log") for n, v in GUESSES.items()}
    return implicit("each unknown", **options).replace(parameters=rates)


def test_drivers_skip_eliminated_scales():
    result = cf.fit(bounded())
    many = cf.multistart(bounded(), starts=3, rng=0, solver="gauss-newton", transcription="single")
    agree(many.best, result, 1e-4, 1e-3)
    assert {start.start["scale(p)"] for start in many.starts} == {1.0}


@pytest.mark.slow
def test_other_drivers_skip_eliminated_scales():
    result = cf.fit(bounded())
    search = cf.scatter_search(bounded(), rng=0, max_eval=300, dim_refset=4)
    agree(search.best, result, 1e-4, 1e-3)
    grown = cf.incremental(bounded())
    agree(grown.best, result, 1e-4, 1e-3)


@pytest.mark.slow
def test_a_scale_that_is_a_parameter_of_a_likelihood_need_not_be_drawn_either():
    rates = {n: cf.Parameter(v, lower=0.01, upper=10.0, scale="log") for n, v in GUESSES.items()}
    outputs = {"p": lambda x, y: cf.scaled(y), "q": lambda x, y: x}
    problem = pose(outputs, data_of(False), guesses=rates, sigma={"q": 0.03}, noise={"p": cf.StudentT(sigma=1.0)})
    assert eliminated(problem) == []
    many = cf.multistart(problem, starts=2, rng=0, transcription="single")
    assert many.best.parameters["scale(p)"] == pytest.approx(SCALE, rel=0.1)


def test_starts_by_decomposition_take_other_states_for_measured():
    x, y, z, k1, k2, k3 = cf.symbols("x y z k1 k2 k3")
    model = cf.Model(
        {x: -k1 * x, y: -k2 * y, z: k3 * y - z}, parameters=[k1, k2, k3], outputs={"p": cf.scaled(z, offset=True)}
    )
    e = np.exp(-0.5 * TIMES)
    data = {"x": np.exp(-0.3 * TIMES), "y": e, "p": 40.0 * 0.8 * (e - np.exp(-TIMES)) / 0.5 + 3.0}
    experiment = cf.Experiment(data, time=TIMES, sigma=0.01, initial={"x": 1.0, "y": 1.0, "z": 0.0})
    problem = cf.Problem(model, experiment, parameters={"k1": 1.0, "k2": 1.0, "k3": cf.Parameter(0.8, fixed=True)})
    for start in ("decomposed", "matching"):
        result = cf.fit(problem, start=start)
        assert result.success, result.message
        assert result.parameters["scale(p)"] == pytest.approx(40.0, rel=1e-3)
        assert result.parameters["k1"] == pytest.approx(0.3, rel=1e-3)


def test_horizons_without_the_output_leave_its_scale_where_it_was():
    problem = implicit().posed.starting_at({"scale(p)": 7.0})
    short = problem.with_horizon(0.5)
    staged = cf.SingleShooting().transcribe(short.with_experiments(["experiment 1"]), short.guess)
    assert staged.eliminated.size == 2
    hidden = cf.Experiment(
        {"q": data_of(True)["q"], "p": (TIMES[5:], data_of(True)["p"][5:])},
        time=TIMES, sigma=0.1, initial={"x": 1.0, "y": 0.0},
    )  # fmt: skip
    outputs = {"p": lambda x, y: cf.scaled(y, offset=True), "q": lambda x, y: x}
    late = (
        cf.Problem(model_of(outputs), hidden, parameters=GUESSES).posed.starting_at({"scale(p)": 7.0}).with_horizon(3.0)
    )
    assert cf.fit(late.fix(["k2"])).parameters["scale(p)"] == 7.0


def test_a_steady_start_does_not_depend_on_scales():
    x, k, s = cf.symbols("x k s")
    model = cf.Model({x: s - k * x}, parameters=[k, s], outputs={"p": cf.scaled(x, offset=True)})
    course = 2.0 + (1.0 / 0.5 - 2.0) * np.exp(-0.5 * TIMES) + 2.0 * (1 - np.exp(-0.5 * TIMES))
    experiment = cf.Experiment(
        {"p": 5.0 * course, "x": course}, time=TIMES, sigma=0.1, parameters={"s": 2.0},
        initial=cf.steady_state(parameters={"s": 1.0}, initial={"x": 1.0}),
    )  # fmt: skip
    problem = cf.Problem(model, experiment, parameters={"k": 0.4})
    assert eliminated(problem) == ["offset(p)", "scale(p)"]
    assert cf.fit(problem).parameters["scale(p)"] == pytest.approx(5.0, rel=1e-3)


@pytest.mark.parametrize("transcription", TRANSCRIPTIONS, ids=label)
def test_counts_per_interval_of_which_an_unknown_part_is_reported(transcription):
    x, i, b, g = cf.symbols("x i b g")
    rates, days = {x: -b * x * i, i: b * x * i - g * i}, np.arange(1.0, 15.0)
    simulation = cf.simulate(
        cf.Model(rates, parameters=[b, g]), times=days, parameters={"b": 1.2, "g": 0.4}, initial={"x": 0.99, "i": 0.01}
    )
    counts = -500.0 * np.diff(np.concatenate([[0.99], simulation["x"]]))
    model = cf.Model(rates, parameters=[b, g], outputs={"cases": cf.scaled(cf.per_interval(b * x * i))})
    experiment = cf.Experiment({"cases": counts}, time=days, sigma=1.0, initial={"x": 0.99, "i": 0.01})
    problem = cf.Problem(model, experiment, parameters={"b": 1.0, "g": 0.5})
    assert eliminated(pickle.loads(pickle.dumps(problem))) == ["scale(cases)"]
    result = cf.fit(problem, transcription)
    assert result.parameters["scale(cases)"] == pytest.approx(500.0, rel=1e-5)
    poisson = cf.Experiment({"cases": counts.round()}, time=days, noise=cf.Poisson(), initial={"x": 0.99, "i": 0.01})
    likely = cf.fit(problem.replace(experiments=poisson), transcription)
    assert likely.success
    assert abs(likely.parameters["scale(cases)"] - 500.0) < 2 * likely.standard_errors["scale(cases)"]
