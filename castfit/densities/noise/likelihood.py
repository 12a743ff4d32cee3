"""A likelihood that the user writes.

Its curvature by the prediction mu may be unsuitable for a least-squares row: it is zero for |m - mu|, and negative in
heavy tails.  castfit therefore uses the larger one of the second derivative and the secant

    c = (g(mu) - g(m)) / (mu - m),    g = d cost / d mu

which is the mean curvature between datum and prediction.  For a cost that is symmetric about the datum, the secant is
the weight of iteratively reweighted least squares, whose parabola touches the cost from above if tails are heavy.

Kinks in the prediction, of ``fabs``, ``fmax`` and ``fmin``, are parabolas close by, as in castfit's own Laplace
density: at an optimum the model may meet a datum exactly, where solvers want a derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import casadi as ca
import numpy as np

from castfit._support.arguments import shorten_repr
from castfit._support.arrays import Array
from castfit._support.graphs import rewrite_operations
from castfit._support.public_names import public
from castfit._support.reprs import add_brief_repr
from castfit._support.status import raise_if_mistakes
from castfit.densities.noise.density import KINK_HALF_WIDTH, Density, Noise


@dataclass(frozen=True)
class _CostGraph:
    """Picklable cost: a function of prediction, datum and other symbols, with the names of the other symbols."""

    function: ca.Function
    names: tuple[str, ...]

    def __call__(self, prediction: ca.SX, datum: ca.SX) -> ca.SX:
        return ca.SX(self.function.call([prediction, datum, *(ca.SX.sym(n) for n in self.names)])[0])


@public("castfit")
@add_brief_repr
@dataclass(frozen=True, eq=False, init=False)
class Likelihood(Noise):
    """The user's own negative log likelihood of one datum.

    Parameters
    ----------
    cost : callable
        ``cost(prediction, datum)`` returns a CasADi SX expression, -log p with all constants.  Other symbols in it mean
        the model's parameters, states and outputs, and parameters that appear only here.  Kinks of ``fabs``, ``fmax``
        and ``fmin`` are rounded off, each by at most 5e-4; write them so, not by ``if_else``, which stays sharp.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k, spread = cf.symbols("x k spread")
    >>> model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    >>> noise = cf.Likelihood(lambda y, m: cf.fabs(m - y) / spread + cf.log(2 * spread))  # Laplace's
    >>> noise.names
    ('spread',)
    >>> data = {"x": [1.6, 1.2, 0.9, 0.7, 0.5, 0.4]}
    >>> experiment = cf.Experiment(data, time=[0.5, 1, 1.5, 2, 2.5, 3], noise={"x": noise})
    >>> problem = cf.Problem(model, experiment, parameters={"k": 1.0, "spread": cf.Parameter(0.1, lower=1e-3)})
    >>> print(round(cf.fit(problem).neg2loglik, 2))
    -25.06
    """

    has_spread: ClassVar[bool] = False
    is_heavy_tailed: ClassVar[bool] = True

    sigma: None = None
    cost: Callable[[Any, Any], Any] | None = None

    def __init__(self, cost: Callable[[Any, Any], Any], *, sigma: None = None) -> None:
        object.__setattr__(self, "sigma", sigma)
        object.__setattr__(self, "cost", cost)

    def _graph(self, mu: ca.SX, m: ca.SX) -> ca.SX:
        assert self.cost is not None
        return ca.SX(self.cost(mu, m))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the other symbols, in the order in which a density's eta has them."""
        return tuple(symbol.name() for symbol in self.symbols)

    def _find_other_symbols(self, mu: ca.SX, m: ca.SX) -> tuple[ca.SX, list[ca.SX]]:
        """Return the cost, and the symbols in it that are neither prediction nor datum."""
        graph = self._graph(mu, m)
        argument_hashes = {hash(mu[0].element_hash()), hash(m[0].element_hash())}
        return graph, [x for x in ca.symvar(graph) if hash(x.element_hash()) not in argument_hashes]

    def density(self, mu: ca.SX, s: ca.SX, m: ca.SX) -> Density:
        """Return the cost with eta = (mu, other symbols); there is no spread, and no factor: its curvature is free.

        The residual is the score of mu over the root of its curvature.
        """
        cost, other_symbols = self._find_other_symbols(mu, m)
        cost = smooth_kinks(cost, mu)
        eta = ca.vertcat(mu, *other_symbols)
        slope, hessian = ca.gradient(cost, mu), ca.densify(ca.hessian(cost, eta)[0])
        mu_curvature = hessian[0, 0]
        secant = (slope - ca.substitute(slope, mu, m)) / (mu - m)  # not a number where mu = m: then it is not larger
        newton, majorant = ca.SX(hessian), ca.SX(hessian)
        newton[0, 0] = ca.if_else(mu_curvature > 0, mu_curvature, ca.if_else(secant > 0, secant, mu_curvature))
        majorant[0, 0] = curvature = ca.if_else(secant > mu_curvature, secant, mu_curvature)
        size = ca.fabs(curvature)
        residual = ca.if_else(size > 0, slope / ca.sqrt(ca.if_else(size > 0, size, 1)), 0)
        return Density(eta, m, cost, residual, curvature=newton, majorant=majorant)

    @property
    def kinked(self) -> bool:
        """Whether the slope of the cost jumps at the datum: as much close by as farther away; 1 stands for all else.

        About 0 distances can be smaller than any width.  What is not defined there, or has a pole, or does not see such
        distances, is of relative errors, of logarithms or of counts: of these the datum 1 tells.
        """
        mu, m = ca.SX.sym("prediction"), ca.SX.sym("datum")
        graph, other_symbols = self._find_other_symbols(mu, m)
        slope = ca.Function("slope", [mu, m, *other_symbols], [ca.gradient(graph, mu)])
        ones = [1.0] * len(other_symbols)
        for datum, distances in ((0.0, (1e-100, 1e-90)), (1.0, (1e-9, 1e-4))):
            near_jump, far_jump = (
                abs(float(slope(datum + h, datum, *ones) - slope(datum - h, datum, *ones))) for h in distances
            )
            if 0.0 < near_jump <= 2.0 * far_jump:
                return near_jump > 0.5 * far_jump
        return False

    def option_mistakes(self) -> list[str]:
        """Check the cost function and return the error messages."""
        if self.sigma is not None:
            return ["Likelihood has no sigma; write the spread into its cost"]
        if not callable(self.cost):
            return [
                f"cost is {shorten_repr(self.cost)}; give a function (prediction, datum) that returns an SX expression"
            ]
        mu, m = ca.SX.sym("prediction"), ca.SX.sym("datum")
        try:
            graph = self._graph(mu, m)
        except Exception as error:  # whatever the user's function raises
            return [f"cost raised {type(error).__name__}: {shorten_repr(str(error))}; it takes (prediction, datum)"]
        if graph.numel() != 1:
            return [f"cost returns a matrix {graph.shape}; return the scalar -log p of one datum"]
        if not ca.depends_on(graph, mu):
            return ["cost does not depend on the prediction"]
        return []

    def spread_mistakes(self) -> list[str]:
        """Return an error message: the model has no spread to be estimated."""
        return ["Likelihood has no sigma to be estimated; write the spread into its cost"]

    @property
    def symbols(self) -> tuple[ca.SX, ...]:
        """Symbols in the cost besides prediction and datum."""
        return tuple(self._find_other_symbols(ca.SX.sym("prediction"), ca.SX.sym("datum"))[1])

    def deviation(self, mu: Array, s: Array) -> Array:
        """Return NaN: a cost does not say."""
        return np.full(np.shape(mu), np.nan)

    def starting_spread(self, mu: Array, m: Array) -> float:
        """Return 1, for form's sake."""
        return 1.0

    def sample(self, rng: np.random.Generator, mu: Array, s: Array | float) -> Array:
        """Raise an error: a cost does not define how to sample.

        Raises
        ------
        InputError
            Always.
        """
        raise_if_mistakes(
            "Likelihood.sample", ["values cannot be drawn from a cost; use a noise model that castfit knows"]
        )
        raise AssertionError

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        mu, m = ca.SX.sym("prediction"), ca.SX.sym("datum")
        graph, other_symbols = self._find_other_symbols(mu, m)
        names = tuple(symbol.name() for symbol in other_symbols)
        return Likelihood, (_CostGraph(ca.Function("cost", [mu, m, *other_symbols], [graph]), names),)


def smooth_kinks(cost: ca.SX, mu: ca.SX) -> ca.SX:
    """Return a cost whose kinks in mu are parabolas where they differ from it by less than `KINK_HALF_WIDTH`.

    |z|  becomes  z^2 / 2 h + h / 2  for |z| < h, with  h |d cost / d|z|| = `KINK_HALF_WIDTH`.  The larger and the
    smaller of two numbers are half their sum plus and minus half their distance.
    """
    kinks: list[tuple[ca.SX, ca.SX]] = []  # a symbol, and of what it is the absolute value

    def replace_kink(op: int, arguments: Sequence[ca.SX]) -> ca.SX | None:
        a, b = arguments if len(arguments) == 2 else (arguments[0], ca.SX(0))
        symbols = ca.vertcat(mu, *(size for size, _ in kinks))
        if not ca.depends_on(a - b, symbols):
            return None
        size = ca.SX.sym("size")
        kinks.append((size, a - b))
        if op == ca.OP_FABS:
            return size
        return 0.5 * (a + b + size) if op == ca.OP_FMAX else 0.5 * (a + b - size)

    graph = rewrite_operations([cost], (ca.OP_FABS, ca.OP_FMAX, ca.OP_FMIN), replace_kink)[0]
    widths = [ca.fabs(ca.gradient(graph, size)) for size, _ in kinks]
    for size, z in reversed(kinks):  # an inner one may be part of those after it
        widths = [ca.substitute(w, size, ca.fabs(z)) for w in widths]
    for (size, z), slope in zip(reversed(kinks), reversed(widths), strict=True):
        is_steep = slope > 0
        h = ca.if_else(is_steep, KINK_HALF_WIDTH / ca.if_else(is_steep, slope, 1), 0)
        is_near = ca.logic_and(is_steep, ca.fabs(z) < h)
        parabola = 0.5 * z**2 / ca.if_else(is_near, h, 1) + 0.5 * h
        graph = ca.substitute(graph, size, ca.if_else(is_near, parabola, ca.fabs(z)))
    return graph
