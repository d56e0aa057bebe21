"""A scheduler on each database, to relay the events of; and a broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import servers
from tests.certificates import Authority, why_no_certificates
from tests.scheduler.conftest import world  # noqa: F401 - a fixture


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The one that has signed the broker's certificate."""
    if (why := why_no_certificates()) is not None:
        pytest.skip(why)
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def broker_process(authority: Authority) -> Iterator[servers.RabbitMQ]:
    if (why := servers.why_no_rabbitmq()) is not None:
        pytest.skip(f"RabbitMQ: {why}; run tools/install-servers")
    started = servers.rabbitmq(authority.certificate("IP:127.0.0.1"))
    yield started
    started.stop()


@pytest.fixture
def broker(broker_process: servers.RabbitMQ) -> servers.RabbitMQ:
    """A running RabbitMQ; a test that has ended it leaves it to the next one to start."""
    if broker_process.process is None or broker_process.process.poll() is not None:
        broker_process.start()
    return broker_process
