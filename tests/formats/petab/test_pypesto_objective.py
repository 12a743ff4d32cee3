"""Objectives for pyPESTO: derivatives against differences, pyPESTO's own likelihood, elimination, what is missing."""

from __future__ import annotations

import pickle
import sys
from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pytest

import castfit as cf
from castfit.formats.petab.pypesto_objective import _kind
from tests.builders import refused
from tests.formats.petab.writing import measured, parameter, write

pytest.importorskip("petab")
pytest.importorskip("antimony")

try:
    from pypesto.objective.base import ObjectiveBase
except ImportError:

    class Same:
        """Stands for pyPESTO's processor of fixed parameters where there are none."""

        def preprocess(self, x):
            return x

    class ObjectiveBase:
        """Stands for pyPESTO's base: the part of its interface that is used here."""

        def __init__(self, x_names):
            self.x_names, self.pre_post_processor = x_names, Same()

        def __call__(self, x, sensi_orders=(0,), mode="mode_fun"):
            assert self.check_mode(mode)
            assert self.check_sensi_orders(sensi_orders, mode)
            results = tuple(self.call_unprocessed(np.array(x), sensi_orders, mode, False).values())
            return results[0] if len(results) == 1 else results


PARAMETERS = [
    parameter("k", 0.4),
    parameter("sd_A", 0.2, parameterScale="lin"),
    parameter("sd_B", 0.3, parameterScale="log"),
    parameter("dose", 1.5, estimate=0),
    parameter("A0", 2.1, parameterScale="lin"),
]
OBSERVABLES = [
    {"observableId": "y", "observableFormula": "A", "noiseFormula": "sd_A", "observableTransformation": "log10"},
    {"observableId": "z", "observableFormula": "dose * B", "noiseFormula": "sd_B", "observableTransformation": "lin"},
    {"observableId": "w", "observableFormula": "B", "noiseFormula": "0.1 + 0.2 * B", "observableTransformation": "lin"},
]
ROWS = [
    *measured((1, 2, 4), (1.3, 0.9, 0.5)),
    *measured((1, 2, 2, 5), (1.1, 2.0, 1.7, 2.9), observableId="z"),
    *measured((2, 3), (1.0, 1.2), observableId="w"),
]


@pytest.fixture
def pypesto(monkeypatch):
    """Let the base class be found, be it pyPESTO's or not."""
    if "pypesto" not in sys.modules:
        import types

        for name in ("pypesto", "pypesto.objective", "pypesto.objective.base"):
            module = types.ModuleType(name)
            module.ObjectiveBase = ObjectiveBase
            monkeypatch.setitem(sys.modules, name, module)
    yield
    _kind.cache_clear()


@pytest.fixture
def path(tmp_path, pypesto):
    return write(tmp_path, parameters=PARAMETERS, observables=OBSERVABLES, measurements=ROWS)


def differences(function, x, free, step=1e-4):
    """Central differences of fourth order by the entries `free` of x."""
    columns = []
    for j in free:
        unit = np.where(np.arange(x.size) == j, step, 0.0)
        near_difference, far_difference = (np.asarray(function(x + k * unit)) - function(x - k * unit) for k in (1, 2))
        columns.append((8 * near_difference - far_difference) / (12 * step))
    return np.array(columns).T


def test_values_and_derivatives(path):
    """On PEtab's scales, by its table, fixed parameters included; residuals are squares of the likelihood."""
    objective = cf.petab.to_pypesto(path)
    names = [row["parameterId"] for row in PARAMETERS]
    assert list(objective.x_names) == names
    nominal = [np.log10(0.4), 0.2, np.log(0.3), np.log10(1.5), 2.1]
    assert objective.guess == pytest.approx(nominal)
    problem = cf.petab.load(path)
    assert objective(objective.guess) == pytest.approx(cf.petab.negative_log_likelihood(problem), abs=1e-7)
    free = [0, 1, 2, 4]
    x = objective.guess + np.array([0.1, 0.05, -0.1, 0.0, 0.2])
    value, gradient, information = objective(x, sensi_orders=(0, 1, 2))
    assert value == objective(x)
    assert gradient[free] == pytest.approx(differences(objective, x, free), rel=1e-6, abs=1e-6)
    assert gradient[3] == 0
    r, slopes = objective(x, sensi_orders=(0, 1), mode="mode_res")
    assert slopes[:, free] == pytest.approx(
        differences(lambda point: objective(point, mode="mode_res"), x, free), abs=1e-5
    )
    assert slopes.T @ r == pytest.approx(gradient, abs=1e-9)
    guess_residuals = objective(objective.guess, mode="mode_res")
    assert 0.5 * (r @ r - guess_residuals @ guess_residuals) == pytest.approx(
        value - objective(objective.guess), abs=1e-8
    )
    mean = np.linalg.eigvalsh(information[np.ix_(free, free)])
    assert mean.min() > 0
    assert information[2, 2] == pytest.approx(2 * 4)  # of log sd of four values
    assert not information[3].any()


@pytest.mark.slow
def test_information_is_the_mean_of_outer_products_of_gradients(pypesto):
    """Over data drawn from the model."""
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k, *cf.symbols("sd other")], initial={x: 3.0})
    times, rng = np.linspace(0.2, 3.0, 12), np.random.default_rng(4)
    exact = 3.0 * np.exp(-0.7 * times)
    outer, information = np.zeros((2, 2)), None
    draws = 150
    for _ in range(draws):
        sd = cf.symbols("sd")
        data = {"x": exact + 0.1 * rng.standard_normal(times.size)}
        experiment = cf.Experiment(data, time=times, sigma=sd)
        parameters = {"k": cf.Parameter(0.7, 0.01, 10, scale="log"), "sd": cf.Parameter(0.1, 0.01, 1.0), "other": 1.0}
        parameters["other"] = cf.Parameter(1.0, fixed=True)
        objective = cf.petab.to_pypesto(cf.Problem(model, experiment, parameters=parameters))
        _, gradient, information = objective(objective.guess, sensi_orders=(0, 1, 2))
        outer += np.outer(gradient, gradient) / draws
    scale = np.sqrt(np.diag(information))
    assert np.allclose(
        outer / np.outer(scale, scale), information / np.outer(scale, scale), atol=4 * np.sqrt(2 / draws)
    )


def test_spreads_are_eliminated(path):
    """They stand where they are best, and the rest has the gradient of what is left."""
    full_objective, reduced_objective = cf.petab.to_pypesto(path), cf.petab.to_pypesto(path, eliminate=True)
    assert list(reduced_objective.x_names) == ["k", "dose", "A0"]
    x = reduced_objective.guess + np.array([0.05, 0.0, -0.1])
    best = reduced_objective.eliminated(x)
    assert {*best} == {"sd_A", "sd_B"}
    full = np.array([x[0], best["sd_A"], np.log(best["sd_B"]), x[1], x[2]])
    value, gradient = full_objective(full, sensi_orders=(0, 1))
    assert reduced_objective(x) == pytest.approx(value, abs=1e-9)
    assert gradient[[1, 2]] == pytest.approx(0, abs=1e-8)
    assert reduced_objective(x, sensi_orders=(1,)) == pytest.approx(gradient[[0, 3, 4]], abs=1e-9)
    assert not reduced_objective.check_mode("mode_res")


def test_copies_and_pickles_are_the_same(path):
    objective = cf.petab.to_pypesto(path)
    x = objective.guess
    assert deepcopy(objective)(x) == objective(x)
    if ObjectiveBase.__module__.startswith("pypesto"):
        assert pickle.loads(pickle.dumps(objective))(x) == objective(x)
    assert pickle.loads(pickle.dumps(objective.likelihood)).value(x) == objective(x)


def test_objective_of_failed_integration_is_infinite(tmp_path, pypesto):
    model = "model m\n  species A; A -> 2 A; k * A * A; A = 1; k = 0.1\nend\n"
    objective = cf.petab.to_pypesto(write(tmp_path, model))
    value, gradient, information = objective(np.array([2.0]), sensi_orders=(0, 1, 2))
    assert value == objective(np.array([2.0])) == np.inf
    assert np.isnan(gradient).all()
    assert np.isnan(information).all()
    assert np.isnan(objective(np.array([2.0]), mode="mode_res")).all()


def test_objective_falls_back_to_robust_steps(path, monkeypatch):
    """Derivatives that follow the steps of the states are given up early; then the same is asked otherwise."""
    objective = cf.petab.to_pypesto(path)
    expected = objective(objective.guess, sensi_orders=(0, 1, 2))
    residuals = objective(objective.guess, mode="mode_res")
    quick = objective.likelihood._objective.staged
    monkeypatch.setattr(type(quick), "linearize", failing(type(quick).linearize, quick))
    monkeypatch.setattr(type(quick), "evaluate", failing(type(quick).evaluate, quick))
    for one, other in zip(objective(objective.guess, sensi_orders=(0, 1, 2)), expected, strict=True):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-5)
    assert objective(objective.guess) == pytest.approx(expected[0])
    assert objective(objective.guess, mode="mode_res") == pytest.approx(residuals, abs=1e-6)


def failing(method, target):
    """Return a method that fails for one object."""

    def wrapper(self, *arguments, **options):
        return SimpleNamespace(ok=False, cost=np.inf) if self is target else method(self, *arguments, **options)

    return wrapper


def test_mistakes(path, tmp_path, monkeypatch):
    objective = cf.petab.to_pypesto(path)
    with refused("x has the shape (2,); give (5,): k, sd_A, sd_B, dose, A0"):
        objective.likelihood.value(np.zeros(2))
    with refused("'dose' is fixed at 0.176091 and cannot be 1.17609"):
        objective.likelihood.value(objective.guess + np.array([0, 0, 0, 1.0, 0]))
    with refused("eliminate is 'yes'", "integrator is 'cvodes'", "problem is 3; give a Problem, or the path"):
        cf.petab.to_pypesto(3, eliminate="yes", integrator="cvodes")
    rows = [
        parameter("sd_A", 0.2, objectivePriorType="normal", objectivePriorParameters="0.2;0.1"),
        *(row for row in PARAMETERS if row["parameterId"] != "sd_A"),
    ]
    prior = write(tmp_path, parameters=rows, observables=OBSERVABLES, measurements=ROWS)
    assert list(cf.petab.to_pypesto(prior, eliminate=True).x_names) == ["sd_A", "k", "dose", "A0"]
    with refused("'sd_A' cannot be eliminated: it has a prior"):
        cf.petab.to_pypesto(prior, eliminate=["sd_A"])
    monkeypatch.setitem(sys.modules, "pypesto", None)
    monkeypatch.setitem(sys.modules, "pypesto.objective.base", None)
    with refused("pypesto is not installed; pip install pypesto"):
        cf.petab.to_pypesto(path)


@pytest.mark.filterwarnings("ignore")  # pyPESTO's own
def test_pypesto_takes_it(path):
    """Its importer, its optimizer, its own answer."""
    pytest.importorskip("pypesto.petab", reason="pyPESTO is not installed")
    import pypesto as library
    from pypesto import optimize
    from pypesto.petab import PetabImporter

    objective = cf.petab.to_pypesto(path)
    problem = PetabImporter.from_yaml(str(path)).create_problem(objective=objective)
    assert problem.dim == 4
    history = library.HistoryOptions()
    start = objective.guess[[0, 1, 2, 4]]
    result = optimize.ScipyOptimizer("ls_trf").minimize(problem, x0=start, id="0", history_options=history)
    best = cf.fit(cf.petab.load(path), "single", cf.GaussNewton("box"))
    assert problem.objective(result.x[problem.x_free_indices]) == pytest.approx(best.objective, abs=1e-3)
    pypesto_problem = objective.create_problem()
    assert (pypesto_problem.dim, pypesto_problem.dim_full) == (4, 5)
    assert pypesto_problem.objective(start) == objective(objective.guess)
