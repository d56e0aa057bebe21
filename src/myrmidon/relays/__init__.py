"""Relays deliver the events of the outbox to systems outside of Myrmidon, at least once and in order.

``messages.py`` makes messages of events; a relay publishes them to RabbitMQ (``amqp.py``) or posts them to webhooks
(``webhooks.py``). The scheduler knows nothing of them.
"""
