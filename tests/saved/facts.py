"""Numbers of results, to compare a loaded file with the result that castfit 0.3 saved.

Times are left out.  Numbers that are not finite become text.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def make_plain(value):
    """Convert arrays, mappings and numbers to exact JSON values."""
    if isinstance(value, Mapping):
        return {str(key): make_plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray):
        return make_plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [make_plain(entry) for entry in value]
    if isinstance(value, np.generic):
        return make_plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value


def collect_result(result):
    """Collect numbers of a fit."""
    names = ("cost", "chi2", "objective", "measure", "n_data", "dof", "neg2loglik", "neg2logprior",
             "n_estimated", "aic", "bic", "noise", "rank", "inflation", "absolute_sigma", "confidence_level",
             "transcription", "solver", "iterations", "gaps", "values", "standard_errors", "numerical_errors",
             "sigmas", "sigma_errors", "active", "smoothness", "effective", "evaluations", "failures",
             "message", "success", "is_adequate", "predictions", "residuals", "strategies")  # fmt: skip
    facts = {name: getattr(result, name) for name in names}
    facts["status"] = result.status.value
    facts["names"] = list(result.names)
    facts["theta"] = result.theta
    facts["experiments"] = list(result.trajectories)
    facts["last node"] = {name: nodes.states[-1] for name, nodes in result.trajectories.items()}
    facts["verdicts"] = {verdict.name: verdict.kind for verdict in result.identifiability.verdicts}
    facts["combinations"] = [list(c.names) for c in result.identifiability.combinations]
    facts["constraints"] = {row.name: [row.value, row.active, row.multiplier] for row in result.constraints.rows}
    facts["goodness"] = [result.goodness.described, result.goodness.p_value, result.goodness.sentence]
    facts["intervals"] = result.confidence_intervals()
    facts["history length"] = len(result.history)
    facts["integrator"] = [result.integrator.method, result.integrator.relative_tolerance]
    if result.errors is not None:
        facts["errors"] = [result.errors.times, list(result.errors.joint), result.errors.covariance]
    return facts


def collect_best(result):
    """Collect the main numbers of the best fit of a search."""
    if result is None:
        return None
    return {"status": result.status.value, "objective": result.objective, "chi2": result.chi2, "values": result.values}


def collect_path_result(result):
    """Collect numbers of a fit with process noise."""
    names = ("values", "standard_errors", "log_likelihood", "neg2logprior", "refined", "stages", "aic", "bic", "active",
             "n_data", "iterations", "evaluations", "confidence_level", "message")  # fmt: skip
    facts = {name: getattr(result, name) for name in names}
    facts["status"] = result.status.value
    facts["outputs"] = {name: list(track.names) for name, track in result.tracks.items()}
    facts["last value"] = {name: track.values[-1] for name, track in result.tracks.items()}
    facts["innovations"] = {name: part.standardised for name, part in result.innovations.items()}
    facts["intervals"] = result.confidence_intervals()
    return facts


def collect_plan(plan):
    """Collect numbers of a plan."""
    names = ("objective", "integrated", "horizon", "parameters", "stages", "iterations", "solver", "success",
             "question", "time_name")  # fmt: skip
    facts = {name: getattr(plan, name) for name in names}
    facts["status"] = plan.status.value
    facts["inputs"] = {name: [u.kind, u.times, u.values] for name, u in plan.inputs.items()}
    facts["last states"] = {name: x[..., -1] for name, x in plan.states.items()}
    facts["constraints"] = {name: [c.least, c.greatest, c.violation, c.active] for name, c in plan.constraints.items()}
    facts["undetermined"] = plan.undetermined
    return facts


def collect_profiles(profiles):
    """Collect numbers of profiles."""
    facts = {name: getattr(profiles, name) for name in ("statistic", "complete", "improved", "verdicts")}
    facts["limits"] = profiles.limits()
    facts["points"] = {name: len(profile.values) for name, profile in profiles.items()}
    facts["optima"] = [[other.objective, other.values] for other in profiles.optima]
    facts["thresholds"] = {name: profile.thresholds for name, profile in profiles.items()}
    facts["best"] = collect_best(profiles.best)
    return facts


def collect_bootstrap(bootstrap):
    """Collect numbers of a bootstrap."""
    facts = {name: getattr(bootstrap, name) for name in ("kind", "fitted", "thetas", "standard_errors", "sigmas")}
    facts["statuses"] = [row.status for row in bootstrap.rows]
    facts["objectives"] = [row.objective for row in bootstrap.rows]
    facts["percentiles"] = bootstrap.confidence_intervals(0.5, method="percentile")
    facts["result"] = collect_best(bootstrap.result)
    return facts


def collect_multistart(search):
    """Collect numbers of a multistart."""
    facts = {name: getattr(search, name) for name in ("measure", "transcription", "solver", "statuses", "failures")}
    facts["rows"] = [[row.index, row.status, row.objective, row.start, row.values, row.draws] for row in search.starts]
    facts["optima"] = [[o.objective, list(o.starts), list(o.varying)] for o in search.optima]
    facts["outlook"] = [search.outlook.n_fits, search.outlook.unseen, search.outlook.more_starts]
    facts["best"] = collect_best(search.best)
    return facts


def collect_scatter(search):
    """Collect numbers of a scatter search."""
    names = ("simulations", "n_sensitivity_evaluations", "generations", "failures", "transcription", "solver", "names")
    facts = {name: getattr(search, name) for name in names}
    facts["logarithmic"] = list(search.logarithmic)
    facts["history"] = [[moment.simulations, moment.objective] for moment in search.history]
    facts["searches"] = [[s.start, s.end, s.status, s.simulations] for s in search.searches]
    facts["best"] = collect_best(search.best)
    return facts


def collect_portfolio(search):
    """Collect numbers of a search by several strategies."""
    facts = {name: getattr(search, name) for name in ("stopping_rule_met", "hits", "is_adequate", "measure")}
    facts["candidates"] = [[c.way, c.success, c.best, c.dropped, c.values] for c in search.candidates]
    facts["best"] = collect_best(search.best)
    return facts


def collect_contours(contours):
    """Collect numbers of joint confidence regions."""
    names = ("names", "scales", "estimate", "lines", "closed", "thresholds", "complete", "solves")
    return {name: getattr(contours, name) for name in names}


def collect_leave_out(left):
    """Collect numbers of fits without parts of the data."""
    return {"each": left.each, "rows": [[row.name, row.status, row.objective, row.theta] for row in left.rows],
            "standard errors": left.standard_errors}  # fmt: skip


def collect_coverage(coverage):
    """Collect numbers of a coverage study."""
    return {
        "share": coverage.share, "truth": coverage.truth, "intervals": coverage.intervals,
        "confidence_level": coverage.confidence_level,
        "rows": [[row.status, row.objective, row.theta, row.requested_pairs] for row in coverage.rows],
    }  # fmt: skip


def collect_selection(selection):
    """Collect numbers of a model selection."""
    facts = {
        name: getattr(selection, name) for name in ("names", "criterion", "method", "criteria", "path", "complete")
    }
    facts["statuses"] = {name: row.status for name, row in selection.fits.items()}
    facts["values"] = {name: selection[name].values for name in selection.names}
    return facts


def collect_mixed_effects(result):
    """Collect numbers of a population."""
    names = ("values", "standard_errors", "neg2loglik", "iterations", "n_data", "n_individuals", "etas")
    return {name: getattr(result, name) for name in names} | {"status": result.status.value}


COLLECTORS = {
    "Result": collect_result, "PathResult": collect_path_result, "Plan": collect_plan, "Profiles": collect_profiles,
    "BootstrapResult": collect_bootstrap, "MultistartResult": collect_multistart, "ScatterResult": collect_scatter,
    "PortfolioResult": collect_portfolio, "Contours": collect_contours, "LeaveOutResult": collect_leave_out,
    "CoverageResult": collect_coverage, "SelectionResult": collect_selection,
    "MixedEffectsResult": collect_mixed_effects,
}  # fmt: skip
"""The collecting function of each class."""


def collect_facts(result):
    """Collect the numbers of a result of any class."""
    return make_plain(COLLECTORS[type(result).__name__](result))


def list_differences(expected, actual, tolerance=0.0, where=""):
    """List the differences of two collections that exceed a relative tolerance."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        differences = []
        for key in dict.fromkeys((*expected, *actual)):
            if key not in expected or key not in actual:
                differences.append(f"{where}/{key} is on one side only")
            else:
                differences += list_differences(expected[key], actual[key], tolerance, f"{where}/{key}")
        return differences
    if isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            return [f"{where}: {len(expected)} entries, now {len(actual)}"]
        pairs = enumerate(zip(expected, actual, strict=True))
        return [d for i, (a, b) in pairs for d in list_differences(a, b, tolerance, f"{where}[{i}]")]
    numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (expected, actual))
    if numbers and abs(expected - actual) <= tolerance * max(abs(expected), abs(actual), 1e-6):
        return []
    return [] if expected == actual else [f"{where}: {expected!r}, now {actual!r}"]
