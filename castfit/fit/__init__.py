"""One fit: `cf.fit`, from a problem, a transcription and a solver to a result.

In flows a compiled problem and a start.  `strategies` (where to search from, and what comes next) call `attempt` (one
search: solved, refined, judged, verified), as often as `refinement` asks for something finer; `start` holds the
searches for starts.  Out flows a `Result` (build_result).  Read fit.py first, then strategies.py.
"""
