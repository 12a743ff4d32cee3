"""Gradients of large models: which method goes back, and how finely, by default."""

import numpy as np
import pytest

import castfit as cf
from castfit._bench.sizes import reaction
from castfit.integrate import IntegratorOptions
from castfit.integrate.esdirk_binding import missing_integrator_reason

pytestmark = pytest.mark.skipif(missing_integrator_reason() != "", reason="needs a C compiler")


def staged_by(cells: int, integrator: IntegratorOptions, derivatives: str = "adjoint"):
    problem, _ = reaction(cells)
    return cf.SingleShooting(integrator, derivatives).transcribe(problem, problem.guess)


def test_tolerances_are_looser_by_default_where_gradients_are_those_of_many_states_steps():
    default_options = IntegratorOptions()
    assert staged_by(50, default_options).options.relative_tolerance == default_options.relative_tolerance
    assert staged_by(120, default_options, "forward").options.relative_tolerance == default_options.relative_tolerance
    large = staged_by(120, default_options)
    assert large.options.relative_tolerance == 1e-6
    assert large.options.absolute_tolerance == pytest.approx(1e-8)
    options = IntegratorOptions(relative_tolerance=1e-10, absolute_tolerance=1e-12)
    fine = staged_by(120, options)
    assert fine.options.relative_tolerance == 1e-10
    evaluation, exact_evaluation = large.gradient(large.start), fine.gradient(fine.start)
    assert evaluation.cost == pytest.approx(exact_evaluation.cost, rel=1e-7)
    np.testing.assert_allclose(evaluation.gradient, exact_evaluation.gradient, rtol=1e-6)
    assert "relative tolerance 1e-06" in large.remark(large.start)
    assert "tolerance" not in fine.remark(fine.start)


def test_a_thousand_sparse_states_are_integrated_by_esdirk_where_they_are_differentiated():
    methods = {d: staged_by(420, IntegratorOptions(), d).groups[0].integrator.method for d in ("adjoint", "forward")}
    assert methods == {"adjoint": "esdirk", "forward": "esdirk"}
