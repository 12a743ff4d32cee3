"""Where a search starts: parameters matched to measured states, and decomposition."""
