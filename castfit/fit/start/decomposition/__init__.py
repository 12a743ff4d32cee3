"""Starting points by decomposition: separable blocks of equations, and their estimation."""
