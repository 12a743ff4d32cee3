"""Colours, markers and line styles that are distinguishable with any colour vision and without colour."""

# Okabe and Ito's palette, which people with any colour vision can tell apart.
BLUE, RED = "#0072B2", "#D55E00"
BEHIND = ("#E69F00", "#56B4E9", "#CC79A7", "#009E73", "#F0E442")
INK, SOFT, FAINT = "0.25", "0.45", "0.92"
# What tells series apart where there is no colour.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
STYLES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
