"""Typed Python functions as tasks: what clients and bots share. Standard library only, Python 3.8.

``task_function.py`` is ``@task``; ``signature.py`` and ``types.py`` make type strings of annotations, ``values.py``
encodes values by them. ``graph_builder.py`` records calls as nodes of a graph, whose results are ``handles.py``. On a
bot, ``context.py`` is what a function sees of its run.
"""
