"""The server: HTTP in front of the scheduler, and what a process needs around it.

``process.py`` starts it: it reads ``settings.py``, opens a ``context.py`` (the database, the keys, the hub of callers
that wait), and serves ``asgi``. A call enters at ``asgi/endpoint.py``, which makes a ``calls.Call`` of it, and is
answered by a handler of ``api``, ``botapi``, ``web`` or a facade (``facades.py``). What has no caller is done by
``background``.
"""
