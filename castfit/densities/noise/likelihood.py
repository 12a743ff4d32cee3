"""A likelihood that the user writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import casadi as ca
import numpy as np

from castfit._support.arguments import text
from castfit._support.reprs import brief
from castfit._support.status import check
from castfit.densities.noise.density import Density, Noise

if TYPE_CHECKING:
    from castfit._support.arrays import Array


@dataclass(frozen=True)
class _CostGraph:
    """A pickled cost: a function of prediction, datum and other symbols, and the names of these."""

    function: ca.Function
    names: tuple[str, ...]

    def __call__(self, prediction: ca.SX, datum: ca.SX) -> ca.SX:
        return ca.SX(self.function.call([prediction, datum, *(ca.SX.sym(n) for n in self.names)])[0])


@brief
@dataclass(frozen=True, eq=False, init=False)
class Likelihood(Noise):
    """The user's own negative log likelihood of one datum.

    Parameters
    ----------
    cost : callable
        ``cost(prediction, datum)`` returns a CasADi SX expression, -log p with all constants.  Other symbols in it mean
        the model's parameters, states and outputs, and parameters that appear only here.

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
    >>> cf.fit(problem, loss="linear").neg2loglik < 0
    True
    """

    has_spread: ClassVar[bool] = False
    heavy: ClassVar[bool] = True

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

    def _others(self, mu: ca.SX, m: ca.SX) -> tuple[ca.SX, list[ca.SX]]:
        """Return the cost, and the symbols in it that are neither prediction nor datum."""
        graph = self._graph(mu, m)
        own = {hash(mu[0].element_hash()), hash(m[0].element_hash())}
        return graph, [x for x in ca.symvar(graph) if hash(x.element_hash()) not in own]

    def density(self, mu: ca.SX, s: ca.SX, m: ca.SX) -> Density:
        """Return the cost with eta = (mu, other symbols); there is no spread, and no factor: its curvature is free.

        The residual is the score of mu over the root of its curvature.
        """
        cost, others = self._others(mu, m)
        eta = ca.vertcat(mu, *others)
        slope = ca.gradient(cost, mu)
        curvature = ca.fabs(ca.jacobian(slope, mu))
        return Density(
            eta, m, cost, ca.if_else(curvature > 0, slope / ca.sqrt(ca.if_else(curvature > 0, curvature, 1)), 0)
        )

    def option_mistakes(self) -> list[str]:
        """Say why the cost is none."""
        if self.sigma is not None:
            return ["Likelihood has no sigma; write the spread into its cost"]
        if not callable(self.cost):
            return [f"cost is {text(self.cost)}; give a function (prediction, datum) that returns an SX expression"]
        mu, m = ca.SX.sym("prediction"), ca.SX.sym("datum")
        try:
            graph = self._graph(mu, m)
        except Exception as error:  # whatever the user's function raises
            return [f"cost raised {type(error).__name__}: {text(str(error))}; it takes (prediction, datum)"]
        if graph.numel() != 1:
            return [f"cost returns a matrix {graph.shape}; return the scalar -log p of one datum"]
        if not ca.depends_on(graph, mu):
            return ["cost does not depend on the prediction"]
        return []

    def spread_mistakes(self) -> list[str]:
        """Say why the spread cannot be unknown: there is none."""
        return ["Likelihood has no sigma to be estimated; write the spread into its cost"]

    @property
    def symbols(self) -> tuple[ca.SX, ...]:
        """Symbols in the cost besides prediction and datum."""
        return tuple(self._others(ca.SX.sym("prediction"), ca.SX.sym("datum"))[1])

    def deviation(self, mu: Array, s: Array) -> Array:
        """Return NaN: a cost does not say."""
        return np.full(np.shape(mu), np.nan)

    def starting_spread(self, mu: Array, m: Array) -> float:
        """Return 1, for form's sake."""
        return 1.0

    def sample(self, rng: np.random.Generator, mu: Array, s: Array | float) -> Array:
        """Refuse to draw: a cost does not say how.

        Raises
        ------
        InputError
            Always.
        """
        check("Likelihood.sample", ["values cannot be drawn from a cost; use a noise model that castfit knows"])
        raise AssertionError

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        mu, m = ca.SX.sym("prediction"), ca.SX.sym("datum")
        graph, others = self._others(mu, m)
        names = tuple(symbol.name() for symbol in others)
        return Likelihood, (_CostGraph(ca.Function("cost", [mu, m, *others], [graph]), names),)
