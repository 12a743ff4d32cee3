"""Reports: self-contained HTML pages of a fit, a multistart or a comparison.

Input: results of fits and drivers.  Output: one HTML file that needs no network, and the card that a notebook shows.
All text is escaped; formulas are MathML, figures are SVG, and a short script sorts tables, switches curves and enlarges
figures.  ``page`` builds elements and arranges sections.  Read ``report.py`` first, which lists
the sections of a page, then ``result_sections.py``.
"""

from castfit._support.arguments import CallGuard
from castfit.report.cards import card, plan_report, population_report
from castfit.report.report import report

plan_report = CallGuard(plan_report, "report")(
    plan_report
)  # methods pass their options on: which there are is known here
population_report = CallGuard(population_report, "report")(population_report)
report = CallGuard(report, "report")(report)

__all__ = ["card", "plan_report", "population_report", "report"]
