# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""Lotka and Volterra's model by JAX, diffrax and optimistix: a script for an interpreter in which these are installed.

    python jax_lotka_volterra.py REPEATS < question.json > answer.json

The question has times, data, initial states, start (p1 ... p4), the exact states at the start, and the error that the
states may have there: of tolerances from loose to tight the first is taken that achieves it.  The answer tells CPU
milliseconds, the least of all repeats, after compilation: of residuals with their Jacobian, and of a whole fit.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

TOLERANCES = [10.0**-k for k in (3, 3.5, 4, 4.5, 5, 5.5, 6, 6.5, 7, 7.5, 8, 9, 10)]


def main() -> None:
    """Answer the question."""
    import diffrax
    import jax
    import jax.numpy as jnp
    import optimistix

    jax.config.update("jax_enable_x64", True)
    question, repeats = json.load(sys.stdin), int(sys.argv[1])
    times, data, y0, start, exact = (jnp.array(question[k]) for k in ("times", "data", "initial", "start", "exact"))

    def rates(t: Any, y: Any, p: Any) -> Any:
        return jnp.array([-p[0] * y[0] + p[1] * y[0] * y[1], p[2] * y[1] - p[3] * y[0] * y[1]])

    def residuals(p: Any, tolerance: Any) -> Any:
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(rates), diffrax.Tsit5(), 0.0, times[-1], None, y0, p, saveat=diffrax.SaveAt(ts=times),
            stepsize_controller=diffrax.PIDController(rtol=tolerance, atol=tolerance), adjoint=diffrax.ForwardMode(),
            max_steps=4096,
        )  # fmt: skip
        return (solution.ys - data).ravel()

    def residuals_and_jacobian(p: Any, tolerance: Any) -> Any:
        def twice(q: Any) -> Any:
            r = residuals(q, tolerance)
            return r, r

        jacobian, r = jax.jacfwd(twice, has_aux=True)(p)
        return r, jacobian

    values, tolerance, error = jax.jit(residuals), 0.0, 0.0
    for tolerance in TOLERANCES:
        error = float(jnp.abs(values(start, tolerance) - (exact - data).ravel()).max())
        if error <= question["error"]:
            break
    linearized = jax.jit(residuals_and_jacobian)
    solver = optimistix.LevenbergMarquardt(rtol=1e-6, atol=1e-6)

    def fitted(p: Any, t: Any) -> Any:
        return optimistix.least_squares(residuals, solver, p, args=t, max_steps=256, throw=False)

    fit = jax.jit(lambda p, t: (lambda s: (s.value, s.stats["num_steps"]))(fitted(p, t)))
    found, steps = fit(start, tolerance)
    answer = {
        "tolerance": tolerance,
        "error": error,
        "linearized": _least_seconds(lambda: jax.block_until_ready(linearized(start, tolerance)), repeats),
        "fit": _least_seconds(lambda: jax.block_until_ready(fit(start, tolerance)), repeats),
        "estimates": [float(v) for v in found],
        "iterations": int(steps),
        "versions": {m.__name__: m.__version__ for m in (jax, diffrax, optimistix)},
    }
    json.dump(answer, sys.stdout)


def _least_seconds(call: Any, repeats: int) -> float:
    """Return CPU milliseconds, the least of several."""
    call()
    out = float("inf")
    for _ in range(repeats):
        began = time.process_time()
        call()
        out = min(out, time.process_time() - began)
    return 1e3 * out


if __name__ == "__main__":
    main()
