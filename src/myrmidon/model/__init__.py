"""The data types of the system and the rules that make them valid: no I/O, no clock, no randomness.

``task_request.py`` is what was requested, ``task_to_run.py`` the right to start one run, ``task_result.py`` the state
of a task and of its runs, ``states.py`` the legal moves. A request is decoded into structs that declare what is
allowed; ``struct_problems.py`` lists everything that is wrong, and the ``*_validation.py`` files check what depends on
several fields. ``errors.py`` has every error with its stable code.
"""
