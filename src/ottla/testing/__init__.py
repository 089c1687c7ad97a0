"""A real broker inside your tests.

    from ottla.testing import broker

    def test_orders():
        with broker() as b:
            producer = Producer({"bootstrap.servers": b.bootstrap})
            ...

`cluster(3)` is the same with three brokers, which can be killed and started again.

With pytest there is nothing to import: the fixtures `kafka_broker` and `kafka_topic` come with the installation.
"""

from ottla.testing.broker import Broker, broker
from ottla.testing.cluster import Cluster, cluster
from ottla.testing.faults import Faults

__all__ = ["Broker", "Cluster", "Faults", "broker", "cluster"]
