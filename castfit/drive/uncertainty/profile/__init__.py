"""Profile likelihoods: the objective along one quantity, with all other quantities optimised again.

Input: the result of a fit.  Output: limits of quantities (``profile``, ``result``), of pairs (``contours``) and of
predictions (``bands``).  A target is the quantity or prediction that is fixed (``targets``, ``predictions``,
``reading``).  Each task starts at the fit (``tasks``) and follows solutions (``continuation``, ``corrector``) along
branches, from which limits are read (``branches``).  Read ``profile.py`` first, then ``continuation.py``.
"""
