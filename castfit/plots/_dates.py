"""Ticks of a time axis at round dates, for an experiment whose times were given as dates.

The plotted times stay numbers in the time unit of the model.  Imported when it is needed: it needs
matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import dates
from matplotlib.ticker import Formatter, Locator

_untyped_dates: Any = dates  # matplotlib's stubs leave much of it unknown
_DAY = np.timedelta64(1, "D")


class DateAxis:
    """Conversion of times to dates: days of matplotlib = `origin` + `day` * time."""

    def __init__(self, origin: np.datetime64, unit: np.timedelta64) -> None:
        self.origin = float(_untyped_dates.date2num(origin))
        self.day = float(unit / _DAY)

    def days(self, time: Any) -> Any:
        """Return matplotlib's days of times."""
        return self.origin + self.day * np.asarray(time)


class CalendarTicks(Locator):
    """Locator of matplotlib's automatic date ticks, as times."""

    def __init__(self, calendar: DateAxis) -> None:
        self._calendar = calendar
        self.automatic: Any = _untyped_dates.AutoDateLocator(minticks=3, maxticks=6)

    def __call__(self) -> Any:
        axis: Any = self.axis
        return self.tick_values(*sorted(axis.get_view_interval()))

    def tick_values(self, vmin: float, vmax: float) -> Any:
        """Return the times of dates between two times."""
        ends = _untyped_dates.num2date(self._calendar.days([vmin, vmax]))
        return (np.asarray(self.automatic.tick_values(*ends)) - self._calendar.origin) / self._calendar.day


class CalendarLabels(Formatter):
    """Times as dates: what changes from tick to tick, and the rest once, at the end of the axis."""

    def __init__(self, ticks: CalendarTicks, calendar: DateAxis) -> None:
        self._calendar = calendar
        self._concise: Any = _untyped_dates.ConciseDateFormatter(ticks.automatic)

    def __call__(self, x: float, pos: int | None = None) -> str:
        return str(self._concise(float(self._calendar.days(x)), pos))

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """Return the labels of ticks at the given times."""
        return list(self._concise.format_ticks(self._calendar.days(values)))

    def format_data_short(self, value: float) -> str:
        """Return the label of the time at the pointer."""
        return str(self._concise.format_data_short(float(self._calendar.days(value))))

    def get_offset(self) -> str:
        """Return the part of the date that is common to all ticks."""
        return str(self._concise.get_offset())


def with_dates(axis: Any, origin: np.datetime64, unit: np.timedelta64) -> None:
    """Show dates on an axis of times."""
    calendar = DateAxis(origin, unit)
    ticks = CalendarTicks(calendar)
    axis.set_major_locator(ticks)
    axis.set_major_formatter(CalendarLabels(ticks, calendar))
