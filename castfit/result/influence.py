"""Influence of measured values on the estimates: leverage, Cook's distance, and changes without a value.

Notation
--------
e  (m,)    residuals of variance 1; J (m, n) their derivative; C (n, n) the covariance of theta
h  (m,)    leverages, the part of each value's own error that the fit follows: diag(J C J^T)
p          directions that the data determine

    theta without value i  =  theta + C J_i e_i / (1 - h_i)
    D_i = e_i^2 h_i / (p (1 - h_i)^2)        how far that moves the estimates together      [Cook 1977]

Errors that depend on each other are made independent by W; value i then stands in all that is new with it, and e_i and
J_i are the components along column i of W (`castfit.result.residuals.along_values`).

D_i above the median of F(p, dof), or of chi2(p) / p where sigma is known, moves them beyond their own 50 % region.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from castfit._support.distribution_functions import chi2_quantile, f_median
from castfit._support.records import dataclass
from castfit._support.renamed import with_old_names
from castfit._support.ties import first_argmax, stable_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from castfit._support.arrays import Array


_SOLE_DETERMINANT_LEVERAGE = 1.0 - 1e-6  # leverage of a value that nothing checks


@with_old_names(named="describe")
@dataclass(frozen=True)
class InfluentialValue:
    """A measured value that the estimates hang on.

    replicate : counted from 0 among equal times
    leverage : which part of its error the fit follows, from 0 to 1
    distance : Cook's: how far the estimates move without it; inf where it alone determines something
    quantity : what would move most
    shift : by how many standard errors it would; NaN where the value alone determines it
    """

    experiment: str
    output: str
    time: float
    replicate: int
    leverage: float
    distance: float
    quantity: str
    shift: float

    def describe(self, *, experiment: bool = True) -> str:
        """Name the value by output, experiment and time, and describe its influence."""
        place = f" in {self.experiment}" if experiment else ""
        value = f"{self.output}{place} at t = {self.time:g}"
        if np.isnan(self.shift):
            return (
                f"the measurement of {value} alone determines some combination of the estimates, so its residual "
                "carries no information"
            )
        return f"removing {value} would change {self.quantity} by {self.shift:+.2g} standard errors"

    def __str__(self) -> str:
        text = self.describe()
        return f"{text[0].upper()}{text[1:]} (leverage {self.leverage:.2g}, Cook's distance {self.distance:.2g})."


@dataclass(frozen=True, eq=False)
class Influence:
    """Influence of each measured value on the estimates, (n_data,) each, in the order of the residuals.

    leverage, distance : leverages and Cook's distances
    shifts (n_data, n_theta) : by how many standard errors the estimates would move without a value, to first order
    limit : distance above which a value is influential
    """

    leverage: Array
    distance: Array
    shifts: Array
    limit: float

    @property
    def influential(self) -> NDArray[np.intp]:
        """The values beyond the limit, the most influential first."""
        order = stable_order(np.nan_to_num(self.distance, posinf=np.inf), descending=True)
        return order[self.distance[order] > self.limit]


def influence(residuals: Array, jacobian: Array, root: Array, leverage: Array, rank: int, dof: float) -> Influence:
    """Compute the influence of each value.

    residuals (m,) : of variance 1; NaN where sigma is not known
    jacobian (m, n_theta) : of these residuals
    root (n_theta, n_theta) : root root^T is the covariance of theta
    leverage (m,)
    rank : p
    dof : degrees of freedom of the noise, inf where it is known
    """
    h = np.clip(leverage, 0.0, 1.0)
    leverage_complement = np.where(h < _SOLE_DETERMINANT_LEVERAGE, 1.0 - h, np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        distance = residuals**2 * h / (max(rank, 1) * leverage_complement**2)
        errors = np.sqrt(np.sum(root**2, axis=1))
        shifts = (
            (jacobian @ root @ root.T)
            * (residuals / leverage_complement)[:, None]
            / np.where(errors > 0.0, errors, np.nan)
        )
    distance = np.where(h < _SOLE_DETERMINANT_LEVERAGE, distance, np.inf)
    if rank < 1 or not dof > 0:
        limit = np.inf
    else:
        limit = chi2_quantile(rank, 0.5) / rank if np.isinf(dof) else f_median(rank, dof)
    return Influence(h, distance, shifts, float(limit))


def named_influential(
    influences: Influence, table: Mapping[str, Any], names: Sequence[str]
) -> tuple[InfluentialValue, ...]:
    """Name the influential values by the rows of a table of residuals, and what they move most."""
    named_values: list[InfluentialValue] = []
    for i in influences.influential.tolist():
        shifts = np.nan_to_num(influences.shifts[i], nan=0.0)
        j = first_argmax(np.abs(shifts))
        shift = float(shifts[j]) if influences.leverage[i] < _SOLE_DETERMINANT_LEVERAGE else np.nan
        key = (str(table["experiment"][i]), str(table["output"][i]), float(table["time"][i]))
        replicate = int(table["replicate"][i])
        named_values.append(
            InfluentialValue(
                *key, replicate, float(influences.leverage[i]), float(influences.distance[i]), names[j], shift
            )
        )
    return tuple(named_values)
