"""What every room may use and none of which knows of models or data.

Reading what users give (arguments, bounds), messages and outcomes (status), reprs and tables of text, JSON, CasADi's
functions through fixed arrays, silence, time limits and interrupts, processes, BLAS threads.  Read first status.py, how
things end and how mistakes are told, and arguments.py.
"""
