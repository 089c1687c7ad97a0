"""Writing records: the one request every producer lives by."""

from ottla.wire import schema
from ottla.wire.errors import KafkaError
from ottla.wire.schema import Message, Struct, int16, int32, int64, string, uuid, v


class ProduceRequest(Message, key=0, versions="3-13", flexible="9+"):
    """Record batches to append, per partition.

    With acks=0 there is no answer at all. Version 4 allows KAFKA_STORAGE_ERROR in the answer, 7 zstd (KIP-110), 8
    errors per record (KIP-467), 10 leader hints in the answer (KIP-951), 11 TRANSACTION_ABORTABLE and 12 transactions
    without AddPartitionsToTxn (KIP-890), 13 topic ids (KIP-516). Versions 0-2 are gone, though a broker must still
    list them for librdkafka (KAFKA-18659).
    """

    class Topic(Struct):
        class Partition(Struct):
            index: int32 = v("0+")
            records: schema.records = v("0+", nullable="0+")

        name: string = v("0-12")
        topic_id: uuid = v("13+")
        partition_data: list[Partition] = v("0+")

    transactional_id: string | None = v("3+", None, nullable="3+")
    acks: int16 = v("0+")  # 0: no answer, 1: the leader has it, -1: all in-sync replicas have it
    timeout_ms: int32 = v("0+")
    topic_data: list[Topic] = v("0+")


class ProduceResponse(Message, key=0, versions="3-13", flexible="9+"):
    """For each partition: the offset given to its first record, or why it was refused."""

    class Topic(Struct):
        class Partition(Struct):
            class RecordError(Struct):
                batch_index: int32 = v("8+")
                batch_index_error_message: string | None = v("8+", None, nullable="8+")

            class LeaderIdAndEpoch(Struct):
                leader_id: int32 = v("10+", -1)
                leader_epoch: int32 = v("10+", -1)

            index: int32 = v("0+")
            error_code: int16 = v("0+")
            base_offset: int64 = v("0+")
            log_append_time_ms: int64 = v("2+", -1)  # -1 unless the topic stamps at append
            log_start_offset: int64 = v("5+", -1)
            record_errors: list[RecordError] = v("8+")
            error_message: string | None = v("8+", None, nullable="8+")
            current_leader: LeaderIdAndEpoch = v("10+", tag=0)

            def fail(self, error: KafkaError) -> None:
                """Say this instead of success: also after the batch was accepted, when its write fails."""
                self.error_code = error.code
                self.error_message = error.message
                self.base_offset = self.log_append_time_ms = self.log_start_offset = -1

        name: string = v("0-12")
        topic_id: uuid = v("13+")
        partition_responses: list[Partition] = v("0+")

    class NodeEndpoint(Struct):
        node_id: int32 = v("10+")
        host: string = v("10+")
        port: int32 = v("10+")
        rack: string | None = v("10+", None, nullable="10+")

    responses: list[Topic] = v("0+")
    throttle_time_ms: int32 = v("1+")
    node_endpoints: list[NodeEndpoint] = v("10+", tag=0)
