"""Simple schedules with as many measurements at the same cost, for comparison with a design.

Most experiments have equidistant times, which miss fast changes at the start.  Times in equal ratios resolve these.
The third schedule repeats the times measured so far.
"""

from __future__ import annotations

import numpy as np

from castfit._support.arrays import Array, Index
from castfit.drive.design.knowledge import DesignInformation
from castfit.drive.design.purchases import CandidateSelection

EQUIDISTANT, RATIOS, PRESENT = "equidistant times", "times in equal ratios", "the present times"
_MAX_PLACES = 1000  # times of a simple schedule; more measurements are repeats of these


def find_simple_places(
    times: Array, n: int, start: float, present: Array, *, tells: bool, is_distinct: bool = False
) -> dict[str, Index]:
    """Return the indices in a grid of ascending times (m,) nearest to n simple times, by name of the schedule.

    start : start of the experiment, the reference of ratios;  present : times measured so far
    tells : whether the first time is informative; it is not if the states are known there
    is_distinct : whether each index may occur once only
    """
    first_time, last_time, size = times[0], times[-1], max(n + 1 - tells, 2)
    target_times: dict[str, Array] = {EQUIDISTANT: np.linspace(first_time, last_time, size)[size - n :]}
    later, present = times[times > start] - start, present[(present >= first_time) & (present <= last_time)]
    if later.size > 1:
        target_times[RATIOS] = start + np.geomspace(later[0], later[-1], 3 if n == 1 else n)[n == 1 :][:n]
    if present.size >= (n if is_distinct else 1):
        target_times[PRESENT] = present[np.arange(n) * present.size // n]
    places_by_name: dict[str, Index] = {}
    for name, targets in target_times.items():
        distances, places = np.abs(times - targets[:, None]), np.zeros(n, dtype=np.intp)
        for i in range(n):
            places[i] = np.argmin(distances[i])
            distances[i + 1 :, places[i]] = np.inf if is_distinct else distances[i + 1 :, places[i]]
        places_by_name[name] = places
    return places_by_name


def build_simple_designs(
    information: DesignInformation, selection: CandidateSelection, counts: Array
) -> dict[str, Array]:
    """Return affordable simple designs of as many measurements, evenly distributed over outputs and experiments."""
    if (selection.time < 0).any():
        return information.simple_experiments(selection.pool, counts)
    designs: dict[str, Array] = {}
    lines, total = np.unique(selection.positions.line), int(counts.sum())
    for i, line in enumerate(lines):
        indices = np.flatnonzero(selection.positions.line == line)
        indices, k = indices[np.argsort(selection.positions.time[indices])], int(selection.candidate[indices[0]])
        n = total // lines.size + (i < total % lines.size)
        present = information.measured_times(k, int(selection.output[indices[0]]))
        tells = bool(selection.pool.J[:, indices[0]].any())
        repeats = np.diff(np.linspace(0.0, n, min(n, _MAX_PLACES) + 1).round())
        places = find_simple_places(
            selection.positions.time[indices], repeats.size, information.condition(k).start, present, tells=tells
        )
        designs = {name: designs.get(name, np.zeros_like(counts)) for name in places if not i or name in designs}
        for name, simple_counts in designs.items():
            np.add.at(simple_counts, indices[places[name]], repeats)
    return {
        name: simple_counts for name, simple_counts in designs.items() if total and selection.pool.fits(simple_counts)
    }
