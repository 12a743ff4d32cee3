# ruff: noqa: E501, PT018

# %% [markdown]
# # Unit 4: collocation and IPOPT
#
# A polynomial instead of an integration: you will derive the matrix of a collocation method, measure its order, and hand the whole fit, states and
# parameter together, to IPOPT as one sparse nonlinear program.
#
# Replace every `...` and run the cell; the check at its end says whether it is right, and gives a hint if not.

# %%
import casadi as ca
import numpy as np

import castfit as cf

POINTS = np.array([0.0, 1 / 3, 1.0])  # the element's beginning, and the two points of Radau's method of degree 2
SIGMA = 0.02
times = np.linspace(0.5, 4, 8)
measured = 1 / (1 + 0.8 * times) + SIGMA * np.random.default_rng(5).standard_normal(times.size)

# %% checks
# The checks: run this cell, look into it when you are done.
DOTS = "The dots are still there: replace them by your answer."


def check_matrix(differentiation_matrix):
    other = np.array([0.0, 0.4, 0.7])
    D = differentiation_matrix(other)
    assert D is not ..., DOTS
    assert not np.allclose(np.nan_to_num(D), np.nan_to_num(differentiation_matrix(POINTS))), (
        "The matrix belongs to the points c that are given, whatever they are."
    )
    D = differentiation_matrix(POINTS)
    assert np.shape(D) == (3, 3), (
        "The matrix has a row for each point and a column for each point: D[i, j] is the slope of polynomial j at point i."
    )
    D = np.asarray(D)
    assert np.allclose(D @ np.ones(3), 0, atol=1e-9), (
        "The slope of a constant is zero, so that every row of D sums to zero. Yours does not."
    )
    assert np.allclose(D @ POINTS, 1), (
        "The slope of the polynomial x(c) = c is one everywhere: D @ POINTS has to be ones. Are rows and columns exchanged?"
    )
    assert np.allclose(D @ POINTS**2, 2 * POINTS), (
        "The slope of c^2 has to be 2 c: polynomials up to degree 2 are differentiated exactly."
    )
    assert np.allclose(differentiation_matrix(other) @ other**2, 2 * other), (
        "For other points than Radau's the slope of c^2 has to be 2 c as well."
    )
    print("Right.")


def check_defects(defects):
    for (h, *x), f in zip(
        np.random.default_rng(3).uniform(0.3, 0.9, size=(2, 4)), (lambda x: -(x**2), np.exp), strict=True
    ):
        x = np.array(x)
        d = defects(f, x, h)
        assert d is not ..., DOTS
        assert np.shape(d) == (2,), (
            "There is an equation at each of the two collocation points, and none at the element's beginning."
        )
        slopes = np.array([np.polyder(np.poly1d(np.polyfit(POINTS, x, 2)))(point) for point in POINTS[1:]])
        assert not np.allclose(d, slopes - f(x[1:])), (
            "The polynomial is a function of c = (t - t_k) / h: its slope in c is h times that in t."
        )
        assert np.allclose(d, slopes - h * f(x[1:])), (
            "At each collocation point D x = h f(x): the difference of both sides is the defect."
        )
    print("Right.")


def check_order(order):
    for exact, errors in ((3, [0.8, 0.1]), (2, [0.9, 0.4, 0.1]), (1.5, [9, 0.9, 0.9 / 2**1.5])):
        answer = order(errors)
        assert answer is not ..., DOTS
        assert np.shape(answer) == (), "The order is one number, from the last two errors."
        assert answer > 0, (
            "Errors fall with the number of elements: take the logarithm of the coarser one divided by the finer one."
        )
        assert np.isclose(answer, exact), (
            "Each halving of h divides the error by 2^order: order = log2(error before / error after), of the last two."
        )
    print("Right.")


def check_count(count):
    for elements, degree in ((8, 2), (5, 3)):
        answer = count(elements, degree)
        assert answer is not ..., DOTS
        variables, equations = answer
        assert variables is not ... and equations is not ..., DOTS
        assert variables == 1 + elements * degree, (
            f"One parameter, and {degree} inner states in each of {elements} elements (the last is the beginning of the next)."
        )
        assert equations == elements * degree, (
            f"Each element has an equation at each of its {degree} collocation points."
        )
    print("Right.")


def check_program(program):
    assert program is not ..., DOTS
    assert set(program) == {"x", "f", "g"}, (
        "The program is a dictionary with 'x' (variables), 'f' (what is minimized) and 'g' (what has to be zero)."
    )
    assert program["x"].shape[0] == 17, "The variables are k and all 16 states: ca.vertcat(k, states)."
    assert program["g"].shape[0] == 16, (
        "There is a defect for each collocation point, 16 in all: the list `equations` joined by ca.vertcat."
    )
    value = ca.Function("f", [program["x"]], [program["f"], program["g"]])
    for x in np.random.default_rng(4).uniform(0.5, 1.5, size=(2, 17)):
        cost, equations = value(x)
        assert np.isclose(float(cost), 0.5 * np.sum((x[2::2] - measured) ** 2) / SIGMA**2), (
            "The objective is half the sum of squares of (state at the element's end - measured) / SIGMA; k comes first."
        )
        ends = np.concatenate([[1.0], x[2::2]])[:-1]
        defects = [D[1] @ [a, b, c] + 0.5 * x[0] * b**2 for a, b, c in zip(ends, x[1::2], x[2::2], strict=True)]
        assert np.allclose(equations.full()[::2, 0], defects), (
            "Join the list `equations` as it is, without a sign or a factor, by ca.vertcat."
        )
    print("Right.")


# %% [markdown]
# ## 1. The matrix
#
# $\ell_j(c)$ is the polynomial that is one at point $j$ and zero at the others; the state is $x(c) = \sum_j x_j \ell_j(c)$. Its slope at point $i$ is
# $\sum_j D_{ij} x_j$ with $D_{ij} = \ell_j'(c_i)$.


# %%
def differentiation_matrix(c):
    """Return D, (n, n), for the points c (n,)."""
    # solution: the slopes of the Lagrange polynomials; np.poly1d(np.polyfit(c, values, degree)).deriv() may help
    n = len(c)
    polynomials = [np.poly1d(np.polyfit(c, np.eye(n)[j], n - 1)) for j in range(n)]
    return np.array([[polynomial.deriv()(point) for polynomial in polynomials] for point in c])
    # end


check_matrix(differentiation_matrix)
D = differentiation_matrix(POINTS)
print(D.round(3))

# %% [markdown]
# ## 2. The equations of an element
#
# At each collocation point the polynomial's slope has to be the model's. The element has the length $h$.


# %%
def defects(f, x, h):
    """Return D x - h f(x) at the two collocation points, for x (3,): the state at the beginning and at both points."""
    # solution: two equations; D is there already
    return D[1:] @ x - h * f(x[1:])
    # end


check_defects(defects)

# %% [markdown]
# ## 3. The order
#
# Solve the equations for $\dot x = -x^2$, element by element, and compare with $x(1) = 1/2$.

# %%
x = ca.SX.sym("x", 2)
start, h = ca.SX.sym("start"), ca.SX.sym("h")
all_x = ca.vertcat(start, x)
solver = ca.rootfinder("solver", "newton", {"x": x, "p": ca.vertcat(start, h), "g": ca.mtimes(D[1:], all_x) + h * x**2})
errors = []
for n in (4, 8, 16, 32):
    end = 1.0
    for _ in range(n):
        end = float(solver([end, end], [end, 1 / n])[1])
    errors.append(abs(end - 0.5))
print("errors:", errors)


def order(errors):
    # solution: the order, a number, from the last two errors
    return np.log2(errors[-2] / errors[-1])
    # end


check_order(order)
print(f"the order is {order(errors):.2f}; 2 d - 1 = 3 is what theory says")

# %% [markdown]
# ## 4. How large is the program?
#
# Now estimate $k$ in $\dot x = -k x^2$, $x(0) = 1$, from eight measurements half a unit of time apart, with an element between any two.
# The initial state is known. How many variables and equations are there, for a method of any degree?


# %%
def count(elements, degree):
    # solution: two numbers
    return 1 + elements * degree, elements * degree
    # end


check_count(count)
print("variables and equations:", count(8, 2))

# %% [markdown]
# ## 5. The program
#
# `states[k]` are the two states of element $k$, the second of them its end, where it was measured.

# %%
k = ca.SX.sym("k")
states = [ca.SX.sym(f"x{j}", 2) for j in range(8)]
equations, begin = [], 1.0
for inner in states:
    equations.append(ca.mtimes(D[1:], ca.vertcat(begin, inner)) + 0.5 * k * inner**2)
    begin = inner[1]

# solution: the dictionary for IPOPT: "x" all variables, k first; "f" half the sum of squares; "g" all equations
residuals = [(inner[1] - value) / SIGMA for inner, value in zip(states, measured, strict=True)]
program = {"x": ca.vertcat(k, *states), "f": 0.5 * ca.sumsqr(ca.vertcat(*residuals)), "g": ca.vertcat(*equations)}
# end

check_program(program)

# %% [markdown]
# IPOPT wants derivatives; CasADi has them. Most entries of the Jacobian are zero, which is what makes collocation possible for large models.

# %%
jacobian = ca.jacobian(program["g"], program["x"])
print(f"{jacobian.nnz()} of {jacobian.numel()} entries of the Jacobian are not zero")
ipopt = ca.nlpsol("ipopt", "ipopt", program, {"ipopt.print_level": 0, "ipopt.sb": "yes", "print_time": False})
found = ipopt(x0=np.concatenate([[0.3], np.repeat(measured, 2)]), lbg=0, ubg=0)
print("k =", float(found["x"][0]), "after", ipopt.stats()["iter_count"], "iterations")

# %% [markdown]
# The same by castfit, with the same eight elements:

# %%
z, rate = cf.symbols("x k")
model = cf.Model({z: -rate * z**2}, parameters=[rate], initial={z: 1})
problem = cf.Problem(model, cf.Experiment({"x": measured}, time=times, sigma=SIGMA), parameters={"k": 0.3})
result = cf.fit(problem, cf.Collocation(degree=2, elements=8), cf.Ipopt(), verify=False)
print(result)
assert np.isclose(float(found["x"][0]), result.parameters["k"], rtol=1e-5)

# %%
result.plot()
