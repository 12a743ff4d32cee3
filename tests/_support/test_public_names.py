"""What users meet first: the names that castfit shows."""

from __future__ import annotations

import castfit as cf


def test_public_modules_list_only_names_for_users() -> None:
    assert set(dir(cf)) == {*cf.__all__, "__version__"}
    for hidden in ("densities", "drive", "solve", "annotations", "TYPE_CHECKING"):
        assert hidden not in dir(cf)


def test_noise_and_priors_of_one_name_have_homes() -> None:
    assert cf.noise.Laplace is cf.Laplace
    assert cf.noise.LogNormal is cf.LogNormal
    assert cf.priors.Laplace is not cf.noise.Laplace
    assert cf.priors.Normal is cf.Normal
    assert all(getattr(cf, name) is getattr(cf.noise, name) for name in cf.noise.__all__)
    assert cf.Gaussian.__module__ == "castfit"  # the short name stays the address
