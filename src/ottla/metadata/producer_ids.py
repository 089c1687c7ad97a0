"""Producer ids are handed to brokers in blocks of a thousand, so that an id costs no record."""

from __future__ import annotations

from typing import NamedTuple

from ottla.metadata.brokers import check_epoch
from ottla.metadata.decisions import Decision
from ottla.metadata.image import Image
from ottla.metadata.records import ProducerIdsRecord
from ottla.wire.errors import Error, KafkaError

BLOCK_SIZE = 1000
INT64_MAX = (1 << 63) - 1


class Block(NamedTuple):
    first: int
    size: int


def next_producer_ids(image: Image, broker_id: int, epoch: int) -> Decision[Block]:
    broker = check_epoch(image, broker_id, epoch)
    if image.next_producer_id > INT64_MAX - BLOCK_SIZE:
        raise KafkaError(
            Error.UNKNOWN_SERVER_ERROR, "Exhausted all producerIds as the next block's end is out of bounds"
        )
    after = image.next_producer_id + BLOCK_SIZE
    record = ProducerIdsRecord(broker_id=broker_id, broker_epoch=broker.epoch, next_producer_id=after)
    return Decision([(record, 0)], Block(image.next_producer_id, BLOCK_SIZE))
