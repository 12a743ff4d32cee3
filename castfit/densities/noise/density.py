"""Interface of all noise models, and their terms for one datum: cost, score and curvature as CasADi graphs.

A noise model is a density of the datum m given predicted quantities  eta = (mu, s, ...):  the prediction of the output
and, where it is not a plain number, what describes the spread.  With

    cost(eta) = -log p(m | eta)                    all constants included
    g         = d cost / d eta                     the score, (n_eta,)
    L L^T     = a curvature                        L (n_eta, n_rows)

the rows of the datum are

    r  with  L r = g,      J = L^T d eta / dv      (n_rows,), (n_rows, n_v)

so that  J^T r = grad cost  exactly and  J^T J = d eta^T L L^T d eta,  whatever the density.  The curvature is the
expected one, E[d2 cost / d eta2], so that the Gauss-Newton method on these rows is Fisher scoring.  For densities of
heavy tails it is that of iteratively reweighted least squares, which converges from farther away, and `information`
says by what the rows are to be multiplied for the expected curvature, of which statistics are made.

A spread has a row of its own.  For  cost = rho(r) + log s,  r = (mu - m)/s  and  psi = rho',  the score of log s is
1 - r psi,  its information  lambda = E[(r psi)^2] - 1  (2 for normal errors).  From a spread that is much too small
steps of Fisher scoring are far too long, from one too large they are too short.  Here the curvature is the secant that
leads to the spread that the datum alone would have, at which |r| = r*,  r* psi(r*) = 1:

    c = (r psi - 1) / log(|r| / r*),    row (1 - r psi) / sqrt c,    derivative sqrt c d log s

so that the iterations do not depend on where the spread begins; `information` is  sqrt(lambda / c).

`DensityFunctions` evaluates the graphs for many values at once: n values, n_eta predicted quantities of a datum, its
prediction first, n_r rows of a datum.

Notation, in all noise models
-----------------------------
m       the measured value
mu      its prediction
s       the spread: sigma, scale or dispersion
r       (mu - m) / s, of LogNormal with logarithms of both
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import fields, replace
from functools import cached_property
from typing import Any, ClassVar

import casadi as ca
import numpy as np
from numpy.typing import NDArray

from castfit._support.arguments import plain_numbers
from castfit._support.arrays import Array
from castfit._support.casadi_functions import BatchedFunction, PerObjectCache
from castfit._support.pickling import Picklable
from castfit._support.records import dataclass
from castfit._support.renamed import with_old_names
from castfit._support.reprs import add_brief_repr

# Smallest starting value of a standard deviation, relative to the root mean square of the data.
_MIN_START_SPREAD = 1e-10
# Smallest estimated standard deviation, relative to the data: about the integration tolerance.
_MIN_ESTIMATED_SPREAD = 1e-6
# Least eigenvalue of the curvature of a custom likelihood, scaled by its diagonal, relative to the largest.
_MIN_RELATIVE_EIGENVALUE = 1e-2
# Smaller residuals, relative to the mode, are rounded up to this value, so that their logarithm is finite.
_MIN_SECANT_RESIDUAL = 0.03
_TANGENT_LOG_DISTANCE = 1e-6  # log-distance from the mode below which the tangent replaces the secant
_MAX_ROW_SIZE = 1e4  # largest residual row of a custom likelihood, in standard deviations

# Half width of the parabola that replaces the kink of |r| at 0, where it is larger by half of this.
KINK_HALF_WIDTH = 1e-3


@dataclass(frozen=True, eq=False)
class Density:
    """One datum's cost as graphs of eta and the datum.

    eta (n_eta, 1) : symbols of the predicted quantities: the prediction mu, then the spread s if there is one, then, of
        a user's own likelihood, other symbols that it contains
    datum : symbol of the measured value
    cost : -log p(datum | eta), in natural logarithms; infinite or NaN where eta is impossible
    residual : the normalised residual, prediction minus value: of mean 0 and variance 1, or nearly so, if the model is
        right
    factor (n_eta, n_rows) : L; None if the curvature may have any sign, then `factor_curvature` makes it from numbers
    rows (n_rows, 1) : r, of which L r is the score
    information (n_rows, 1) : what each row of J is to be multiplied by, so that J^T J is the expected curvature; 1
        where it is so already
    curvature (n_eta, n_eta) : what takes the place of the second derivatives in Newton's method where these say
        nothing, as beside a kink
    majorant (n_eta, n_eta) : of what the rows are made where there is no factor; None: of the second derivatives
    """

    eta: ca.SX
    datum: ca.SX
    cost: ca.SX
    residual: ca.SX
    factor: ca.SX | None = None
    rows: ca.SX | None = None
    information: ca.SX | None = None
    curvature: ca.SX | None = None
    majorant: ca.SX | None = None

    @cached_property
    def gradient(self) -> ca.SX:
        """The score d cost / d eta, (n_eta, 1)."""
        return ca.gradient(self.cost, self.eta)

    @cached_property
    def hessian(self) -> ca.SX:
        """The second derivatives of the cost by eta, (n_eta, n_eta), or what takes their place."""
        if self.curvature is not None:
            return self.curvature
        return ca.densify(ca.jacobian(self.gradient, self.eta))

    @property
    def known_spread(self) -> Density:
        """The density for a spread that is a number: eta is mu alone, and s is a free symbol of the graphs."""
        if self.factor is None or self.rows is None or self.information is None:
            return self
        return replace(
            self,
            eta=self.eta[0],
            factor=self.factor[0, 0],
            rows=self.rows[0],
            information=self.information[0],
            curvature=None if self.curvature is None else self.curvature[0, 0],
        )


@with_old_names(beyond="censoring_side", heavy="is_heavy_tailed", plain="is_residual_noise")
@add_brief_repr
@dataclass(frozen=True, eq=False)
class Noise(Picklable, ABC):
    """Distribution of measured values about their predictions; set per output.

    Parameters
    ----------
    sigma : float, array, `relative`, `unknown` or casadi.SX, optional
        The spread, in the unit that the class states; nothing means unknown.
    """

    sigma: Any = None

    has_spread: ClassVar[bool] = True
    """Whether the density has a spread, so that `sigma` means something."""
    is_heavy_tailed: ClassVar[bool] = False
    """Whether values far away are to be expected, so that the sum of squared residuals says little."""
    spread_name: ClassVar[str] = "sigma"
    """What the spread is called among the estimates, as in ``sigma(y)``."""
    in_unit_of_output: ClassVar[bool] = True
    """Whether the spread has the unit of the output."""

    def __post_init__(self) -> None:
        plain_numbers(self)

    @property
    def normalisable(self) -> bool:
        """Whether exp(-cost) has a finite integral over the value, so that it is a likelihood."""
        return True

    @property
    def kinked(self) -> bool:
        """Whether the cost has a kink at the datum, where its curvature is unrelated to the width of the density."""
        return False

    @abstractmethod
    def density(self, mu: ca.SX, s: ca.SX, m: ca.SX) -> Density:
        """Return cost, curvature and normalised residual as graphs of three scalar symbols.

        Parameters
        ----------
        mu, s, m : casadi.SX
            The prediction, the spread, and the measured value.
        """

    @abstractmethod
    def starting_spread(self, mu: Array, m: Array) -> float:
        """Estimate an unknown spread, positive, from predictions (n,) and measured values (n,), by moments."""

    def censoring_side(self, m: Array) -> Array:
        """Return -1 where the measured values, of any shape, say no more than "below", 1 for "above", else 0."""
        return np.zeros(np.shape(m))

    def least_spread(self, m: Array) -> float:
        """Return the smallest spread, positive, that is estimated from measured values of any shape.

        The likelihood of data that the model fits exactly is unbounded as the spread tends to zero.  The integration
        errors hide spreads much smaller than this limit.
        """
        finite_values = m[np.isfinite(m)]
        size = float(np.sqrt(np.mean(finite_values**2))) if finite_values.size else 0.0
        return _MIN_ESTIMATED_SPREAD * ((size or 1.0) if self.in_unit_of_output else 1.0)

    @abstractmethod
    def sample(self, rng: np.random.Generator, mu: Array, s: Array | float) -> Array:
        """Draw measured values of predictions mu and spreads s, of the shape of both together."""

    @property
    def additive(self) -> bool:
        """Whether a value is its prediction plus an error, on some axis, so that residuals can stand for errors."""
        return False

    def error(self, mu: Array, s: Array, m: Array) -> Array:
        """Return the errors r of additive noise, prediction minus value in spreads, on the axis of the errors."""
        return (mu - m) / s

    def value_at(self, mu: Array, s: Array, r: Array) -> Array:
        """Return the values of additive noise whose errors are r; undoes `error`."""
        return mu - s * r

    def deviation(self, mu: Array, s: Array) -> Array:
        """Return the standard deviations of values about predictions mu, for spreads s, in the unit of the output (n,).

        NaN where there is none or it is not known; by default the spread itself.
        """
        return np.broadcast_to(s, np.shape(mu)).astype(float)

    @property
    def symbols(self) -> tuple[ca.SX, ...]:
        """Symbols in the density besides prediction, spread and datum."""
        return ()

    def scores(self, residual: Array, mu: Array, s: Array, m: Array) -> Array:
        """Return residuals for tests, (n,) as all arguments; for counts, quantile residuals.

        By default the normalised residuals themselves; NaN where there is none.
        """
        return residual

    @property
    def normal(self) -> bool:
        """Whether the residuals for tests have a normal distribution if the model is right."""
        return False

    @property
    def is_residual_noise(self) -> bool:
        """Whether the first row is the residual, so that the cost of a known spread is half its square, and more.

        An unknown spread is then the root mean square of the rows, so that it is eliminated.
        """
        return False

    def option_mistakes(self) -> list[str]:
        """Check the options and return the error messages."""
        return []

    def spread_mistakes(self) -> list[str]:
        """Return the reasons why the spread cannot be unknown, if there are any."""
        return []

    def value_mistakes(self, values: Array) -> list[str]:
        """Return error messages for measured values, of any shape, that cannot come from this model.

        NaN is a missing value.
        """
        return []


def lower_triangular(
    eta: ca.SX, datum: ca.SX, cost: ca.SX, residual: ca.SX, factor: ca.SX, information: ca.SX | None = None
) -> Density:
    """Build a density from a regular lower triangular L; its rows follow by forward substitution."""
    score = ca.gradient(cost, eta)
    rows: list[ca.SX] = []
    for i in range(eta.numel()):
        partial_sum = sum((factor[i, j] * r for j, r in enumerate(rows)), ca.SX(0))
        rows.append((score[i] - partial_sum) / factor[i, i])
    one = ca.SX.ones(eta.numel(), 1)
    return Density(eta, datum, cost, residual, factor, ca.vertcat(*rows), one if information is None else information)


def secant_curvature(surplus: ca.SX, size: ca.SX, mode: float, slope: float) -> ca.SX:
    """Return the curvature c of a cost in log s, by the secant to the spread that the datum alone would have.

    surplus : r psi - 1
    size : |r|
    mode, slope : where the surplus is zero, and there its derivative by log |r|
    """
    log_distance = ca.log(ca.fmax(size / mode, _MIN_SECANT_RESIDUAL))
    is_near = ca.fabs(log_distance) < _TANGENT_LOG_DISTANCE
    return ca.if_else(is_near, slope, surplus / ca.if_else(is_near, 1, log_distance))


def factor_curvature(hessian: Array, score: Array) -> tuple[Array, Array]:
    """Make L (..., n, n) and rows (..., n) from curvatures of any sign: L r is the score, exactly.

    L L^T has the eigenvectors of the Hessian and the absolute values of its eigenvalues, as in saddle-free Newton
    methods, of the Hessian scaled by its diagonal, so that nothing depends on units.  Eigenvalues are not less than a
    tiny part of the largest, and so large that no row exceeds 1e4: a cost without curvature has finite steps, too.

    hessian (..., n, n), score (..., n)
    """
    with np.errstate(all="ignore"):
        diagonal = np.sqrt(np.abs(np.diagonal(hessian, axis1=-2, axis2=-1)))
        min_unit = np.abs(score) / _MAX_ROW_SIZE
        unit = np.where(diagonal > min_unit, diagonal, min_unit)
        unit = np.where((unit > 0) & np.isfinite(unit), unit, 1.0)
        scaled = hessian / (unit[..., :, None] * unit[..., None, :])
        is_finite: NDArray[np.bool_] = np.logical_and(
            np.all(np.isfinite(scaled), axis=(-2, -1)), np.all(np.isfinite(score), axis=-1)
        )
        scaled[~is_finite] = 0.0
        values, vectors = np.linalg.eigh(scaled)
        components = np.einsum("...ij,...i->...j", vectors, score / unit)
        size = np.abs(values)
        size = np.maximum(size, _MIN_RELATIVE_EIGENVALUE * size.max(axis=-1, keepdims=True))
        root = np.sqrt(np.maximum(size, (components / _MAX_ROW_SIZE) ** 2))
        # The symmetric root, which eigenvectors of either sign make: rows are to be smooth.
        back = np.swapaxes(vectors, -1, -2)
        factor = unit[..., :, None] * ((vectors * root[..., None, :]) @ back)
        rows = np.einsum("...ij,...j->...i", vectors, components / np.where(root > 0, root, 1.0))
        factor[~is_finite], rows[~is_finite] = np.nan, np.nan
        return factor, rows


def floor_spread(spread: float, m: Array, default_scatter: float | None = None) -> float:
    """Return a spread, or what the data resolve where it is smaller; their own scatter where there is none.

    spread: may be NaN.
    m (n,): measured values, in the unit of the spread.
    otherwise: instead of the scatter of the data, for a spread of another unit.
    """
    finite_values = m[np.isfinite(m)]
    size = float(np.sqrt(np.mean(finite_values**2))) if finite_values.size else 0.0
    if not np.isfinite(spread):
        spread = (
            (float(np.std(finite_values)) if finite_values.size else 0.0)
            if default_scatter is None
            else default_scatter
        )
    min_spread = _MIN_START_SPREAD * (size if default_scatter is None else 1.0)
    return max(spread, min_spread) or 1.0


def pairs(mu: Array, m: Array) -> tuple[Array, Array]:
    """Return predictions and values where both are finite."""
    mask = np.isfinite(mu) & np.isfinite(m)
    return np.asarray(mu, dtype=float)[mask], np.asarray(m, dtype=float)[mask]


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
