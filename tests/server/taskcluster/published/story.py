"""Runs inside the virtual environment of the published Python client, with nothing of this package.

Reads what to do from standard input as JSON, calls the server through the client, and prints the answers as JSON.
"""

import base64
import json
import sys
import time

import taskcluster  # type: ignore[import-not-found]

# Python 3.9 removed the old name, which the client uses for Hawk.
if not hasattr(base64, "encodestring"):
    base64.encodestring = base64.encodebytes  # type: ignore[attr-defined]

given = json.load(sys.stdin)
scheduler = taskcluster.Scheduler({"baseUrl": given["url"], "credentials": given["credentials"], "maxRetries": 0})
graph, told = given["graph"], {}


def refused(call, *args):
    try:
        return {"answer": call(*args)}
    except taskcluster.exceptions.TaskclusterFailure as error:
        return {"status": error.status_code, "body": error.body, "kind": type(error).__name__}


told["ping"] = scheduler.ping()
told["created"] = refused(scheduler.createTaskGraph, graph, given["document"])
if "answer" in told["created"]:
    told["again"] = scheduler.createTaskGraph(graph, given["document"])
    told["other"] = refused(scheduler.createTaskGraph, graph, dict(given["document"], scopes=["other"]))
    told["wrong"] = refused(scheduler.createTaskGraph, graph + "x", {"tasks": []})
    told["unknown"] = refused(scheduler.status, "unknown")
    told["extended"] = scheduler.extendTaskGraph(graph, {"tasks": given["more"]})
    told["before"] = scheduler.inspect(graph)
    open(given["go"], "w").close()
    while scheduler.status(graph)["status"]["state"] == "running":
        time.sleep(0.05)
    told["status"] = scheduler.status(graph)
    told["info"] = scheduler.info(graph)
    told["inspect"] = scheduler.inspect(graph)
    told["task"] = scheduler.inspectTask(graph, given["more"][0]["taskId"])
print(json.dumps(told))
