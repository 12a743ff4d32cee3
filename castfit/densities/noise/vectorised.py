"""A noise model's density as functions of many values at once.

Notation: n values; n_eta predicted quantities of a datum, its prediction first; n_r rows of a datum.
"""

from __future__ import annotations

import threading
from dataclasses import fields, replace
from functools import cached_property
from typing import Any

import casadi as ca
import numpy as np

from castfit._support.arrays import Array
from castfit._support.casadi_functions import BatchedFunction, PerObjectCache
from castfit.densities.noise.density import Noise, factor_curvature


class DensityFunctions:
    """Cost, rows, curvature and residual of values; all take eta (n, n_eta), spread (n,) and datum (n,).

    n_eta, n_r : number of predicted quantities and of rows of a datum
    computed_spread : whether the second entry of eta is the spread; otherwise it is the number `spread`, if it is
        needed
    """

    def __init__(self, noise: Noise, *, computed: bool) -> None:
        mu, s, m = (ca.SX.sym(name) for name in ("mu", "s", "m"))
        density = noise.density(mu, s, m)
        if not computed and contains(density.eta, s):
            density = density.known_spread
            if density.factor is None:
                density = replace(
                    density, eta=ca.vertcat(*(e for e in ca.vertsplit(density.eta) if not ca.is_equal(e, s)))
                )
        self._plain = noise.is_residual_noise and not computed
        self.computed_spread = contains(density.eta, s)
        self._density = density
        self._arguments = [density.eta, ca.SX(0, 1) if self.computed_spread else s, m]
        self.n_eta = density.eta.numel()
        self.n_r = density.eta.numel() if density.rows is None else density.rows.numel()
        self._built: dict[str, BatchedFunction] = {}

    def _call(self, name: str, eta: Array, spread: Array, datum: Array) -> Array:
        """Evaluate one of the graphs, which is built when it is asked for first."""
        if name not in self._built:
            self._built[name] = BatchedFunction(name, self._arguments, self._graph(name))
        number = spread[:, None] if not self.computed_spread else np.empty((datum.size, 0))
        with np.errstate(all="ignore"):
            return self._built[name](eta, number, datum[:, None]).copy()

    def rows(self, eta: Array, spread: Array, datum: Array) -> tuple[Array, Array]:
        """Return the rows (n, n_r), and the cost beyond half their squares (n,): 0 where rows are residuals."""
        if self._density.rows is not None:
            augmented_rows = self._call("rows", eta, spread, datum)[..., 0]
            return augmented_rows[:, :-1], augmented_rows[:, -1]
        rows = self._factored(eta, spread, datum)[1]
        return rows, self._call("cost", eta, spread, datum)[:, 0, 0] - 0.5 * np.sum(rows**2, axis=1)

    def constant(self, spread: Array, datum: Array) -> float:
        """Return the cost (n values together) where the residual is zero."""
        return float(np.sum(self._call("cost", datum[:, None], spread, datum)))

    def slopes(self, eta: Array, spread: Array, datum: Array) -> Array:
        """Return L^T (n, n_r, n_eta), by which rows follow changes of eta."""
        if self._density.factor is not None:
            return self._call("factor", eta, spread, datum)
        return self._factored(eta, spread, datum)[0].swapaxes(1, 2)

    def gradient(self, eta: Array, spread: Array, datum: Array) -> Array:
        """Return the derivative of the cost, (n, n_eta); of half the square of a row that is a residual."""
        return self._call("gradient", eta, spread, datum)[..., 0]

    def hessian(self, eta: Array, spread: Array, datum: Array) -> Array:
        """Return the second derivatives of the same, (n, n_eta, n_eta)."""
        return self._call("hessian", eta, spread, datum)

    def residual(self, eta: Array, spread: Array, datum: Array) -> Array:
        """Return the normalised residuals, (n,)."""
        return self._call("residual", eta, spread, datum)[:, 0, 0]

    @cached_property
    def reweighted(self) -> bool:
        """Whether `information` is anything but 1."""
        information = self._density.information
        if self._density.factor is None:
            return True
        return information is not None and not ca.is_equal(information, ca.SX.ones(self.n_r, 1), 2)

    def information(self, eta: Array, spread: Array, datum: Array) -> Array:
        """Return the factors (n, n_r), or matrices (n, n_r, n_r), by which rows are multiplied for statistics."""
        if self._density.factor is None:
            return self._mixing(eta, spread, datum)
        if self._density.information is None:
            return np.ones((datum.size, self.n_r))
        return self._call("information", eta, spread, datum)[..., 0]

    def _mixing(self, eta: Array, spread: Array, datum: Array) -> Array:
        """Return M with  M L^T = K^T,  K K^T the information of the density, L made from its curvature."""
        from castfit.densities.noise.fisher_information import information_root

        def evaluate(points: Array, number: Array, m: Array) -> tuple[Array, Array]:
            return self._call("cost", points, number, m)[:, 0, 0], self.gradient(points, number, m)

        root = information_root(evaluate, eta, spread, datum)
        mixing: Array = np.linalg.solve(self._factored(eta, spread, datum)[0], root).swapaxes(1, 2).astype(float)
        return mixing

    def _factored(self, eta: Array, spread: Array, datum: Array) -> tuple[Array, Array]:
        graph_name = "hessian" if self._density.majorant is None else "majorant"
        return factor_curvature(self._call(graph_name, eta, spread, datum), self.gradient(eta, spread, datum))

    def _graph(self, name: str) -> ca.SX:
        """Return rows with the cost beyond them, derivatives, or what the density has by that name."""
        density = self._density
        if name == "rows":
            assert density.rows is not None
            return ca.vertcat(density.rows, 0.0 if self._plain else density.cost - 0.5 * ca.sumsqr(density.rows))
        if name in ("gradient", "hessian"):
            objective = 0.5 * ca.sumsqr(density.rows) if self._plain and density.rows is not None else density.cost
            if name == "gradient":
                return ca.gradient(objective, density.eta)
            return ca.hessian(objective, density.eta)[0] if self._plain else density.hessian
        graph: ca.SX = getattr(density, name)
        return graph.T if name == "factor" else graph


def contains(eta: ca.SX, symbol: ca.SX) -> bool:
    """Check whether a symbol is an entry of eta."""
    return any(ca.is_equal(e, symbol) for e in ca.vertsplit(eta))


# Cached functions of each noise model, with a spread that is a number or computed.
_FUNCTIONS: PerObjectCache[Noise, dict[bool, DensityFunctions]] = PerObjectCache()


def density_functions(noise: Noise, *, computed: bool) -> DensityFunctions:
    """Return the functions of a noise model, whose spread is computed or a number.

    They do not depend on the numbers that spreads are: the models of thousands of experiments share them.
    """
    functions = _FUNCTIONS.get(noise, lambda _: {})
    if computed not in functions:
        form = _form(noise)
        shared_functions = {} if form is None else _SHARED.of.setdefault(form, {})
        if computed not in shared_functions:
            shared_functions[computed] = DensityFunctions(noise, computed=computed)
        functions[computed] = shared_functions[computed]
        while len(_SHARED.of) > _MAX_CACHED_FORMS:
            _SHARED.of.pop(next(iter(_SHARED.of)))
    return functions[computed]


def _form(noise: Noise) -> tuple[Any, ...] | None:
    """Return a key of the functions of a noise model: its class and its numbers.

    Return None if no key can be formed.
    """
    values = [getattr(noise, f.name) for f in fields(noise) if f.name != "sigma"]
    has_plain_values = all(value is None or isinstance(value, (bool, int, float, str)) for value in values)
    is_castfit_class = type(noise).__module__.partition(".")[0] == "castfit"
    return (type(noise), *values) if has_plain_values and is_castfit_class else None


class _NoiseFunctionCache(threading.local):
    """Functions by the form of noise models, once for every thread."""

    def __init__(self) -> None:
        self.of: dict[tuple[Any, ...], dict[bool, DensityFunctions]] = {}


_SHARED = _NoiseFunctionCache()
_MAX_CACHED_FORMS = 64  # largest number of noise models, apart from sigma, whose functions are cached per thread
