"""A scheduler on each database, to relay the events of; and a broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import servers
from tests.scheduler.conftest import world  # noqa: F401 - a fixture


@pytest.fixture(scope="session")
def broker_process() -> Iterator[servers.RabbitMQ]:
    if (why := servers.why_no_rabbitmq()) is not None:
        pytest.skip(f"RabbitMQ: {why}; run tools/install-servers")
    started = servers.rabbitmq()
    yield started
    started.stop()


@pytest.fixture
def broker(broker_process: servers.RabbitMQ) -> servers.RabbitMQ:
    """A running RabbitMQ; a test that has ended it leaves it to the next one to start."""
    if broker_process.process is None or broker_process.process.poll() is not None:
        broker_process.start()
    return broker_process
