"""Constraints: how relations are read, and that all transcriptions and solvers hold them alike."""

import pickle
from functools import cache

import casadi as ca
import numpy as np
import pytest

import castfit as cf
from castfit.problem.constraints import Constraint, read_constraints
from castfit.problem.fingerprint import fingerprint
from tests.builders import refused
from tests.crossed import crossed

METHODS = [f"{t}/{s}" for t in ("single", "multiple", "collocation") for s in ("gauss_newton", "ipopt")]

x, y, k1, k2 = cf.symbols("x y k1 k2")
TWICE = k1 == 2 * k2


def chain(constraints=(), *, sigma=0.02, experiments=1, free_start=True, **changes):
    """Return the problem of x -> y -> nothing with noise, one or two experiments."""
    model = cf.Model({x: -k1 * x, y: k1 * x - k2 * y}, parameters=[k1, k2], outputs={"both": x + y})
    t = np.linspace(0, 6, 13)
    rng = np.random.default_rng(1)
    xs, ys = 2 * np.exp(-0.7 * t), 2 * 0.7 / (0.3 - 0.7) * (np.exp(-0.7 * t) - np.exp(-0.3 * t))
    data = {"x": xs + 0.02 * rng.standard_normal(13), "y": ys + 0.02 * rng.standard_normal(13)}
    initial = {"x": cf.free(1.9) if free_start else 2.0, "y": 0.0}
    experiment_list = [cf.Experiment(data, time=t, sigma=sigma, initial=initial, name=n) for n in "ab"[:experiments]]
    parameters = {"k1": cf.Parameter(0.6, lower=0, scale="log"), "k2": cf.Parameter(0.4, lower=0), **changes}
    return cf.Problem(model, experiment_list, parameters=parameters, constraints=constraints)


@cache
def fitted(*constraints):
    """Return the problem's fit by single shooting."""
    return cf.fit(chain(constraints), "single")


# ------------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("relation", "expression", "lower", "upper", "name"),
    [
        (k1 + k2 <= 1, k1 + k2, -np.inf, 1, "k1+k2 <= 1"),
        (k1 < 1, k1, -np.inf, 1, "k1 <= 1"),
        (k1 >= 2, k1, 2, np.inf, "k1 >= 2"),
        (k1 == 2, k1, 2, 2, "k1 == 2"),
        (k1 >= k2, k2 - k1, -np.inf, 0, "k2 <= k1"),
        (k1 == 2 * k2, k1 - 2 * k2, 0, 0, "k1 == 2.*k2"),
        (cf.between(0, k1 * k2, 3), k1 * k2, 0, 3, "0 <= k1*k2 <= 3"),
        (Constraint(k1, upper=4), k1, -np.inf, 4, "constraint 1"),
        (cf.at([3, 1], x >= 0.5), x, 0.5, np.inf, "x >= 0.5 at t = 1, 3"),
        (cf.along(x <= 3, experiment="a"), x, -np.inf, 3, "x <= 3 along (a)"),
        (cf.monotone(x), x, 0, np.inf, "x never falls"),
        (cf.monotone("both", increasing=False, name="down"), None, -np.inf, 0, "down"),
    ],
)
def test_relations_are_taken_apart(relation, expression, lower, upper, name):
    mistakes = []
    (constraint,) = read_constraints([relation], mistakes)
    assert not mistakes
    assert (constraint.lower, constraint.upper, constraint.name) == (lower, upper, name)
    if expression is not None:
        difference = ca.Function("difference", [x, k1, k2], [constraint.expression - expression])
        assert abs(float(difference(0.3, 0.7, 1.9))) < 1e-15
    copy = pickle.loads(pickle.dumps(constraint))
    for field in ("name", "times", "experiments", "of", "text"):
        assert getattr(copy, field) == getattr(constraint, field)


def test_relations_that_read_alike_get_numbers():
    constraints = read_constraints([k1 <= 1, k1 <= 1, k1 <= 2], [])
    assert [c.name for c in constraints] == ["k1 <= 1", "k1 <= 1 (2)", "k1 <= 2"]


def test_constraint_chained_comparison_is_refused():
    with pytest.raises(RuntimeError, match="truth value"):
        _ = 0 <= x <= 1
    with refused("constraints contains True, no relation; compare an expression of symbols; a chain such as"):
        chain([True])


@pytest.mark.parametrize(
    ("constraints", "phrases"),
    [
        ([k1 + k2], ["constraints contains SX((k1+k2)); give Constraint(...), or a relation"]),
        ([k1 != 2], ["give one relation by <=, >= or =="]),
        ([ca.vertcat(k1, k2) <= 1], ["a matrix of shape (2, 1)"]),
        ([k1 - k1 <= 1], ["a comparison that is True whatever the symbols"]),
        ([x <= 1], ["'x', which changes in time; say when: cf.at(time, ...), or cf.along(...) for all times; the "
                    "initial value is cf.quantity('x(0)')"]),
        ([cf.symbols("q") <= 1], ["contains 'q', which is not in the model"]),
        ([cf.quantity("z(0)") <= 1], ["contains 'z(0)', which is not in the model: did you mean 'x(0)'"]),
        ([cf.along(x <= 1, experiment="c")], ["is about 'c'"]),
        ([cf.at(-1, x <= 1)], ["t = -1 lies before the start 0 of a"]),
        ([cf.at(np.inf, x <= 1)], ["the time inf is for experiments observed at rest"]),
        ([cf.along(x + cf.quantity("x(0)") <= 1)], ["contains 'x(0)' together with time-dependent symbols"]),
        ([cf.between(2, k1, np.inf), cf.between(-np.inf, k1, np.inf)], ["has no bound"]),
    ],
)  # fmt: skip
def test_mistakes_are_named(constraints, phrases):
    with refused(*phrases):
        chain(constraints)


def test_functions_refuse_what_they_cannot_use():
    with refused("time is 'now'; give a number", "relation is 1; give Constraint"):
        cf.at("now", 1)
    with refused("the bounds are 2 and 1", "expression is 3; give a scalar expression"):
        cf.between(2, 3, 1)
    with refused("what is 3; give a scalar expression", "experiment is 1; give the name", "increasing is 'up'"):
        cf.monotone(3, "up", experiment=1)
    with refused("what is 3; give a scalar expression", "total is 'all'; give a number"):
        cf.conserved(3, "all")
    with refused("name is 1; give the name of an estimated quantity"):
        cf.quantity(1)


def test_a_given_initial_state_that_contradicts_is_found_before_solving():
    with refused("x <= 1.5 along: at the start of a it is 2 whatever is estimated"):
        chain([cf.along(x <= 1.5)], free_start=False)


# ------------------------------------------------------------------------------------------------------- solving


HELD = {
    "quantities": (k1 == 2.2 * k2, lambda v: v["k1"] - 2.2 * v["k2"]),
    "a start": (k1 + cf.quantity("x(0)") <= 2.69, lambda v: v["k1"] + v["x(0)"] - 2.69),
    "a least state": (cf.at(3.3, x >= 0.21), lambda v: v["x(0)"] * np.exp(-3.3 * v["k1"]) - 0.21),
    "a state": (cf.at(8, x == 0.0073), lambda v: v["x(0)"] * np.exp(-8 * v["k1"]) - 0.0073),
    "the first state": (cf.at(0, x == 1.99), lambda v: v["x(0)"] - 1.99),
}


@pytest.mark.parametrize(("case", "transcription"), crossed(HELD, ("single", "multiple", "collocation")))
def test_every_method_holds_a_constraint_and_finds_the_same(case, transcription):
    constraint, value = case
    reference = fitted(constraint)
    assert reference.chi2 > fitted().chi2 + 1e-3  # it does hold the estimate back
    for solver in ("gauss_newton", "ipopt"):
        result = cf.fit(chain([constraint]), transcription, solver)
        assert result.success, (solver, result.message)
        assert abs(value(result.values)) < 1e-6, solver
        assert result.chi2 == pytest.approx(reference.chi2, rel=1e-4), solver
        for name, estimate in result.values.items():
            error = reference.standard_errors[name]
            assert estimate == pytest.approx(reference.values[name], abs=1e-3 * max(error, 1e-3)), solver
            assert result.standard_errors[name] == pytest.approx(error, rel=1e-3, abs=1e-7), solver
        assert result.dof == reference.dof == 26 - 2


def test_a_linear_equation_is_the_same_as_substitution():
    model = cf.Model({x: -2 * k2 * x, y: 2 * k2 * x - k2 * y}, parameters=[k2])
    problem = chain()
    reduced_result = cf.fit(cf.Problem(model, problem.experiments, parameters={"k2": 0.4}), "single")
    constrained_result = fitted(TWICE)
    assert constrained_result.chi2 == pytest.approx(reduced_result.chi2, rel=1e-6)
    for name in ("k2", "x(0)"):
        assert constrained_result.values[name] == pytest.approx(reduced_result.values[name], rel=1e-6)
        assert constrained_result.standard_errors[name] == pytest.approx(reduced_result.standard_errors[name], rel=1e-4)
    assert constrained_result.standard_errors["k1"] == pytest.approx(2 * reduced_result.standard_errors["k2"], rel=1e-4)
    assert constrained_result.dof == reduced_result.dof


def test_a_constraint_that_does_not_bind_changes_nothing():
    free = cf.fit(chain(), "single")
    slack = cf.fit(chain([k1 <= 3, cf.at(2, y >= 0), cf.along(x <= 3), cf.monotone(x, increasing=False)]), "single")
    assert slack.values == pytest.approx(free.values, rel=1e-6)
    assert slack.standard_errors == pytest.approx(free.standard_errors, rel=1e-5)
    assert slack.dof == free.dof


@pytest.mark.parametrize("method", ["single/gauss_newton", "multiple/ipopt", "collocation/gauss_newton"])
def test_relations_of_local_parameters_and_initial_states(method):
    local = cf.Parameter(0.6, lower=0, local=True)
    relation = cf.quantity("k1[a]") == cf.quantity("k1[b]") + 0.01
    problem = chain([relation, cf.quantity("x(0)") <= 1.99], experiments=2, k1=local)
    assert [r.name for r in problem.posed.relations][1:] == ["x(0) <= 1.99 (a)", "x(0) <= 1.99 (b)"]
    result = cf.fit(problem, method)
    assert result.success, result.message
    assert result.values["k1[a]"] == pytest.approx(result.values["k1[b]"] + 0.01, abs=1e-8)
    assert result.values["x(0)[a]"] <= 1.99 + 1e-7
    assert result.values["x(0)[b]"] == pytest.approx(1.99, abs=1e-6)


def test_with_constraints_leaves_the_problem_unchanged():
    problem = chain()
    constrained_problem = problem.posed.with_constraints([k1 * k2 == 0.2])
    assert not problem.posed.relations
    assert [c.name for c in constrained_problem.constraints] == ["k1*k2 == 0.2"]
    result = cf.fit(constrained_problem, "single")
    assert result.values["k1"] * result.values["k2"] == pytest.approx(0.2, abs=1e-8)
    copy = pickle.loads(pickle.dumps(constrained_problem))
    assert cf.fit(copy, "single").values == pytest.approx(result.values, rel=1e-9)
    assert fingerprint(constrained_problem) == fingerprint(copy) != fingerprint(problem)
    twice = constrained_problem.with_constraints(cf.at(3, x <= 0.24))
    values = cf.fit(twice, "single").values
    assert values["x(0)"] * np.exp(-3 * values["k1"]) <= 0.24 + 1e-7
    with refused("two constraints are named 'k1*k2 == 0.2'"):
        constrained_problem.with_constraints(Constraint(k1, upper=1, name="k1*k2 == 0.2"))


def test_fixing_a_quantity_keeps_the_rest_of_a_relation():
    constrained_problem = chain([k1 == 2 * k2]).posed
    result = cf.fit(constrained_problem.fix({"k2": 0.3}), "single")
    assert result.values["k1"] == pytest.approx(0.6, abs=1e-9)
    with refused("these values contradict the constraint k1 == 2.*k2, by 0.1"):
        constrained_problem.fix({"k1": 0.7, "k2": 0.3})


def test_shorter_horizons_leave_later_constraints_out():
    compiled_problem = chain([cf.at(5, x >= 0.1), cf.at(9, x >= 0.01)]).posed
    assert compiled_problem.conditions[0].end == 9
    assert compiled_problem.with_horizon(3).conditions[0].watched_times.size == 0
    assert compiled_problem.with_horizon(6).conditions[0].end == 9
    assert cf.fit(compiled_problem.with_horizon(3), "single").success


def test_nothing_depends_on_units():
    base = cf.fit(chain([cf.at(3.3, x >= 0.21), k1 + k2 <= 1.0]), "single")
    size = 1e-9
    t = base.problem.experiments[0].data["x"][0] * 1e6
    X, Y = cf.symbols("x y")
    model = cf.Model({X: -k1 * X, Y: k1 * X - k2 * Y}, parameters=[k1, k2])
    data = {n: base.problem.experiments[0].data[n][1] * size for n in "xy"}
    experiment = cf.Experiment(data, time=t, sigma=0.02 * size, initial={"x": cf.free(1.9 * size), "y": 0.0})
    for method in ("single/gauss_newton", "collocation/ipopt"):
        scaled = cf.fit(
            cf.Problem(model, experiment, parameters={"k1": cf.Parameter(0.6e-6, lower=0, scale="log"), "k2": 0.4e-6},
                       constraints=[cf.at(3.3e6, 0.21 * size <= X), k1 + k2 <= 1e-6]), method)  # fmt: skip
        assert scaled.success, scaled.message
        assert scaled.chi2 == pytest.approx(base.chi2, rel=1e-4)
        assert scaled.values["k1"] * 1e6 == pytest.approx(base.values["k1"], rel=1e-4)


def test_results_know_of_their_constraints(tmp_path):
    result = fitted(TWICE)
    result.save(tmp_path / "fit.json")
    cf.Result.load(tmp_path / "fit.json").with_problem(chain([k1 == 2 * k2]))
    with pytest.raises(cf.InputError, match="constraints"):
        cf.Result.load(tmp_path / "fit.json").with_problem(chain([k1 == 3 * k2]))


# --------------------------------------------------------------------------------------------------- what they cost


@pytest.mark.parametrize(
    ("hold", "name", "bound", "side"),
    [
        (lambda b: [k1 == b * k2], "k1 == 2.2*k2", 2.2, "equal"),
        (lambda b: [Constraint(k1 - 2.2 * k2, b, b, "tie")], "tie", 0.0, "equal"),
        (lambda b: [k1 + cf.quantity("x(0)") <= b], "k1+x(0) <= 2.69", 2.69, "upper"),
        (lambda b: [cf.at(3.3, x >= b)], "x >= 0.21 at t = 3.3", 0.21, "lower"),
        (lambda b: [cf.at(8, x == b)], "x == 0.0073 at t = 8", 0.0073, "equal"),
        (lambda b: [cf.along(y <= b)], "y <= 0.985 along", 0.985, "upper"),
    ],
)
def test_multipliers_are_slopes_of_the_optimal_cost_from_both_solvers(hold, name, bound, side):
    results = [cf.fit(chain(hold(bound)), method) for method in ("single/gauss_newton", "collocation/ipopt")]
    rows = [f.constraints[name] for f in results]
    for row in rows:
        assert row.active == side
        assert row.value == pytest.approx(0.0 if "==" in name and "t =" not in name else bound, abs=1e-6)
        assert row.multiplier == pytest.approx(rows[0].multiplier, rel=1e-4)
    if name == "k1 == 2.2*k2":  # its number is no bound: the bound is that of k1 - 2.2 k2, which is 0
        return
    h = 1e-3 * max(bound, 0.1)
    above, below = (cf.fit(chain(hold(bound + s * h)), "single/gauss_newton").chi2 for s in (1, -1))
    assert rows[0].multiplier == pytest.approx((above - below) / (2 * h), rel=2e-2)
    if side != "equal":
        assert (rows[0].multiplier < 0) == (side == "upper")  # relaxing a bound that holds lowers chi2
        assert rows[0].sentence.startswith(f"Relaxing '{name}' by")


def test_multipliers_with_unknown_sigma_are_of_the_likelihood():
    def fit_with_bound(bound):
        return cf.fit(chain([cf.at(3.3, x >= bound)], sigma=None), "single/gauss_newton")

    row = fit_with_bound(0.21).constraints["x >= 0.21 at t = 3.3"]
    h = 1e-4
    slope = (fit_with_bound(0.21 + h).neg2loglik - fit_with_bound(0.21 - h).neg2loglik) / (2 * h)
    assert row.multiplier == pytest.approx(slope, rel=1e-2)
    assert "-2 log likelihood" in row.sentence


def test_constraint_table_marks_satisfied_and_violated_rows(tmp_path):
    result = cf.fit(chain([k1 == 2.2 * k2, k1 <= 3, cf.at(2, y >= 0)]), "single")
    table = result.constraints
    assert table.names == ("y >= 0 at t = 2", "k1 == 2.2*k2", "k1 <= 3")
    assert [row.name for row in table.active] == ["k1 == 2.2*k2"]
    assert table["k1 <= 3"].slack == pytest.approx(3 - result.values["k1"])
    assert table["k1 <= 3"].multiplier == 0.0
    assert "k1 == 2.2*k2" in str(table)
    assert "1 constraint is active at the estimates" in str(result)
    result.save(tmp_path / "fit.json")
    assert cf.Result.load(tmp_path / "fit.json").constraints == table
    with pytest.raises(cf.InputError, match="unknown constraint 'k'"):
        _ = table["k"]
    assert not cf.fit(chain()).constraints.rows


def test_a_row_names_its_experiment_once():
    constraints = [cf.at(2, y >= 0), cf.at(3, y >= 0, experiment="b"), cf.at(4, y >= 0, experiment="a", name="late")]
    result = cf.fit(chain(constraints, experiments=2), "single")
    assert set(result.constraints.names) == {
        "y >= 0 at t = 2 (a)", "y >= 0 at t = 2 (b)", "y >= 0 at t = 3 (b)", "late"
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------------- along the path


@pytest.mark.parametrize(
    "method",
    ["single/ipopt", "collocation/gauss_newton", pytest.param("multiple/gauss_newton", marks=pytest.mark.slow)],
)
def test_a_constraint_along_the_path_is_kept_between_points(method):
    result = cf.fit(chain([cf.along(y <= 0.985)]), method)
    assert result.success, result.message
    fine = cf.simulate(result.problem, result.values, times=np.linspace(0, 6, 6001))["a"]
    assert fine["y"].max() <= 0.985 + 1e-5
    assert fine["y"].max() >= 0.985 - 1e-4


def test_a_pulse_between_the_points_is_found():
    """A constraint is held first at 25 times and where something is measured; what happens between is looked for."""
    u, k = cf.symbols("u k")
    model = cf.Model({x: k * u - 5 * x}, parameters=[k], inputs=[u])
    t = np.array([0.0, 10.0])
    pulse = cf.Input.linear([0, 4.05, 4.1, 4.15, 10], [0, 0, 1, 0, 0])
    experiment = cf.Experiment(
        {
            "x": [0.0, 0.0],
        },
        time=t,
        sigma=0.1,
        initial={"x": 0.0},
        inputs={"u": pulse},
    )
    prior = cf.Parameter(50.0, prior=cf.Normal(50.0, 5.0))
    free = cf.fit(cf.Problem(model, experiment, parameters={"k": prior}), "single")
    assert free.values["k"] == pytest.approx(50, rel=1e-3)
    result = cf.fit(cf.Problem(model, experiment, parameters={"k": prior}, constraints=[cf.along(x <= 1.0)]), "single")
    assert result.success, result.message
    fine = cf.simulate(result.problem, result.values, times=np.linspace(0, 10, 20001))[
        result.problem.experiments[0].name
    ]
    assert fine["x"].max() == pytest.approx(1.0, abs=1e-4)


def test_monotone_outputs():
    t = np.linspace(0, 6, 7)
    values = np.array([0.0, 0.9, 0.95, 1.1, 0.9, 1.0, 0.8])
    a, b, s = cf.symbols("a b s")
    model = cf.Model({s: a * cf.exp(-s) - b}, parameters=[a, b])
    experiment = cf.Experiment({"s": values}, time=t, sigma=0.1, initial={"s": 0.0})
    parameters = {"a": cf.Parameter(1.0, lower=0), "b": 0.1}
    for up in (True, False):
        problem = cf.Problem(model, experiment, parameters=parameters, constraints=[cf.monotone(s, increasing=up)])
        for method in ("single/gauss_newton", "collocation/ipopt"):
            result = cf.fit(problem, method)
            assert result.success, result.message
            path = cf.simulate(problem, result.values, times=np.linspace(0, 6, 601))["experiment 1"]["s"]
            assert (np.diff(path) * (1 if up else -1)).min() > -1e-6


def test_conserved_sums():
    k3 = cf.symbols("k3")
    closed = cf.Model({x: -k1 * x + k2 * y, y: k1 * x - k2 * y}, parameters=[k1, k2])
    leaking = cf.Model({x: -k1 * x + k2 * y, y: k1 * x - k3 * y}, parameters=[k1, k2, k3])
    t = np.linspace(0, 4, 9)
    rng = np.random.default_rng(2)
    data = {"x": 0.5 + 1.5 * np.exp(-2 * t) + 0.01 * rng.standard_normal(9), "y": 1.5 - 1.5 * np.exp(-2 * t)}
    experiment = cf.Experiment(data, time=t, sigma=0.01, initial={"x": cf.free(1.9), "y": cf.free(0.1)})

    def problem(model, *constraints):
        guess = {"k1": 1.0, "k2": 0.6, "k3": 0.5}
        parameters = {n: guess[n] for n in model.parameters}
        return cf.Problem(model, experiment, parameters=parameters, constraints=constraints)

    assert not problem(closed, cf.conserved(x + y)).posed.path
    assert not problem(closed, cf.conserved(x + y)).posed.relations
    total = cf.fit(problem(closed, cf.conserved(x + y, total=2.01)), "single")
    assert total.values["x(0)"] + total.values["y(0)"] == pytest.approx(2.01, abs=1e-8)
    (relation,) = problem(leaking, cf.conserved(x + y)).posed.relations
    assert relation.name == "x+y is conserved: k2-k3 == 0"
    constrained_result, reduced_result = (
        cf.fit(problem(leaking, cf.conserved(x + y)), "single"),
        cf.fit(problem(closed), "single"),
    )
    assert constrained_result.chi2 == pytest.approx(reduced_result.chi2, rel=1e-5)
    assert constrained_result.values["k2"] == pytest.approx(constrained_result.values["k3"], abs=1e-9)
    fed = cf.Model({x: 1 - k1 * x, y: k1 * x - k2 * y}, parameters=[k1, k2])
    with refused("it changes whatever the parameters"):
        problem(fed, cf.conserved(x + y))


# ------------------------------------------------------------------------------------- contradictions and repetitions


@pytest.mark.parametrize(
    ("constraints", "phrase"),
    [
        ([k1 <= 1, k1 >= 2], "the constraints 'k1 <= 1' and 'k1 >= 2' contradict each other"),
        ([k1 + k2 <= 1, k1 >= 0.7, k2 >= 0.7, k1 <= 5], "'k1+k2 <= 1', 'k1 >= 0.7' and 'k2 >= 0.7' contradict"),
        ([k2 <= -1], "'k2 <= -1' contradicts the bounds of the quantities"),
        ([k1 <= 1, k1 * k1 >= 1.2], "'sq(k1) >= 1.2' cannot hold: bounds and the other constraints leave 0 to 1"),
        ([k1 * cf.exp(k2) <= -0.1], "cannot hold"),
    ],
)
def test_contradictions_are_found_before_solving(constraints, phrase):
    with refused(phrase):
        chain(constraints)
    with pytest.raises(cf.InputError, match=r"contradict|cannot hold"):
        chain().posed.with_constraints(constraints)


@pytest.mark.parametrize(
    ("method", "copy"),
    crossed(METHODS, {"a multiple": 2 * k1 == 4.4 * k2, "a product": k1 * k2 == 2.2 * k2 * k2}),
)
def test_equations_that_repeat_others_break_no_solver(method, copy):
    reference = fitted(k1 == 2.2 * k2)
    result = cf.fit(chain([k1 == 2.2 * k2, copy]), method)
    assert result.success, result.message
    assert result.chi2 == pytest.approx(reference.chi2, rel=1e-5)
    assert result.standard_errors == pytest.approx(reference.standard_errors, rel=1e-3)
    assert len(result.constraints) == 2
    total = sum(row.multiplier for row in result.constraints if row.name == "k1 == 2.2*k2")
    assert total == pytest.approx(reference.constraints["k1 == 2.2*k2"].multiplier, rel=1e-3)


def test_conserved_constraint_of_the_model_is_imposed_once():
    closed = cf.Model({x: -k1 * x, y: k1 * x}, parameters=[k1])
    t = np.linspace(0, 3, 7)
    data = {"x": 2 * np.exp(-t) + 0.01 * np.cos(9 * t)}
    experiment = cf.Experiment(data, time=t, sigma=0.01, initial={"x": cf.free(2.0), "y": cf.free(0.1)})
    problem = cf.Problem(closed, experiment, parameters={"k1": 0.8}, constraints=[cf.along(x + y == 2.5)])
    for method in ("single/ipopt", "collocation/ipopt", "multiple/gauss_newton"):
        result = cf.fit(problem, method)
        assert result.success, result.message
        assert result.values["x(0)"] + result.values["y(0)"] == pytest.approx(2.5, abs=1e-7)


@pytest.mark.parametrize("solver", ["gauss_newton", "ipopt"])
def test_a_fit_that_cannot_meet_its_constraints_names_them(solver):
    result = cf.fit(chain([cf.at(2, x <= 0.1), cf.at(3, x >= 0.4)]), f"single/{solver}", max_time=20)
    assert not result.success
    assert "Largest violations: 'x" in result.message
    assert np.isnan(result.constraints.rows[0].multiplier)
