"""An earlier result as prior knowledge for another problem."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.arguments import describe_rejected, read_sequence, shorten_repr, symbol_or_text_name
from castfit._support.status import raise_if_mistakes, suggest
from castfit.densities.priors import JointNormal
from castfit.result.result import Result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from castfit._support.arrays import Array

_MIN_EIGENVALUE_FRACTION = 1e-12  # of the largest eigenvalue: no information


def prior_from(result: Result, names: Sequence[str] | None = None) -> JointNormal:
    """Convert a result to a prior on its quantities: the normal distribution with its mean and covariance.

    On a logarithmic scale the logarithms are normally distributed.  What that fit did not estimate, or left
    undetermined, stays as open as it was; where bounds or constraints held quantities, the slope against these counts.
    Fits of one data set after the other, each with the result before as its prior, end where a fit of all of them does,
    exactly so for a model that is linear in its quantities and standard deviations that are known.

    Parameters
    ----------
    result : Result
        A successful fit; it may have been loaded.
    names : sequence of str, optional
        Which quantities it is a prior on; the others are integrated out.  By default all parameters that experiments
        share: those of one experiment, and initial states, are other quantities in another experiment.

    Raises
    ------
    InputError
        If this is no successful result, if it knows nothing of the noise, or a name is none of its quantities.

    Examples
    --------
    >>> import castfit as cf
    >>> s, i, b, g = cf.symbols("s i b g")
    >>> model = cf.Model({s: -b * s * i, i: b * s * i - g * i}, parameters=[b, g], initial={s: 0.99, i: 0.01})
    >>> experiment = cf.Experiment({"i": [0.02, 0.05, 0.10]}, time=[1, 2, 3], sigma=0.01)
    >>> guess = {"b": 1.0, "g": cf.Parameter(0.3, lower=0)}
    >>> first = cf.fit(cf.Problem(model, experiment, parameters=guess))
    >>> later = cf.Experiment({"i": [0.19, 0.27]}, time=[4, 5], sigma=0.01)
    >>> both = cf.fit(cf.Problem(model, later, parameters=guess, priors=cf.Prior(first)))
    >>> both.standard_errors["b"] < first.standard_errors["b"]
    True
    """
    argument: Any = result
    if not isinstance(argument, Result):
        raise_if_mistakes("Prior", [f"result is {describe_rejected(result, 'pass the result of a fit')}"])
    if not result.success:
        raise_if_mistakes(
            "Prior", [f"result is not a solution ({result.status.value}); fit again from another starting point"]
        )
    if result.sigmas and result.dof <= 0:
        raise_if_mistakes(
            "Prior", ["the fit has as many estimates as measurements, so the noise is unknown; pass sigma"]
        )
    selected_names = _chosen(result, names)
    indices = np.array([result.names.index(n) for n in selected_names], dtype=np.intp)
    rows, offset = _information(result)
    root, offset = _without(rows, offset, indices)
    log, mean = result.log[indices], result.theta[indices]
    size = np.linalg.norm(root, axis=0)
    if not size.any():
        raise_if_mistakes("Prior", [f"the result does not constrain {', '.join(selected_names)}; choose other names"])
    constant = 0.0
    if root.shape[0] == indices.size:  # a distribution, not only some directions of one
        constant = 0.5 * indices.size * np.log(2 * np.pi) - float(
            np.linalg.slogdet(root / np.where(size > 0, size, 1))[1]
        )
        constant -= float(np.log(size[size > 0]).sum())
    return JointNormal(selected_names, log, mean, root, offset, float(constant))


def _chosen(result: Result, names: Any) -> tuple[str, ...]:
    if names is None:
        local_suffixes = tuple(f"[{experiment}]" for experiment in result.trajectories)
        shared_names = tuple(n for n in result.names if n in result.parameters and not n.endswith(local_suffixes))
        raise_if_mistakes("Prior", [] if shared_names else ["no parameter is shared by all experiments; pass names="])
        return shared_names
    requested_items = [names] if symbol_or_text_name(names) is not None else read_sequence(names)
    if not requested_items:
        raise_if_mistakes("Prior", [f"names is {shorten_repr(names)}; expected a list of quantities of the result"])
        requested_items = []
    requested_names = [symbol_or_text_name(n) or shorten_repr(n) for n in requested_items]
    raise_if_mistakes(
        "Prior",
        [f"unknown quantity '{n}': {suggest(n, result.names)}" for n in requested_names if n not in result.names],
    )
    return tuple(dict.fromkeys(requested_names))


def _information(result: Result) -> tuple[Array, Array]:
    """Return rows whose squares are the information on theta, and an offset: the slope at bounds and constraints."""
    fisher_information = np.asarray(result.information)
    if fisher_information.shape != (len(result.names),) * 2 or not np.isfinite(fisher_information).all():
        raise_if_mistakes("Prior", ["the result has no information matrix; fit again with this version of castfit"])
    has_active_constraints = bool(result.constraints.active)  # their slopes are shared by all quantities
    is_active = np.array([has_active_constraints or name in result.active for name in result.names], dtype=np.bool_)
    slope = np.where(is_active, result.gradient, 0.0)
    size = np.sqrt(np.diag(fisher_information))
    unit = np.where(size > 0.0, size, 1.0)
    values, vectors = np.linalg.eigh(fisher_information / unit[:, None] / unit)
    is_informative = _MIN_EIGENVALUE_FRACTION * max(float(values.max(initial=0.0)), 1.0) < values
    root = np.sqrt(values[is_informative])[:, None] * vectors[:, is_informative].T
    offset = (vectors[:, is_informative].T @ (slope / unit)) / np.sqrt(values[is_informative])
    return root * unit, offset


def _without(rows: Array, offset: Array, indices: NDArray[np.intp]) -> tuple[Array, Array]:
    """Integrate all quantities but some out of a normal distribution: project on what the others cannot explain."""
    other_indices: NDArray[np.intp] = np.setdiff1d(np.arange(rows.shape[1], dtype=np.intp), indices)
    size = np.linalg.norm(rows, axis=0)
    unit = np.where(size > 0.0, size, 1.0)
    basis, sizes, _ = np.linalg.svd(rows[:, other_indices] / unit[other_indices], full_matrices=True)
    rank = int(np.count_nonzero(np.sqrt(_MIN_EIGENVALUE_FRACTION) * sizes.max(initial=0.0) < sizes))
    complement = basis[:, rank:].T
    root, remaining_offset = complement @ rows[:, indices], complement @ offset
    U, S, Vt = np.linalg.svd(root / unit[indices], full_matrices=False)
    is_informative = np.sqrt(_MIN_EIGENVALUE_FRACTION) < S
    return (S[is_informative, None] * Vt[is_informative]) * unit[indices], (U.T @ remaining_offset)[is_informative]
