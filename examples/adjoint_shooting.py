"""
Adjoint multiple shooting, with the adjoint equations written out
=================================================================

Predators and prey, x' = -p1 x + p2 x y and y' = p3 y - p4 x y, are measured at t = 1 ... 10.  From the guess
p = (0.5, 0.5, 0.5, -0.2) no simulation reaches the data: the model has a pole at t = 3.3.  Multiple shooting starts at
the data instead.  Every measured time is a node with states s_j of its own, the data are compared with the nodes, and
the pieces have to join::

    minimise  sum_j |s_j - data_j|^2 / sigma^2    subject to    x_j(t_{j+1}; s_j, p) - s_{j+1} = 0.

Only the conditions contain an integration.  Aydogmus and Tor differentiate them backwards: one adjoint state per number
instead of one sensitivity per parameter, and one number per interval, ``h_j = |x_j - s_{j+1}|^2``.  This lesson does by
hand what `cf.MultipleShooting("data", derivatives="adjoint")` does, and shows what the paper does not say.

    python examples/adjoint_shooting.py
"""

from __future__ import annotations

import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import minimize

import castfit as cf
from castfit.solve.assembly import ConstraintRows, JacobianMap, cost_gradient

# %%
# The problem
# -----------
# Ten values of both states with a standard deviation of 0.05.

x, y = cf.symbols("x y")
p1, p2, p3, p4 = cf.symbols("p1 p2 p3 p4")
model = cf.Model({x: -p1 * x + p2 * x * y, y: p3 * y - p4 * x * y}, parameters=[p1, p2, p3, p4])
times = np.arange(1.0, 11.0)
truth = {"p1": 1.0, "p2": 1.0, "p3": 1.0, "p4": 1.0}
exact = cf.simulate(model, truth, times, initial={"x": 0.4, "y": 1.0})
rng = np.random.default_rng(0)
data = {name: exact[name] + 0.05 * rng.standard_normal(10) for name in ("x", "y")}
experiment = cf.Experiment(data, time=times, sigma=0.05, initial={"x": 0.4, "y": 1.0})
problem = cf.Problem(model, experiment, parameters={"p1": 0.5, "p2": 0.5, "p3": 0.5, "p4": -0.2})

single_fit = cf.fit(problem, cf.SingleShooting())
print(single_fit.message)
assert not single_fit.success

# %%
# The adjoint equations
# ---------------------
# For a direction d at the end of an interval the adjoint state solves
#
#     lambda' = -lambda f_x,     lambda(t_{j+1}) = d,
#
# backwards in time, and gives  d . dx_j/ds_j = lambda(t_j)  and  d . dx_j/dp = int lambda f_p dt.  For h_j the
# direction is 2 (x_j - s_{j+1}).  (The paper prints lambda' = lambda f_x, and a plus sign at dh/ds_j with its negative
# lambda; with these signs no finite difference agrees.)

TIGHT = {"method": "DOP853", "rtol": 1e-12, "atol": 1e-13}


def piece(start, p, begin, end):
    """Integrate one piece; return its states as a function of time."""

    def rates(_, state):
        u, v = state
        return [-p[0] * u + p[1] * u * v, p[2] * v - p[3] * u * v]

    return solve_ivp(rates, (begin, end), start, dense_output=True, **TIGHT).sol


def by_hand(start, p, target, begin, end):
    """Return h = |x(end) - target|^2 and its gradients by start, by p and by target, from one backward integration."""
    states = piece(start, p, begin, end)
    gap = states(end) - target

    def backwards(t, z):
        lam, (u, v) = z[:2], states(t)
        f_x = np.array([[-p[0] + p[1] * v, p[1] * u], [-p[3] * v, p[2] - p[3] * u]])
        f_p = np.array([[-u, u * v, 0, 0], [0, 0, v, -u * v]])
        return np.concatenate([-lam @ f_x, -lam @ f_p])  # the integrals grow as time runs back

    z = solve_ivp(backwards, (end, begin), np.concatenate([2 * gap, np.zeros(4)]), **TIGHT).y[:, -1]
    return gap @ gap, z[:2], z[2:], -2 * gap


# %%
# Four ways to the same gradient
# ------------------------------
# At the data, where the fit begins, with the parameters of the guess: by hand; by CVODES' adjoint states; by forward
# sensitivities; by finite differences.

ACCURATE = cf.IntegratorOptions(relative_tolerance=1e-11, absolute_tolerance=1e-13)
BACKWARDS = cf.MultipleShooting("data", derivatives="adjoint", matching="scalar", integrator=ACCURATE)
FORWARDS = cf.MultipleShooting("data", derivatives="forward", integrator=ACCURATE)
staged, forward = (t.transcribe(problem, problem.guess) for t in (BACKWARDS, FORWARDS))
(chain,) = staged.layout.chains
guess, nodes = problem.guess, staged.start[chain.nodes]
ends = staged.evaluate(staged.start).values[0].x
directions = np.zeros_like(nodes)
directions[:-1] = 2 * (ends[:-1] - nodes[1:])
cvodes = staged.linearize_along(staged.start, [directions]).jacobians[0]  # one backward integration per interval
v = forward.start.copy()
v[forward.layout.chains[0].nodes] = nodes[:-1]
sensitivities = forward.linearize(v).jacobians[0]  # six sensitivities per interval

worst = {"CVODES' adjoint": 0.0, "forward sensitivities": 0.0, "finite differences": 0.0}
for j in range(10):
    interval_arguments = (nodes[j], guess, nodes[j + 1], float(j), float(j + 1))
    _, by_start, by_p, _ = by_hand(*interval_arguments)
    gradient = np.concatenate([by_start, by_p])
    size = np.abs(gradient).max()
    adjoint = np.concatenate([cvodes.X_s[j, 0], cvodes.X_q[j, 0]])
    X = np.hstack([sensitivities.X_s[j], sensitivities.X_q[j]])
    differences = np.empty(6)
    for i in range(6):
        h = 1e-3 * np.eye(6)[i]
        shifted_results = [
            by_hand(nodes[j] + m * h[:2], guess + m * h[2:], *interval_arguments[2:])[0] for m in (-2, -1, 1, 2)
        ]
        differences[i] = (
            shifted_results[0] - 8 * shifted_results[1] + 8 * shifted_results[2] - shifted_results[3]
        ) / 12e-3
    for name, other in zip(worst, (adjoint, directions[j] @ X, differences), strict=True):
        worst[name] = max(worst[name], float(np.abs(other - gradient).max() / size))
for name, error in worst.items():
    print(f"by hand and by {name}: they differ by {error:.0e}")
    assert error < 1e-6

# %%
# What the paper does not say
# ---------------------------
# At the solution every h_j has its least value, zero.  There its gradient is zero, too: the linearized constraint says
# nothing, and no multipliers exist.  Watch it on the way there, beside the gradient divided by 2 sqrt(h_j), which is a
# row of the Jacobian of x_j - s_{j+1} and stays what it is.

solution = cf.fit(problem, BACKWARDS)  # by Sqp(), the usual solver for scalars
estimates = np.array(list(solution.parameters.values()))
at_solution = solution.trajectories["experiment 1"].states
print("distance from the solution   |grad h_5|   |grad h_5| / 2 sqrt(h_5)")
lengths, rows = [], []
for distance in (1e-1, 1e-2, 1e-3, 1e-4):
    distant_point = at_solution + distance * np.random.default_rng(1).standard_normal(at_solution.shape)
    h, *parts = by_hand(distant_point[5], estimates, distant_point[6], 5.0, 6.0)
    lengths.append(np.linalg.norm(np.concatenate(parts)))
    rows.append(lengths[-1] / (2 * np.sqrt(h)))
    print(f"{distance:24.0e}   {lengths[-1]:10.2e}   {rows[-1]:10.3f}")
assert lengths[-1] < 2e-3 * lengths[0]
assert 0.3 < rows[-1] / rows[0] < 3

# %%
# A method that takes the squares as they stand therefore crawls, such as SciPy's SLSQP, which updates a Hessian.

VECTOR = cf.MultipleShooting("data", derivatives="adjoint")
SCALAR = cf.MultipleShooting("data", derivatives="adjoint", matching="scalar")
staged = SCALAR.transcribe(problem, problem.guess)
rows_of = ConstraintRows(staged.layout, scalar=True)  # s_0 is given, and every h_j is 0
place = JacobianMap(staged.layout, rows_of, np.ones(staged.layout.n_v))


def gradients(v):
    """Integrate one adjoint state per interval: the gradients of the cost, and of all conditions."""
    directions = rows_of.directions(staged.evaluate(v))
    linear = staged.linearize_along(v, directions)
    jacobian = np.zeros((rows_of.count, v.size))
    entries = place.nonzeros(linear.jacobians, linear.related_jacobian, directions)
    jacobian[place.sparsity.row(), place.sparsity.get_col()] = entries
    return np.nan_to_num(cost_gradient(staged.layout, linear, np.ones(1))), np.nan_to_num(jacobian)


def conditions(v):
    evaluation = staged.evaluate(v)
    return np.nan_to_num(rows_of.values(evaluation.values, v, evaluation.related), nan=1e10)  # SLSQP knows no NaN


squares = minimize(
    lambda v: min(staged.evaluate(v).cost, 1e10),
    staged.start,
    jac=lambda v: gradients(v)[0],
    method="SLSQP",
    constraints={"type": "eq", "fun": conditions, "jac": lambda v: gradients(v)[1]},
    options={"maxiter": 40, "ftol": 1e-12},
)
largest = np.sqrt(np.abs(conditions(squares.x)).max())
print(f"the squares as they stand: {squares.nit} iterations, largest gap {largest:.0e}")
assert not squares.success  # 40 iterations are not enough: they need about 250

# %%
# `cf.Sqp()` divides each gradient by 2 sqrt(h_j) and collects these rows, one per interval and iteration, into the
# Jacobian of the vector: the price of the scalar, and the speed of the vector.

methods = {
    "vector, Gauss-Newton": (VECTOR, cf.GaussNewton()),
    "scalar, rows collected": (SCALAR, cf.Sqp()),
}
results = {name: cf.fit(problem, *method, retry=False) for name, method in methods.items()}
for name, result in results.items():
    gap = f"largest gap {result.gaps:.0e}"
    print(f"{name:30s} {result.iterations:3d} iterations, {gap}, {result.status.value}")
vector, collected = results.values()
assert vector.success
assert collected.success
assert vector.iterations <= 9
assert collected.iterations <= 20
assert largest > 100 * collected.gaps
np.testing.assert_allclose(list(collected.parameters.values()), list(vector.parameters.values()), rtol=1e-5)

# %%
# The estimates, with the standard errors that do not depend on how the optimum was found.

print(collected)
figure = collected.plot()
for name in truth:
    assert abs(collected.parameters[name] - 1.0) < 4 * collected.standard_errors[name]
