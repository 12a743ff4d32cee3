"""One call of a driver per checkpoint that castfit 0.3 wrote.

Keyword arguments are those of the run: `checkpoint`, `resume`, `verbose`.
"""

from __future__ import annotations

import castfit as cf
from tests.saved import problems


def fit_chain():
    """Fit the chain by single shooting."""
    return cf.fit(problems.chain(), "single")


def fit_unknown_sigmas():
    """Fit the chain with unknown standard deviations."""
    return cf.fit(problems.chain_unknown_sigmas(), "single")


def fit_experiments():
    """Fit three experiments by single shooting."""
    return cf.fit(problems.driven_experiments(), "single", retry=False)


def fit_absorption():
    """Fit the absorbed dose by single shooting."""
    return cf.fit(problems.absorption(), "single")


# ------------------------------------------------------------------------------------------------------ multistart


def multistart_default(**run):
    """Fit from starts of the default sampling by the default method."""
    return cf.multistart(problems.chain(), starts=4, rng=1, **run)


def multistart_box(**run):
    """Fit from screened starts by single shooting with a trust region, selected by names."""
    return cf.multistart(
        problems.chain(), "single", "box", starts=4, rng=1, sampling="latin_hypercube", screen=2, **run
    )


def multistart_collocation(**run):
    """Fit from starts between given limits by collocation with options, and Gauss-Newton with options."""
    transcription = cf.Collocation(degree=2, scheme="legendre", elements="data", tolerance=1e-6, states="smoothed")
    solver = cf.GaussNewton("levenberg_marquardt", homotopy="never", max_iter=50, tolerance=1e-9, accuracy="full")
    limits = {"k1": (0.1, 5.0), "k2": (0.1, 5.0)}
    return cf.multistart(
        problems.chain(),
        transcription,
        solver,
        starts=3,
        rng=1,
        limits=limits,
        sampling="log_uniform",
        max_draws=2,
        **run,
    )


def multistart_ipopt(**run):
    """Fit from given starts by multiple shooting with options, and IPOPT with options."""
    integrator = cf.IntegratorOptions(method="cvodes", relative_tolerance=1e-8, compile="never", max_steps=5000)
    transcription = cf.MultipleShooting(4, states="simulation", integrator=integrator, derivatives="forward")
    starts = [{"k1": 0.3, "k2": 0.9}, {"k1": 2.0}, {"k2": 0.2}]
    return cf.multistart(
        problems.chain_unknown_sigmas(),
        transcription,
        cf.Ipopt(hessian="gauss-newton", max_iter=100),
        starts=starts,
        **run,
    )


def multistart_sqp(**run):
    """Fit from drawn starts by multiple shooting with adjoint derivatives and scalar matching, and SQP."""
    transcription = cf.MultipleShooting("data", derivatives="adjoint", matching="scalar")
    return cf.multistart(problems.chain(), transcription, cf.Sqp(), starts=2, rng=2, sampling="uniform", **run)


def multistart_soft(**run):
    """Fit from starts that relaxed dynamics improve."""
    return cf.multistart(problems.chain(), "collocation", starts=2, rng=1, start_strategy="soft", **run)


def multistart_decomposed(**run):
    """Fit from starts that a decomposition improves, drawn by a user-defined function."""
    return cf.multistart(
        problems.growth_and_decay(), "single", starts=2, rng=1, start_strategy="decomposed",
        sampling=problems.sample_start, **run,
    )  # fmt: skip


def multistart_noise(**run):
    """Fit a problem with an unknown scale from drawn starts; its objective is a likelihood."""
    return cf.multistart(
        problems.decay_student(),
        "single",
        starts=3,
        rng=1,
        limits={"k": (0.1, 2.0), "x(0)": (1.0, 4.0), "sigma(x)": (0.01, 0.2)},
        **run,
    )


def multistart_priors(**run):
    """Fit a problem with priors of many kinds."""
    return cf.multistart(problems.chain_priors(), "single", starts=2, rng=1, **run)


def multistart_other_priors(**run):
    """Fit a problem with the other kinds of priors, one of them nested."""
    return cf.multistart(problems.chain_other_priors(), "single", starts=2, rng=1, **run)


def multistart_constraints(**run):
    """Fit a problem with constraints and bounds of states, by collocation."""
    return cf.multistart(problems.chain_constraints(), cf.Collocation(elements=6), starts=2, rng=1, **run)


def multistart_covariance(**run):
    """Fit a problem with a given covariance between outputs."""
    return cf.multistart(problems.chain_given_covariance(), "single", starts=2, rng=1, **run)


# --------------------------------------------------------------------------------------------------- other searches


def scatter_default(**run):
    """Search by scatter search with few members."""
    return cf.scatter_search(problems.chain(), rng=1, max_eval=150, dim_refset=4, n_diverse=8, **run)


def scatter_options(**run):
    """Search by scatter search with other option words."""
    return cf.scatter_search(
        problems.growth_and_decay(), cf.MultipleShooting(5, states="simulation"), cf.GaussNewton("exact_penalty"),
        rng=2, max_eval=220, dim_refset=4, n_diverse=8,
        first_refset="corners", regeneration="distance", distance_filter="minima", merit_filter=True, aggressive=True,
        go_beyond=True, restart_after=2, local_start="matching", join_reach=0.01, **run,
    )  # fmt: skip


def estimate_default(**run):
    """Search by all applicable strategies."""
    return cf.estimate(problems.growth_and_decay(), rng=1, screen=2, **run)


def estimate_ways(**run):
    """Search by named strategies, between limits, without a race."""
    return cf.estimate(
        problems.absorption(), rng=1, strategies=["box", "growing", "soft", "moved"], finds=2, screen=2, race=False,
        limits={"ka": (0.1, 5.0), "ke": (0.1, 5.0), "v": (1.0, 20.0)}, **run,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------ uncertainty


def profile_default(**run):
    """Profile all quantities of the chain."""
    return cf.profile(fit_chain(), **run)


def profile_targets(**run):
    """Profile a quantity, an expression, an unknown sigma and a prediction, at two levels, by the F distribution."""
    names = ["k1", "k1 / k2", "sigma(a)", cf.OutputAt("b", 3.0)]
    return cf.profile(
        fit_unknown_sigmas(), names, "single", "gauss_newton", confidence_levels=(0.68, 0.95), limits="F", **run
    )


def profile_everywhere(**run):
    """Profile a rate up to its bounds, which finds another optimum."""
    return cf.profile(fit_absorption(), "ka", limits="chi2", everywhere=True, reach=50.0, **run)


def profile_better(**run):
    """Profile a rate from the poorer one of two optima, which finds a better fit."""
    poorer = cf.fit(problems.absorption(), "single", start={"ka": 0.27, "ke": 1.4, "v": 1.4}, retry=False)
    return cf.profile(poorer, "ka", everywhere=True, **run)


def contours_default(**run):
    """Find joint regions of both rates."""
    return cf.contours(fit_chain(), "k1", "k2", confidence_levels=(0.68, 0.95), slices=4, **run)


def bootstrap_residual(**run):
    """Resample residuals, and fit by the method of the result."""
    return cf.bootstrap(fit_chain(), samples=5, rng=1, **run)


def bootstrap_parametric(**run):
    """Draw data from the noise models, and fit from additional starts by another method."""
    return cf.bootstrap(
        fit_unknown_sigmas(), "parametric", samples=3, rng=2, transcription="multiple", solver="box", starts=1, **run
    )


def bootstrap_wild(**run):
    """Draw the signs of the residuals, and fit by collocation."""
    return cf.bootstrap(fit_experiments(), "wild", samples=3, rng=3, transcription=cf.Collocation(elements=10), **run)


def leave_out_experiment(**run):
    """Leave out each experiment in turn."""
    return cf.leave_out(fit_experiments(), **run)


def leave_out_value(**run):
    """Leave out each value in turn, by multiple shooting."""
    return cf.leave_out(cf.fit(problems.decay(), "single"), "value", transcription=cf.MultipleShooting(3), **run)


def coverage_linear(**run):
    """Compute the coverage of linear intervals at the estimates of a fit."""
    return cf.coverage(fit_chain(), samples=4, rng=1, **run)


def coverage_profile(**run):
    """Compute the coverage of profile intervals at true values, with fits from the guess."""
    return cf.coverage(
        problems.chain_unknown_sigmas(), {"k1": 1.0, "k2": 0.4}, sigma={"a": 0.03, "b": 0.02}, samples=2,
        intervals="profile", start="guess", rng=2, transcription="single", confidence_level=0.9, **run,
    )  # fmt: skip


def coverage_function(**run):
    """Compute the coverage of intervals from a user-defined function."""
    return cf.coverage(
        problems.decay(), {"k": 0.6, "x(0)": 2.0}, samples=3, intervals=problems.shorten_intervals, rng=1, **run
    )


# ------------------------------------------------------------------------------------------- models and populations


def select_choices(**run):
    """Choose among all alternatives of two parameters."""
    return cf.select(problems.decay_with_drift(), choices=problems.drift_choices(), rng=1, **run)


def select_models(**run):
    """Choose between two models by another criterion and method."""
    return cf.select(problems.candidate_models(), "single", cf.GaussNewton("box"), criterion="BIC", rng=1, **run)


def select_forward(**run):
    """Choose parameters by forward selection."""
    choices = {"m": problems.drift_choices()["m"]}
    return cf.select(problems.decay_with_drift(), "single", choices=choices, method="forward", criterion="AIC", **run)


def select_forecast(**run):
    """Choose parameters by forecasts."""
    return cf.select(problems.decay_with_drift(), choices=problems.drift_choices(), method="forecast", **run)


def mixed_effects_default(**run):
    """Estimate the distribution of clearances over six patients."""
    return cf.mixed_effects(problems.patients(), problems.patient_population(), **run)


def mixed_effects_integrator(**run):
    """Estimate the distribution of clearances with another integrator."""
    options = cf.IntegratorOptions(method="cvodes", relative_tolerance=1e-8, absolute_tolerance=1e-10)
    return cf.mixed_effects(
        problems.patients(), problems.patient_population(), integrator=options,
        start={"clearance": 3.5, "omega(clearance)": 0.2}, standard_errors=False, **run,
    )  # fmt: skip
