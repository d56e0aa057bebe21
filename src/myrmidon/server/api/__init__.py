"""The native HTTP API under /api/v1, one module per noun; its structs are in ``wire``.

A module has a list ``ROUTES``, and each handler its route before it. A handler takes the context and a decoded call,
reads or writes in one transaction, and returns a struct. What another API needs too is in ``usecases``.
"""
