"""Theophylline in the serum of twelve subjects after an oral dose (Boeckmann, Sheiner and Beal 1994): a population.

    gut'   = −ka gut                        mg/kg; the dose at t = 0
    body'  =  ka gut − ke body              mg/kg
    conc   =  body ke / CL                  mg/L, of the serum

Times are in hours; ka and ke in 1/h, CL in L/(h kg): doses are per kilogram of body weight.  Each subject has its own
ka and CL, ke is common to all; errors are additive and of unknown variance.  As a fit of all subjects at once, that is
25 estimates from 132 values; as a population (`benchmark.population`) log-normal ka and CL with a diagonal covariance,
six estimates (Pinheiro and Bates 2000, section 8.2).
"""

from __future__ import annotations

import castfit as cf
from castfit.problems import Benchmark, Reference, Uniform, read_table

OWN = {  # per subject ka, CL, and their standard errors
    1: (1.3708974, 0.02736549001, 0.17253, 0.0012954),
    2: (2.149152965, 0.04019347316, 0.36159, 0.0022441),
    3: (2.362245293, 0.04095313091, 0.4089, 0.0022548),
    4: (1.184803532, 0.03697106796, 0.17307, 0.002008),
    5: (1.496376414, 0.04279108258, 0.19413, 0.0021123),
    6: (1.274463953, 0.04678379838, 0.26604, 0.0032189),
    7: (0.7681017071, 0.04697815887, 0.13221, 0.0029362),
    8: (1.437027955, 0.04454733975, 0.25035, 0.002674),
    9: (8.951611361, 0.03246349283, 4.7361, 0.0018413),
    10: (0.6243088436, 0.03521715992, 0.072386, 0.0016994),
    11: (4.213949842, 0.05226787954, 0.97062, 0.0031138),
    12: (0.9591469072, 0.03745455336, 0.12328, 0.0018509),
}
REFERENCE = Reference(
    parameters={
        "ke": 0.08583995953,
        **{f"ka[subject {i}]": values[0] for i, values in OWN.items()},
        **{f"CL[subject {i}]": values[1] for i, values in OWN.items()},
    },
    objective=54.12916099,
    standard_errors={
        "ke": 0.004476,
        **{f"ka[subject {i}]": values[2] for i, values in OWN.items()},
        **{f"CL[subject {i}]": values[3] for i, values in OWN.items()},
    },
    source="least squares with SciPy on the closed form, from six starts",
)
POPULATION = {"ka": 1.59319, "CL": 0.0396675, "ke": 0.0858886, "sigma(conc)": 0.709255, "omega(ka)": 0.643574,
              "omega(CL)": 0.166928}  # fmt: skip
"""What R 4.2 with nlme 3.1-162 finds by maximum likelihood; its log-likelihood is -177.0214."""


def benchmark() -> Benchmark:
    """Build the benchmark."""
    table = read_table("theophylline.csv")
    gut, body, ka, ke, CL = cf.symbols("gut body ka ke CL")
    model = cf.Model(
        {gut: -ka * gut, body: ka * gut - ke * body},
        parameters=[ka, ke, CL],
        outputs={"conc": body * ke / CL},
        initial={body: 0},
    )
    subjects = []
    for number in dict.fromkeys(table["subject"].tolist()):
        rows = table["subject"] == number
        dose = float(table["dose"][rows][0])
        subjects.append(
            cf.Experiment(
                {"conc": table["conc"][rows]}, table["t"][rows], initial={"gut": dose}, name=f"subject {number:g}"
            )
        )
    guess = {
        "ka": cf.Parameter(1.5, scale="log", local=True),
        "CL": cf.Parameter(0.04, scale="log", local=True),
        "ke": cf.Parameter(0.08, scale="log"),
    }
    problem = cf.Problem(model, subjects, parameters=guess, units={"time": "h", "conc": "mg/L"})
    return Benchmark(
        name="theophylline",
        description=(
            "Serum concentrations of theophylline in twelve subjects after an oral dose: one compartment with "
            "absorption, own absorption and clearance for each subject; the standard example of mixed effects."
        ),
        problem=problem,
        reference=REFERENCE,
        sources=(
            "Boeckmann, Sheiner and Beal 1994, NONMEM Users Guide, Part V, University of California (data: R. Upton)",
            "Pinheiro and Bates 2000, Mixed-Effects Models in S and S-PLUS, Springer, section 8.2 (model, estimates)",
            "table checked against `Theoph` of R's package datasets, version 4.2.2",
        ),
        draw_start=Uniform.around(REFERENCE.parameters, factor=2.0),
        notes=(
            "The table has weights, too; doses are per kilogram already. In three subjects something is measured "
            "before the dose, which the model cannot follow."
        ),
        population=cf.Population({"ka": cf.Individual(omega=0.5), "CL": cf.Individual(omega=0.3)}),
    )
