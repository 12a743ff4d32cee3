"""Schedules that anybody would think of, beside which a design is shown: as many measurements at the same cost.

Equidistant times are those of most experiments, but miss what happens early; times in equal ratios do not; and what was
measured so far may be measured again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index
    from castfit.drive.design.knowledge import Knowledge
    from castfit.drive.design.purchases import Purchases

EQUIDISTANT, RATIOS, PRESENT = "equidistant times", "times in equal ratios", "the present times"


def simple_places(
    times: Array, n: int, start: float, present: Array, *, tells: bool, apart: bool = False
) -> dict[str, Index]:
    """Return the indices in a grid of ascending times (m,) nearest to n simple times, by name of the schedule.

    start : of the experiment, from which ratios are counted;  present : when it was measured so far
    tells : whether anything is told at the first time, as nothing is where states are known
    apart : whether each place may be taken once
    """
    first, last, size = times[0], times[-1], max(n + 1 - tells, 2)
    wanted: dict[str, Array] = {EQUIDISTANT: np.linspace(first, last, size)[size - n :]}
    later, present = times[times > start] - start, present[(present >= first) & (present <= last)]
    if later.size > 1:
        wanted[RATIOS] = start + np.geomspace(later[0], later[-1], 3 if n == 1 else n)[n == 1 :][:n]
    if present.size >= (n if apart else 1):
        wanted[PRESENT] = present[np.arange(n) * present.size // n]
    found: dict[str, Index] = {}
    for name, when in wanted.items():
        off, places = np.abs(times - when[:, None]), np.zeros(n, dtype=np.intp)
        for i in range(n):
            places[i] = np.argmin(off[i])
            off[i + 1 :, places[i]] = np.inf if apart else off[i + 1 :, places[i]]
        found[name] = places
    return found


def simple_designs(known: Knowledge, bought: Purchases, counts: Array) -> dict[str, Array]:
    """Return simple designs of as many measurements, evenly among outputs and experiments, that can be bought."""
    if (bought.time < 0).any():
        return known.simple(bought.offers, counts)
    out: dict[str, Array] = {}
    lines, total = np.unique(bought.at.line), int(counts.sum())
    for i, line in enumerate(lines):
        own = np.flatnonzero(bought.at.line == line)
        own, k = own[np.argsort(bought.at.time[own])], int(bought.candidate[own[0]])
        n = total // lines.size + (i < total % lines.size)
        present = known.present(k, int(bought.output[own[0]]))
        tells = bool(bought.offers.J[:, own[0]].any())
        places = simple_places(bought.at.time[own], n, known.condition(k).start, present, tells=tells)
        out = {name: out.get(name, np.zeros_like(counts)) for name in places if not i or name in out}
        for name, of in out.items():
            np.add.at(of, own[places[name]], 1.0)
    return {name: of for name, of in out.items() if total and bought.offers.fits(of)}
