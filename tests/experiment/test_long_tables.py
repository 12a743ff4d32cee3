"""Tables in long form, and dates as times."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

import castfit as cf
from tests.builders import refused

LONG = pd.DataFrame(
    {
        "subject": ["B", "A", "A", "B", "A", "A", "B"],
        "t": [4.0, 4.0, 1.0, 1.0, 1.0, 2.0, 2.0],
        "what": ["x", "x", "x", "x", "y", "x", "x"],
        "value": [0.4, 0.5, 1.1, 2.2, 7.0, np.nan, 1.5],
        "sd": [0.1, 0.2, 0.1, 0.2, 0.5, 0.1, 0.1],
        "dose": [2, 1, 1, 2, 1, 1, 2],
    }
)
COLUMNS = {"value": "value", "output": "what", "time": "t"}


def series(experiment, name):
    times, values = experiment.data[name]
    return times.tolist(), values.ravel().tolist()


def test_a_long_table_becomes_experiments():
    b, a = cf.experiments_from(LONG, **COLUMNS, experiment="subject", sigma="sd", initial={"x": "dose"})
    assert (a.name, b.name) == ("A", "B")
    assert series(a, "x") == ([1.0, 4.0], [1.1, 0.5])  # sorted, without the missing value
    assert series(a, "y") == ([1.0], [7.0])
    assert series(b, "x") == ([1.0, 2.0, 4.0], [2.2, 1.5, 0.4])
    assert_allclose(b.sigma["x"].ravel(), [0.2, 0.1, 0.1])
    assert (a.initial, b.initial) == ({"x": 1}, {"x": 2})


def test_without_a_column_of_experiments_there_is_one(tmp_path):
    LONG.to_csv(tmp_path / "long.csv", index=False)
    (experiment,) = cf.experiments_from(tmp_path / "long.csv", **COLUMNS, sigma=0.1)
    with refused("B: sigma is what the table holds", "A: sigma is what the table holds"):
        cf.experiments_from(LONG, **COLUMNS, experiment="subject", sigma="sd", each=lambda name: {"sigma": 0.3})
    experiments = cf.experiments_from(
        LONG, **COLUMNS, experiment="subject", sigma=0.1, each=lambda name: {"sigma": 0.3}
    )
    assert experiments[0].sigma["x"].ravel().tolist() == [0.3] * 3
    numbered = LONG.assign(run=["01", "1", *["1.0"] * (len(LONG) - 2)])
    numbered.to_csv(tmp_path / "numbered.csv", index=False)
    numbered_experiments = cf.experiments_from(tmp_path / "numbered.csv", **COLUMNS, experiment="run")
    assert [e.name for e in numbered_experiments] == ["01", "1", "1.0"]
    assert series(experiment, "x")[0] == [1.0, 1.0, 2.0, 4.0, 4.0]  # replicates


@pytest.mark.parametrize("column", ["subject", "t", "what"])
def test_long_table_value_with_empty_column_is_refused(column):
    """pandas leaves such rows out when it groups: a fit would be of fewer data without a word."""
    table = LONG.astype(object)
    table.loc[[2, 3, 5], column] = None  # the last has no value either
    with pytest.raises(cf.InputError, match=f"column '{column}' is empty at index 2, and 1 more, where a value is"):
        cf.experiments_from(table, **COLUMNS, experiment="subject")
    assert cf.experiments_from(table.drop(index=[2, 3]), **COLUMNS, experiment="subject")


def test_columns_that_stand_twice_or_are_numbers():
    with pytest.raises(cf.InputError, match="the table has several columns 'sd'"):
        cf.experiments_from(pd.concat([LONG, LONG[["sd"]]], axis=1), **COLUMNS)
    numbered = LONG.rename(columns={"value": 3})
    (one,) = cf.experiments_from(numbered, **{**COLUMNS, "value": "3"}, sigma=0.1)
    assert series(one, "y") == ([1.0], [7.0])


@pytest.mark.parametrize("kind", [object, str])
def test_a_cell_that_is_no_number_is_named(kind):
    """Where one is, all others of a file are text, too: nothing is wrong with those of experiment A."""
    table = LONG.astype({"value": kind, "t": kind, "sd": kind}).astype(object)
    table.loc[3, "value"], table.loc[3, "t"] = "2,2", "1 h"
    table["sd"] = LONG["sd"]
    with refused(
        "column 'value' contains 1 of 6 values that are no numbers, '2,2' at index 3; give numbers",
        "column 't' contains 1 of 6 values that are no numbers, '1 h' at index 3; give numbers",
    ):
        cf.experiments_from(table, **COLUMNS, experiment="subject", sigma="sd")


def test_a_column_of_text_gives_one_message_with_a_count():
    table = pd.concat([LONG.assign(subject=f"p{i}") for i in range(40)], ignore_index=True)
    with refused(f"column 'value' contains {len(table)} of {len(table)} values that are no numbers"):
        cf.experiments_from(table.assign(value="BLQ"), **COLUMNS, experiment="subject", sigma="sd")
    mixed = table.assign(value=["BLQ", *table["value"][1:]])
    with refused("column 'value' contains 1 of 240 values that are no numbers, 'BLQ' at index 0"):
        cf.experiments_from(mixed, **COLUMNS, experiment="subject")
    for sigma in ("sd", None):
        assert len(cf.experiments_from(table, **COLUMNS, experiment="subject", sigma=sigma)) == 40


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output": "value"}, "value and output are both column 'value'"),
        ({"time": "value"}, "value and time are both column 'value'"),
        ({"sigma": "value"}, "value and sigma are both column 'value'"),
        ({"time": "what"}, "output and time are both column 'what'"),
        ({"experiment": "value"}, "experiment and value are both column 'value'"),
    ],
)
def test_one_column_for_two_roles_is_refused(changes, message):
    with refused(message):
        cf.experiments_from(LONG, **{**COLUMNS, **changes})


@pytest.mark.parametrize("dot", [np.nan, "."])
@pytest.mark.parametrize("columns", [["EVID", "AMT"], ["AMT"], ["evid"]])
def test_doses_of_nonmem_tables_are_not_dropped(columns, dot):
    """A table without its rows of doses is read, and `each` adds the doses."""
    table = LONG.astype({"value": object}).assign(EVID=0, AMT=0.0, evid=0)
    dose = {"t": 0.0, "what": "x", "value": np.nan, "subject": "A", "EVID": 1, "AMT": 100.0, "evid": 1}
    table = pd.concat([pd.DataFrame([dose, dose]), table.assign(AMT=dot)], ignore_index=True)
    names = [c for c in table.columns if c not in {"EVID", "AMT", "evid"} - {*columns}]
    with refused(f"{' and '.join(columns)} mark doses or other events in 2 rows, the first at index 0"):
        cf.experiments_from(table[names], **COLUMNS, experiment="subject")
    doses = {"events": cf.Doses("x", 100.0, 0.5)}
    experiments = cf.experiments_from(table[names][2:], **COLUMNS, experiment="subject", each=lambda _: doses)
    assert [len(e.events) for e in experiments] == [1, 1]
    if columns == ["AMT"]:  # which is a start here, and lost nowhere
        started = table[names].assign(AMT=100.0)
        (experiment, _) = cf.experiments_from(started, **COLUMNS, experiment="subject", initial={"x": "AMT"})
        assert experiment.initial["x"] == 100.0


def test_particulars_of_each():
    initial_values = {"A": 3.0, "B": 4.0}
    experiments = cf.experiments_from(
        LONG, **COLUMNS, experiment="subject", each=lambda name: {"initial": {"x": initial_values[name]}}
    )
    assert {e.name: e.initial["x"] for e in experiments} == initial_values


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"value": "valu"}, "value='valu' is no column of the table: did you mean 'value'"),
        ({"experiment": "patient"}, "experiment='patient' is no column"),
        ({"sigma": "s"}, "sigma='s' is no column"),
        ({"initial": {"x": "doses"}}, "is 'doses', which is no column of the table: did you mean 'dose'"),
        ({"initial": {"x": "sd"}}, r"column 'sd' holds several values"),
        ({"start": 3.0}, r"A: 'x' has a time 1 before the start 3"),
        ({"table": {"x": 1}}, "give a DataFrame, or a CSV file"),
        ({"table": "missing.csv"}, "'missing.csv' cannot be read"),
    ],
)
def test_mistakes_are_named(changes, message):
    table = changes.pop("table", LONG)
    with pytest.raises(cf.InputError, match=message):
        cf.experiments_from(table, **{**COLUMNS, "experiment": "subject", **changes})


DAYS = [datetime(2026, 3, 28, 12), datetime(2026, 3, 29, 0), datetime(2026, 3, 30, 12)]


@pytest.mark.parametrize(
    "times",
    [
        DAYS,
        np.array(DAYS, dtype="datetime64[s]"),
        pd.DatetimeIndex(DAYS),
        pd.Series(DAYS),
        pd.DatetimeIndex(DAYS).tz_localize("UTC").tz_convert("Europe/Berlin"),  # the clocks change on that day
        [d.replace(tzinfo=timezone.utc).astimezone(timezone(timedelta(hours=5))) for d in DAYS],
        [pd.Timestamp(d) for d in DAYS],
    ],
    ids=["datetime", "numpy", "index", "series", "zone", "zones", "timestamps"],
)
@pytest.mark.parametrize(("unit", "length"), [("h", 1.0), ("d", 24.0), ("min", 1 / 60)])
def test_dates_count_from_the_first_of_them(times, unit, length):
    experiment = cf.Experiment({"x": [1.0, 2.0, 3.0]}, time=times, time_unit=unit)
    assert_allclose(experiment.data["x"][0], np.array([0.0, 12.0, 48.0]) / length, rtol=1e-12)
    assert experiment.start == 0


def test_dates_count_from_the_start():
    frame = pd.DataFrame({"when": DAYS, "x": [1.0, 2.0, 3.0]})
    expected = [1.5, 2.0, 3.5]
    for experiment in (
        cf.Experiment(frame, time="when", time_unit="d", start=date(2026, 3, 27)),
        cf.Experiment(frame.set_index("when"), time_unit="d", start=pd.Timestamp("2026-03-27")),
        cf.Experiment({"x": (DAYS, [1.0, 2.0, 3.0])}, time_unit="d", start=datetime(2026, 3, 27)),
    ):
        assert_allclose(experiment.data["x"][0], expected)
        assert experiment.start == 0
    one, two = cf.experiments_from(
        frame.assign(what="x", plate=["p", "q", "q"]), value="x", output="what", time="when", experiment="plate",
        time_unit="h", start=DAYS[0],
    )  # fmt: skip
    assert [e.data["x"][0].tolist() for e in (one, two)] == [[0.0], [12.0, 48.0]]


@pytest.mark.parametrize("start", ["2026-03-27", 5, float("nan"), pd.NaT])
def test_a_start_that_is_no_date_is_not_left_out_beside_dates(start):
    """It was: the initial states held at the first of the times."""
    with refused(f"start is {start!r}; give a date, as the times are dates"):
        cf.Experiment({"x": [1.0, 2.0, 3.0]}, time=DAYS, time_unit="d", start=start)


def test_dates_are_not_mixed_with_numbers():
    for start in (date(2026, 3, 27), timedelta(1), pd.NaT):
        with refused(f"start is {start!r}, but the times are no dates; give a number, or dates as times, too"):
            cf.Experiment({"x": [1.0, 2.0]}, time=[0, 1], time_unit="d", start=start)
    with refused("start is '2026-03-27'; give a finite number; a date goes with times that are dates"):
        cf.Experiment({"x": [1.0, 2.0]}, time=[0, 1], start="2026-03-27")
    with refused("some times are dates, or lengths of time, and others are numbers; give one kind"):
        cf.Experiment({"x": (DAYS, [1.0, 2.0, 3.0]), "y": ([0, 1], [1.0, 2.0])}, time_unit="d")


OBJECTS = {
    "object": pd.Series(DAYS, dtype=object),
    "nanoseconds": np.array([np.datetime64(day, "ns") for day in DAYS], dtype=object),
    "category": pd.Series(DAYS).astype("category"),
}


@pytest.mark.parametrize("times", OBJECTS.values(), ids=OBJECTS)
def test_dates_in_columns_of_objects_are_dates(times):
    experiment = cf.Experiment({"x": [1.0, 2.0, 3.0]}, time=times, time_unit="d")
    assert_allclose(experiment.data["x"][0], [0.0, 0.5, 2.0])


@pytest.mark.parametrize("dtype", ["date32[pyarrow]", "duration[ns][pyarrow]", "timestamp[ns][pyarrow]"])
def test_dates_of_pyarrow(dtype):
    pytest.importorskip("pyarrow")
    days = pd.to_timedelta([0, 1, 3], "D")
    times = pd.Series(days if "duration" in dtype else pd.Timestamp("2026-03-28") + days).astype(dtype)
    experiment = cf.Experiment({"x": [1.0, 2.0, 3.0]}, time=times, time_unit="d")
    assert_allclose(experiment.data["x"][0], [0.0, 1.0, 3.0])


def test_long_table_text_dates_give_one_message():
    with refused("or dates, which pandas.to_datetime makes of text"):
        cf.Experiment({"x": [1.0, 2.0]}, time=["2026-03-28", "2026-03-29"], time_unit="d")


def test_lengths_of_time_need_no_beginning():
    experiment = cf.Experiment({"x": [1.0, 2.0]}, time=[timedelta(minutes=30), timedelta(hours=2)], time_unit="h")
    assert_allclose(experiment.data["x"][0], [0.5, 2.0])
    assert experiment.start == 0


def test_dates_need_a_unit_and_other_mistakes_are_found_as_well():
    with pytest.raises(cf.InputError, match=r"the times are dates; say in which unit") as caught:
        cf.Experiment({"x": [1.0, 2.0, np.inf]}, time=DAYS)
    assert "contains infinite values" in str(caught.value)
    with pytest.raises(cf.InputError, match="time_unit is 'fortnight'"):
        cf.Experiment({"x": [1.0, 2.0, 3.0]}, time=DAYS, time_unit="fortnight")
    with pytest.raises(cf.InputError, match="the times are no dates"):
        cf.Experiment({"x": [1.0]}, time=[3.0], time_unit="h")
    with pytest.raises(cf.InputError, match="some times are dates and others are lengths of time"):
        cf.Experiment({"x": (DAYS, [1.0, 2.0, 3.0]), "y": ([timedelta(1)], [1.0])}, time_unit="h")
    with pytest.raises(cf.InputError, match="not sorted"):
        cf.Experiment({"x": [1.0, 2.0, 3.0]}, time=DAYS[::-1], time_unit="d")
    with pytest.raises(cf.InputError, match="contain NaN"):
        cf.Experiment({"x": [1.0, 2.0, 3.0]}, time=[DAYS[0], pd.NaT, DAYS[2]], time_unit="d")


@pytest.mark.parametrize("kind", [pd.DatetimeIndex, pd.Series, list], ids=["index", "series", "list"])
def test_a_start_of_a_time_zone_beside_times_of_one(kind):
    """Noon before and after the clocks go forward are 23 hours apart; the start may be of another zone."""
    noons = [pd.Timestamp(f"2026-03-{day} 12:00", tz="Europe/Berlin") for day in (28, 29, 30)]
    for start in (noons[0], noons[0].tz_convert("UTC"), noons[0].to_pydatetime()):
        experiment = cf.Experiment({"x": [1.0, 2.0, 3.0]}, time=kind(noons), start=start, time_unit="h")
        assert_allclose(experiment.data["x"][0], [0.0, 23.0, 47.0])


@pytest.mark.parametrize("mixed", [False, True], ids=["start", "times"])
def test_dates_with_and_without_a_time_zone_are_not_mixed(mixed):
    """A start without one was taken for UTC beside times of Berlin: everything began two hours late."""
    zoned = pd.DatetimeIndex(DAYS).tz_localize("Europe/Berlin")
    times, start = ([zoned[0], *DAYS[1:]], None) if mixed else (zoned, datetime(2026, 3, 27))
    with pytest.raises(cf.InputError, match="a time zone and others have none"):
        cf.Experiment({"x": [1.0, 2.0, 3.0]}, time=times, start=start, time_unit="h")
