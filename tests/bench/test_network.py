"""``castfit bench network``: a small network; the gradient is that of differences, and the work is counted."""

from __future__ import annotations

import pytest

import castfit as cf
from castfit._bench import network

pytest.importorskip("libsbml")


def test_a_small_network_is_loaded_and_differentiated() -> None:
    report = network.KIND.run("network", lambda _: None, species=12)
    (row,) = report.record["rows"]
    assert (row["species"], row["reactions"], row["parameters"]) == (12, 36, 37)
    assert row["difference"] < 1e-5
    with pytest.raises(cf.InputError, match="species is 1; give at least 4"):
        network.KIND.run("network", lambda _: None, species=1)
