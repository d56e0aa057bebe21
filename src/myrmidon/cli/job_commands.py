"""All commands of `myrmidon job`, which are in several modules."""

from myrmidon.cli.job_diff import diff
from myrmidon.cli.job_log import log
from myrmidon.cli.job_notes import annotate, meta
from myrmidon.cli.job_views import graph, tree
from myrmidon.cli.job_watch import watch
from myrmidon.cli.job_why import why
from myrmidon.cli.jobs import job

for command in (tree, graph, diff, log, watch, why, annotate, meta):
    job.add_command(command)

__all__ = ["job"]
