"""Panels of data and residuals, and how they are arranged."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import numpy as np

from castfit.plots._canvas import Axes, Canvas, add_title, escape_text, labels, shade_band, tidy, time_axis
from castfit.problem.compiled_experiments import Condition
from castfit.problem.problem import Posable

_MOST_COLUMNS, _MOST_PANELS = 4, 12
_WIDTHS = (6.4, 4.6, 3.6, 2.9)  # of a panel in inches, by the number of columns
_LETTERS_PER_INCH = 13  # Letters of a heading per inch.
_MAX_SHARED_RANGE_RATIO = 6.0  # Ratio of the ranges of panels up to which the panels share a scale.


@dataclass(frozen=True)
class OutputPanel:
    """One measured output of one experiment, and where it stands."""

    row: int
    column: int
    condition: Condition
    output: int


@dataclass(frozen=True)
class Grid:
    """Arrangement of panels; `note` gives the number of panels shown, if some were left out."""

    panels: tuple[OutputPanel, ...]
    rows: int
    columns: int
    note: str

    @classmethod
    def from_problem(cls, problem: Posable) -> Grid:
        """Arrange experiments in columns and outputs in rows.

        Wrap the panels if there is only one experiment or output.
        """
        conditions, outputs = problem.conditions, range(len(problem.outputs))
        measured = [(c, j) for c in conditions for j in outputs if c.points.mask[:, j].any()]
        if len(conditions) == 1 or len(outputs) == 1:
            visible_pairs = measured[:_MOST_PANELS]
            rows = -(-len(visible_pairs) // _MOST_COLUMNS)
            columns = -(-len(visible_pairs) // (3 if len(conditions) == 1 else rows))
            panels = [OutputPanel(*divmod(i, columns), *pair) for i, pair in enumerate(visible_pairs)]
        else:
            columns = min(len(conditions), _MOST_COLUMNS)
            column = {c.name: i for i, c in enumerate(conditions[:columns])}
            visible_outputs = sorted({j for c, j in measured if c.name in column})[: _MOST_PANELS // columns]
            panels = [
                OutputPanel(visible_outputs.index(j), column[c.name], c, j)
                for c, j in measured
                if c.name in column and j in visible_outputs
            ]
        note = f"{len(panels)} of {len(measured)} panels are shown." if len(panels) < len(measured) else ""
        return cls(tuple(panels), 1 + max(panel.row for panel in panels), columns, note)

    @property
    def conditions(self) -> list[Condition]:
        """The experiments that are shown."""
        return list({panel.condition.name: panel.condition for panel in self.panels}.values())

    @property
    def width(self) -> float:
        """Width of all columns in inches."""
        return self.columns * _WIDTHS[self.columns - 1]

    def shows_time(self, panel: OutputPanel) -> bool:
        """Whether a panel labels its times: nothing right below has the same ones."""
        return not any(
            (p.row, p.column, p.condition) == (panel.row + 1, panel.column, panel.condition) for p in self.panels
        )

    def shows_values(self, panel: OutputPanel) -> bool:
        """Whether a panel labels its values: nothing right before it has the same ones."""
        return not any((p.row, p.column, p.output) == (panel.row, panel.column - 1, panel.output) for p in self.panels)


@dataclass(frozen=True)
class PanelAxes:
    """The axes of a panel: data and model above, residuals below."""

    panel: OutputPanel
    above: Axes
    below: Axes


def outputs_on_one_scale(grid: Grid) -> set[int]:
    """Return the outputs that look well on one scale in all their panels."""
    ranges: dict[int, list[float]] = {}
    for panel in grid.panels:
        values = panel.condition.points.values[:, panel.output]
        ranges.setdefault(panel.output, []).append(float(np.ptp(values[np.isfinite(values)])))
    return {j for j, sizes in ranges.items() if max(sizes) <= _MAX_SHARED_RANGE_RATIO * min(sizes)}


def panels(canvas: Canvas, grid: Grid, problem: Posable, shared: set[int]) -> list[PanelAxes]:
    """Make the axes: panels of one experiment share their times, panels of a shared output their values."""
    compiled_problem = problem.posed
    cells = canvas.add_gridspec(2 * grid.rows, grid.columns, height_ratios=[2.8, 1] * grid.rows)
    pairs: list[PanelAxes] = []
    for panel in grid.panels:
        name, output = panel.condition.name, problem.outputs[panel.output]
        time = next((p.above for p in pairs if p.panel.condition is panel.condition), None)
        is_shared = panel.output in shared
        value = next((p.above for p in pairs if is_shared and p.panel.output == panel.output), None)
        above = canvas.add_subplot(cells[2 * panel.row, panel.column], sharex=time, sharey=value)
        residual = pairs[0].below if pairs else None
        below = canvas.add_subplot(cells[2 * panel.row + 1, panel.column], sharex=above, sharey=residual)
        has_several = len(problem.conditions) > 1
        label = f"{compiled_problem.label(output)}, {name}" if has_several else compiled_problem.label(output)
        folded = textwrap.fill(escape_text(label), int(_LETTERS_PER_INCH * grid.width / grid.columns))
        add_title(above, folded, pad=4)
        for axes in (above, below):
            tidy(axes)
        above.tick_params(axis="x", length=0)
        above.tick_params(labelbottom=False, labelleft=grid.shows_values(panel) or not is_shared)
        below.tick_params(labelbottom=grid.shows_time(panel), labelleft=panel.column == 0)
        time_axis(above, compiled_problem, [panel.condition], has_labels=False)
        time_axis(below, compiled_problem, [panel.condition], has_labels=grid.shows_time(panel), size=8, labelpad=1)
        if panel.column == 0:
            labels(below, y="residual / σ", size=7.5)
        shade_band(below, 2)
        pairs.append(PanelAxes(panel, above, below))
    return pairs
