"""zookeeper-shell.sh: there is no ZooKeeper any more; here is what to use instead."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ADVICE = """\
There is no ZooKeeper here: since Kafka 4.0 the brokers keep the cluster's metadata themselves (KRaft).

What was asked of ZooKeeper            is asked like this now
ls /brokers/ids                        kafka-broker-api-versions.sh --bootstrap-server localhost:9092
get /brokers/ids/1                     kafka-cluster.sh list-endpoints --bootstrap-server localhost:9092
ls /brokers/topics                     kafka-topics.sh --bootstrap-server localhost:9092 --list
get /brokers/topics/NAME               kafka-topics.sh --bootstrap-server localhost:9092 --describe --topic NAME
get /config/topics/NAME                kafka-configs.sh --bootstrap-server localhost:9092 --describe --topic NAME
get /controller                        kafka-metadata-quorum.sh --bootstrap-server localhost:9092 describe --status
get /cluster/id                        kafka-cluster.sh cluster-id --bootstrap-server localhost:9092
anything else                          kafka-metadata-shell.sh --snapshot DATA/__cluster_metadata-0/<file>.log
"""


def main(argv: Sequence[str] | None = None) -> int:
    print(ADVICE, end="", file=sys.stderr)
    return 1
