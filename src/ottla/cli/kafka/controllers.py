"""A cluster as it looks from the listener of its controllers (KIP-919), where nobody knows of topics."""

from __future__ import annotations

from ottla.client.cluster import Cluster
from ottla.client.connection import Connection, check
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.cluster import DescribeClusterRequest, DescribeClusterResponse

CONTROLLERS = 2


class Controllers(Cluster):
    """Requests go to controllers; which there are is learned when the block is entered."""

    async def __aenter__(self) -> Controllers:
        await super().__aenter__()
        request = DescribeClusterRequest(endpoint_type=CONTROLLERS)
        answer: DescribeClusterResponse = await (await self.any()).request(request)
        check(answer.error_code, answer.error_message)
        self.cluster_id = answer.cluster_id
        self.brokers = {node.broker_id: (node.host, node.port) for node in answer.brokers}
        return self

    async def broker(self, node_id: int) -> Connection:
        if node_id not in self.brokers:
            raise KafkaError(Error.BROKER_NOT_AVAILABLE, f"there is no controller {node_id}")
        return await super().broker(node_id)
