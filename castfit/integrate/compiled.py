"""CasADi's integrators with the model compiled.

CasADi can compile for its integrators by itself, but for those of SUNDIALS it writes the source into the current
folder, whatever it is told.  So its code is compiled here, into the cache of libraries: the Rosenbrock method whole, of
the others the functions that they call, which are given to them ready (CasADi's option `cache`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import casadi as ca

from castfit.integrate.library import compiled_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_FLAGS = ("-O1", "-ffp-contract=off")  # straight-line arithmetic: -O3 runs 10 % faster and compiles twice as long
_MOVED = ("daeF", "jtimesF")  # what is differentiated along directions


def derived(integrator: ca.Function, kind: str, count: int) -> ca.Function:
    """Return an integrator itself ("values"), or its derivative along `count` directions ("forward", "reverse")."""
    if kind == "values":
        return integrator
    return integrator.forward(count) if kind == "forward" else integrator.reverse(count)


def compiled(build: Callable[[dict[str, Any]], ca.Function], kind: str, count: int) -> ca.Function:
    """Return a derivative, as `derived` does, of the integrator that `build` makes with more options.

    Raises
    ------
    CompilationError
        If compiling fails.
    """
    plain = build({})
    if plain.class_name() == "Rosenbrock":
        whole = derived(plain, kind, count)
        # On the way back it generates no code, and asks for derivatives that compiled functions do not have.
        return whole if kind == "reverse" else ca.external(whole.name(), _library([whole]))
    own = {"cache": _functions(plain)}
    if kind == "values":
        return build(own)
    parts = derived(plain, kind, count).find_functions(1)
    augmented = next(part for part in parts if part.class_name() == plain.class_name())
    return derived(build({**own, "augmented_options": {"cache": _functions(augmented)}}), kind, count)


def _functions(integrator: ca.Function) -> dict[str, ca.Function]:
    """Return the functions that an integrator evaluates, compiled, by their names."""
    wanted = {name: integrator.get_function(name) for name in integrator.get_function() if not name.endswith("dae")}
    # CasADi asks a compiled function for one derivative before it believes that there are more.
    every = wanted | {f"fwd1_{name}": wanted[name].forward(1) for name in _MOVED if name in wanted}
    path = _library(every.values())
    forward = {name: ca.external(name, path) for name in every if name.startswith("fwd")}

    def loaded(name: str) -> ca.Function:
        return ca.external(name, path, {"cache": {key: f for key, f in forward.items() if key.endswith(f"_{name}")}})

    return {name: loaded(name) for name in wanted}


def _library(functions: Iterable[ca.Function]) -> str:
    generator = ca.CodeGenerator("model")
    for function in functions:
        generator.add(function)
    return str(compiled_path(generator.dump(), _FLAGS))
