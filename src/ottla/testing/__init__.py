"""A real broker inside your tests.

    from ottla.testing import broker

    def test_orders():
        with broker() as b:
            producer = Producer({"bootstrap.servers": b.bootstrap})
            ...

With pytest there is nothing to import: the fixtures `kafka_broker` and `kafka_topic` come with the installation.
"""

from ottla.testing.broker import Broker, broker
from ottla.testing.faults import Faults

__all__ = ["Broker", "Faults", "broker"]
