"""Which answers fail a transaction, which end its producer, and which are asked again: a broker that says as it is told."""

from __future__ import annotations

import asyncio

import pytest

from ottla.client.commits import Committed
from ottla.client.connection import Lost
from ottla.client.producer import Producer
from ottla.client.transactions import Abortable, Fatal, State
from ottla.wire.errors import Error, KafkaError
from puppet import ADD, ADD_OFFSETS, END, INIT, OFFSETS, PRODUCE, VERSIONS, WHERE, Puppet, play


async def try_all(producer: Producer) -> None:
    """A transaction with everything in it."""
    producer.begin()
    await producer.post("t", b"v")
    await producer.send_offsets({WHERE: Committed(1)}, "g")
    await producer.commit()


FENCED = (Error.PRODUCER_FENCED, Error.INVALID_PRODUCER_EPOCH)
# Java's TransactionManager draws the same lines.
ABORTABLE = [
    (PRODUCE, Error.INVALID_TXN_STATE),
    (PRODUCE, Error.INVALID_PRODUCER_EPOCH),
    (PRODUCE, Error.TRANSACTION_ABORTABLE),
    (PRODUCE, Error.MESSAGE_TOO_LARGE),
    (PRODUCE, Error.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (PRODUCE, Error.UNKNOWN_PRODUCER_ID),
    (ADD, Error.TRANSACTION_ABORTABLE),
    (ADD, Error.TOPIC_AUTHORIZATION_FAILED),
    (ADD, Error.OPERATION_NOT_ATTEMPTED),
    (ADD, Error.INVALID_PRODUCER_ID_MAPPING),
    (ADD_OFFSETS, Error.GROUP_AUTHORIZATION_FAILED),
    (ADD_OFFSETS, Error.UNKNOWN_PRODUCER_ID),
    (OFFSETS, Error.ILLEGAL_GENERATION),
    (OFFSETS, Error.UNKNOWN_MEMBER_ID),
    (OFFSETS, Error.FENCED_INSTANCE_ID),
    (OFFSETS, Error.TRANSACTION_ABORTABLE),
    (OFFSETS, Error.GROUP_AUTHORIZATION_FAILED),
    (END, Error.TRANSACTION_ABORTABLE),
    (END, Error.INVALID_PRODUCER_ID_MAPPING),
]
FATAL = [
    (PRODUCE, Error.PRODUCER_FENCED),
    (PRODUCE, Error.CLUSTER_AUTHORIZATION_FAILED),
    (PRODUCE, Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    *[(key, error) for key in (ADD, ADD_OFFSETS, OFFSETS, END) for error in FENCED],
    (ADD, Error.INVALID_TXN_STATE),
    (ADD_OFFSETS, Error.INVALID_TXN_STATE),
    (ADD_OFFSETS, Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    (OFFSETS, Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    (OFFSETS, Error.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    (END, Error.INVALID_TXN_STATE),
    (END, Error.UNKNOWN_SERVER_ERROR),
]
PASSING = [
    (PRODUCE, Error.NOT_LEADER_OR_FOLLOWER),
    (PRODUCE, Error.CONCURRENT_TRANSACTIONS),
    (ADD, Error.CONCURRENT_TRANSACTIONS),
    (ADD, Error.NOT_COORDINATOR),
    (ADD_OFFSETS, Error.COORDINATOR_LOAD_IN_PROGRESS),
    (OFFSETS, Error.NOT_COORDINATOR),
    (OFFSETS, Error.UNKNOWN_TOPIC_OR_PARTITION),
    (END, Error.CONCURRENT_TRANSACTIONS),
    (END, Error.COORDINATOR_NOT_AVAILABLE),
]


def cases(table: list[tuple[int, Error]]) -> list[tuple[int, int, Error]]:
    """In each generation that asks so."""
    return [(g, key, error) for key, error in table for g in ((1,) if key in (ADD, ADD_OFFSETS) else (1, 2))]


@pytest.mark.parametrize(("generation", "key", "error"), cases(ABORTABLE))
def test_the_transaction_fails_and_the_next_one_works(generation, key, error):
    async def act(puppet: Puppet, producer: Producer) -> None:
        puppet.says[key] = [error]
        with pytest.raises(Abortable) as failed:
            await try_all(producer)
        if (
            error is Error.TOPIC_AUTHORIZATION_FAILED
        ):  # of one partition: the others were not tried, which explains nothing
            assert failed.value.error is error
        assert producer._tx.state is State.FAILED
        with pytest.raises(Abortable):
            await producer.post("t", b"refused")
        await producer.abort()
        await try_all(producer)
        assert producer._tx.state is State.READY

    play(generation, act)


@pytest.mark.parametrize(("generation", "key", "error"), cases(FATAL))
def test_the_producer_is_at_its_end(generation, key, error):
    """TXN-08"""

    async def act(puppet: Puppet, producer: Producer) -> None:
        puppet.says[key] = [error]
        with pytest.raises(Fatal, match="close") as ended:
            await try_all(producer)
        assert ended.value.error is (Error.PRODUCER_FENCED if error in FENCED else error)
        for call in (producer.abort, producer.commit):
            with pytest.raises(Fatal):
                await call()
        with pytest.raises(Fatal):
            producer.begin()

    play(generation, act)


@pytest.mark.parametrize("generation", [1, 2])
def test_a_transaction_that_can_neither_be_committed_nor_aborted_is_the_end(generation):
    """What fails a commit is to be aborted; where that says the same, nothing is left to try."""

    async def act(puppet: Puppet, producer: Producer) -> None:
        puppet.says[END] = [Error.TRANSACTION_ABORTABLE] * 2
        with pytest.raises(Abortable):
            await try_all(producer)
        with pytest.raises(Fatal):
            await producer.abort()

    play(generation, act)


@pytest.mark.parametrize("known", [False, True])
def test_an_abort_of_what_the_coordinator_does_not_know_is_the_end_if_it_did_know_it(known):
    """Where nobody has told it of the transaction, there is nothing to abort."""

    async def act(puppet: Puppet, producer: Producer) -> None:
        producer.begin()
        puppet.says[ADD_OFFSETS] = [] if known else [Error.GROUP_AUTHORIZATION_FAILED]
        try:
            await producer.send_offsets({WHERE: Committed(1)}, "g")
        except Abortable:
            assert not known
        puppet.says[END] = [Error.INVALID_TXN_STATE]
        if known:
            with pytest.raises(Fatal):
                await producer.abort()
        else:
            await producer.abort()

    play(1, act)


@pytest.mark.parametrize(("generation", "key", "error"), cases(PASSING))
def test_what_passes_is_asked_again(generation, key, error):
    async def act(puppet: Puppet, producer: Producer) -> None:
        puppet.says[key] = [error] * 3
        await try_all(producer)
        assert puppet.asked.count(key) >= 4

    play(generation, act)


@pytest.mark.parametrize("generation", [1, 2])
def test_an_end_that_nobody_confirms_can_be_asked_for_again(generation):
    """Its outcome is not known: it cannot be turned into the other one."""

    async def act(puppet: Puppet, producer: Producer) -> None:
        puppet.says[END] = [Error.COORDINATOR_NOT_AVAILABLE] * 1000
        with pytest.raises(Lost, match=r"call commit\(\) again"):
            await try_all(producer)
        with pytest.raises(ValueError, match=r"commit\(\) it again"):
            await producer.abort()
        puppet.says.clear()
        await producer.commit()
        await try_all(producer)

    play(generation, act)


def test_a_batch_that_is_dropped_with_its_number_costs_the_epoch():
    """TXN-09: in generation 1 the next transaction would go on behind a number that was never written, and a copy of the
    batch that is still under way would fit right there. So it gets an epoch of its own."""

    async def act(puppet: Puppet, producer: Producer) -> None:
        puppet.says[PRODUCE] = [Error.NOT_LEADER_OR_FOLLOWER] * 1000
        producer.begin()
        await producer.post("t", b"never written")
        await asyncio.sleep(1)
        before = producer._sender.identity
        await producer.abort()
        assert producer._sender.identity != before
        puppet.says.clear()
        await try_all(producer)
        assert producer._sender.lane(WHERE).sequence == 1

    play(1, act)


@pytest.mark.parametrize("generation", [1, 2])
def test_an_abort_that_was_given_up_is_no_way_to_commit(generation):
    """TXN-03: some of the records were dropped already."""

    async def act(puppet: Puppet, producer: Producer) -> None:
        puppet.holds[PRODUCE] = asyncio.Event()
        producer.begin()
        await producer.post("t", b"flies")
        await asyncio.sleep(1)
        dropped = await producer.post("t", b"dropped")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.abort(), 1)
        puppet.holds[PRODUCE].set()
        assert isinstance(dropped.exception(), KafkaError)
        with pytest.raises(KafkaError, match="aborted"):
            await producer.commit()
        assert END not in puppet.asked
        await producer.abort()
        await try_all(producer)

    play(generation, act)


@pytest.mark.parametrize("generation", [1, 2])
def test_an_abort_that_was_given_up_when_it_was_nearly_done_goes_on_from_there(generation):
    """TXN-09: the coordinator has nothing left to end, and would say so."""

    async def act(puppet: Puppet, producer: Producer) -> None:
        puppet.says[PRODUCE] = [Error.OUT_OF_ORDER_SEQUENCE_NUMBER]
        with pytest.raises(Abortable):
            await try_all(producer)
        puppet.says[END] = [Error.NONE, Error.INVALID_TXN_STATE]
        puppet.holds[VERSIONS] = asyncio.Event()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.abort(), 1)
        puppet.holds[VERSIONS].set()
        await producer.abort()
        puppet.says.clear()
        await try_all(producer)

    play(generation, act)


@pytest.mark.parametrize("generation", [1, 2])
def test_what_each_generation_asks(generation):
    """Generation 2 has no question of its own before it writes, and learns its next epoch from the end."""

    async def act(puppet: Puppet, producer: Producer) -> None:
        before = producer._sender.identity
        await try_all(producer)
        added = [key for key in puppet.asked if key in (ADD, ADD_OFFSETS)]
        assert sorted(added) == ([] if generation == 2 else [ADD, ADD_OFFSETS])
        assert (producer._sender.identity != before) is (generation == 2)

    play(generation, act)


def test_first_words():
    """A producer that may not have the id can ask again; one that was shut out meanwhile cannot."""

    async def act(puppet: Puppet, producer: Producer) -> None:
        for error in (Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Error.INVALID_TRANSACTION_TIMEOUT):
            other = Producer(producer.cluster, transactional_id="u")
            puppet.says[INIT] = [error]
            with pytest.raises(KafkaError) as refused:
                await other.init()
            assert refused.value.error is error
            puppet.says[INIT] = [Error.CONCURRENT_TRANSACTIONS, Error.COORDINATOR_LOAD_IN_PROGRESS]
            await other.init()
        other = Producer(producer.cluster, transactional_id="u")
        puppet.says[INIT] = [Error.PRODUCER_FENCED]
        with pytest.raises(Fatal):
            await other.init()

    play(2, act)
