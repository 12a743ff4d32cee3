"""Gauss-Newton, one iteration at a time
=====================================

A lesson in multiple shooting: the Gauss-Newton method one iteration at a time, and why the gaps close.

Read it from top to bottom and run it; it takes a few seconds::

    python gauss_newton_step_by_step.py
    python gauss_newton_step_by_step.py --out pictures --gif      (also writes pictures into that folder)

Multiple shooting divides the horizon into stages.  Stage k is integrated from a state of its own, the node s_k, up to
x_k(s_k, q), and so the trajectory is broken at first:  h_k = x_k(s_k, q) - s_{k+1}  is not zero.  That the gaps h_k
vanish is demanded at the solution only::

    minimise  1/2 sum_k |r_k(s_k, q)|^2     subject to     a(q) - s_0 = 0,     x_k(s_k, q) - s_{k+1} = 0

with weighted residuals r_k, estimated quantities q and the initial state a(q).  Equation numbers refer to Peifer and
Timmer, "Parameter estimation in ordinary differential equations for biochemical processes using the method of multiple
shooting", IET Systems Biology 1 (2007) 78-88.
"""

from __future__ import annotations

import argparse
import textwrap
from itertools import pairwise
from pathlib import Path

import numpy as np

import castfit as cf
from castfit import plots
from castfit.problems import load
from castfit.solve.staged import gaps

arguments = argparse.ArgumentParser(description="A lesson in multiple shooting.")
arguments.add_argument("--out", type=Path, help="a folder for pictures; none are written without it")
arguments.add_argument("--gif", action="store_true", help="also write an animation into that folder")
chosen = arguments.parse_args()

solver = cf.GaussNewton(homotopy="never", accuracy="full")  # no help for hard starts yet; that comes with calcium


def gaps_at(staged, v):
    """Return all gaps in units of the states' magnitudes, (K, n_s): a - s_0 first, then x_k - s_{k+1}."""
    (chain,) = staged.layout.chains  # one chain of stages per experiment; here there is one experiment
    return gaps(staged.layout, staged.evaluate(v))[0] / staged.scale[chain.nodes]


def largest(numbers):
    return float(np.abs(numbers).max(initial=0.0))


def paragraph(text):
    return textwrap.fill(text, 100, initial_indent="   ", subsequent_indent="   ") + "\n"


def iterate(staged, solver, *, interval=1):
    """Run the solver, with one line for every so many iterations; return its states."""
    print("   i          cost        gap  lambda  omega^  condition  phase")
    states = []
    for state in solver.iterate(staged):
        states.append(state)
        if state.status is None and state.iteration % interval == 0:
            gap = largest(gaps_at(staged, state.v))
            omega, condition = (
                f"{state.report[figure]:.2g}" if figure in state.report else "-" for figure in ("omega", "condition")
            )
            damping = f"{state.damping:.3f}" if state.iteration else "-"
            line = f"{state.iteration:4d}  {state.evaluation.cost:12.6g}  {gap:9.1e}  {damping:>6s}"
            print(f"{line}  {omega:>6s}  {condition:>9s}  {state.phase}")
    print(paragraph(f"{state.status.message} {state.detail}"))
    return states


# ---------------------------------------------------------------------------------------------------------------------
# 1. Predator and prey from a bad start.
#
# With p = (0.5, 0.5, 0.5, -0.2) the solution has a pole at t = 3.3: the trajectory from the initial state never reaches
# the later data.  Single shooting, which has nothing but that trajectory, fails before its first iteration.

lotka_volterra = load("lotka_volterra")
problem = lotka_volterra.problem
theta = problem.theta_from(lotka_volterra.starts["pole"])

print("1. Lotka and Volterra's equations, single shooting")
single = iterate(cf.SingleShooting().transcribe(problem, theta), solver)
assert single[-1].status is cf.Status.START_FAILED
assert len(single) == 1

# Multiple shooting starts every stage near the data, which keeps each trajectory short and harmless: the parameters are
# as wrong as before, but no stage lasts long enough to meet its pole.

print("   Multiple shooting with ten stages, from the same parameters")
staged = cf.MultipleShooting(10).transcribe(problem, theta)
states = iterate(staged, solver)
assert states[-1].status is cf.Status.CONVERGED
for name, value in zip(problem.names, states[-1].v, strict=False):  # theta comes first in v
    reference = lotka_volterra.reference
    assert abs(value - reference.parameters[name]) < 0.01 * reference.standard_errors[name]


# ---------------------------------------------------------------------------------------------------------------------
# 2. One step by hand.
#
# Linearise everything at the current point: with dx_k = X_s ds_k + X_q dq the gaps would close if (Eq. 9)
#
#     X_s ds_k + X_q dq + h_k = ds_{k+1}           and, at the beginning,     A dq + (a - s_0) = ds_0.
#
# So every node step is known once dq is: ds_k = g_k + G_k dq.  Put into the linearised residuals, this leaves a small
# dense problem in dq alone, min |u + E dq| (Eq. 10), however many stages there are.  That is condensing.


def condensed_step(staged, v):
    """Return the Gauss-Newton step of all variables from blocks of derivatives."""
    (chain,) = staged.layout.chains
    linear = staged.linearize(v)
    values, blocks = linear.values[0], linear.jacobians[0]
    h = np.vstack([values.a, values.x[:-1]]) - v[chain.nodes]
    G, g = [blocks.A], [h[0]]
    for X_s, X_q, gap in zip(blocks.X_s[:-1], blocks.X_q[:-1], h[1:], strict=True):
        G.append(X_s @ G[-1] + X_q)
        g.append(X_s @ g[-1] + gap)
    G, g = np.array(G), np.array(g)
    measured = chain.row_mask  # stages with fewer measurements than others are padded with empty rows
    E = (blocks.R_s @ G + blocks.R_q)[measured]
    u = (values.r + np.einsum("kij,kj->ki", blocks.R_s, g))[measured]
    dq, *_ = np.linalg.lstsq(E, -u, rcond=None)
    return staged.layout.pack(dq, (g + G @ dq,), (np.empty((chain.n_stages, 0)),))  # no inner variables in shooting


for state, next_state in pairwise(states[:5]):
    by_hand = next_state.damping * condensed_step(staged, state.v)
    difference = largest((next_state.v - state.v - by_hand) / staged.scale)
    print(f"2. Step {next_state.iteration} by hand differs from the solver's by {difference:.0e}")
    assert difference < 1e-9
print()


# ---------------------------------------------------------------------------------------------------------------------
# 3. Why the gaps close.
#
# The step satisfies Eq. 9, so on the way lambda dv from the current point the linear part of every gap is
#
#     h_k + lambda (X_s ds_k + X_q dq - ds_{k+1}) = h_k - lambda h_k = (1 - lambda) h_k.
#
# What the linearisation leaves out is of second order:  h(v + lambda dv) = (1 - lambda) h(v) + O(lambda^2).
# A full step therefore closes all gaps at once, whatever their size, except for that remainder; a damped step leaves
# the share 1 - lambda of each.  Nobody pulls at the gaps: they close because every step heads for a trajectory
# that is continuous to first order, and lambda only says how far it goes.

print("3. Gaps after a part of one step, and the remainder, which falls with the square of lambda")
v = states[1].v
dv = condensed_step(staged, v)
h = gaps_at(staged, v)
print("   lambda    gap ratio   1 - lambda   remainder / lambda^2")
remainders = []
for damping in 2.0 ** -np.arange(8):
    moved_gaps = gaps_at(staged, v + damping * dv)
    remainders.append(largest(moved_gaps - (1 - damping) * h))
    ratio = largest(moved_gaps) / largest(h)
    print(f"   {damping:7.5f}   {ratio:9.4f}   {1 - damping:9.4f}    {remainders[-1] / damping**2:8.4f}")
    assert abs(ratio - (1 - damping)) < 0.4 * damping**2
orders = np.log2(np.array(remainders[:-1]) / remainders[1:])
print(f"   Halving lambda divides the remainder by 2^{orders[-1]:.3f}\n")
assert np.allclose(orders[-3:], 2.0, atol=0.05)


# ---------------------------------------------------------------------------------------------------------------------
# 4. How fast they close in the end.
#
# Near the solution lambda is 1, and the remainder is all that is left of a gap: something of the order of the step's
# square.  The gaps so gain digits twice as fast as the steps.

print("4. Full steps leave gaps of the order of their square")
for state, next_state in pairwise(states[4:9]):
    step = largest((next_state.v - state.v) / staged.scale)
    gap = largest(gaps_at(staged, next_state.v))
    print(f"   step {step:8.1e}   gap {gap:8.1e}   gap / step^2 {gap / step**2:6.2f}")
    assert next_state.damping == 1.0
    assert gap < step**2

# The steps themselves shrink by a constant factor here, since Gauss-Newton leaves out second derivatives of the
# residuals, which count as much as the residuals are large.  With data that the model meets exactly, the number of
# digits doubles with every iteration.

truth = lotka_volterra.reference.parameters
times = np.arange(1.0, 11.0)
tight = cf.IntegratorOptions(relative_tolerance=1e-12, absolute_tolerance=1e-14)
exact = cf.simulate(problem, truth, times=times, integrator=tight)["experiment 1"]
without_noise = cf.Problem(
    problem.model,
    cf.Experiment({name: exact[name] for name in problem.outputs}, time=times),
    parameters=problem.parameters,
)
errors = [
    largest(state.evaluation.v[:4] - [truth[name] for name in problem.names])
    for state in solver.iterate(without_noise, cf.MultipleShooting(10, integrator=tight))
]
print("   Errors of the parameters, had the data no noise: " + ", ".join(f"{error:.0e}" for error in errors) + "\n")
assert errors[4] < 10 * errors[3] ** 2
assert errors[3] < 10 * errors[2] ** 2


# ---------------------------------------------------------------------------------------------------------------------
# 5. Calcium oscillations, eleven rate constants from random starts between 0 and 1 (section 5.1 of the paper).
#
# Some true values lie far outside; the largest is 153.  Single shooting crawls: an oscillator with wrong constants is
# soon out of phase with the data, a linearisation about it holds for tiny steps only, and so most are damped heavily.

calcium = load("calcium")
theta = calcium.problem.theta_from(calcium.draw_start(1))

print("5. Calcium oscillations, single shooting")
few = cf.GaussNewton(homotopy="never", max_iter=30)
single = iterate(cf.SingleShooting().transcribe(calcium.problem, theta), few, interval=5)
assert single[-1].status is cf.Status.MAX_ITERATIONS
assert np.median([state.damping for state in single]) < 0.2

# Multiple shooting does not go straight to the solution either.  After two steps that had to be damped, `cf.fit` takes
# another way; with homotopy="always" it is the first: problems in which gaps cost something but are not forbidden, and
# in which small standard deviations are enlarged ("station 1", "station 2", ...).  There the gaps do not follow
# (1 - lambda): they are traded against the residuals, at a price that rises from station to station.  In the end comes
# the exact problem, where section 3 holds again.

print("   Multiple shooting with 17 stages, from the same parameters")
staged_calcium = cf.MultipleShooting(17).transcribe(calcium.problem, theta)
states_calcium = iterate(staged_calcium, cf.GaussNewton(homotopy="always"))
last_state = states_calcium[-1]
estimates = dict(zip(calcium.problem.names, last_state.v.tolist(), strict=False))
print(paragraph(", ".join(f"{name} = {value:.4g}" for name, value in estimates.items())))
assert last_state.status is cf.Status.CONVERGED
assert calcium.reference.is_reached(2 * last_state.evaluation.cost)
assert calcium.reference.is_matched(estimates)
assert single[-1].evaluation.cost > 1000 * last_state.evaluation.cost


# ---------------------------------------------------------------------------------------------------------------------
# 6. Pictures: trajectories that are broken at first, and join.

if chosen.out is None:
    plots.iterations(states, problem, staged)
else:
    chosen.out.mkdir(parents=True, exist_ok=True)
    plots.iterations(states, problem, staged, path=chosen.out / "lotka_volterra.png")
    moments = [
        0,
        8,
        last_state.iteration // 2,
        last_state.iteration,
    ]  # the paper's Fig. 2 shows the start, the eighth, and the end
    plots.iterations(states_calcium, calcium.problem, staged_calcium, choose=moments, path=chosen.out / "calcium.png")
    if chosen.gif:
        plots.animate(states_calcium, calcium.problem, staged_calcium, chosen.out / "calcium.gif")
    print(f"   The pictures are in {chosen.out}.")
