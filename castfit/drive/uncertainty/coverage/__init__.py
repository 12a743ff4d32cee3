"""How often intervals contain the truth: fits of data that are drawn at values that are known."""
