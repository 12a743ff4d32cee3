"""Support code for every package, independent of models and data.

Reading what users give (arguments, bounds), messages and outcomes (status), reprs and tables of text, JSON, CasADi's
functions through fixed arrays, silence, time limits and interrupts, processes, BLAS threads.  Read first status.py, how
things end and how mistakes are told, and arguments.py.
"""
