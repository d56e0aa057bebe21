"""Which nodes of a graph would be answered by earlier results if it were submitted now, and why the others would run.

Keys depend on the bytes of inputs, so nodes are looked up layer by layer: when a node is answered, its outputs are
known, and so are the inputs of its children. A node that reads the result of one that runs cannot be predicted: it is
answered if that result turns out to be as before. Reads without locks and changes nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from myrmidon.model.ids import Micros
from myrmidon.model.job import Node
from myrmidon.model.states import FINAL, SUCCEEDED
from myrmidon.model.task_request import (
    Constant,
    Gathered,
    Input,
    OutputOf,
    Payload,
    Shared,
    TaskRequest,
    dedupe_key,
    properties_json,
)
from myrmidon.model.value import Value
from myrmidon.scheduler.dedupe import work_hash
from myrmidon.scheduler.job_draft import JobDraft
from myrmidon.scheduler.new_tasks import slice_texts
from myrmidon.scheduler.policy import Rules
from myrmidon.scheduler.resume import attached
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import dedupe, shared_value, task_request
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables import value as values
from myrmidon.store.views import job_details

_NO_SHAPE = Payload(inline=b"", size=0)


class Why(StrEnum):
    """Why a node would run."""

    ANSWERED = "answered"
    NOT_IDEMPOTENT = "not_idempotent"
    INSTALLED_CODE = "installed_code"
    INPUT_UNKNOWN = "input_unknown"
    NEW = "new"
    NOT_SUCCEEDED = "not_succeeded"
    CODE = "code"
    DEFINITION = "definition"
    INPUTS = "inputs"
    NO_RESULT = "no_result"
    IN_PROGRESS = "in_progress"


class Prediction(Struct, frozen=True):
    """``source``: the task that answers a node. ``parent``: the node that runs and whose result it reads."""

    source: int | None
    why: Why
    parent: str = ""


class Plan(Struct, frozen=True):
    """``attached``: the job that has the same document. ``earlier``: the one that would be superseded."""

    attached: int | None
    earlier: int | None
    nodes: list[Prediction]


def predict(tx: Tx, group_id: int, draft: JobDraft, *, now: Micros, rules: Rules) -> Plan:
    """The prediction of each node of a draft."""
    external_id = draft.graph.external_id if draft.resume else None
    earlier = jobs.by_external(tx, group_id, external_id) if external_id is not None else None
    same = attached(tx, group_id, external_id, draft.body_hash, now=now)
    if same is not None:
        return Plan(same, None if same == earlier else earlier, _attached_nodes(tx, same, draft))
    return Plan(None, earlier, _Predictor(tx, group_id, draft, earlier, now, rules).all())


def _attached_nodes(tx: Tx, job_id: int, draft: JobDraft) -> list[Prediction]:
    """What happens to the nodes of a job that goes on: what has succeeded stays, and what has failed runs again."""
    tasks = job_details.tasks_by_label(tx, job_id, [node.label for node in draft.graph.nodes])
    predictions = []
    for node in draft.graph.nodes:
        task = tasks.get(node.label)
        if task is not None and task.state == SUCCEEDED:
            predictions.append(Prediction(task.id, Why.ANSWERED))
        else:
            failed = task is not None and task.state in FINAL
            predictions.append(Prediction(None, Why.NOT_SUCCEEDED if failed else Why.IN_PROGRESS))
    return predictions


class _Predictor:
    """Looks up the nodes of one draft."""

    def __init__(self, tx: Tx, group_id: int, draft: JobDraft, earlier: int | None, now: Micros, rules: Rules) -> None:
        self.tx = tx
        self.group_id = group_id
        self.draft = draft
        self.earlier = earlier
        self.since = now - rules.dedupe_window
        self.rules = rules
        self.nodes = {node.label: node for node in draft.graph.nodes}
        self.scopes = {node.label: scope for node, scope in zip(draft.graph.nodes, draft.scopes, strict=True)}
        self.found: dict[str, Prediction] = {}
        self.outputs: dict[str, list[Value]] = {}
        """The outputs of nodes that are answered."""
        self.shared = self._shared_values()

    def all(self) -> list[Prediction]:
        for layer in self._layers():
            self._look_up(layer)
        self._compare([label for label, one in self.found.items() if one.why == Why.NO_RESULT])
        return [self.found[node.label] for node in self.draft.graph.nodes]

    def _layers(self) -> list[list[Node]]:
        """The nodes by the length of the longest path of values to them."""
        depth: dict[str, int] = {}
        layers: list[list[Node]] = []
        for index in self.draft.dag.order:
            node = self.draft.graph.nodes[index]
            mine = depth[node.label] = 1 + max((depth[label] for label in _labels_read(node)), default=-1)
            if mine == len(layers):
                layers.append([])
            layers[mine].append(node)
        return layers

    # -- looking up

    def _look_up(self, layer: Iterable[Node]) -> None:
        keys: dict[str, list[str]] = {}
        for node in layer:
            prediction = self._without_look_up(node)
            if prediction is not None:
                self.found[node.label] = prediction
            else:
                keys[node.label] = self._keys(node)
        every_key = sorted({key for several in keys.values() for key in several})
        sources = dedupe.find(self.tx, every_key, self.since) if every_key else {}
        chosen = {label: self._choose(label, several, sources) for label, several in keys.items()}
        produced = self._produced({label: one for label, one in chosen.items() if one is not None})
        for label, source in chosen.items():
            if source is None or label not in produced:
                self.found[label] = Prediction(None, Why.NO_RESULT)
            else:
                self.found[label] = Prediction(source, Why.ANSWERED)
                self.outputs[label] = produced[label]

    def _without_look_up(self, node: Node) -> Prediction | None:
        request = node.request
        if not any(piece.properties.idempotent for piece in request.slices) and not self._resumes(node):
            return Prediction(None, self._why_not_asked(node))
        running = [label for label in _labels_read(node) if self.found[label].source is None]
        return Prediction(None, Why.INPUT_UNKNOWN, running[0]) if running else None

    def _why_not_asked(self, node: Node) -> Why:
        """Why no earlier result is looked for."""
        function = node.request.function
        if self.draft.resume and self.scopes[node.label] is not None:
            return Why.NO_RESULT  # the first job with this external id
        return Why.INSTALLED_CODE if self.earlier is not None and function is not None else Why.NOT_IDEMPOTENT

    def _resumes(self, node: Node) -> bool:
        return self.earlier is not None and self.scopes[node.label] is not None

    def _keys(self, node: Node) -> list[str]:
        """The dedupe key of each slice that an earlier result may answer."""
        request = node.request
        inputs = [self._value(given) for given in request.inputs]
        if None in inputs:
            return []
        known = [value for value in inputs if value is not None]
        keys = []
        for piece, (_, hashed) in zip(request.slices, slice_texts(request, self.rules), strict=True):
            properties = piece.properties
            if not properties.idempotent and not self._resumes(node):
                continue
            scope = None if properties.idempotent else self.scopes[node.label]
            pool = properties.dimensions.get("pool", [""])[0]
            work = work_hash(hashed, known)
            keys.append(dedupe_key(work, self.group_id, pool, request.service_account, scope))
        return keys

    def _value(self, given: Input) -> Value | None:
        """An input as it will be stored; None if its content does not exist."""
        match given:
            case Constant(type=kind, payload=payload):
                return _stored(kind, payload)
            case Shared(shared_value_id=shared_id):
                return self.shared.get(shared_id)
            case OutputOf(label=label, position=position):
                return self.outputs[label][position]
            case Gathered(type=kind, parts=parts, shape=shape):
                several = [self.outputs[part.label][part.position] for part in parts]
                return _stored(kind, shape or _NO_SHAPE, several)

    def _choose(self, label: str, keys: Sequence[str], found: Mapping[str, Sequence[dedupe.Found]]) -> int | None:
        several = next((found[key] for key in keys if key in found), [])
        if len(several) > 1:
            labels = job_details.labels_of(self.tx, [one.task_id for one in several])
            several = [one for one in several if labels.get(one.task_id) == label] or several
        return several[-1].task_id if several else None

    def _produced(self, sources: Mapping[str, int]) -> dict[str, list[Value]]:
        """The outputs of the chosen tasks, as far as they are complete."""
        outputs = values.outputs(self.tx, sorted(set(sources.values()))) if sources else {}
        own = sorted({row[1] for rows in outputs.values() for row in rows})
        read = values.read(self.tx, own) if own else {}
        shared_ids = sorted({row[2] for rows in outputs.values() for row in rows if row[2] is not None})
        shared = self._read_shared(shared_ids)
        complete = {}
        for label, source in sources.items():
            rows = outputs.get(source, [])
            made = [shared.get(row[2]) if row[2] is not None else read.get(row[1]) for row in rows]
            known = [value for value in made if value is not None and value.size is not None]
            if len(known) == len(self.nodes[label].request.outputs):
                complete[label] = known
        return complete

    def _shared_values(self) -> dict[int, Value]:
        """The shared values that nodes read. Those of other groups are left out: nobody may learn what they contain."""
        given = [one for node in self.draft.graph.nodes for one in node.request.inputs if isinstance(one, Shared)]
        ids = sorted({one.shared_value_id for one in given})
        if not ids:
            return {}
        own = shared_value.referenced_by_group(self.tx, ids, self.group_id)
        return self._read_shared(sorted(own | shared_value.referenced_in_group(self.tx, ids, self.group_id)))

    def _read_shared(self, ids: Sequence[int]) -> dict[int, Value]:
        found = shared_value.read(self.tx, ids) if ids else {}
        return {one.id: Value(one.id, one.type, one.payload, one.digest, one.size) for one in found.values()}

    # -- why not

    def _compare(self, labels: Sequence[str]) -> None:
        """Say in what nodes without an earlier result differ from those of the earlier revision."""
        if self.earlier is None or not labels:
            return
        tasks = job_details.tasks_by_label(self.tx, self.earlier, labels)
        ids = sorted(task.id for task in tasks.values())
        requests = task_request.read(self.tx, ids) if ids else {}
        slices = task_request.slices(self.tx, ids) if ids else {}
        for label in labels:
            task = tasks.get(label)
            if task is None:
                why = Why.NEW
            elif task.state != SUCCEEDED:
                why = Why.NOT_SUCCEEDED
            else:
                why = _difference(self.nodes[label].request, requests[task.id], slices[task.id])
            self.found[label] = Prediction(None, why)


def _difference(request: TaskRequest, stored: task_request.RequestRow, slices: Sequence[task_request.SliceRow]) -> Why:
    """In what a request differs from a stored one; INPUTS if nothing else does."""
    function = request.function
    if function is not None and (function.identity or function.code) != (stored.identity or stored.code):
        return Why.CODE
    called = (function.package_name, function.func_name, function.signature or None) if function else (None, None, None)
    same = called == (stored.package_name, stored.func_name, stored.signature)
    texts = [properties_json(piece.properties) for piece in request.slices]
    if not same or texts != [piece.properties for piece in slices]:
        return Why.DEFINITION
    return Why.INPUTS


def _labels_read(node: Node) -> list[str]:
    labels: dict[str, None] = {}
    for given in node.request.inputs:
        if isinstance(given, OutputOf):
            labels[given.label] = None
        elif isinstance(given, Gathered):
            labels.update(dict.fromkeys([part.label for part in given.parts]))
    return list(labels)


def _stored(kind: str, payload: Payload, parts: Sequence[Value] | None = None) -> Value:
    return Value(0, kind, payload.inline, payload.digest, payload.size, parts)
