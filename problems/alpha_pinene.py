"""Thermal isomerization of α-pinene: five species, five first-order rate constants.

    y1' = −(p1 + p2) y1                        α-pinene
    y2' = p1 y1                                dipentene
    y3' = p2 y1 − (p3 + p4) y3 + p5 y5         allo-ocimene
    y4' = p3 y3                                α- and β-pyronene
    y5' = p4 y3 − p5 y5                        a dimer
    y(0) = (100, 0, 0, 0, 0)

Concentrations are in percent of the reactant, times in minutes, rate constants in 1/min.  All five species are
measured at eight times; the errors' variance is unknown.

Correction.  Rodriguez-Fernandez, Egea and Banga (2006, Eq. 5) print y5' = −p4 y3 + p5 y5, which does not conserve
mass: the y add up to 28 instead of 100 at the last time.  Their Eq. 1 lacks its minus sign.
"""

from __future__ import annotations

import castfit as cf
from castfit.problems import Benchmark, Reference, Uniform, one_of, read_table

REFERENCE = Reference(
    parameters={
        "p1": 5.925848773e-05,
        "p2": 2.963402113e-05,
        "p3": 2.047284006e-05,
        "p4": 0.0002744679323,
        "p5": 3.997949979e-05,
    },
    objective=19.87216693,
    standard_errors={"p1": 5.0712e-07, "p2": 4.9111e-07, "p3": 3.095e-06, "p4": 2.3207e-05, "p5": 8.384e-06},
    source="least squares with SciPy on the variational equations; COPS prints 1.98721e1",
)


def benchmark(*, scale: str = "linear") -> Benchmark:
    """Build the benchmark.

    Parameters
    ----------
    scale : {"linear", "log"}
        Whether the search moves in the rate constants, between 0 and 1, or in their logarithms, between 1e-8 and 1.
    """
    one_of("scale", scale, ("linear", "log"))
    y1, y2, y3, y4, y5 = cf.symbols("y1 y2 y3 y4 y5")
    p1, p2, p3, p4, p5 = cf.symbols("p1 p2 p3 p4 p5")
    model = cf.Model(
        ode={
            y1: -(p1 + p2) * y1,
            y2: p1 * y1,
            y3: p2 * y1 - (p3 + p4) * y3 + p5 * y5,
            y4: p3 * y3,
            y5: p4 * y3 - p5 * y5,
        },
        parameters=[p1, p2, p3, p4, p5],
        initial={y1: 100, y2: 0, y3: 0, y4: 0, y5: 0},
    )
    table = read_table("alpha_pinene.csv")
    experiment = cf.Experiment({name: table[name] for name in model.states}, time=table["t"])
    lower = 1e-8 if scale == "log" else 0.0
    guess = cf.Parameter(0.5, lower=lower, upper=1.0, scale=scale)
    return Benchmark(
        name="alpha_pinene",
        description=(
            "Thermal isomerization of α-pinene, after Box et al. (1973): a linear model with five rate constants and "
            "all five species measured at eight times. Easy from close by and hard from afar: far from the solution "
            "the fast reactions are over before the first measurement, and single and multiple shooting see no "
            "gradient."
        ),
        problem=cf.Problem(model, experiment, parameters=dict.fromkeys(model.parameters, guess)),
        reference=REFERENCE,
        sources=(
            "Fuguitt and Hawkins 1947, J. Am. Chem. Soc. 69, 319 (measurements)",
            "Box, Hunter, MacGregor and Erjavec 1973, Technometrics 15, 33 (model, estimates)",
            "Rodriguez-Fernandez, Egea and Banga 2006, BMC Bioinformatics 7, 483 (bounds, start)",
            "Dolan, Moré and Munson 2004, COPS 3.0; table checked against github.com/MadNLP/COPSBenchmark.jl @867802f, "
            "github.com/gingproc-IIM-CSIC/MEIGO64 @7d2feaf and github.com/csynbiosys/AMIGO2R2016b @e4bf6a4",
        ),
        draw_start=Uniform(dict.fromkeys(model.parameters, (lower, 1.0)), log=scale == "log"),
        notes=(
            "Eq. 5 of Rodriguez-Fernandez et al. is printed with the signs of both terms reversed; corrected here. "
            "The published bounds are 0 and 1; scale='log' replaces the lower one by 1e-8."
        ),
    )
