"""One fit: `cf.fit`, from a problem, a transcription and a solver to a result.

Input: a compiled problem and a starting point.  ``strategies`` chooses the starting points and the fallbacks; each
calls ``attempt`` (solve, refine, diagnose, verify); ``refinement`` requests finer discretisations; ``start`` computes
starting points.  Output: a `Result` (``build_result``).  Read ``fit.py`` first, then ``strategies.py``.
"""
