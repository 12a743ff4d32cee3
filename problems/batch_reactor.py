"""Dow's batch reactor: six species, their ions in equilibrium, four rate constants; an index-1 DAE.

Slow reactions of ions with neutral molecules (k₃ = k₁, k₋₃ = k₋₁/2):

    M⁻ + BM ⇌ MBM⁻      r1 = k1 M BM − k_minus_1 MBM
    A⁻ + BM → ABM⁻      r2 = k2 A BM
    M⁻ + AB ⇌ ABM⁻      r3 = k1 M AB − 1/2 k_minus_1 ABM

    HA'   = −r2           BM'   = −r1 − r2       HABM' = r2 + r3
    AB'   = −r3           MBMH' = r1             M'    = −r1 − r3

HA, HABM and MBMH count neutral molecules and ions together.  Protons go over at once; they are too few to count in the
balance of charges, so that with S = K₂/[H⁺], beta1 = K₁/K₂ and beta2 = K₃/K₂ the equilibria are

    A = S HA      ABM = beta2 S HABM      MBM = beta1 S MBMH      M + A + ABM + MBM = 0.0131

The last equation, which determines S, does not contain it: only together do the four have a solution.  At the start
HA = 1.6497, BM = 8.2262, M = 0.0131 (the catalyst), all else 0; mol/kg and hours.

Not determined.  The data fix k_minus_1 beta1 and k_minus_1 beta2, hardly the factors: chi2 falls from 79.093 to 78.587
as k_minus_1 grows without limit.  It is kept at the value that goes with the published estimates.
"""

from __future__ import annotations

import castfit as cf
from castfit.problems import Benchmark, Reference, Uniform, read_table

REFERENCE = Reference(
    parameters={"k1": 1.893483027, "k2": 2.758088591, "beta1": 0.006183057152, "beta2": 0.004795022232},
    objective=79.09300077,
    standard_errors={"k1": 0.058778, "k2": 0.044569, "beta1": 0.00040195, "beta2": 0.00030633},
    source=(
        "least squares with SciPy on the variational equations, algebraic states eliminated; an earlier estimate "
        "is k1 = 1.8934, k2 = 2.7585, beta1 = 0.0061894, beta2 = 0.0048, with the chi2 79.0933"
    ),
)
VARIANCES = {"HA": 4.09e-4, "BM": 1.04e-3, "HABM": 4.69e-4, "AB": 3.28e-4}
INITIAL_M = 0.0131  # initial concentration of M+, which the charge balance keeps, in mol/kg


def benchmark() -> Benchmark:
    """Build the benchmark."""
    HA, BM, HABM, AB, MBMH, M = cf.symbols("HA BM HABM AB MBMH M")
    S, A, ABM, MBM = cf.symbols("S A ABM MBM")
    k1, k2, k_minus_1, beta1, beta2 = cf.symbols("k1 k2 k_minus_1 beta1 beta2")
    r1 = k1 * M * BM - k_minus_1 * MBM
    r2 = k2 * A * BM
    r3 = k1 * M * AB - k_minus_1 / 2 * ABM
    model = cf.Model(
        ode={HA: -r2, BM: -r1 - r2, HABM: r2 + r3, AB: -r3, MBMH: r1, M: -r1 - r3},
        algebraic={
            S: M + A + ABM + MBM == INITIAL_M,
            A: S * HA == A,
            ABM: beta2 * S * HABM == ABM,
            MBM: beta1 * S * MBMH == MBM,
        },
        parameters=[k1, k2, k_minus_1, beta1, beta2],
        initial={HA: 1.6497, BM: 8.2262, HABM: 0, AB: 0, MBMH: 0, M: INITIAL_M},
    )
    table = read_table("batch_reactor.csv")
    experiment = cf.Experiment(
        {name: table[name] for name in VARIANCES},
        time=table["t"],
        sigma={name: variance**0.5 for name, variance in VARIANCES.items()},
        initial={"S": 0, "A": 0, "ABM": 0, "MBM": 0},
    )
    start = {"k1": 1.0, "k2": 1.0, "beta1": 0.01, "beta2": 0.01}
    return Benchmark(
        name="batch_reactor",
        description=(
            "Dow's batch reactor, the case study of Biegler, Damiano and Blau (1986), at 67 °C: slow reactions of ions "
            "whose concentrations follow from equilibria and the balance of charges, so that the model is a "
            "differential-algebraic one. Half of the 21 samples were taken in the first day, the others in ten more."
        ),
        problem=cf.Problem(
            model,
            experiment,
            parameters={
                **{name: cf.Parameter(value, scale="log") for name, value in start.items()},
                "k_minus_1": cf.Parameter(1754.0, fixed=True),
            },
        ),
        reference=REFERENCE,
        sources=(
            "Biegler, Damiano and Blau 1986, AIChE J. 32, 29 (model; data of the Dow Chemical Co.)",
            "Chen and Biegler 2020, AIChE J. 66, e16242 (this experiment, variances, estimates)",
            "github.com/salvadorgarciamunoz/kipet @1571cc8 dow_data.csv (data; initial values and estimates beside it)",
        ),
        draw_start=Uniform.around(REFERENCE.parameters),
        transcriptions={"multiple": {"intervals": "data"}},
        notes=(
            "The distribution of starts is ours: the logarithms are drawn within a factor of ten of the optimum. "
            "Residuals of HA keep their sign for long: the model is known to be simplified."
        ),
    )
