"""``castfit bench peers``: fits of small models in units of their integration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from castfit import InputError
from castfit._bench import small
from castfit.integrate.esdirk_binding import missing_integrator_reason

pytestmark = pytest.mark.skipif(missing_integrator_reason() != "", reason="needs a C compiler")


def test_the_kernel_is_a_part_of_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "_N_REPEATS", 3)
    row = small.small_fit("lotka_volterra")
    assert 0.0 < row.kernel < row.fit
    assert 0.0 < row.linearized < row.fit
    assert row.error < 1e-6


def test_peer_interpreter_is_called_and_its_errors_are_reported(tmp_path: Path) -> None:
    castfit_fit = small.SmallFit("lotka_volterra", "castfit", 20.0, 3.0, 1.0, 1e-9)
    answer = {
        "fit": 10.0,
        "linearized": 0.5,
        "error": 1e-9,
        "tolerance": 1e-9,
        "iterations": 7,
        "versions": {"jax": "1"},
    }
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\ncat > {tmp_path}/asked\necho '{json.dumps(answer)}'\n")
    fake.chmod(0o755)
    jax_fit = small.beside_jax(str(fake), castfit_fit)
    assert (jax_fit.fit, jax_fit.linearized, jax_fit.by) == (10.0, 0.5, "jax 1")
    request = json.loads((tmp_path / "asked").read_text())
    assert len(request["exact"]) == len(request["data"]) == len(request["times"]) == 10
    fake.write_text("#!/bin/sh\necho 'No module named jax' >&2\nexit 1\n")
    assert "No module named jax" in small.beside_jax(str(fake), castfit_fit).note
    with pytest.raises(InputError, match="--jax"):
        small.KIND.run("peers", lambda _: None, problems=(), jax=str(tmp_path / "none"))
