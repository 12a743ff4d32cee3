"""Pages that tell the story of a fit, a multistart, a comparison: one file each, read without a network.

In flows what a fit or a driver found; out come a page in a file, and the card that a notebook shows.  Everything that
is text is escaped; formulas are MathML, figures SVG, and a short script sorts tables, switches curves and enlarges
figures.  `markup` and `tables` make elements, `page` puts sections together.  Read `report` first, which says what
sections a page has, then `result_sections`.
"""

from castfit._support.arguments import CallGuard
from castfit.report.cards import card
from castfit.report.plan_page import plan_report
from castfit.report.report import report

plan_report = CallGuard(plan_report, "report")(
    plan_report
)  # methods pass their options on: which there are is known here
report = CallGuard(report, "report")(report)

__all__ = ["card", "plan_report", "report"]
