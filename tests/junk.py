"""What a careless user may pass anywhere: a strategy that draws it."""

from __future__ import annotations

import datetime
from decimal import Decimal

import casadi as ca
import numpy as np
import pandas as pd
from hypothesis import strategies as st

from castfit.experiment.experiment import free, relative
from castfit.experiment.inputs import Input
from castfit.problem.problem import Constraint, Normal, Parameter

x = ca.SX.sym("x")

_SCALARS = [
    None,
    True,
    np.bool_(False),
    0,
    -3,
    2.5,
    10**400,
    np.nan,
    np.inf,
    1j,
    "x",
    "",
    b"x",
    np.float32(1.5),
    np.int8(2),
    np.array(1.0),
    np.datetime64("2020-01-01"),
    datetime.date(2020, 1, 1),
    Decimal("1.5"),
    object(),
    float,
    np.sin,
    ...,
]

_SYMBOLS = [
    x,
    -x,
    x <= 1,
    ca.SX.sym("x"),
    ca.SX.sym("v", 2),
    ca.SX.sym("m", 2, 2),
    ca.SX(1),
    ca.SX(1, 1),
    ca.SX(0, 1),
    ca.SX(np.nan),
    ca.MX.sym("x"),
    ca.DM([1, 2, 3]),
    ca.DM(1),
]

_ARRAYS = [
    [],
    (),
    set(),
    {1, 2},
    [1, 2, 3],
    (1, 2),
    ([0, 1, 2], [1, 2, 3]),
    range(3),
    ["a", "b", "c"],
    [None, 1, 2],
    [[1], [2, 3]],
    [x, x],
    np.zeros((3, 2)),
    np.zeros((0, 3)),
    np.zeros((1, 1, 1)),
    np.array([1, 2, 3], dtype=np.uint8),
    np.array(["2020", "2021"], dtype="datetime64"),
    np.array([(1, 2.0)], dtype="i4,f8"),
    np.ma.masked_array([1.0, 2.0, 3.0], mask=[0, 1, 0]),
    pd.Series([1, 2, 3]),
    pd.Series([1, None, 3], dtype="Int64"),
    pd.Series(["a", "b", "c"]),
    pd.DataFrame({"x": [1, 2, 3], "t": [0, 1, 2]}),
    pd.DataFrame({0: [1.0], ("a", "b"): [True]}),
    pd.DataFrame(),
    pd.DataFrame({"x": [1]}, index=pd.MultiIndex.from_tuples([(0, "a")])),
    Input.constant(1.0),
    free(1.0),
    free(None, lower="a"),  # type: ignore[arg-type]
    relative(0.1),
    Normal("a", 1),  # type: ignore[arg-type]
    Parameter(None),  # type: ignore[arg-type]
    Parameter({"a": 1}),
    Constraint(x),
]

THINGS = [*_SCALARS, *_SYMBOLS, *_ARRAYS]

_PLAIN = st.one_of(
    st.sampled_from(range(len(_SCALARS))).map(_SCALARS.__getitem__),
    st.sampled_from(range(len(_SYMBOLS))).map(_SYMBOLS.__getitem__),
    st.sampled_from(range(len(_ARRAYS))).map(_ARRAYS.__getitem__),
)
_KEYS = st.sampled_from(["x", "k", "u", "z", "", "t", "experiment 1", 0, None, ("a", "b")])

junk = st.one_of(
    _PLAIN,
    st.dictionaries(_KEYS, _PLAIN, max_size=3),
    st.lists(_PLAIN, max_size=3),
    st.builds(lambda items: (item for item in items), st.lists(_PLAIN, max_size=3)),
)
symbols_to_junk = st.dictionaries(
    st.sampled_from([0, 1, 2]).map([x, ca.SX.sym("z"), ca.MX.sym("y")].__getitem__), _PLAIN, max_size=2
)
