"""``castfit bootstrap``."""

from __future__ import annotations

import json

import castfit as cf
from castfit.cli import main


def test_a_bootstrap_from_the_command_line(tmp_path, capsys):
    files = {name: tmp_path / name for name in ("boot.json", "boot.png", "boot.castfit")}
    options = [f"--{o}={f}" for o, f in zip(("json", "plot", "save"), files.values(), strict=True)]
    assert main(["bootstrap", "alpha_pinene", "--samples", "5", "--kind", "wild", *options]) == 0
    assert "bootstrap, wild" in capsys.readouterr().out
    record = json.loads(files["boot.json"].read_text())
    assert record["fitted"] == 5
    assert set(record["intervals"]) == {"percentile", "bca"}
    assert len(cf.BootstrapResult.load(files["boot.castfit"]).solved) == 5
    assert files["boot.png"].stat().st_size > 5000


def test_misuse_has_its_exit_status(capsys):
    assert main(["bootstrap", "alpha_pinene", "--samples", "0"]) == 2
    assert "samples is 0" in capsys.readouterr().err
