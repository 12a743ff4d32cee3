"""Powers of states with estimated exponents: x**n where rounding makes x zero or negative.

A state that decays to zero is as often a little below it, where x**n is no number and d(x**n)/dn = x**n log x has none
at zero either: one such rounding error ends an integration, and more often its sensitivities.  Here

    x**n  =  f exp(n log max(x, tiny)),    f = 1 for x > 0

and at or below zero f continues the power: by 0 for n > 0, and by 1 for n <= 0, so that a negative power of nothing is
as large as numbers get, and nobody takes it for one.  Where n is an integer, powers of negative states are what they
are: |x| takes the place of x, and f is (-1)**n.
"""

from __future__ import annotations

from collections.abc import Sequence

import casadi as ca

from castfit.model.graph_rewriting import rewritten

TINY = 1e-150  # its square, and a derivative's inverse of it, are numbers


def with_powers(columns: Sequence[ca.SX], states: ca.SX) -> list[ca.SX]:
    """Return columns of expressions in which powers of states can be differentiated wherever the state is.

    Concerns what has the sign of one state, such as  x**n  and  (x / K)**n,  where the exponent is no number.

    Parameters
    ----------
    columns : sequence of casadi.SX columns
    states : (n,) casadi.SX
    """

    def replaced(op: int, arguments: Sequence[ca.SX]) -> ca.SX | None:
        base, exponent = arguments
        if exponent.is_constant() or ca.depends_on(exponent, states) or not _is_share(base, states):
            return None
        return power(base, exponent)

    return rewritten(columns, (ca.OP_POW,), replaced)


def power(x: ca.SX, n: ca.SX) -> ca.SX:
    """Return x**n as above."""
    whole = n == ca.floor(n)
    mirrored = ca.logic_and(whole, x < 0)
    factor = ca.if_else(x > 0, 1, ca.if_else(mirrored, ca.cos(ca.pi * n), n <= 0))
    return factor * ca.exp(n * ca.log(ca.fmax(ca.if_else(mirrored, -x, x), TINY)))


def _is_share(base: ca.SX, states: ca.SX) -> bool:
    """Whether an expression is a state times something that no state enters."""
    if not ca.depends_on(base, states):
        return False
    slope = ca.jacobian(base, states)
    if slope.nnz() != 1 or ca.depends_on(slope, states):
        return False
    return bool(ca.simplify(ca.substitute(base, states, ca.SX.zeros(states.shape))).is_zero())
