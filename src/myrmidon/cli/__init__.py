"""The command line: one file per noun, and ``main.py``, which lists the commands and prints errors.

A command gets a ``CliContext`` (``context.py``): the client of the server that its options select. It prints an answer
as JSON, or by ``output.py`` as text that is safe for a terminal. Modules are imported when a command needs them,
because every command starts a process.
"""
