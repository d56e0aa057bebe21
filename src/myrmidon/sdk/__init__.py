"""The client library: calls a server over HTTP; of the rest it imports ``wire`` and ``functions``.

People construct ``client.Client``. It has a method for each call of the server (``api/``, over ``transport.py``), makes
handles of jobs (``jobs.py``), and submits calls of Python functions: ``pending_calls.py`` gathers single calls into
jobs, ``new_job.py`` builds a graph, ``job_sender.py`` sends both with their code, and ``result_stream.py`` reads the
results. ``async_client.AsyncClient`` is the same for asyncio.
"""
