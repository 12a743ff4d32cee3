"""The library's problems of optimal control as rockit's users write them, to be run where rockit is installed.

python rockit_problems.py NAME        prints {"objective": ..., "seconds": ...} as its last line
"""

from __future__ import annotations

import json
import sys
import time


def build(name):
    """Return the problem, and its objective."""
    from casadi import cos, exp, sin, sqrt
    from rockit import DirectCollocation, FreeTime, Ocp

    def make_problem(T, states, pieces, order=0):
        ocp = Ocp(T=T)
        x = [ocp.state() for _ in states]
        u = ocp.control(order=order) if order else ocp.control()
        for s, value in zip(x, states, strict=True):
            ocp.subject_to(ocp.at_t0(s) == value)
        ocp.solver("ipopt", {"ipopt.tol": 1e-9, "ipopt.print_level": 0, "print_time": False, "ipopt.sb": "yes"})
        ocp.method(DirectCollocation(N=pieces, M=1, degree=3, scheme="radau"))
        return ocp, x, u

    if name == "van_der_pol":
        ocp, (x0, x1), u = make_problem(10, (0, 1), 20)
        rates, cost = ((1 - x1**2) * x0 - x1 + u, x0), ocp.integral(x0**2 + x1**2 + u**2)
        ocp.subject_to((u <= 1) >= -1)
        ocp.subject_to(x1 >= -0.25)
    elif name == "bryson_denham":
        ocp, (x, v), u = make_problem(1, (0, 1), 60, 1)
        rates, cost = (v, u), ocp.integral(u**2) / 2
        ocp.subject_to(x <= 1 / 9)
        ocp.subject_to(ocp.at_tf(x) == 0)
        ocp.subject_to(ocp.at_tf(v) == -1)
    elif name == "brachistochrone":
        ocp, (x, y, v), u = make_problem(FreeTime(1.0), (0, 0, 0), 30, 1)
        rates, cost = (v * sin(u), v * cos(u), 9.81 * cos(u)), ocp.T
        ocp.subject_to(ocp.T >= 0.1)
        ocp.subject_to((u <= 3.2) >= 0)
        ocp.subject_to(ocp.at_tf(x) == 2)
        ocp.subject_to(ocp.at_tf(y) == 2)
        for s, guess in ((u, 0.8), (x, 2 * ocp.t), (y, 2 * ocp.t), (v, 6 * ocp.t)):
            ocp.set_initial(s, guess)
    elif name == "goddard":
        ocp, (h, v, m), u = make_problem(FreeTime(0.2), (1, 0, 1), 200)
        rates = (v, (u - 310 * v**2 * exp(-500 * (h - 1))) / m - 1 / h**2, -2 * u)
        cost = -ocp.at_tf(h)
        ocp.subject_to((ocp.T <= 1) >= 0.05)
        ocp.subject_to((u <= 3.5) >= 0)
        ocp.subject_to(v >= 0)
        ocp.subject_to(ocp.at_tf(m) == 0.6)
        for s, guess in ((h, 1.0), (v, 0.05), (m, 0.8), (u, 1.75)):
            ocp.set_initial(s, guess)
    elif name == "rayleigh":
        ocp, (x1, x2), u = make_problem(4.5, (-5, -5), 200)
        rates, cost = (x2, -x1 + x2 * (1.4 - 0.14 * x2**2) + 4 * u), ocp.integral(u**2 + x1**2)
        ocp.subject_to((u <= 1) >= -1)
        ocp.subject_to(ocp.at_tf(x1) == 0)
        ocp.subject_to(ocp.at_tf(x2) == 0)
    elif name == "batch_yield":
        ocp, (a, b), u = make_problem(1, (1, 0), 100, 1)
        rates, cost = (-(u + u**2 / 2) * a, u * a), -ocp.at_tf(b)
        ocp.subject_to((u <= 5) >= 0)
        ocp.set_initial(u, 1.0)
        ocp.set_initial(a, 1.0)
    elif name == "catalyst":
        ocp, (a, b), u = make_problem(1, (1, 0), 200)
        rates, cost = (u * (10 * b - a), u * (a - 10 * b) - (1 - u) * b), ocp.at_tf(a) + ocp.at_tf(b) - 1
        ocp.subject_to((u <= 1) >= 0)
        ocp.set_initial(a, 1.0)
    elif name == "fishing":
        ocp, (x0, x1), u = make_problem(12, (0.5, 0.7), 300)
        rates = (x0 - x0 * x1 - 0.4 * x0 * u, -x1 + x0 * x1 - 0.2 * x1 * u)
        cost = ocp.integral((x0 - 1) ** 2 + (x1 - 1) ** 2)
        ocp.subject_to((u <= 1) >= 0)
        ocp.set_initial(x0, 0.5)
        ocp.set_initial(x1, 0.7)
    elif name == "double_integrator":
        ocp, (x, v), u = make_problem(FreeTime(3.0), (0, 0), 50)
        rates, cost = (v, u), ocp.T
        ocp.subject_to(ocp.T >= 0.1)
        ocp.subject_to((u <= 1) >= -1)
        ocp.subject_to(ocp.at_tf(x) == 1)
        ocp.subject_to(ocp.at_tf(v) == 0)
    elif name == "batch_temperature":
        ocp, (a, b), u = make_problem(1, (1, 0), 100)
        k1, k2 = 4000 * exp(-2500 / u), 620000 * exp(-5000 / u)
        rates, cost = (-k1 * a**2, k1 * a**2 - k2 * b), -ocp.at_tf(b)
        ocp.subject_to((u <= 398) >= 298)
        ocp.set_initial(u, 348)
        ocp.set_initial(a, 0.5)
    elif name == "park_ramirez":
        ocp, x, u = make_problem(15, (0, 0, 1, 5, 1), 150)
        g3 = 21.87 * x[3] / ((x[3] + 0.4) * (x[3] + 62.5))
        g1, g2, dilution = 4.75 * g3 / (0.12 + g3), x[3] / (0.1 + x[3]) * exp(-5 * x[3]), u / x[4]
        rates = (
            g1 * (x[1] - x[0]) - dilution * x[0], g2 * x[2] - dilution * x[1], (g3 - dilution) * x[2],
            -7.3 * g3 * x[2] + dilution * (20 - x[3]), u,
        )  # fmt: skip
        cost = -ocp.at_tf(x[0]) * ocp.at_tf(x[4])
        ocp.subject_to((u <= 2) >= 0)
        for s, guess in zip([*x, u], (1, 1, 2, 0.1, 1 + 0.5 * ocp.t, 0.5), strict=True):
            ocp.set_initial(s, guess)
    elif name == "lee_ramirez":
        ocp, x, u = make_problem(10, (1, 0.1, 40, 0, 0, 1, 0), 100)
        w = ocp.control()
        g = x[2] / (14.35 + x[2] * (1 + x[2] / 111.5))
        growth, making = g * (x[5] + x[6] * 0.22 / (0.22 + x[4])), 0.233 * g * (0.0005 + x[4]) / (0.022 + x[4])
        k, dilution = 0.09 * x[4] / (0.034 + x[4]), (u + w) / x[0]
        rates = (
            u + w, (growth - dilution) * x[1], 100 * u / x[0] - dilution * x[2] - growth * x[1] / 0.51,
            making * x[1] - dilution * x[3], 4 * w / x[0] - dilution * x[4], -k * x[5], k * (1 - x[6]),
        )  # fmt: skip
        cost = -ocp.at_tf(x[3]) * ocp.at_tf(x[0])
        ocp.subject_to((u <= 1) >= 0)
        ocp.subject_to((w <= 1) >= 0)
        ocp.subject_to(x[2] >= 0)
        t, volume = ocp.t, 1 + 0.2 * ocp.t  # about what happens with both feeds at 0.1; from constants it fails
        shapes = (volume, 0.1 * exp(0.35 * t), 40 - t, 0.1 * t, 0.4 * t / volume, exp(-0.08 * t), 1 - exp(-0.08 * t))
        for s, guess in zip([*x, u, w], (*shapes, 0.1, 0.1), strict=True):
            ocp.set_initial(s, guess)
    else:
        ocp, (x,), u = make_problem(1, (1,), 100, 1)
        rates, cost = (u,), ocp.integral(x * sqrt(1 + u**2))
        ocp.subject_to(ocp.integral(sqrt(1 + u**2)) == 4)
        ocp.subject_to(ocp.at_tf(x) == 3)
        ocp.set_initial(u, -6 + 16 * ocp.t)
        ocp.set_initial(x, 1 - 6 * ocp.t + 8 * ocp.t**2)
        return ocp, [x], rates, cost
    return ocp, [s for s in ocp.states[: len(rates)]], rates, cost


if __name__ == "__main__":
    import rockit  # noqa: F401 - its import is not measured

    began = time.process_time()
    ocp, states, rates, cost = build(sys.argv[1])
    for s, rate in zip(states, rates, strict=True):
        ocp.set_der(s, rate)
    ocp.add_objective(cost)
    found = ocp.solve()
    value = float(found.value(cost))
    sys.stdout.write("\n" + json.dumps({"objective": value, "seconds": time.process_time() - began}) + "\n")
