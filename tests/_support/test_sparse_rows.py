"""Sparse rows: their products are those of the dense matrix."""

from __future__ import annotations

import numpy as np
import pytest

from castfit._support import sparse_rows as _module
from castfit._support.sparse_rows import sparse_rows


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_gram_is_that_of_the_dense_matrix(share, monkeypatch):
    rng = np.random.default_rng(0)
    matrix = np.where(rng.random((200, 30)) < share, rng.standard_normal((200, 30)), 0.0)
    monkeypatch.setattr(_module, "_AT_ONCE", 1000)  # entries: 33 rows, where rows are written out
    np.testing.assert_allclose(sparse_rows(matrix).gram(), matrix.T @ matrix, rtol=1e-13, atol=1e-13)
