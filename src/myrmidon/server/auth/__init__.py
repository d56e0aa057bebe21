"""Who calls, and from where.

``authenticator.py`` makes an identity of a token, a bot's credential, a session (``sessions.py``, ``cookies.py``), a
run's token (``run_tokens.py``), a Hawk signature (``hawk.py``) or an address. ``origins.py`` refuses calls that a page
of another site has made a browser send.
"""
