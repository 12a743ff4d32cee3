"""The interactive page of the course: iterations of real fits, from several starts, put as JSON into one HTML file.

What it shows of an iteration comes from the solver's own parts: T(λ) = |G(v) R(v + λ dv)|^2 is the squared length of
`LocalProblem.correction`, in the norm of the step controls.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import casadi as ca
import numpy as np
from scipy.integrate import solve_ivp

import castfit as cf
from castfit.solve.solution import CountingProblem, infeasibility
from castfit.solve.step_control.common import LineSearch
from castfit.solve.subproblem import LocalProblem

TEMPLATE = Path(__file__).parents[1] / "course" / "iterations.html"
SHARES = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0, 1.15)  # of the way from the optimum to the start with a pole
LAMBDA = np.linspace(0, 1, 11)
_POINTS, _FAR = 7, 40.0  # of a stage that are drawn; a state beyond which the trajectory is lost


def page(shares: Sequence[float] = SHARES) -> str:
    """Return the page with its data in it."""
    return TEMPLATE.read_text(encoding="utf-8").replace("{}/*data*/", json.dumps(data(shares), separators=(",", ":")))


def data(shares: Sequence[float] = SHARES) -> dict[str, Any]:
    """Run all fits."""
    benchmark = cf.problems.load("lotka_volterra")
    problem = with_known_errors(benchmark.problem)
    reference_theta, distant_theta = (
        problem.theta_from(dict(of)) for of in (benchmark.reference.parameters, benchmark.starts["pole"])
    )
    transcriptions = {"multiple": cf.MultipleShooting(10), "few": cf.MultipleShooting(4), "single": cf.SingleShooting()}
    runs = {
        name: [
            run(problem, transcription, reference_theta + share * (distant_theta - reference_theta)) for share in shares
        ]
        for name, transcription in transcriptions.items()
    }
    measured = [{"t": rounded(times), "x": rounded(values)} for times, values in series(problem).values()]
    starts = [rounded(reference_theta + share * (distant_theta - reference_theta), 3) for share in shares]
    return {
        "names": list(problem.names), "starts": starts, "measured": measured, "lambda": rounded(LAMBDA), "runs": runs,
    }  # fmt: skip


def series(problem: cf.Problem) -> dict[str, tuple[Any, Any]]:
    """Return times and values of each state."""
    (experiment,) = problem.experiments
    return {name: (np.ravel(experiment.data[name][0]), np.ravel(experiment.data[name][1])) for name in problem.outputs}


def with_known_errors(problem: cf.Problem) -> cf.Problem:
    """Return the problem with the standard deviation that its data were drawn with: its cost is a sum of squares."""
    return problem.replace(experiments=[cf.Experiment(series(problem), sigma=0.05)])


def run(problem: cf.Problem, transcription: Any, theta: Any) -> dict[str, Any]:
    """Return all iterations from one start."""
    solver = cf.GaussNewton(homotopy="never", max_iter=20)
    staged = transcription.transcribe(problem, theta)
    states = list(solver.iterate(staged))
    # The last state says how it ended; unless something moved, it is at the point of the one before.
    if len(states) > 1 and np.array_equal(states[-1].v, states[-2].v):
        points, dampings = states[:-1], [state.damping for state in states[1:-1]]
    else:
        points, dampings = states, [state.damping for state in states[1:]]
    return {
        "end": f"{states[-1].status.message} {states[-1].detail}".strip(),
        "success": bool(states[-1].status.success),
        "points": [
            {
                "p": rounded(state.v[: len(problem.names)], 5),
                "cost": number(state.evaluation.cost if state.evaluation.ok else np.nan),
                "gap": number(infeasibility(staged.layout, staged.scale, state.evaluation)),
                "damping": number(damping),
                "level": levels(staged, solver, state),
                "stages": stages(problem, staged, state.v),
            }
            for state, damping in zip(points, [*dampings, np.nan], strict=True)
        ],
    }


def levels(staged: Any, solver: cf.GaussNewton, state: Any) -> list[float | None]:
    """Return T(λ) / T(0) along the step from a state; nothing where there is no step."""
    linear = staged.linearize(state.v)
    if not linear.ok:
        return []
    local = LocalProblem(staged, linear, warm=state.active, regularisation=solver.regularisation)
    step = local.direction()
    search = LineSearch(CountingProblem(staged), local, step, linear, {})
    out: list[float | None] = []
    for damping in LAMBDA:
        trial = search.trial(damping * step.dv)
        correction = local.correction(trial) if trial.ok else None
        out.append(None if correction is None else search.norm(correction.dv) ** 2)
    first_level = out[0]
    return [None if t is None or not first_level else number(t / first_level) for t in out]


def stages(problem: cf.Problem, staged: Any, v: Any) -> list[dict[str, Any]]:
    """Return the curve of each stage, up to where it is lost."""
    system = problem.model.system
    f = system.function("f", system.ode)
    p = ca.DM(v[: len(problem.names)])
    (chain,) = staged.layout.chains
    (experiment,) = problem.experiments
    edges = np.linspace(experiment.start, experiment.end, chain.n_stages + 1)
    initial_nodes = np.array([[0.4, 1.0]])
    nodes = v[chain.nodes] if chain.nodes.size else initial_nodes

    def slopes(t: float, x: Any) -> Any:
        return f(t, x, [], p, []).full()[:, 0]

    def has_diverged(t: float, x: Any) -> float:
        return _FAR - float(np.abs(x).max())

    has_diverged.terminal = True  # type: ignore[attr-defined]
    stage_curves = []
    for k, start in enumerate(nodes):
        t = np.linspace(edges[k], edges[k + 1], _POINTS if len(nodes) > 1 else 121)
        solution = solve_ivp(slopes, (t[0], t[-1]), start, "LSODA", t, rtol=1e-6, atol=1e-8, events=has_diverged)
        stage_curves.append({"t": rounded(solution.t, 3), "x": [rounded(row, 4) for row in solution.y]})
    return stage_curves


def number(value: float) -> float | None:
    """Return four digits, or nothing for what is not finite."""
    return float(f"{value:.4g}") if np.isfinite(value) else None


def rounded(values: Any, digits: int = 4) -> list[float]:
    """Return a list of short numbers."""
    return [round(float(value), digits) for value in np.asarray(values)]
