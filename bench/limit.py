"""A server that does nothing, for what no broker can be faster than: the client, the kernel and the two cores they share.

It knows three APIs, of which it says that they have one version each, and a topic of one partition.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench import drivers
from harness import HOST, Server
from ottla.wire.codec import encode
from ottla.wire.messages.cluster import ApiVersionsResponse
from ottla.wire.messages.metadata import MetadataResponse
from ottla.wire.messages.produce import ProduceResponse
from ottla.wire.schema import Message

TOPIC = "paced"
NODE = 1
# The last versions before the flexible ones, because their answers have the same head as that of ApiVersions.
VERSIONS: dict[type[Message], int] = {ProduceResponse: 7, MetadataResponse: 8, ApiVersionsResponse: 3}


class Nothing(Server):
    name = "nothing"

    def command(self) -> Sequence[str]:
        words = [str(drivers.BUILT / "nothing"), str(self.port)]
        self.directory.mkdir(parents=True, exist_ok=True)
        for answer in (_stored(), self._described(), _served()):
            path = self.directory / type(answer).__name__
            path.write_bytes(encode(answer, VERSIONS[type(answer)]))
            words += [str(type(answer).key), str(path)]
        return words

    def _described(self) -> MetadataResponse:
        topic = MetadataResponse.Topic
        partition = topic.Partition(partition_index=0, leader_id=NODE, replica_nodes=[NODE], isr_nodes=[NODE])
        broker = MetadataResponse.Broker(node_id=NODE, host=HOST, port=self.port)
        topics = [topic(name=TOPIC, partitions=[partition])]
        return MetadataResponse(brokers=[broker], cluster_id="nothing", controller_id=NODE, topics=topics)


def _stored() -> ProduceResponse:
    topic = ProduceResponse.Topic
    return ProduceResponse(responses=[topic(name=TOPIC, partition_responses=[topic.Partition(index=0)])])


def _served() -> ApiVersionsResponse:
    served = ApiVersionsResponse.ApiVersion
    return ApiVersionsResponse(
        api_keys=[served(api_key=kind.key, min_version=low, max_version=low) for kind, low in VERSIONS.items()]
    )
