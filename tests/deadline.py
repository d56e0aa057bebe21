"""The one deadline of the tests.

A test waits for a condition, and never for a time that is usually enough. ``HANG_S`` is only there so that something
that never happens fails the test: it is much longer than anything takes on a slow and busy machine. Nothing asserts
that something took less than so many seconds. What must be answered at once is asked with ``POLL_S``, which is longer:
if the answer came in time at all, it was not the end of the poll that brought it.
"""

from __future__ import annotations

HANG_S = 100.0
POLL_S = 120.0
"""As long as the server holds a poll at most."""
