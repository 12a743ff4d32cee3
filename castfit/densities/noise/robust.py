"""Densities of heavy tails, so that outliers pull less than their square.

Their rows are weighted, as in iteratively reweighted least squares: with  psi(r) = d cost / d r,

    rows  r sqrt w,    L = sqrt w / s,    w = psi(r) / r

Half their square is a parabola that touches the cost from above, so that they converge from afar, where the expected
curvature would lead to steps of about one s.  For statistics a row is multiplied by  sqrt(kappa / w),  where

    kappa = E[psi']^2 / E[psi^2] = E[psi^2]

is the information that the density has of mu / s.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar

import casadi as ca
import numpy as np
import scipy

from castfit._support.arguments import is_within, option_mistakes
from castfit._support.arrays import Array
from castfit._support.public_names import public
from castfit._support.reprs import add_brief_repr
from castfit._support.status import raise_if_mistakes
from castfit.densities.noise.density import (
    KINK_HALF_WIDTH,
    Density,
    Noise,
    floor_spread,
    lower_triangular,
    pairs,
    secant_curvature,
)

_HALF_LOG_2PI = 0.5 * float(np.log(2 * np.pi))
_NORMAL_QUARTILE = 0.6744897501960817  # upper quartile of the standard normal distribution
_MAX_COST_EXPONENT = 40.0  # cost beyond which a density counts as zero: exp(-40) is below rounding
_MAX_F_SCALE = 1e6  # standard deviations; beyond, a loss is that of normal errors within rounding
_QUADRATURE_NODES = 4001  # number of quadrature nodes for the moments of a density


@dataclass(frozen=True)
class _DensityMoments:
    """Characteristic numbers of a density p(r) = exp(-cost(r)).

    constant : of the cost, so that the integral of p is 1
    location, scale : the informations kappa of mu / s and lambda of log s
    mode, slope : where r psi(r) = 1, and there the derivative of r psi by log r; no mode if p has no integral
    quartile : the residual that is larger than half of all, in absolute values
    deviation : by which residuals are divided, about the standard deviation of p
    """

    constant: float
    location: float
    scale: float
    mode: float
    slope: float
    quartile: float
    deviation: float = 1.0


@dataclass(frozen=True, eq=False)
class HeavyTailed(Noise):
    """A density  exp(-cost(r)) / s  of a residual r, from its cost, its weight psi / r and a few numbers."""

    is_heavy_tailed: ClassVar[bool] = True

    @abstractmethod
    def _loss(self, r: ca.SX) -> tuple[ca.SX, ca.SX]:
        """Return the cost without its constant, and the weight."""

    @property
    @abstractmethod
    def _numbers(self) -> _DensityMoments:
        """Characteristic numbers of the density."""

    @abstractmethod
    def _errors(self, rng: np.random.Generator, scale: Array) -> Array:
        """Draw errors of scales of any shape."""

    def density(self, mu: ca.SX, s: ca.SX, m: ca.SX) -> Density:
        """Return  cost(r) + log s + constant  with rows that are reweighted."""
        r, numbers = (mu - m) / s, self._numbers
        cost, weight = self._loss(r)
        c = ca.SX(numbers.scale)
        if np.isfinite(numbers.mode):
            c = secant_curvature(weight * r**2 - 1, ca.fabs(r), numbers.mode, numbers.slope)
        factor = ca.diag(ca.vertcat(ca.sqrt(weight), ca.sqrt(c))) / s
        information = ca.vertcat(ca.sqrt(numbers.location / weight), ca.sqrt(numbers.scale / c))
        full = cost + numbers.constant + ca.log(s)
        return lower_triangular(ca.vertcat(mu, s), m, full, r / numbers.deviation, factor, information)

    @property
    def additive(self) -> bool:
        """Whether a value is its prediction plus an error."""
        return True

    def starting_spread(self, mu: Array, m: Array) -> float:
        """Return the spread at which half of the residuals are within the quartiles."""
        prediction, value = pairs(mu, m)
        size = float(np.median(np.abs(prediction - value))) if value.size else np.nan
        return floor_spread(size / self._numbers.quartile, value)

    def sample(self, rng: np.random.Generator, mu: Array, s: Array | float) -> Array:
        """Draw measured values."""
        mean, scale = np.broadcast_arrays(np.asarray(mu, dtype=float), np.asarray(s, dtype=float))
        return mean + self._errors(rng, scale)


def _line(f: float, end: float) -> tuple[Array, Array]:
    """Return nodes r and weights of the trapezoidal rule in asinh(r / f), exact to rounding for such integrands."""
    u = np.linspace(-1.0, 1.0, _QUADRATURE_NODES) * np.arcsinh(end / f)
    return f * np.sinh(u), f * np.cosh(u) * (u[1] - u[0])


@public("castfit")
@add_brief_repr
@dataclass(frozen=True, eq=False)
class StudentT(HeavyTailed):
    """Student's t: heavy tails, so that outliers pull less the farther they are.

    Parameters
    ----------
    sigma : float, array, `relative`, `unknown` or casadi.SX, optional
        Scale, in the unit of the output; nothing means unknown.  The standard deviation is sqrt(df / (df - 2)) times
        it.
    df : float
        Degrees of freedom; 1 is Cauchy's distribution, 4 a usual choice.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k = cf.symbols("x k")
    >>> model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    >>> data = {"x": [1.6, 1.2, 0.9, 0.7, 2.5, 0.4]}
    >>> experiment = cf.Experiment(data, time=[0.5, 1, 1.5, 2, 2.5, 3], noise={"x": cf.StudentT(df=3)})
    >>> result = cf.fit(cf.Problem(model, experiment, parameters={"k": 1.0}))
    >>> print(round(result.parameters["k"], 3))
    0.522
    """

    df: float = field(default=4.0, kw_only=True)

    def option_mistakes(self) -> list[str]:
        """Check the degrees of freedom and return the error messages."""
        return option_mistakes(("df", self.df, is_within(self.df, 0.0, strictly=True), "give a positive number"))

    def _loss(self, r: ca.SX) -> tuple[ca.SX, ca.SX]:
        nu = float(self.df)
        return 0.5 * (nu + 1) * ca.log1p(r**2 / nu), (nu + 1) / (nu + r**2)

    @property
    def _numbers(self) -> _DensityMoments:
        """Informations by Lange, Little and Taylor 1989."""
        nu = float(self.df)
        quartile = float(scipy.special.stdtrit(nu, 0.75))
        constant = 0.5 * float(np.log(nu)) + float(scipy.special.betaln(0.5, 0.5 * nu))
        deviation = float(np.sqrt(nu / (nu - 2))) if nu > 2 else quartile / _NORMAL_QUARTILE
        return _DensityMoments(
            constant, (nu + 1) / (nu + 3), 2 * nu / (nu + 3), 1.0, 2 * nu / (nu + 1), quartile, deviation
        )

    def deviation(self, mu: Array, s: Array) -> Array:
        """Return the standard deviations; NaN for df <= 2, where there is none."""
        return s * (np.sqrt(self.df / (self.df - 2)) if self.df > 2 else np.nan)

    def _errors(self, rng: np.random.Generator, scale: Array) -> Array:
        return scale * rng.standard_t(self.df, scale.shape)


@public("castfit")
@add_brief_repr
@dataclass(frozen=True, eq=False)
class Laplace(HeavyTailed):
    """Double exponential errors: the sum of absolute deviations is minimised.

    Within 1e-3 `sigma` of the datum the absolute value is a parabola of the same value and slope at the ends, so that
    solvers can end where the model meets a datum exactly, as it does at the optimum in as many data as there are
    parameters.  The cost is Laplace's everywhere else, and by at most 5e-4 larger there.  Steps become short near such
    data: expect many iterations of `Ipopt`, and `GaussNewton` to end a little short of the optimum, with the status
    "acceptable".  `StudentT` has no kink.

    Parameters
    ----------
    sigma : float, array, `relative`, `unknown` or casadi.SX, optional
        Scale, the mean absolute deviation, in the unit of the output; nothing means unknown.  The standard deviation is
        sqrt 2 times it.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k = cf.symbols("x k")
    >>> model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    >>> data = {"x": [1.6, 1.2, 0.9, 0.7, 2.5, 0.4]}
    >>> experiment = cf.Experiment(data, time=[0.5, 1, 1.5, 2, 2.5, 3], noise={"x": cf.Laplace(sigma=0.1)})
    >>> result = cf.fit(cf.Problem(model, experiment, parameters={"k": 1.0}))
    >>> print(round(result.parameters["k"], 3))
    0.525
    """

    def _loss(self, r: ca.SX) -> tuple[ca.SX, ca.SX]:
        size = ca.fabs(r)
        return ca.if_else(
            size > KINK_HALF_WIDTH, size, 0.5 * r**2 / KINK_HALF_WIDTH + 0.5 * KINK_HALF_WIDTH
        ), 1 / ca.fmax(size, KINK_HALF_WIDTH)

    @property
    def _numbers(self) -> _DensityMoments:
        return _DensityMoments(float(np.log(2)), 1.0, 1.0, 1.0, 1.0, float(np.log(2)), float(np.sqrt(2)))

    @property
    def kinked(self) -> bool:
        """Whether the cost has a kink at the datum: yes."""
        return True

    def density(self, mu: ca.SX, s: ca.SX, m: ca.SX) -> Density:
        """Return ``|r| + log 2 s``; a line has no curvature, so that of the rows takes its place."""
        density = super().density(mu, s, m)
        assert density.factor is not None
        return replace(density, curvature=density.factor @ density.factor.T)

    def deviation(self, mu: Array, s: Array) -> Array:
        """Return the standard deviations."""
        return np.sqrt(2) * s

    def starting_spread(self, mu: Array, m: Array) -> float:
        """Return the mean absolute deviation."""
        prediction, value = pairs(mu, m)
        return floor_spread(float(np.mean(np.abs(prediction - value))) if value.size else np.nan, value)

    def _errors(self, rng: np.random.Generator, scale: Array) -> Array:
        return rng.laplace(0.0, scale)


@dataclass(frozen=True, eq=False)
class _Loss(HeavyTailed):
    """A robust loss of the residual r, as in ``scipy.optimize.least_squares``:  1/2 f^2 rho((r/f)^2) + log s + const.

    The constant makes exp(-cost) a density in m.
    """

    f_scale: float = field(default=1.0, kw_only=True)

    @abstractmethod
    def _rho(self, z: ca.SX) -> tuple[ca.SX, ca.SX]:
        """Return rho(z) and rho'(z)."""

    def _loss(self, r: ca.SX) -> tuple[ca.SX, ca.SX]:
        f = float(self.f_scale)
        rho, weight = self._rho((r / f) ** 2)
        return 0.5 * f**2 * rho, weight

    def option_mistakes(self) -> list[str]:
        """Check `f_scale` and return the error messages."""
        is_scale = is_within(self.f_scale, 0.0, _MAX_F_SCALE, strictly=True)
        remedy = f"give a positive number of standard deviations, below {_MAX_F_SCALE:g}"
        return option_mistakes(("f_scale", self.f_scale, is_scale, remedy))


@public("castfit")
@add_brief_repr
@dataclass(frozen=True, eq=False)
class Huber(_Loss):
    """Quadratic up to `f_scale` standard deviations, linear beyond (Huber 1964).

    Parameters
    ----------
    sigma : float, array, `relative`, `unknown` or casadi.SX, optional
        Standard deviation of what is no outlier, in the unit of the output; nothing means unknown.
    f_scale : float
        Residual, in standard deviations, from which the loss is linear; 1.345 loses 5 % of the information that normal
        errors have.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k = cf.symbols("x k")
    >>> model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    >>> data = {"x": [1.6, 1.2, 0.9, 0.7, 2.5, 0.4]}
    >>> experiment = cf.Experiment(data, time=[0.5, 1, 1.5, 2, 2.5, 3], noise={"x": cf.Huber(sigma=0.1)})
    >>> result = cf.fit(cf.Problem(model, experiment, parameters={"k": 1.0}))
    >>> print(round(result.parameters["k"], 3))
    0.502
    """

    def _rho(self, z: ca.SX) -> tuple[ca.SX, ca.SX]:
        root = ca.sqrt(ca.fmax(z, 1))
        return ca.if_else(z > 1, 2 * root - 1, z), 1 / root

    @property
    def _numbers(self) -> _DensityMoments:
        middle, tails = self._parts
        total, f = middle + tails, float(self.f_scale)
        # integrals by parts of r^4 in the middle, f^2 r^2 in the tails
        scale = (3 * middle + tails * (2 - f**2)) / total - 1
        mode, slope = (1.0, 2.0) if f >= 1 else (1 / f, 1.0)
        if tails > middle:
            quartile = f + float(np.log(2 * tails / total)) / f
        else:
            quartile = float(scipy.special.ndtri(float(0.5 + 0.25 * total / np.sqrt(2 * np.pi))))
        return _DensityMoments(float(np.log(total)), middle / total, scale, mode, slope, quartile)

    @property
    def _parts(self) -> tuple[float, float]:
        """Integrals of exp(-cost(r)) over the normal middle and the exponential tails."""
        f = float(self.f_scale)
        return float(np.sqrt(2 * np.pi) * (1 - 2 * scipy.special.ndtr(-f))), float(2 / f * np.exp(-0.5 * f**2))

    def _errors(self, rng: np.random.Generator, scale: Array) -> Array:
        """Draw from the normal middle, or an exponential tail."""
        f = float(self.f_scale)
        middle, tails = self._parts
        is_middle = rng.random(scale.shape) * (middle + tails) < middle
        middle_errors = scipy.special.ndtri(
            scipy.special.ndtr(-f) + (1 - 2 * scipy.special.ndtr(-f)) * rng.random(scale.shape)
        )
        tail_errors = rng.choice([-1.0, 1.0], scale.shape) * (f + rng.exponential(1 / f, scale.shape))
        return scale * np.where(is_middle, middle_errors, tail_errors)


@public("castfit")
@add_brief_repr
@dataclass(frozen=True, eq=False)
class SoftL1(_Loss):
    """A smooth transition from quadratic to linear, rho = 2 (sqrt(1 + z) - 1).

    Parameters
    ----------
    sigma : float, array, `relative`, `unknown` or casadi.SX, optional
        Standard deviation of what is no outlier, in the unit of the output; nothing means unknown.
    f_scale : float
        Residual, in standard deviations, about which the transition is.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k = cf.symbols("x k")
    >>> model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    >>> data = {"x": [1.6, 1.2, 0.9, 0.7, 2.5, 0.4]}
    >>> experiment = cf.Experiment(data, time=[0.5, 1, 1.5, 2, 2.5, 3], noise={"x": cf.SoftL1(sigma=0.1)})
    >>> result = cf.fit(cf.Problem(model, experiment, parameters={"k": 1.0}))
    >>> print(round(result.parameters["k"], 3))
    0.501
    """

    def _rho(self, z: ca.SX) -> tuple[ca.SX, ca.SX]:
        root = ca.sqrt(1 + z)
        return 2 * z / (1 + root), 1 / root

    @property
    def _numbers(self) -> _DensityMoments:
        f = float(self.f_scale)
        r, step = _line(f, f * np.sqrt((1 + _MAX_COST_EXPONENT / f**2) ** 2 - 1))
        root = np.hypot(1, r / f)
        weight = step * np.exp(-(r**2) / (1 + root))
        total = float(np.sum(weight))
        location, scale = float(weight @ (r / root) ** 2) / total, float(weight @ (r**2 / root) ** 2) / total - 1
        square = 0.5 / f**2 + float(np.hypot(0.5 / f**2, 1))  # of the mode: q^2 = 1 + q / f^2
        mode, slope = float(np.sqrt(square)), 2 - 1 / (f**2 * square)
        quartile = float(np.interp(0.75, np.cumsum(weight) / np.sum(weight), r))
        return _DensityMoments(float(np.log(total)), location, scale, mode, slope, quartile)

    def _errors(self, rng: np.random.Generator, scale: Array) -> Array:
        """Draw from a hyperbolic distribution: normal errors of random variance.

        The density  exp(-f sqrt(f^2 + r^2))  is a normal one whose variance has a generalised inverse Gaussian
        distribution with p = 1 (Barndorff-Nielsen 1977).
        """
        f = float(self.f_scale)
        from scipy import stats

        variance = np.asarray(stats.geninvgauss.rvs(1.0, f**2, size=scale.shape, random_state=rng))
        return scale * np.sqrt(variance) * rng.standard_normal(scale.shape)


@public("castfit")
@add_brief_repr
@dataclass(frozen=True, eq=False)
class Cauchy(_Loss):
    """A logarithm, rho = log(1 + z): far outliers count for nothing; there may be several optima.

    Parameters
    ----------
    sigma : float, array, `relative`, `unknown` or casadi.SX, optional
        Standard deviation of what is no outlier, in the unit of the output; nothing means unknown, which is possible
        for f_scale > 1 only, where exp(-cost) has an integral: it is then Student's t of f_scale^2 - 1 degrees of
        freedom.
    f_scale : float
        Residual, in standard deviations, from which the loss is about logarithmic.  Up to 1 the loss is no likelihood:
        such fits have no information criteria.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k = cf.symbols("x k")
    >>> model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    >>> data = {"x": [1.6, 1.2, 0.9, 0.7, 2.5, 0.4]}
    >>> experiment = cf.Experiment(data, time=[0.5, 1, 1.5, 2, 2.5, 3], noise={"x": cf.Cauchy(sigma=0.1)})
    >>> result = cf.fit(cf.Problem(model, experiment, parameters={"k": 1.0}))
    >>> print(round(result.parameters["k"], 3))
    0.521
    """

    def _rho(self, z: ca.SX) -> tuple[ca.SX, ca.SX]:
        return ca.log1p(z), 1 / (1 + z)

    @property
    def _numbers(self) -> _DensityMoments:
        """Numbers of Student's t.

        If p has no finite integral, it only defines an estimator, with kappa for normal errors.
        """
        f = float(self.f_scale)
        if self.normalisable:
            nu = f**2 - 1
            constant = float(np.log(f)) + float(scipy.special.betaln(0.5, 0.5 * nu))
            quartile = f / np.sqrt(nu) * float(scipy.special.stdtrit(nu, 0.75))
            return _DensityMoments(
                constant, nu / (nu + 3), 2 * nu / (nu + 3), f / float(np.sqrt(nu)), 2 * nu / f**2, quartile
            )
        r, step = _line(f, np.sqrt(2 * _MAX_COST_EXPONENT))
        weight = step * np.exp(-0.5 * r**2)
        psi = r / (1 + (r / f) ** 2)
        location = float(weight @ (r * psi)) ** 2 / float(weight @ psi**2) / float(np.sum(weight))
        return _DensityMoments(_HALF_LOG_2PI, location, 2.0, np.inf, 2.0, _NORMAL_QUARTILE)

    @property
    def normalisable(self) -> bool:
        """Whether exp(-cost) has a finite integral, so that sigma can be estimated and fits compared."""
        return self.f_scale > 1

    def spread_mistakes(self) -> list[str]:
        """Return the reason why the spread cannot be unknown, if there is one."""
        remedy = "give sigma, or f_scale above 1 (or StudentT)"
        return [] if self.normalisable else [f"with f_scale={self.f_scale:g} sigma cannot be estimated; {remedy}"]

    def _errors(self, rng: np.random.Generator, scale: Array) -> Array:
        raise_if_mistakes(
            "Cauchy.sample", [] if self.normalisable else ["the loss with f_scale <= 1 is not a density; raise it"]
        )
        f, nu = float(self.f_scale), float(self.f_scale) ** 2 - 1
        return scale * f / np.sqrt(nu) * rng.standard_t(nu, scale.shape)
