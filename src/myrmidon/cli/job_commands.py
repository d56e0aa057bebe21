"""All commands of `myrmidon job`, which are in several modules."""

from myrmidon.cli.job_views import graph, log, tree
from myrmidon.cli.job_watch import watch
from myrmidon.cli.job_why import why
from myrmidon.cli.jobs import job

for command in (tree, graph, log, watch, why):
    job.add_command(command)

__all__ = ["job"]
