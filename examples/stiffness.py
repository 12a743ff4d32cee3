"""Stiffness, after Hemker
=======================

Stiffness, after Hemker (1972): enzyme kinetics without the steady-state assumption.

    s' = −(1 − c) s + q c,    ε c' = (1 − c) s − p c,    s(0) = 1,  c(0) = 0                                 (1.18)

1. How stiff the problem is: time constants along the trajectory, and what they ask of an integrator.
2. Explicit and implicit steps: where the stability regions of Euler's two methods say that steps fail, they fail.
3. What enzyme kineticists use instead, the formulas of Briggs and Haldane and of Gutfreund, are together the first term
   of an expansion in ε: their error falls as ε.
4. Sensitivities share the factorization of an implicit step: what that saves.
5. The parameters, from Hemker's start, by all three transcriptions.

Writes the picture stiffness.png.
"""

from __future__ import annotations

import os
import time

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # one thread: what is timed is arithmetic, not threads waiting for each other

import casadi as ca
import numpy as np
from scipy.linalg import lu_factor, lu_solve
from scipy.optimize import brentq

import castfit as cf
from castfit import problems

ESCEP = problems.load("escep")
MODEL = ESCEP.problem.model
P, Q = 1.0, 0.99  # the sum of q and p_minus_q, and q


def values(epsilon: float) -> dict[str, float]:
    return {"inverse_epsilon": 1 / epsilon, "q": Q, "p_minus_q": P - Q}


def time_constants() -> None:
    stiffness = cf.stiffness(MODEL, values(1e-3), np.linspace(0, 30, 301))
    print(stiffness)
    stiffness.plot("stiffness.png")
    assert stiffness.ratio > 1000
    assert stiffness.suggested in ("esdirk", "cvodes")  # the former where it came with castfit, or a compiler makes it


def steps() -> None:
    """Follow an error of 1e-7 over 50 steps: an explicit one multiplies it by |1 + h λ|, an implicit by 1 / |1 − h λ|.

    These are the amplifications of Euler's methods (Eqs. 1.12 and 1.14), λ the fastest eigenvalue; where it dies out,
    the error that is left is that in the slow component.
    """
    system = MODEL.system
    f = system.function("f", system.ode)
    jacobian = system.function("jacobian", ca.densify(ca.jacobian(system.ode, system.x)))
    p, error, count = list(values(1e-3).values()), 1e-7, 50
    start = np.array([cf.simulate(MODEL, values(1e-3), [0.0, 1.0])[n][-1] for n in MODEL.states])
    fastest = np.abs(np.linalg.eigvals(jacobian(1.0, start, [], p, []).full())).max()

    def explicit(x, h):
        return x + h * f(0, x, [], p, []).full()[:, 0]

    def implicit(x, h):
        new = x.copy()
        for _ in range(5):  # Newton's method
            residual = new - x - h * f(0, new, [], p, []).full()[:, 0]
            new = new - np.linalg.solve(np.eye(2) - h * jacobian(0, new, [], p, []).full(), residual)
        return new

    print("\n method    h |λ|   amplification   of 50 steps   measured")
    for step, product in ((explicit, 1.9), (explicit, 2.1), (implicit, 2.1), (implicit, 1000.0)):
        one, other = start.copy(), start + error * np.array([0.0, 1.0])
        for _ in range(count):
            one, other = step(one, product / fastest), step(other, product / fastest)
        factor = abs(1 - product) if step is explicit else 1 / (1 + product)
        measured = np.abs(other - one).max() / error
        print(f"{step.__name__}   {product:5g}   {factor:13.3g}   {factor**count:11.2g}   {measured:8.2g}")
        assert (measured < 1) == (factor < 1)
        if step is explicit:
            assert np.isclose(np.log(measured), np.log(factor**count), rtol=0.05)


def singular_perturbation() -> None:
    """Compare the first term of the expansion in ε with the solution.

    s(τ) + p ln s(τ) + (p − q) τ = 1,    c(τ) = s/(s + p) − exp(−(1 + p) τ/ε)/(1 + p)                    (1.23), (1.28)
    """
    tau = np.concatenate([[0.0], np.geomspace(1e-6, 30, 200)])
    s = np.array([brentq(lambda s, t=t: s + P * np.log(s) + (P - Q) * t - 1, 1e-12, 1) for t in tau])  # (1.23)
    print("\nepsilon   error of s   error of c")
    errors = []
    for epsilon in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5):
        c = s / (s + P) - np.exp(-(1 + P) * tau / epsilon) / (1 + P)  # (1.28): Briggs-Haldane and Gutfreund
        exact = cf.simulate(MODEL, values(epsilon), tau)
        errors.append([np.abs(s - exact["s"]).max(), np.abs(c - exact["c"]).max()])
        print(f"{epsilon:7.0e}   {errors[-1][0]:10.2e}   {errors[-1][1]:10.2e}")
    slopes = -np.diff(np.log10(errors), axis=0)[1:]
    print(f"slopes in the logarithms: {slopes.min():.3f} to {slopes.max():.3f}")
    assert np.allclose(slopes, 1, atol=0.05)


def shared_factorization() -> None:
    """Integrate a stiff model with all sensitivities by backward Euler steps, and count what is factorized.

    The Jacobian of the sensitivity equations has the model's own on its diagonal (Eq. 3.24): one factorization of
    I − h df/dx serves Newton's method and every direction (Eqs. 3.26 to 3.28).
    """
    x, y = cf.symbols("x y")
    k, feedback, decay, tau = cf.symbols("k feedback decay tau")
    late = cf.delay(x, tau, history=1, method="chain", order=150)
    model = cf.Model({x: k / (1 + feedback * late) - decay * x, y: 1e4 * (x - y)}, parameters=[k, feedback, decay, tau])
    system = model.system
    f = system.function("f", system.ode)
    blocks = system.function("blocks", *(ca.densify(ca.jacobian(system.ode, v)) for v in (system.x, system.p)))
    p, h, n = [2.0, 1.0, 0.5, 5.0], 0.1, len(model.states)
    identity = np.eye(n)
    seconds, ends, factorized = {}, {}, {}
    for shared in (False, True):
        x, w, count, spent = np.ones(n), np.zeros((n, len(p))), 0, 0.0
        for _ in range(100):
            newton = lu_factor(identity - h * blocks(0, x, [], p, [])[0].full())
            previous = x
            for _ in range(4):
                x = x - lu_solve(newton, x - previous - h * f(0, x, [], p, []).full()[:, 0])
            f_x, f_p = (m.full() for m in blocks(0, x, [], p, []))
            matrix, right, columns = identity - h * f_x, w + h * f_p, []
            began = time.process_time()
            for j in range(len(p)):
                if not shared or j == 0:
                    factors, count = lu_factor(matrix), count + 1
                columns.append(lu_solve(factors, right[:, j]))
            spent += time.process_time() - began
            w = np.column_stack(columns)
        seconds[shared], ends[shared], factorized[shared] = spent, w, count
    print(f"\n{n} states, {len(p)} directions, 100 steps: {factorized[False]} factorizations for the sensitivities, "
          f"{1e3 * seconds[False]:.0f} ms; shared {factorized[True]}, {1e3 * seconds[True]:.0f} ms")  # fmt: skip
    assert np.allclose(ends[True], ends[False], rtol=1e-12)
    assert factorized[False] == len(p) * factorized[True]


def estimates() -> None:
    print(f"\nchi2 of the reference {ESCEP.reference.objective:.6g}, from (1600, 0.8, 1.2)")
    for transcription in (cf.SingleShooting(), cf.MultipleShooting(10, states="simulation"),
                          cf.Collocation(states="simulation")):  # fmt: skip
        result = cf.fit(ESCEP.problem, transcription)
        assert result.success
        assert ESCEP.reference.is_reached(result.chi2)
        assert ESCEP.reference.is_matched(result.values)
        values_text = ", ".join(f"{value:.5g}" for value in result.values.values())
        print(f"{result.transcription}: {result.iterations} iterations, ({values_text}), chi2 = {result.chi2:.6g}")


if __name__ == "__main__":
    time_constants()
    steps()
    singular_perturbation()
    shared_factorization()
    estimates()
