"""The web page: its files (``pages.py``) and logging in to it (``login.py``)."""
