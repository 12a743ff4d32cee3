"""What is wrong with a PEtab problem is said at once, each mistake with its file and line."""

from __future__ import annotations

from math import exp, log, pi

import pytest

import castfit as cf
from tests.builders import refused
from tests.formats.petab.writing import DECAY, measured, parameter, write

pytest.importorskip("petab")
pytest.importorskip("antimony")


def test_no_file_and_no_problem(tmp_path):
    with refused("there is no file"):
        cf.petab.load(tmp_path / "nothing.yaml")
    with refused("file is 3; give the path"):
        cf.petab.load(3)
    bad = tmp_path / "bad.yaml"
    bad.write_text("a: [1, 2")
    with refused("bad.yaml is no YAML"):
        cf.petab.load(bad)
    bad.write_text("format_version: 3\n")
    with refused("bad.yaml has the format_version 3"):
        cf.petab.load(bad)
    bad.write_text("format_version: 1\nproblems: []\n")
    with refused("'problems' must list", "no parameter table", "no measurement table", "no observable table",
                 "no condition table", "no model is named"):  # fmt: skip
        cf.petab.load(bad)
    bad.write_text("format_version: 2.0.0\nparameter_files: [p.tsv]\nobservable_files: [o.tsv]\n"
                   "measurement_files: [m.tsv]\nmodel_files: {m: {location: m.py, language: pysb}}\n"
                   "extensions: {select: {}}\n")  # fmt: skip
    with refused("the extension 'select' is not supported", "in the language 'pysb'; only SBML"):
        cf.petab.load(bad)


def test_missing_files_and_columns(tmp_path):
    path = write(tmp_path)
    (tmp_path / "observables.tsv").unlink()
    (tmp_path / "conditions.tsv").write_text("conditionID\nc\n")
    with refused(
        "observables.tsv: there is no such file of the observable table",
        "conditions.tsv: column 'conditionId' is missing; did you mean 'conditionID'?",
        *(f"measurements.tsv, line {i}: simulationConditionId 'c' is not in the condition table" for i in (2, 3, 4)),
        *(f"measurements.tsv, line {i}: observableId 'y' is not in the observables table" for i in (2, 3, 4)),
    ):
        cf.petab.load(path)


def test_load_lists_mistakes_of_all_tables(tmp_path):
    parameters = [
        parameter("k", 0.4, parameterScale="ln"),
        parameter("k", 0.4),
        parameter("2nd", 0.4),
        parameter("A0", 0.4, lowerBound="", upperBound=""),
        parameter("dose", -1.0, lowerBound=-1.0),
        parameter("far", 1e9),
        {**parameter("nowhere", 1.0), "nominalValue": "", "estimate": 0},
        parameter("prior", 1.0, objectivePriorType="norml", objectivePriorParameters="1;2"),
        parameter("short", 1.0, objectivePriorType="normal", objectivePriorParameters="1"),
        parameter("A", 1.0),
    ]
    observables = [
        {"observableId": "y", "observableFormula": "A +", "noiseFormula": "0.1", "observableTransformation": "log2"},
        {"observableId": "z", "observableFormula": "unknown * A", "noiseFormula": "noiseParameter1_z"},
    ]
    conditions = [{"conditionId": "c", "k": 0.5, "B2": 1.0, "B": "nobody"}]
    rows = [
        *measured((1,), (1.0,), observableId="z", noiseParameters="0.1;0.2"),
        *measured((1,), (1.0,), observableId="z", noiseParameters="-1"),
        *measured((-1,), ("x",), observableId="zz", simulationConditionId="d"),
    ]
    path = write(tmp_path, parameters=parameters, observables=observables, conditions=conditions, measurements=rows)
    with refused(
        "parameters.tsv, line 3: parameterId 'k' is there twice, first in parameters.tsv, line 2",
        "parameters.tsv, line 4: parameterId is '2nd', which is no identifier",
        "measurements.tsv, line 4: simulationConditionId 'd' is not in the condition table: choose from c",
        "parameters.tsv, line 2: parameterScale is 'ln'; choose lin, log, log10",
        "parameters.tsv, line 5: 'A0' is estimated, but has no lowerBound",
        "parameters.tsv, line 5: 'A0' is estimated, but has no upperBound",
        "parameters.tsv, line 6: 'dose' has the lowerBound -1; on the scale log10 it must be positive",
        "parameters.tsv, line 8: 'nowhere' is not estimated and has no nominalValue",
        "parameters.tsv, line 9: the prior 'norml' is unknown: did you mean 'normal'?",
        "parameters.tsv, line 10: objectivePriorParameters is '1'; the prior 'normal' takes 2 numbers",
        "observables.tsv, line 2: observableTransformation is 'log2'",
        "observables.tsv, line 2: observableFormula of 'y': 'A +' cannot be read",
        "measurements.tsv, line 4: measurement is 'x'; give a number",
        "measurements.tsv, line 4: time is -1, before the experiment begins",
        "conditions.tsv, line 2: 'k' is set here and in the parameter table (parameters.tsv, line 2)",
        "conditions.tsv, line 2: 'B2' is not in the model: did you mean 'B'?",
        "parameters.tsv, line 11: 'A' is a state of the model",
        "measurements.tsv, line 2: noiseParameters holds 2 values, but 'z' (observables.tsv, line 3) takes 1",
        "measurements.tsv, line 4: observableId 'zz' is not in the observables table",
        "observables.tsv, line 3: observableFormula of 'z': 'unknown' is unknown",
        "measurements.tsv, line 3: the noise of 'z' is -1; it must be positive",
        "conditions.tsv, line 2: the value of 'B': 'nobody' is unknown",
    ):
        cf.petab.load(path)


def test_data_without_logarithm(tmp_path):
    observable = {"observableId": "y", "observableFormula": "A", "noiseFormula": 0.1, "observableTransformation": "log"}
    with refused("measurements.tsv, line 3: measurement is -0.9, but errors of 'y' are on a logarithmic scale"):
        cf.petab.load(write(tmp_path, observables=[observable], measurements=measured((1, 2), (1.3, -0.9))))


def test_load_names_unsupported_features(tmp_path):
    model = DECAY.replace("end", "at (A < 1.5): A = A + dose\nend")
    conditions = [{"conditionId": "before"}, {"conditionId": "c", "dose": 0.5}]
    rows = measured((1.0, "inf"), (1.3, 2.1), preequilibrationConditionId="before")
    with refused(
        "measurements.tsv, line 3: steady-state measurements of a model with events are not supported",
        "measurements.tsv, line 2: pre-equilibration of a model with events that states trigger is not supported",
    ):
        cf.petab.load(write(tmp_path, model, conditions=conditions, measurements=rows))


@pytest.mark.parametrize(
    ("version", "change", "why"),
    [(2, "make = 2", "changes 'make'"), (2, "A = A + 1", "changes 'A'"), (2, "C = 3", ""), (1, "make = 2", "")],
)
def test_events_in_the_time_of_pre_equilibration(tmp_path, version, change, why):
    """Version 2 lets them happen: what is conserved, or only events change, would be another one afterwards."""
    model = f"A' = B - A; B' = A - B; A = 2; B = 1; C' = make - C; C = 0; make = 1; k = 1; at time >= 3: {change}"
    observables = [{"observableId": "y", "observableFormula": "C", "noiseFormula": "k"}]
    row = {"observableId": "y", "measurement": 1.0, "time": 5}
    if version == 1:
        tables = {"measurements": [{**row, "simulationConditionId": "c", "preequilibrationConditionId": "c"}]}
    else:
        periods = [{"experimentId": "e", "time": t, "conditionId": ""} for t in ("-inf", 0)]
        tables = {"measurements": [{**row, "experimentId": "e"}], "experiments": periods}
    path = write(tmp_path, model, version=version, observables=observables, **tables)
    if why:
        with refused(f"experiments.tsv, line 2: an event at a known time {why}, in pre-equilibration as well"):
            cf.petab.load(path)
        return
    c = 1 + (2 * exp(-2) if change == "C = 3" else 1 - exp(-2))
    expected = 0.5 * ((c - 1) / 0.4) ** 2 + log(0.4) + 0.5 * log(2 * pi)
    assert cf.petab.negative_log_likelihood(cf.petab.load(path)) == pytest.approx(expected, rel=1e-6)


def test_mistakes_of_the_model_name_its_file(tmp_path):
    path = write(tmp_path)
    (tmp_path / "model.xml").write_text("<sbml/>")
    with pytest.raises(cf.InputError, match=r"model\.xml: "):
        cf.petab.load(path)


def test_a_rule_cannot_be_set_and_a_constant_needs_a_value(tmp_path):
    model = "model ruled\n species A; A -> ; k * A * f; f := 2 * g; A = 2; k = 0.3; h = 1\nend"
    with refused(
        "conditions.tsv, line 2: 'f' follows from a rule of the model and cannot be set",
        "'g' of the model has no value: give one in the model",
    ):
        cf.petab.load(write(tmp_path, model, conditions=[{"conditionId": "c", "f": 1.0}]))


def test_mistakes_of_version_2(tmp_path):
    conditions = [
        {"conditionId": "a", "targetId": "dose", "targetValue": "A"},
        {"conditionId": "a", "targetId": "dose", "targetValue": 2},
        {"conditionId": "b", "targetId": "dose", "targetValue": 3},
        {"conditionId": "d", "targetId": "A0", "targetValue": "2 *"},
    ]
    experiments = [
        {"experimentId": "e", "time": 1, "conditionId": "a"},
        {"experimentId": "e", "time": 1, "conditionId": "b"},
        {"experimentId": "e", "time": 2, "conditionId": "cc"},
        {"experimentId": "f", "time": "-inf", "conditionId": "b"},
    ]
    observables = [{"observableId": "y", "observableFormula": "A", "noiseFormula": "0.1",
                    "noiseDistribution": "gauss", "observablePlaceholders": "s"}]  # fmt: skip
    rows = [{"observableId": "y", "experimentId": e, "measurement": 1, "time": 0.5, "observableParameters": 1}
            for e in ("e", "g")]  # fmt: skip
    path = write(tmp_path, version=2, conditions=conditions, experiments=experiments, observables=observables,
                 measurements=rows)  # fmt: skip
    with refused(
        "conditions.tsv, line 3: 'a' sets 'dose' twice, first in conditions.tsv, line 2",
        "conditions.tsv, line 5: targetValue: '2 *' cannot be read",
        "experiments.tsv, line 4: conditionId 'cc' is not in the condition table",
        "experiments.tsv, line 5: 'f' has no period after its pre-equilibration",
        "measurements.tsv, line 2: time is 0.5, before the experiment begins at 1",
        "measurements.tsv, line 3: experimentId 'g' is not in the experiment table",
        "observables.tsv, line 2: noiseDistribution is 'gauss'",
        "observables.tsv, line 2: the placeholder 's' of 'y' is in neither of its formulas",
        "conditions.tsv, line 3: 'dose' is 2 here and A in conditions.tsv, line 2",
        "conditions.tsv, line 4: 'dose' is 3 here and 2 in conditions.tsv, line 3",
    ):
        cf.petab.load(path)


def test_columns_of_other_version_are_refused(tmp_path):
    """A transformation that was not read would give a wrong number that looks right."""
    observable = {"observableId": "y", "observableFormula": "A", "noiseFormula": "0.1"}
    row = {"observableId": "y", "simulationConditionId": "c", "measurement": 1.3, "time": 1}
    version_2_parameter = parameter(
        "k", 0.4, estimate="true", objectivePriorType="normal", objectivePriorParameters="1;1"
    )
    path = write(
        tmp_path,
        version=2,
        observables=[{**observable, "observableTransformation": "log"}],
        measurements=[row],
        parameters=[version_2_parameter],
    )
    with refused(
        "parameters.tsv, line 2: objectivePriorType is not in this version of the format; priorDistribution says it",
        "observables.tsv, line 2: observableTransformation is not in this version",
        "measurements.tsv, line 2: simulationConditionId is not in this version of the format; experimentId says it",
    ):
        cf.petab.load(path)
    version_1_parameter = parameter("k", 0.4, priorDistribution="normal", priorParameters="1;1")
    with refused(
        "parameters.tsv, line 2: priorDistribution is not in this version of the format; objectivePriorType says it",
        "observables.tsv, line 2: noisePlaceholders is not in this version of the format",
    ):
        cf.petab.load(
            write(tmp_path, observables=[{**observable, "noisePlaceholders": "s"}], parameters=[version_1_parameter])
        )


def test_small_slips(tmp_path):
    observables = [
        {"observableId": "y", "observableFormula": "A * observableParameter2_y", "noiseFormula": "0.1"},
        {"observableId": "A", "observableFormula": "B", "noiseFormula": "0.1"},
        {"observableId": "u", "observableFormula": "v", "noiseFormula": "0.1"},
        {"observableId": "v", "observableFormula": "u", "noiseFormula": "0.1"},
    ]
    rows = [
        *measured((1.0,), (1.3,), observableParameters="1;2"),
        *measured((1.0,), (1.3,), observableId="u"),
    ]
    parameters = [
        parameter("k", 0.4, objectivePriorType="normal", objectivePriorParameters="1;-2"),
        parameter("observableParameter1_y", 1.0, estimate=0),
        parameter("A0", 1.0, initializationPriorType="parameterScaleNormal", initializationPriorParameters="0"),
        parameter("dose", 1.0, initializationPriorType="parameterscale"),
    ]
    path = write(tmp_path, observables=observables, measurements=rows, parameters=parameters)
    with refused(
        "parameters.tsv, line 3: 'observableParameter1_y' is a placeholder, which measurements fill",
        "parameters.tsv, line 4: initializationPriorParameters is '0'; the prior 'parameterScaleNormal' takes 2",
        "parameters.tsv, line 5: initializationPriorType is 'parameterscale'",
        "observables.tsv, line 2: the formulas of 'y' have placeholders up to 'observableParameter2_y', but not",
        "observables.tsv, line 3: observableId 'A' is what the model calls one of its own",
        "observables.tsv, line 4: observableFormula of 'u': 'v' is unknown",
        "parameters.tsv, line 2: the prior of 'k': give Normal(mean, deviation), deviation positive",
    ):
        cf.petab.load(path)
    path = write(tmp_path)
    table = tmp_path / "parameters.tsv"
    table.write_text(table.read_text().replace("\t", ","))
    with refused("parameters.tsv: its columns are separated by ','; a table of PEtab has tabs between them"):
        cf.petab.load(path)


def test_misspelt_columns_give_warning(tmp_path):
    """PEtab allows further columns, which are passed over; a slip would be a wrong number that looks right."""
    observable = {"observableId": "y", "observableFormula": "A", "noiseFormula": "0.1"}
    path = write(
        tmp_path,
        parameters=[parameter("k", 0.4, objectivePriorTyp="normal", comment="mine")],
        observables=[{**observable, "observabletransformation": "log"}],
        measurements=measured((1,), (1.3,), noiseparameters=3, bananas=1),
    )
    with pytest.warns(UserWarning, match="is passed over") as record:
        cf.petab.load(path)
    message = str(record[0].message)
    for column, meant, table in (
        ("objectivePriorTyp", "objectivePriorType", "parameters"),
        ("observabletransformation", "observableTransformation", "observables"),
        ("noiseparameters", "noiseParameters", "measurements"),
    ):
        slip = f"{table}.tsv: the column '{column}' is not PEtab's and is passed over; did you mean '{meant}'?"
        assert slip in message
    assert "comment" not in message
    assert "bananas" not in message
    second_path = write(
        tmp_path,
        version=2,
        observables=[{**observable, "noisedistribution": "log-normal"}],
        measurements=[{"observableId": "y", "ExperimentID": "", "measurement": 1, "time": 1}],
    )
    with pytest.warns(UserWarning, match="did you mean 'noiseDistribution'"):
        cf.petab.load(second_path)


def test_fixed_parameters_without_effect_give_warning(tmp_path):
    """Another letter, and the model keeps its own value; what only an unmeasured observable contains is no slip."""
    rows = [parameter("k", 0.4), parameter("a0", 5.0, estimate=0), parameter("idle", 1.0, estimate=0)]
    observables = [
        {"observableId": "y", "observableFormula": "A", "noiseFormula": "0.1"},
        {"observableId": "z", "observableFormula": "idle * A", "noiseFormula": "0.1"},
    ]
    with pytest.warns(UserWarning, match="in no formula") as record:
        cf.petab.load(write(tmp_path, parameters=rows, observables=observables))
    assert (
        str(record[0].message) == "parameters.tsv, line 3: 'a0' is in no formula, and not in the model; it is left out"
    )


def test_numbers_that_are_none(tmp_path):
    parameters = [
        parameter("k", "inf"),
        parameter("A0", 2.0, lowerBound="inf", upperBound="inf"),
        parameter("dose", 2.0, estimate=""),
    ]
    rows = [*measured((1,), ("nan",)), *measured(("nan",), (1.0,))]
    conditions = [{"conditionId": "c", "B": "inf"}]
    observables = [{"observableId": "y", "observableFormula": "A / 0", "noiseFormula": ""}]
    path = write(tmp_path, parameters=parameters, measurements=rows, conditions=conditions, observables=observables)
    with refused(
        "parameters.tsv, line 2: 'k' has the nominalValue inf; give a finite number",
        "parameters.tsv, line 3: 'A0' has the bounds inf and inf, between which there is no number",
        "parameters.tsv, line 4: estimate is empty; choose 1, 0",
        "observables.tsv, line 2: noiseFormula of 'y' is empty",
        "conditions.tsv, line 2: 'B' is inf; give a finite number",
        "measurements.tsv, line 2: measurement is NaN; give a number",
        "measurements.tsv, line 3: time is NaN; give a number",
        "observables.tsv, line 2: observableFormula of 'y': it divides by zero",
    ):
        cf.petab.load(path)


def test_an_override_is_no_state(tmp_path):
    observables = [{"observableId": "y", "observableFormula": "observableParameter1_y * A", "noiseFormula": "0.1"}]
    rows = measured((1,), (1.3,), observableParameters="B")
    with refused("measurements.tsv, line 2: observableParameters holds 'B', which is a state of the model"):
        cf.petab.load(write(tmp_path, observables=observables, measurements=rows))


def test_tables_without_rows_and_damaged_ones(tmp_path):
    path = write(tmp_path)
    table = tmp_path / "measurements.tsv"
    content = table.read_bytes()
    table.write_text(content.decode().splitlines()[0])
    with refused("problem.yaml: its measurement tables have no rows"):
        cf.petab.load(path)
    table.write_bytes(content + b"\0\0\n")
    with refused("measurements.tsv: it holds bytes that are zero"):
        cf.petab.load(path)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_marks_and_ends_of_lines(tmp_path, end):
    """A mark of the order of bytes, lines as on Windows or an old Macintosh, cells in quotes, empty columns."""
    path = write(tmp_path)
    expected = cf.petab.negative_log_likelihood(cf.petab.load(path))
    for name in ("parameters", "observables", "conditions", "measurements"):
        table = tmp_path / f"{name}.tsv"
        lines = [f"{line}\t\t".replace("y\t", '"y"\t') for line in table.read_text().splitlines()]
        table.write_bytes(b"\xef\xbb\xbf" + end.join(lines).encode())
    assert cf.petab.negative_log_likelihood(cf.petab.load(path)) == expected
