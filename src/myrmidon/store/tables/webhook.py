"""Webhooks, and the queue and log of their deliveries.

A delivery is added once per webhook and event. The pending deliveries of a webhook are sent in the order of their
events by the server that has the webhook's lease; ended ones stay for a while as a log.
"""

from collections.abc import Sequence

from msgspec import Struct, structs

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert
from myrmidon.store.tables import outbox, sink

SINK = "webhooks"
"""The name of the sink whose events are queued for webhooks."""
PENDING = "pending"
DELIVERED = "delivered"
FAILED = "failed"


class Webhook(Struct, frozen=True):
    """A URL that gets the messages of a resource group. ``kinds`` is a JSON list; an empty one means all kinds."""

    id: int
    resource_group_id: int
    url: str
    kinds: str
    created_at: Micros
    after_position: int
    """Events up to this position were before the webhook."""
    next_at: Micros | None = None
    num_pending: int = 0
    num_failures: int = 0
    """Failed attempts since the last successful one."""
    num_dropped: int = 0
    """Messages that were not queued because too many waited."""


class Delivery(Struct, frozen=True):
    """One message for one webhook."""

    webhook_id: int
    position: int
    message_id: str
    kind: str
    body: str
    state: str
    queued_at: Micros
    num_attempts: int = 0
    attempted_at: Micros | None = None
    status: int | None = None
    error: str | None = None


_COLUMNS = ", ".join(Webhook.__struct_fields__)
_WEBHOOKS = Insert("webhooks", _COLUMNS)
_DELIVERY_COLUMNS = ", ".join(Delivery.__struct_fields__)
_DELIVERIES = Insert("webhook_deliveries", _DELIVERY_COLUMNS)
ANY = "SELECT id FROM webhooks LIMIT 1"
READ = f"SELECT {_COLUMNS} FROM webhooks WHERE id = :id"
ALL = f"SELECT {_COLUMNS} FROM webhooks ORDER BY id"
OF_GROUP = f"SELECT {_COLUMNS} FROM webhooks WHERE resource_group_id = :resource_group ORDER BY id"


def any_stored(tx: Tx) -> bool:
    return tx.one(ANY) is not None


def insert(tx: Tx, webhook: Webhook) -> Webhook:
    """Add a webhook that gets the events from now on; the stored one if its id exists."""
    if not any_stored(tx):
        sink.begin_with_next(tx, SINK)  # nobody wanted the events since the last webhook was deleted
    tx.insert_new(_WEBHOOKS, [structs.astuple(structs.replace(webhook, after_position=outbox.newest(tx)))])
    return read(tx, webhook.id) or webhook


def read(tx: Tx, webhook_id: int) -> Webhook | None:
    row = tx.one(READ, id=webhook_id)
    return Webhook(*row) if row else None


def all_stored(tx: Tx) -> list[Webhook]:
    return [Webhook(*row) for row in tx.all(ALL)]


def of_group(tx: Tx, group_id: int) -> list[Webhook]:
    return [Webhook(*row) for row in tx.all(OF_GROUP, resource_group=group_id)]


DELETE = "DELETE FROM webhooks WHERE id = :id"
DELETE_DELIVERIES = "DELETE FROM webhook_deliveries WHERE webhook_id = :id"


def delete(tx: Tx, webhook_id: int) -> None:
    """Delete a webhook with its deliveries."""
    tx.run(DELETE, id=webhook_id)
    tx.run(DELETE_DELIVERIES, id=webhook_id)


def delete_of_group(tx: Tx, group_id: int) -> None:
    for webhook in of_group(tx, group_id):
        delete(tx, webhook.id)


# ---------------------------------------------------------------- queue

LOCK = f"SELECT {_COLUMNS} FROM webhooks WHERE id = :id {{for_update}}"
QUEUED = """
    UPDATE webhooks SET num_pending = num_pending + :added, num_dropped = num_dropped + :dropped WHERE id = :id
"""
WAKE = "UPDATE webhooks SET next_at = :now WHERE id = :id AND next_at IS NULL AND num_pending > 0"
QUEUED_POSITIONS = """
    SELECT position FROM webhook_deliveries WHERE webhook_id = :id AND position {in:positions}
"""


def enqueue(tx: Tx, webhook_id: int, deliveries: Sequence[Delivery], *, most: int, now: Micros) -> int:
    """Queue deliveries in order, while fewer than ``most`` wait; how many were dropped. A repetition adds nothing."""
    row = tx.one(LOCK, id=webhook_id)
    if row is None:
        return 0
    positions = [delivery.position for delivery in deliveries]
    known = {found[0] for found in tx.all(QUEUED_POSITIONS, id=webhook_id, positions=positions)}
    new = [delivery for delivery in deliveries if delivery.position not in known]
    room = max(0, most - Webhook(*row).num_pending)
    tx.insert(_DELIVERIES, [structs.astuple(delivery) for delivery in new[:room]])
    dropped = len(new[room:])
    tx.run(QUEUED, id=webhook_id, added=len(new[:room]), dropped=dropped)
    tx.run(WAKE, id=webhook_id, now=now)
    return dropped


DUE = "SELECT id FROM webhooks WHERE next_at <= :now ORDER BY next_at LIMIT :n"
LEASE = """
    UPDATE webhooks SET holder = :holder, held_until = :until
     WHERE id = :id AND next_at <= :now AND (holder IS NULL OR holder = :holder OR held_until < :now)
"""
RELEASE = "UPDATE webhooks SET holder = NULL, held_until = NULL WHERE id = :id AND holder = :holder"
PENDING_OF = f"""
    SELECT {_DELIVERY_COLUMNS} FROM webhook_deliveries
     WHERE webhook_id = :id AND state = 'pending' ORDER BY position LIMIT :n
"""


def due(tx: Tx, now: Micros, n: int) -> list[int]:
    """Webhooks to which something is to be sent now."""
    return [row[0] for row in tx.all(DUE, now=now, n=n)]


def lease(tx: Tx, webhook_id: int, holder: int, *, now: Micros, until: Micros) -> Webhook | None:
    """Take or renew the lease of a webhook that is due; None while another server has it, or if nothing is due."""
    leased = tx.run(LEASE, id=webhook_id, holder=holder, now=now, until=until)
    return read(tx, webhook_id) if leased else None


def release(tx: Tx, webhook_id: int, holder: int) -> None:
    tx.run(RELEASE, id=webhook_id, holder=holder)


def pending(tx: Tx, webhook_id: int, n: int) -> list[Delivery]:
    """The next n deliveries, in the order of their events."""
    return [Delivery(*row) for row in tx.all(PENDING_OF, id=webhook_id, n=n)]


HOLD = "UPDATE webhooks SET held_until = :until, num_failures = :failures WHERE id = :id AND holder = :holder"
ATTEMPT = """
    UPDATE webhook_deliveries
       SET state = :state, num_attempts = num_attempts + 1, attempted_at = :now, status = :status, error = :error
     WHERE webhook_id = :id AND position = :position AND state = 'pending'
"""
EXPIRE = """
    UPDATE webhook_deliveries SET state = 'failed'
     WHERE webhook_id = :id AND state = 'pending' AND queued_at < :before
"""
ENDED = "UPDATE webhooks SET num_pending = num_pending - :n WHERE id = :id"
NEXT_AT = "UPDATE webhooks SET next_at = :next_at WHERE id = :id"
IDLE = "UPDATE webhooks SET next_at = NULL WHERE id = :id AND num_pending <= 0"


def delivered(tx: Tx, delivery: Delivery, holder: int, *, status: int | None, now: Micros, until: Micros) -> bool:
    """Record a successful delivery and renew the lease; False when another server has it."""
    if not tx.run(HOLD, id=delivery.webhook_id, holder=holder, until=until, failures=0):
        return False
    _attempt(tx, delivery, DELIVERED, status, None, now)
    return True


def attempt_failed(
    tx: Tx,
    webhook: Webhook,
    delivery: Delivery,
    holder: int,
    *,
    status: int | None,
    error: str,
    now: Micros,
    next_at: Micros,
    expire_before: Micros,
) -> bool:
    """Record a failed attempt and when to try again; give up what has waited since before ``expire_before``."""
    if not tx.run(HOLD, id=webhook.id, holder=holder, until=now, failures=webhook.num_failures + 1):
        return False
    _attempt(tx, delivery, PENDING, status, error, now)
    tx.run(ENDED, id=webhook.id, n=tx.run(EXPIRE, id=webhook.id, before=expire_before))
    tx.run(NEXT_AT, id=webhook.id, next_at=next_at)
    tx.run(IDLE, id=webhook.id)
    return True


def _attempt(tx: Tx, delivery: Delivery, state: str, status: int | None, error: str | None, now: Micros) -> None:
    changed = tx.run(
        ATTEMPT, id=delivery.webhook_id, position=delivery.position, state=state, status=status, error=error, now=now
    )
    if state != PENDING and changed:
        tx.run(ENDED, id=delivery.webhook_id, n=1)
        tx.run(IDLE, id=delivery.webhook_id)


# ---------------------------------------------------------------- log

LOG = f"""
    SELECT {_DELIVERY_COLUMNS} FROM webhook_deliveries
     WHERE webhook_id = :id AND position < :before ORDER BY position DESC LIMIT :n
"""
REPLAY = """
    UPDATE webhook_deliveries SET state = 'pending', queued_at = :now
     WHERE webhook_id = :id AND position = :position AND state <> 'pending'
"""
READ_DELIVERY = f"""
    SELECT {_DELIVERY_COLUMNS} FROM webhook_deliveries WHERE webhook_id = :id AND position = :position
"""
OLD = """
    SELECT position FROM webhook_deliveries
     WHERE webhook_id = :id AND state <> 'pending' AND queued_at < :before ORDER BY position LIMIT :n
"""
DELETE_OLD = "DELETE FROM webhook_deliveries WHERE webhook_id = :id AND position {in:positions}"


def log(tx: Tx, webhook_id: int, *, before: int, n: int) -> list[Delivery]:
    """A page of the deliveries of a webhook, newest first."""
    return [Delivery(*row) for row in tx.all(LOG, id=webhook_id, before=before, n=n)]


def read_delivery(tx: Tx, webhook_id: int, position: int) -> Delivery | None:
    row = tx.one(READ_DELIVERY, id=webhook_id, position=position)
    return Delivery(*row) if row else None


def replay(tx: Tx, webhook_id: int, position: int, now: Micros) -> None:
    """Queue an ended delivery again; one that waits is left as it is."""
    tx.one(LOCK, id=webhook_id)
    if tx.run(REPLAY, id=webhook_id, position=position, now=now):
        tx.run(QUEUED, id=webhook_id, added=1, dropped=0)
        tx.run(WAKE, id=webhook_id, now=now)


def delete_old(tx: Tx, webhook_id: int, before: Micros, n: int) -> int:
    """Delete up to n ended deliveries that were queued before a time; how many."""
    positions = [row[0] for row in tx.all(OLD, id=webhook_id, before=before, n=n)]
    if positions:
        tx.run(DELETE_OLD, id=webhook_id, positions=positions)
    return len(positions)


BACKLOG = "SELECT COALESCE(SUM(num_pending), 0), COALESCE(SUM(num_dropped), 0) FROM webhooks"


def backlog(tx: Tx) -> tuple[int, int]:
    """How many deliveries wait, and how many messages were dropped, over all webhooks."""
    row = tx.one(BACKLOG)
    return (int(row[0]), int(row[1])) if row else (0, 0)
