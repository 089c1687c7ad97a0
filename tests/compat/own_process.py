"""librdkafka's transactional producers, each in a process of its own that is ended when a call does not come back.

librdkafka 2.16 waits for ever in send_offsets_to_transaction, whatever time it was given, when the coordinator of the group
has been missing from Metadata since it was last asked: it remembers it, and connects no more (librdkafka issues 5511, 5456).
It waits in C: nothing in Python ends that, and a test that is over its time would not end either. A process can be ended, so
here it is a failure that says which call it was.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

from compat.transacting import SECONDS, Confluent, Refused, Transactor
from harness import die_with_parent

# Each call is given SECONDS; whoever is not back by then has forgotten its own clock.
PATIENCE_SECONDS = SECONDS + 15


def obey(orders: Connection, address: str, transactional_id: str, settings: dict[str, Any]) -> None:
    """The process: takes the name of a call and what goes with it, and answers None or why it was refused, until nobody
    is there to give orders."""
    die_with_parent()
    producer = Confluent().producer(address, transactional_id, **settings)
    with contextlib.suppress(EOFError):
        while True:
            call, words = orders.recv()
            try:
                getattr(producer, call)(*words)
                orders.send(None)
            except Refused as refusal:
                orders.send((refusal.why, refusal.message))


class OwnProcess(Transactor):
    patience_s = PATIENCE_SECONDS

    def __init__(self, address: str, transactional_id: str, **settings: Any) -> None:
        super().__init__(address, transactional_id, **settings)
        spawning = multiprocessing.get_context("spawn")
        self._orders, orders = spawning.Pipe()
        words = (orders, address, transactional_id, settings)
        self.process = spawning.Process(target=obey, args=words, daemon=True)
        self.process.start()
        # Only the process has its end now, so it is noticed here when it is gone.
        orders.close()

    def _order(self, call: str, *words: object) -> None:
        doing = f"{call}{words} of {self.transactional_id}"
        try:
            self._orders.send((call, words))
            if not self._orders.poll(self.patience_s):
                self.close()
                raise AssertionError(f"librdkafka hangs: {doing} has not come back in {self.patience_s} s")
            refused = self._orders.recv()
        except (EOFError, OSError) as error:
            raise AssertionError(f"{doing}: the process has ended") from error
        if refused is not None:
            raise Refused(*refused)

    def init(self) -> Transactor:
        self._order("init")
        return self

    def begin(self) -> None:
        self._order("begin")

    def send(self, topic: str, value: str, partition: int = 0, key: str = "k") -> None:
        self._order("send", topic, value, partition, key)

    def flush(self) -> None:
        self._order("flush")

    def offset(self, group: str, topic: str, offset: int, partition: int = 0, member: Any = None) -> None:
        assert member is None, "a member lives in the process of its test"
        self._order("offset", group, topic, offset, partition)

    def commit(self) -> None:
        self._order("commit")

    def abort(self) -> None:
        self._order("abort")

    def close(self) -> None:
        self.process.kill()
        self.process.join()


class ConfluentOnItsOwn(Confluent):
    """For tests that kill brokers under their producers."""

    def producer(self, address: str, transactional_id: str, **settings: Any) -> Transactor:
        return OwnProcess(address, transactional_id, **settings)
