"""Pages that tell the story of a fit, a multistart, a comparison: one file each, read without a network.

Everything that is text is escaped; formulas are MathML, figures SVG, and a short script sorts tables, switches curves
and enlarges figures.
"""

from castfit.report.cards import card
from castfit.report.story import report

__all__ = ["card", "report"]
