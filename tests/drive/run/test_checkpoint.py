from __future__ import annotations

import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import castfit as cf
from castfit._support.json_codec import rebuild_value, to_jsonable
from castfit._support.status import InputError
from castfit.drive.run.checkpoint import (
    Checkpoint,
    describe_estimate,
    describe_header_differences,
    describe_method,
    digest,
    read,
    write,
)
from castfit.drive.search.scatter.method.choice import FilterState, LocalSearchPath
from castfit.drive.search.scatter.method.members import Member, make_members
from castfit.drive.search.scatter.method.search import SearchState
from castfit.experiment.inputs import Input
from castfit.problem.fingerprint import fingerprint
from tests.builders import decay_problem, everything
from tests.drive.chores import pole

HEADER = {"driver": "test", "model": "sha256:1", "bound of 'k'": [0.0, np.inf], "versions": {"numpy": "1"}}
RECORDS = [{"row": {"index": i, "value": [0.1 * i, "ünï"]}} for i in range(5)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


def filled(path, records=RECORDS):
    file = Checkpoint(path, HEADER, resume=False)
    for record in records:
        file.append(record)
    file.close()
    return path.read_bytes()


def resumed(path, header=HEADER):
    file = Checkpoint(path, header, resume=True)
    file.close()
    return list(file.records)


def test_records_come_back_in_their_order(path):
    filled(path)
    assert resumed(path) == RECORDS


def test_a_record_is_on_the_disk_when_it_is_appended(path):
    file = Checkpoint(path, HEADER, resume=False)
    for i, record in enumerate(RECORDS):
        file.append(record)
        assert list(read(path)[1]) == RECORDS[: i + 1]
    file.close()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(min_value=0, max_value=10_000))
def test_a_file_that_is_cut_anywhere_goes_on_after_its_last_whole_line(tmp_path, cut):
    path = tmp_path / "cut.jsonl"
    path.unlink(missing_ok=True)
    content = filled(path)
    cut %= len(content) + 1
    path.write_bytes(content[:cut])
    n_lines = content[:cut].count(b"\n")
    file = Checkpoint(path, HEADER, resume=True)
    assert list(file.records) == RECORDS[: max(n_lines - 1, 0)]
    file.append({"more": 1})
    file.close()
    assert resumed(path) == [*RECORDS[: max(n_lines - 1, 0)], {"more": 1}]


def test_a_file_that_exists_is_not_overwritten(path):
    content = filled(path)
    with pytest.raises(InputError, match="resume=True"):
        Checkpoint(path, HEADER, resume=False)
    assert path.read_bytes() == content


@pytest.mark.parametrize("content", [b"time,x\n0,1\n", b"{}\n", b"[1]\n", b"garbage", b"\x00\xff"])
def test_checkpoint_of_another_format_is_refused_and_unchanged(path, content):
    path.write_bytes(content)
    with pytest.raises(InputError, match="is not a castfit checkpoint"):
        resumed(path)
    assert path.read_bytes() == content


def test_read_damaged_line_raises_input_error(path):
    lines = filled(path).splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], lines[2][:9] + b"\n", *lines[3:]]))
    with pytest.raises(InputError, match="line 3 is damaged"):
        resumed(path)


@pytest.mark.parametrize(
    "line",
    [
        b'{"__array__": [1.0]}',
        b'{"row": {"__array__": [[1.0], []], "__shape__": [1]}}',
        b'{"row": {"__array__": [1.0, 2.0], "__shape__": ["x"]}}',
        b'{"row": {"__float__": {}}}',
        b'{"row": ' + 100_000 * b"[" + b"]" * 100_000 + b"}",
    ],
    ids=["no shape", "ragged", "shape", "float", "deep"],
)
def test_read_malformed_arrays_raises_input_error(path, line):
    path.write_bytes(filled(path) + line + b"\n")
    with pytest.raises(InputError, match="line 7 is damaged"):
        resumed(path)


def test_read_changed_digit_fails_the_checksum(path):
    content = filled(path)
    assert content.count(b"0.2,") == 1
    path.write_bytes(content.replace(b"0.2,", b"0.3,"))
    with pytest.raises(InputError, match="line 4 is damaged"):
        resumed(path)


DRIVERS = {
    "multistart": lambda **o: cf.multistart(pole(), "single", starts=2, rng=0, **o),
    "scatter_search": lambda **o: cf.scatter_search(
        pole(), "single", dim_refset=4, n_diverse=12, max_eval=80, rng=0, **o
    ),
    "estimate": lambda **o: cf.estimate(pole(), rng=0, finds=1, strategies=["box"], **o),
    "bootstrap": lambda **o: cf.bootstrap(cf.fit(pole(), "single"), samples=2, rng=0, **o),
    "leave_out": lambda **o: cf.leave_out(cf.fit(pole(), "single"), "value", **o),
    "profile": lambda **o: cf.profile(cf.fit(pole(), "single"), **o),
}


@pytest.mark.parametrize(
    "driver", [pytest.param(d, marks=[] if d == "multistart" else pytest.mark.slow) for d in DRIVERS]
)
def test_resume_records_without_required_fields_raises_input_error(path, driver):
    """Without their checksums, as from an earlier version: else no such record would be read at all."""
    run = DRIVERS[driver]
    kind = type(run(checkpoint=path))
    readers = [lambda: run(checkpoint=path, resume=True), *([lambda: kind.load(path)] if hasattr(kind, "load") else [])]
    header, *records = [json.loads(line) for line in path.read_bytes().splitlines()]
    for entry in (header, *records):
        entry.pop("crc32", None)
    messages = []
    for number in {0, len(records) // 2, len(records) - 1}:
        record = records[number]
        for damaged in ({k: {} for k in record}, {k: "junk" for k in record}, {k: 3 for k in record}):
            changed = [header, *records[:number], damaged, *records[number + 1 :]]
            path.write_text("".join(json.dumps(r) + "\n" for r in changed))
            for read_again in readers:
                try:
                    read_again()
                except InputError as error:
                    messages.append(str(error))
    assert messages
    assert all(str(path) in sentence for sentence in messages)


def test_a_later_format_is_refused(path):
    path.write_text(json.dumps({"castfit_checkpoint": 99}) + "\n")
    with pytest.raises(InputError, match="format 99"):
        resumed(path)


@pytest.mark.parametrize("junk", [3, b"run", ["run"]])
def test_checkpoint_invalid_path_raises_input_error(junk):
    with pytest.raises(InputError, match="give the path of a file"):
        cf.multistart(pole(), starts=1, checkpoint=junk)


def test_a_folder_that_does_not_exist_is_misuse(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        Checkpoint(tmp_path / "none" / "run.jsonl", HEADER, resume=False)


def test_checkpoint_of_another_run_names_every_difference(path):
    filled(path)
    other = {**HEADER, "model": "sha256:2", "bound of 'k'": [0.0, 5.0], "seed": 3, "versions": {"numpy": "2"}}
    del other["driver"]
    with pytest.raises(InputError) as caught:
        resumed(path, other)
    mistakes = [mistake.removeprefix(f"'{path}' ") for mistake in caught.value.problems]
    assert mistakes == [
        "differs from this run in the model",
        "has bound of 'k' = [0.0, inf]; this run has [0.0, 5.0]",
        "lacks the setting seed of this run",
        "has the setting driver, which this run does not have",
    ]


@pytest.mark.parametrize(("factor", "is_same"), [(1 + 1e-7, True), (1 + 1e-5, False)])
def test_estimate_without_errors_is_compared_by_its_digits(path, factor, is_same):
    Checkpoint(path, {"estimate": describe_estimate({"k": 2.0, "x(0)": 1e-12}, {}, "sha256:1")}, resume=False).close()
    header = {"estimate": describe_estimate({"k": 2.0 * factor, "x(0)": 1e-12}, {}, "sha256:2")}
    if is_same:
        assert resumed(path, header) == []
    else:
        with pytest.raises(InputError, match="has another estimate than this run"):
            resumed(path, header)


def test_estimate_is_compared_by_its_standard_errors(path):
    errors = {"k": 0.1, "undetermined": np.nan}
    values = {"k": 0.0, "undetermined": 3.0}
    Checkpoint(path, {"start": describe_estimate(values, errors, "0, 3")}, resume=False).close()
    assert resumed(path, {"start": describe_estimate(values | {"k": 1e-6}, errors, "1e-6, 3")}) == []
    for other in (values | {"k": 1e-3}, values | {"undetermined": 3.1}, {"k": 0.0}):
        with pytest.raises(InputError, match="has another start than this run"):
            resumed(path, {"start": describe_estimate(other, errors, "")})


def test_estimate_of_castfit_0_3_is_compared_by_its_exact_entry(path):
    Checkpoint(path, {"estimate": "sha256:1"}, resume=False).close()
    assert resumed(path, {"estimate": describe_estimate({"k": 2.0}, {}, "sha256:1")}) == []
    with pytest.raises(InputError, match=r"castfit 0\.3 wrote it on another kind of processor"):
        resumed(path, {"estimate": describe_estimate({"k": 2.0}, {}, "sha256:2")})


def test_a_file_is_written_whole_or_not_at_all(path):
    filled(path)
    original_content = path.read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        write(path, HEADER, _broken())
    assert path.read_bytes() == original_content
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    write(path, HEADER, RECORDS)
    assert resumed(path) == RECORDS


def _broken():
    yield RECORDS[0]
    raise ValueError("not JSON compliant")


def changed(problem, **changes):
    return set(named(fingerprint(problem), fingerprint(problem.replace(**changes))))


def named(one, other):
    return {key for key in {*one, *other} if one.get(key) != other.get(key)}


def test_fingerprint_of_changed_problem_differs_in_the_changed_part():
    problem = decay_problem()
    data = problem.experiments[0]
    x, k = cf.symbols("x k")
    models = [cf.Model({x: right}, parameters=[k]) for right in (-k * x**2, -1.5 * k * x)]
    for model in models:
        assert changed(problem, model=model) == {"model"}
    noisy = cf.Experiment({"x": [1.0, 0.7, 0.5, 0.3, 0.2]}, time=[0, 1, 2, 3, 4], sigma=0.2, initial={"x": 1.0})
    shifted_experiment = data.with_values({"x": [1.0, 0.7, 0.5, 0.3, np.nextafter(0.2, 1)]})
    for experiment in (noisy, shifted_experiment):
        assert changed(problem, experiments=experiment) == {"data of 'experiment 1'"}
    higher = cf.Experiment({"x": [1.0, 0.7, 0.5, 0.3, 0.2]}, time=[0, 1, 2, 3, 4], sigma=0.1, initial={"x": 1.1})
    assert changed(problem, experiments=higher) == {"inputs, initial and fixed values of 'experiment 1'"}
    for parameter in (0.6, cf.Parameter(0.5, lower=0), cf.Parameter(0.5, prior=cf.Normal(1, 1))):
        assert changed(problem, parameters={"k": parameter}) == {"guess, bounds, scale and prior of 'k'"}
    assert changed(problem, state_bounds={"x": (0, 2)}) == {"state_bounds"}


def test_inputs_constraints_and_fixed_values_belong_to_the_problem():
    problem = everything()
    first_experiment, second_experiment = problem.experiments
    inputs = {**first_experiment.inputs, "w": Input.linear([0, 1.1, 3], [0.1, 0.5, 0.3])}
    other = cf.Experiment(
        first_experiment.data,
        sigma=first_experiment.sigma,
        initial=first_experiment.initial,
        inputs=inputs,
        start=first_experiment.start,
        name=first_experiment.name,
    )
    assert changed(problem, experiments=[other, second_experiment]) == {"inputs, initial and fixed values of 'first'"}
    assert changed(problem, constraints=[]) == {"constraints"}
    fixed = {**problem.parameters, "k4": cf.Parameter(0.6, fixed=True)}
    assert changed(problem, parameters=fixed) == {
        f"inputs, initial and fixed values of '{name}'" for name in ("first", "second")
    }


def test_the_fingerprint_is_the_same_in_another_process_and_after_pickling():
    local_fingerprint = fingerprint(everything())
    assert fingerprint(pickle.loads(pickle.dumps(everything()))) == local_fingerprint
    script = (
        "import json; from tests.builders import everything; from castfit._support.json_codec import to_jsonable;"
        "from castfit.problem.fingerprint import fingerprint as f; print(json.dumps(to_jsonable(f(everything()))))"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not describe_header_differences(json.loads(process.stdout), local_fingerprint)


def test_options_are_described_without_addresses():
    chosen = cf.MultipleShooting(states={"x": (np.arange(3.0), np.ones(3))})
    assert describe_method(chosen) == describe_method(pickle.loads(pickle.dumps(chosen)))
    assert describe_method(chosen) != describe_method(cf.MultipleShooting(states={"x": (np.arange(3.0), np.zeros(3))}))
    assert "0x" not in describe_method(test_options_are_described_without_addresses)
    assert describe_method(cf.GaussNewton(max_iter=np.int64(7))) == describe_method(cf.GaussNewton(max_iter=7))


def test_digest_depends_on_shape_and_type():
    parts = [np.zeros(4), np.zeros((2, 2)), np.zeros(4, dtype=int), np.zeros(3), "0", 0]
    assert len({digest(part) for part in parts}) == len(parts)
    assert len({digest("ab", "c"), digest("a", "bc"), digest("abc")}) == 3


def test_records_of_dataclasses_come_back_as_they_were(path):
    rng = np.random.default_rng(1)
    members = make_members(rng.random((4, 2)), np.array([1.0, np.inf, 3.0, 0.1]), 5)
    climb = LocalSearchPath(members[0], members[3], rng.random((3, 2)))
    state = SearchState(
        2**62,
        3,
        members,
        members[3],
        frozenset({(1, 2), (0, 5)}),
        np.arange(6).reshape(2, 3),
        (climb,),
        FilterState(2.0),
    )
    result = cf.fit(pole(), cf.SingleShooting())
    filled(path, [{"state": state, "result": result}])
    (record,) = resumed(path)
    loaded_state = rebuild_value(SearchState, record["state"])
    assert to_jsonable(loaded_state) == to_jsonable(state)
    assert (loaded_state.combined, loaded_state.frequency.dtype) == (state.combined, np.intp)
    assert isinstance(loaded_state.climbs[0].start, Member)
    loaded_result = rebuild_value(cf.Result | None, record["result"])
    assert loaded_result.values == result.values
    assert loaded_result.chi2 == result.chi2
    np.testing.assert_array_equal(loaded_result.covariance, result.covariance)
    assert rebuild_value(cf.Result | None, None) is None
