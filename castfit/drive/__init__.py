"""Drivers: searches, uncertainty and comparisons that need many fits.

Input: a problem or the result of one fit, and the options of a run (workers, time limit, checkpoint).  Output: a result
that prints itself.  ``run`` is the loop that all drivers share; ``search`` looks for the best optimum, ``uncertainty``
computes intervals and draws, ``population`` fits many individuals, ``design`` plans experiments, and ``checkup`` and
``model_comparison`` assess models.  Read ``run/loop.py`` first, then ``search/multistart/multistart.py``, the simplest
driver.
"""
