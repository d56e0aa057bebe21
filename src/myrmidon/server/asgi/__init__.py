"""The HTTP side of the server, and the only package that knows the web framework.

``routes.py`` collects the route table, ``app.py`` finds the endpoint of a path, and ``endpoint.py`` admits a call,
runs its handler and answers. ``decoding.py`` makes structs of headers, queries and bodies (``request_bodies.py``),
``openapi.py`` describes the table, and ``protocol.py`` is the connection.
"""
