"""Validate a graph before anything is stored: its tasks get ids, and every node a digest of how it was sent."""

from collections.abc import Sequence

from msgspec import Struct

from myrmidon.model.dag import Dag, build_dag
from myrmidon.model.errors import InvalidRequest, Problem
from myrmidon.model.ids import IdSource, Micros, show_task
from myrmidon.model.job import Graph
from myrmidon.model.job_document import labels_of, parse_graph
from myrmidon.model.limits import DEFAULT_LIMITS, Limits
from myrmidon.scheduler.idempotency import check_key
from myrmidon.scheduler.new_tasks import digest_of
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules
from myrmidon.scheduler.resume import scopes_of


class JobDraft(Struct, frozen=True, kw_only=True):
    """A validated graph with the ids that its job and its tasks will have."""

    job_id: int
    task_ids: dict[str, int]
    graph: Graph
    dag: Dag
    definitions: dict[str, str]
    scopes: Sequence[str | None]
    request_key: str | None = None
    body_hash: str = ""
    authenticated: str = ""
    resume: bool = False
    """Attach to the job with the external id of the graph, or supersede it."""


def draft_job(
    raw: object,
    *,
    now: Micros,
    ids: IdSource,
    request_key: str | None = None,
    authenticated: str = "",
    limits: Limits = DEFAULT_LIMITS,
    rules: Rules = DEFAULT_RULES,
    original: object = None,
    resume: bool = False,
) -> JobDraft:
    """Validate an untyped graph, assign ids to its tasks and apply ``$subs``.

    ``original`` is the document as the caller sent it, if ``raw`` was made from it by rules that may change: it decides
    whether a later call repeats this one.
    """
    if request_key is not None:
        check_key(request_key)
    labels = labels_of(raw)
    job_id, *task_ids = ids.block(1 + len(labels), now)
    by_label = dict(zip(labels, task_ids, strict=True))
    graph = parse_graph(raw, limits, {label: show_task(task_id) for label, task_id in by_label.items()}, {})
    if resume and graph.external_id is None:
        raise InvalidRequest([Problem("external_id", "null", "the id of the job to resume", "required")])
    dag = build_dag(graph)
    return JobDraft(
        job_id=job_id,
        task_ids=by_label,
        graph=graph,
        dag=dag,
        scopes=scopes_of(graph, dag),
        definitions=definitions_of(raw if original is None else original, rules),
        request_key=request_key,
        body_hash=digest_of(raw if original is None else original, rules.secret_key),
        authenticated=authenticated,
        resume=resume,
    )


def definitions_of(raw: object, rules: Rules) -> dict[str, str]:
    """A digest of every node as it was sent, so that an extension can distinguish repeated from changed nodes."""
    tasks = raw.get("tasks") if isinstance(raw, dict) else None
    if isinstance(tasks, dict):
        return {label: digest_of(node, rules.secret_key) for label, node in tasks.items() if isinstance(label, str)}
    nodes = [node for node in tasks if isinstance(node, dict)] if isinstance(tasks, list) else []
    return {
        node["label"]: digest_of({k: v for k, v in node.items() if k != "label"}, rules.secret_key)
        for node in nodes
        if isinstance(node.get("label"), str)
    }
