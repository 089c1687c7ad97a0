"""What may be done to a cluster, a topic or a group: the operations that Kafka's access rules know, told as bits (KIP-430).

Nobody is refused anything yet: whoever asks may do all that can be done.
"""

from __future__ import annotations

from enum import IntEnum


class Operation(IntEnum):
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


SETTINGS = (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)


def _bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


CLUSTER_OPERATIONS = _bits(
    *(Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION, *SETTINGS),
    Operation.IDEMPOTENT_WRITE,
)
TOPIC_OPERATIONS = _bits(
    *(Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE),
    *SETTINGS,
)
GROUP_OPERATIONS = _bits(Operation.READ, Operation.DELETE, Operation.DESCRIBE, *SETTINGS)
