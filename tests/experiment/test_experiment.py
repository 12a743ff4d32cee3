"""Experiments: every accepted form of data, the points they become, and what is refused."""

from __future__ import annotations

import dataclasses
import pickle
from collections import Counter
from decimal import Decimal

import casadi as ca
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from castfit._support.status import InputError
from castfit.experiment.experiment import Experiment, Free, free, relative
from castfit.experiment.inputs import Input
from castfit.noise import StudentT
from tests.builders import refused

TIMES = [0.0, 1.0, 2.5]


def simple(**changes) -> Experiment:
    """Return an experiment with two outputs at three times."""
    return Experiment(**{"data": {"x": [1.0, 2.0, 3.0], "y": [4.0, 5.0, 6.0]}, "time": TIMES, **changes})


def entries(experiment: Experiment, outputs=("x", "y")) -> Counter:
    """Count (output, time, value, sigma) of everything measured, as `points` arranges it."""
    points = experiment.points(outputs)
    return Counter(
        (outputs[j], points.times[i], points.values[i, j], points.sigma[i, j]) for i, j in np.argwhere(points.mask)
    )


@st.composite
def series(draw) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw times (with repetitions), values (n,) or (n, replicates) with gaps, and deviations of the same shape."""
    times = np.sort(draw(st.lists(st.integers(0, 5), min_size=1, max_size=8))) * 0.1
    shape = (times.size,) if draw(st.booleans()) else (times.size, draw(st.integers(1, 3)))
    size = int(np.prod(shape))
    values = np.array(draw(st.lists(st.one_of(st.just(np.nan), st.floats(-9, 9)), min_size=size, max_size=size)))
    values[draw(st.integers(0, size - 1))] = 1.0
    sigma = np.array(draw(st.lists(st.floats(0.1, 2), min_size=size, max_size=size)))
    return times, values.reshape(shape), sigma.reshape(shape)


@given(x=series(), y=series(), weighted=st.booleans())
def test_points_hold_every_measurement_exactly_once(x, y, weighted):
    data = {"x": x, "y": y}
    experiment = Experiment(
        {n: (t, v) for n, (t, v, _) in data.items()},
        sigma={n: s for n, (_, _, s) in data.items()} if weighted else None,
    )
    expected = Counter(
        (name, time, value, s if weighted else 1.0)
        for name, (t, v, d) in data.items()
        for time, row, deviations in zip(t, v.reshape(t.size, -1), d.reshape(t.size, -1), strict=True)
        for value, s in zip(row, deviations, strict=True)
        if np.isfinite(value)
    )
    assert entries(experiment) == expected
    points = experiment.points(("x", "y"))
    assert (np.diff(points.times) >= 0).all()
    assert points.mask.any(axis=1).all()
    assert experiment.end == points.times[-1]
    assert entries(pickle.loads(pickle.dumps(experiment))) == expected


@given(x=series(), y=series(), horizon=st.floats(0, 0.6))
def test_until_keeps_what_was_measured_by_then(x, y, horizon):
    experiment = Experiment({"x": x[:2], "y": y[:2]}, sigma={"x": x[2], "y": y[2]}, name="a", start=-1)
    truncated_experiment = experiment.until(horizon)
    expected = Counter({e: n for e, n in entries(experiment).items() if e[1] <= horizon})
    assert (entries(truncated_experiment) if truncated_experiment else Counter()) == expected
    if truncated_experiment:
        assert (truncated_experiment.name, truncated_experiment.start) == ("a", -1)


@given(x=series())
def test_with_values_leaves_gaps(x):
    times, values, sigma = x
    experiment = Experiment({"x": (times, values)}, sigma=sigma)
    replaced_experiment = experiment.with_values({"x": np.full(values.shape, 7.0)})
    assert {e[2] for e in entries(replaced_experiment, ("x",))} == {7.0}
    assert [(e[1], e[3]) for e in sorted(entries(replaced_experiment, ("x",)).elements())] == sorted(
        (e[1], e[3]) for e in entries(experiment, ("x",)).elements()
    )


def test_with_values_refuses_other_shapes_and_names():
    with refused("'z' is not measured: ", "'y' needs an array of shape (3, 1); it is [1, 2]"):
        simple().with_values({"x": [1, 2, 3], "y": [1, 2], "z": 0})


def test_experiment_accepts_equivalent_forms_of_data():
    index = pd.Index(TIMES, name="time")
    frame = pd.DataFrame({"x": [1, 2, 3], "y": [4.0, 5.0, 6.0]}, index=index)
    x = ca.SX.sym("x")
    forms = [
        simple(),
        Experiment({"x": (1, 2, 3), "y": np.array([4, 5, 6], dtype=np.float32)}, np.array(TIMES)),
        Experiment({x: [1, 2, 3], "y": range(4, 7)}, time=(t for t in TIMES)),
        Experiment({"x": (TIMES, [1, 2, 3]), "y": (TIMES, [[4], [5], [6]])}),
        Experiment({"x": [1, None, 3], "y": [Decimal(4), 5, 6]}, time=TIMES).with_values(
            {"x": [1, 2, 3], "y": [4, 5, 6]}
        ),
        Experiment(frame),
        Experiment(frame.reset_index(), "time"),
        Experiment(frame.reset_index(drop=True), time=TIMES),
        Experiment(frame.astype("Float64")),
        Experiment({"x": frame["x"], "y": frame["y"].astype("Int64")}, time=frame.index),
    ]
    expected = entries(simple())
    for i, form in enumerate(forms):
        missing = expected - entries(form)
        assert sum(missing.values()) == (1 if i == 4 else 0)  # the None stays unmeasured
        assert not entries(form) - expected


def test_missing_values_of_all_kinds():
    data = {
        "a": [1, None, 3],
        "b": pd.array([1, pd.NA, 3], dtype="Int64"),
        "c": np.ma.masked_array([1.0, 99.0, 3.0], mask=[False, True, False]),
        "d": pd.Series([1.0, None, 3.0], dtype="Float64"),
        "e": np.array([1, pd.NA, 3], dtype=object),
    }
    points = Experiment(data, time=TIMES).points(tuple(data))
    assert points.times.tolist() == [0.0, 2.5]
    np.testing.assert_array_equal(points.values, [[1.0] * 5, [3.0] * 5])


def test_two_numbers_are_values_two_arrays_are_times_and_values():
    pair = Experiment({"x": (1.0, 2.0)}, time=[0, 1])
    assert entries(pair, ("x",)) == Counter({("x", 0.0, 1.0, 1.0): 1, ("x", 1.0, 2.0, 1.0): 1})
    with_own_times = Experiment({"x": ([0, 3], [1.0, 2.0])}, time=[0, 1])
    assert with_own_times.end == 3.0


def test_unnamed_columns_of_a_frame():
    frame = pd.DataFrame([[0.0, 1.0], [1.0, 2.0]])
    assert Experiment(frame, time=0).measured == ("1",)


@pytest.mark.parametrize(
    ("sigma", "expected"),
    [
        (0.5, [[0.5, 0.5]] * 3),
        (np.float32(0.5), [[0.5, 0.5]] * 3),
        (np.array(2), [[2, 2]] * 3),
        ({"x": 0.5, "y": [1, 2, 3]}, [[0.5, 1], [0.5, 2], [0.5, 3]]),
        ([[1, 4], [2, 5], [3, 6]], [[1, 4], [2, 5], [3, 6]]),
        (relative(0.5), [[0.5, 2], [1, 2.5], [1.5, 3]]),
        (relative(0.5, floor=2.2), [[2.2, 2.2], [2.2, 2.5], [2.2, 3]]),
        ({"x": relative(1), "y": 1}, [[1, 1], [2, 1], [3, 1]]),
        (pd.DataFrame({"y": [4, 5, 6], "x": [1, 2, 3]}), [[1, 4], [2, 5], [3, 6]]),
    ],
)
def test_forms_of_sigma(sigma, expected):
    experiment = simple(sigma=sigma)
    np.testing.assert_array_equal(experiment.points(("x", "y")).sigma, np.array(expected, dtype=float))
    pickled_experiment = pickle.loads(pickle.dumps(experiment))
    np.testing.assert_array_equal(pickled_experiment.points(("x", "y")).sigma, np.array(expected, dtype=float))


def test_sigma_per_time_holds_for_all_replicates():
    experiment = Experiment({"x": ([0, 1], [[1, 2], [3, 4]])}, sigma={"x": [0.1, 0.2]})
    assert experiment.points(("x",)).sigma.ravel().tolist() == [0.1, 0.1, 0.2, 0.2]


def test_sigma_may_be_missing_where_data_are():
    experiment = Experiment({"x": [1, np.nan, 3]}, time=TIMES, sigma={"x": [0.1, np.nan, 0.3]})
    assert experiment.points(("x",)).sigma.ravel().tolist() == [0.1, 0.3]


def test_a_frame_of_sigma_is_matched_by_name_and_may_repeat_the_times():
    frame = pd.DataFrame({"t": TIMES, "x": [1.0, 2.0, 3.0]})
    deviations = pd.DataFrame({"x": [0.1, 0.2, 0.3], "t": TIMES})
    experiment = Experiment(frame, "t", sigma=deviations)
    assert experiment.points(("x",)).sigma.ravel().tolist() == [0.1, 0.2, 0.3]


def test_initial_values_and_inputs_are_read():
    k, x = ca.SX.sym("k"), ca.SX.sym("x")
    experiment = simple(
        initial={x: np.int64(3), "y": free(np.float32(2), upper=3), "z": 2 * k, "c": ca.SX(4)},
        inputs={"u": 1, "w": Input.linear([0, 3], [1, 2])},
        start=np.float64(-1),
    )
    assert experiment.initial["x"] == 3.0
    assert experiment.initial["y"] == Free(2.0, -np.inf, 3.0)
    assert experiment.initial["c"] == 4.0
    assert experiment.inputs["u"].kind == "constant"
    assert experiment.start == -1.0
    pickled_experiment = pickle.loads(pickle.dumps(experiment))
    assert pickled_experiment.initial["y"] == experiment.initial["y"]
    function = ca.Function("z", [*ca.symvar(pickled_experiment.initial["z"])], [pickled_experiment.initial["z"]])
    assert float(function(5)) == 10.0
    assert pickled_experiment.inputs["w"](1.5) == 1.5


def test_replace_and_comparison():
    experiment = simple(name="a")
    other = dataclasses.replace(experiment, name="b")
    assert entries(other) == entries(experiment)
    assert other.name == "b"
    assert experiment != other
    assert len({experiment, other}) == 2


def test_data_are_copied():
    values = np.array([1.0, 2.0, 3.0])
    experiment = Experiment({"x": values}, time=TIMES)
    values[:] = 0.0
    assert entries(experiment, ("x",)) == entries(simple(), ("x", "y")) - entries(simple(data={"y": [4, 5, 6]}))


def test_experiment_lists_all_mistakes():
    with refused(
        "start is 'now'; give a finite number",
        "name is 3; give text",
        "'text' contains a value that is not a real number: ['1', '2', '3']",
        "'short' has values of shape (2,) at times of shape (3,)",
        "sigma of 'x' is -1 at t = 1; standard deviations must be positive",
        "the times of 'late' are not sorted (look at t = 1)",
        "'endless' contains infinite values; use NaN",
        "'empty' contains no measured value",
        "input 'u' is [1, 2]; give a finite number, or choose the interpolation by name",
        "free initial state 'x': the guess 3 is outside its bounds [0, 1]",
        "initial state 'y' is 'one'; give a finite number, cf.free(guess) or a scalar SX expression",
    ):
        Experiment(
            {
                "x": [1, 2, 3],
                "text": ["1", "2", "3"],
                "short": [1, 2],
                "late": ([0, 2, 1], [1, 2, 3]),
                "endless": [1, np.inf, 3],
                "empty": [np.nan] * 3,
            },
            time=TIMES,
            sigma={"x": [1, -1, 1], "late": 1, "endless": 1, "empty": 1},
            inputs={"u": [1, 2]},
            initial={"x": free(3, lower=0, upper=1), "y": "one"},
            start="now",  # type: ignore[arg-type]
            name=3,  # type: ignore[arg-type]
        )


@pytest.mark.parametrize(
    ("changes", "phrases"),
    [
        ({"data": None}, ["data is a NoneType; give a mapping"]),
        ({"data": [1, 2, 3]}, ["data is a list; give a mapping"]),
        ({"data": pd.Series([1, 2, 3])}, ["data is a pandas.Series; give a mapping"]),
        ({"data": {}}, ["data is empty"]),
        ({"data": {"x": []}, "time": []}, ["'x' has no values; leave it out"]),
        ({"data": {"x": 1.0}, "time": 0.0}, ["'x' has values of shape ()"]),
        ({"data": {"x": [[[1]]]}, "time": [0]}, ["'x' has values of shape (1, 1, 1)"]),
        ({"data": {"x": [1j, 1, 1]}}, ["'x' contains a value that is not a real number"]),
        ({"data": {"x": [True, False, True]}}, ["'x' contains a value that is not a real number"]),
        ({"data": {"x": [[1], [2, 3], [4]]}}, ["'x' contains a value that is not a real number"]),
        ({"data": {"x": {1, 2, 3}}}, ["'x' contains a value that is not a real number"]),
        ({"data": {"x": ca.MX.sym("m", 3)}}, ["'x' contains a value that is not a real number"]),
        ({"data": {"x": np.array([1, True, 3], dtype=object)}}, ["'x' contains a value that is not a real number"]),
        ({"data": {0: [1, 2, 3]}}, ["data has the key 0; give a name", "data is empty"]),
        ({"data": {"x": [1, 2, 3], ca.SX.sym("x"): [1, 2, 3]}}, ["data names 'x' twice"]),
        ({"time": None}, ["'x' has no times; pass time=..., or (times, values)", "'y' has no times"]),
        ({"time": "t"}, ["time is the text 't'; pass the times, or a DataFrame with that column"]),
        ({"time": ["0", "1", "2"]}, ["time is ['0', '1', '2']; give real numbers"]),
        ({"time": pd.to_datetime(["2020-01-01"] * 3)}, ["the times are dates; say in which unit"]),
        ({"time": [0, 1]}, ["'x' has values of shape (3,) at times of shape (2,)", "'y' has values of shape (3,)"]),
        ({"time": [0, 1, None]}, ["the times of 'x' contain NaN", "the times of 'y' contain NaN"]),
        ({"start": 0.5}, ["'x' has a time 0 before the start 0.5", "'y' has a time 0 before the start 0.5"]),
        ({"start": np.nan}, ["start is nan"]),
        ({"start": True}, ["start is True"]),
        ({"name": None}, ["name is None"]),
        ({"sigma": 0}, ["sigma of 'x' is 0 at t = 0", "sigma of 'y' is 0 at t = 0"]),
        ({"sigma": np.nan}, ["sigma of 'x' is nan", "sigma of 'y' is nan"]),
        ({"sigma": "5%"}, ["sigma is '5%'; give a number, a mapping per output, or an array"]),
        ({"sigma": True}, ["sigma is True"]),
        ({"sigma": [0.1, 0.2]}, ["sigma is an array of shape (2,); give a number, a mapping per output"]),
        ({"sigma": {"x": 1}}, ["sigma is missing for 'y'"]),
        ({"sigma": {"x": 1, "y": 1, "yy": 1}}, ["sigma names 'yy', which is not in data: did you mean 'y'?"]),
        ({"sigma": {"x": "a", "y": [1, 2]}}, ["sigma of 'x' is 'a'; give a number", "sigma of 'y' is [1, 2]"]),
        ({"sigma": {"x": None, "y": 1}}, ["sigma is missing for 'x'"]),
        ({"sigma": relative(-1)}, ["sigma of 'x' is relative(", "sigma of 'y' is relative("]),
        ({"sigma": relative("5%")}, ["sigma of 'x' is relative(", "sigma of 'y' is relative("]),
        ({"data": {"x": [0, 1, 2]}, "sigma": relative(0.1)}, ["give relative(..., floor=...) a positive floor"]),
        ({"inputs": 3}, ["inputs is a int"]),
        ({"inputs": {"u": None}}, ["input 'u' is None"]),
        ({"inputs": {"u": np.nan}}, ["input 'u' is nan"]),
        ({"inputs": {"u": np.sin}}, ["input 'u' is <ufunc 'sin'>"]),
        ({"inputs": {"u": ca.SX.sym("u")}}, ["input 'u' is SX(u)"]),
        ({"initial": [1, 2]}, ["initial is a list"]),
        ({"initial": {1: 2}}, ["initial has the key 1"]),
        ({"initial": {ca.SX.sym("x") + 1: 2}}, ["initial has the key SX((x+1))"]),
        ({"initial": {"x": None}}, ["initial state 'x' is None"]),
        ({"initial": {"x": True}}, ["initial state 'x' is True"]),
        ({"initial": {"x": 1j}}, ["initial state 'x' is 1j"]),
        ({"initial": {"x": [1.0]}}, ["initial state 'x' is [1.0]"]),
        ({"initial": {"x": ca.MX.sym("k")}}, ["initial state 'x' is MX(k)"]),
        ({"initial": {"x": ca.SX.sym("k", 2)}}, ["initial state 'x' is SX([k_0, k_1])"]),
        ({"initial": {"x": ca.SX(np.nan)}}, ["initial state 'x' is SX(nan)"]),
        ({"initial": {"x": free("1")}}, ["free initial state 'x': the guess is '1'"]),
        ({"initial": {"x": free(1, lower=None)}}, ["the bounds are None and inf"]),
        ({"initial": {"x": free(1, lower=2, upper=0)}}, ["the bounds [2, 0] are empty"]),
        ({"initial": {"x": free(1, scale="lg")}}, ["scale is 'lg'; choose 'linear' or 'log'"]),
        ({"initial": {"x": free(0, scale="log")}}, ["scale='log' needs a positive guess; it is 0"]),
        ({"initial": {"x": free(1, lower=-1, scale="log")}}, ["scale='log' needs a non-negative lower bound"]),
        ({"initial": {"x": free(np.nan, scale=1)}}, ["scale is 1; choose", "the guess is nan"]),
    ],
)
def test_refused(changes, phrases):
    with refused(*phrases):
        simple(**changes)


@pytest.mark.parametrize(
    ("frame", "time", "phrase"),
    [
        (pd.DataFrame({"t": TIMES, "x": [1, 2, 3]}), "tt", "the DataFrame has no time column 'tt': did you mean 't'?"),
        (pd.DataFrame({"t": TIMES}), "t", "data is empty"),
        (pd.DataFrame(), None, "data is empty"),
        (pd.DataFrame({"t": TIMES, "x": ["a", "b", "c"]}), "t", "'x' contains a value that is not a real number"),
        (pd.DataFrame({"t": ["a", "b", "c"], "x": [1, 2, 3]}), "t", "time is"),
        (pd.DataFrame({"t": TIMES, "x": ["1.2", "<1", "3"]}), "t", "not a real number: '<1' at index 1"),
        (
            pd.DataFrame({"x": [1]}, index=pd.to_datetime(["2020-01-01"])),
            None,
            "the times are dates; say in which unit",
        ),
        (pd.DataFrame([[0, 1, 2]], columns=["t", "x", "x"]), "t", "the DataFrame has several columns 'x'"),
    ],
)
def test_refused_frames(frame, time, phrase):
    with refused(phrase):
        Experiment(frame, time)


def test_experiment_message_names_only_non_numeric_entries():
    frame = pd.DataFrame({"t": ["0,5", "1", "2"], "x": ["1,5"] * 2 + ["2"], "y": [1, 2, 3]}, index=[4, 5, 6])
    with pytest.raises(InputError) as caught:
        Experiment(frame, "t", sigma={"x": 1, "y": 1}, noise={"x": StudentT()})
    assert caught.value.problems == (
        "time is '0,5' at index 4; give real numbers, for instance hours since the start, or dates, which "
        "pandas.to_datetime makes of text",
        "'x' contains a value that is not a real number: '1,5' at index 4, '1,5' at index 5; give numbers, and NaN for "
        "missing values",
    )


def test_the_error_carries_the_name():
    with pytest.raises(InputError, match="Experiment 'dose 3': 1 mistake found"):
        simple(name="dose 3", start=np.inf)


def test_changed_fields_have_the_form_that_is_kept():
    experiment = Experiment({"y": [1.0, 2.0]}, time=[0.0, 1.0], sigma=0.1)
    doubled = experiment.with_changes(sigma={"y": 2 * experiment.sigma["y"]})
    np.testing.assert_array_equal(doubled.sigma["y"], 0.2)
    with refused("sigma is 0.05; expected a mapping from names", "'sigmas' is no field of an experiment"):
        experiment.with_changes(sigma=0.05, sigmas=1.0)


def test_series_with_other_labels_are_refused():
    table = pd.DataFrame({"t": [2.0, 1.0, 3.0], "x": [1.0, 2.0, 0.5], "sd": [0.1, 0.2, 0.3]})
    ordered = table.sort_values("t")
    message = "and the values have different labels"
    for options in ({"sigma": table["sd"]}, {"sigma": {"x": table["sd"]}}, {"noise": StudentT(sigma=table["sd"])}):
        with refused(message):
            Experiment(ordered[["t", "x"]], time="t", **options)
        with refused(message):
            Experiment({"x": ordered["x"]}, time=[1, 2, 3], **options)
    with pytest.raises(InputError, match="the times of 'x' and the values"):
        Experiment({"x": (ordered["t"], table["x"])})
    for sigma in (table["sd"].loc[ordered.index], {"x": ordered["sd"]}, ordered["sd"].to_numpy()):
        experiment = Experiment(ordered[["t", "x"]], time="t", sigma=sigma)
        np.testing.assert_array_equal(experiment.sigma["x"].ravel(), [0.2, 0.1, 0.3])


def test_a_start_of_numpy_is_one_date():
    dates = np.datetime64("2026-03-02T08") + np.array([1, 12, 30]).astype("m8[h]")
    arguments = {"data": {"x": [3.0, 2.0, 1.0]}, "time": dates, "time_unit": "h"}
    for start in (dates[0], np.array(dates[0]), pd.Timestamp(dates[0])):
        assert hash(Experiment(**arguments, start=start).origin) == hash(
            Experiment(**arguments).origin
        )  # pictures ask for it
    for several in (dates[:1], list(dates), pd.Series(dates)):
        with pytest.raises(InputError, match="give a date"):
            Experiment(**arguments, start=several)


def test_experiment_from_other_frames_suggests_conversion():
    class Frame:
        def to_pandas(self):
            return pd.DataFrame()

    with pytest.raises(InputError, match=r"Frame; give .* a pandas DataFrame \(its to_pandas\(\) makes one\)"):
        Experiment(Frame(), time="t")
    with pytest.raises(InputError, match=r"pandas.Series; give .* \(its to_frame\(\) makes one\)"):
        Experiment(pd.Series([1.0, 2.0], name="x"), time=[1, 2])
    with pytest.raises(InputError, match=r"or a pandas DataFrame$"):
        Experiment(5, time=[1, 2])
