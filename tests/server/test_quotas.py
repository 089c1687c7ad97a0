"""Clients that are over a quota: what is counted, what they are told, and that they are not listened to meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from desk import on_loop
from ottla.metadata.frozen import FrozenMap
from ottla.metadata.image import quota_entity
from ottla.server import quotas
from ottla.server.connection import Connection
from ottla.server.measures import NodeMetrics
from ottla.server.quotas import METERS_MAX, Quotas, levels, plain_address
from ottla.wire.errors import Error
from ottla.wire.messages.cluster import ApiVersionsRequest, DescribeClusterRequest
from ottla.wire.messages.fetch import FetchRequest
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.messages.quotas import AlterClientQuotasRequest
from ottla.wire.messages.topics import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest
from ottla.wire.messages.voters import DescribeQuorumRequest
from served import Client, Served, batch, fetch_request, frame, produce_request, serving, until, values

ANONYMOUS = ("user", "ANONYMOUS")
Named = tuple[str, str | None]
# With two windows of a second, everything counts over one second, and everything is forgotten after two.
SHORT = {"quota.window.num": "2", "controller.quota.window.num": "2"}


async def limit(served: Served, *named: Named, **limits: float | None) -> None:
    client = await served.connect()
    entry = AlterClientQuotasRequest.Entry
    entity = [entry.Entity(entity_type=kind, entity_name=name) for kind, name in named]
    ops = [entry.Op(key=key, value=value or 0.0, remove=value is None) for key, value in limits.items()]
    answer = await client.call(AlterClientQuotasRequest(entries=[entry(entity=entity, ops=ops)]), 1, "setter")
    assert [told.error_code for told in answer.entries] == [0]
    client.close()


def keeping(settings: dict[str, dict[str, float]], now: list[float]) -> Quotas:
    """Quotas with a clock of the test's; entities are written as `user=a,client-id=`, with nothing for the default."""
    config = {
        "quota.window.num": 11,
        "quota.window.size.seconds": 1,
        "controller.quota.window.num": 11,
        "controller.quota.window.size.seconds": 1,
    }
    kept = Quotas(config, lambda: now[0], NodeMetrics({}))
    named = {quota_entity(pairs(text)): limits for text, limits in settings.items()}
    kept.obey(FrozenMap(named))
    return kept


def pairs(text: str) -> Iterable[Named]:
    for part in text.split(","):
        kind, _, name = part.partition("=")
        yield kind, name or None


def asking(client_id: str, user: str = "u") -> Any:
    return SimpleNamespace(client_id=client_id, principal=f"User:{user}", version=0)


# --- which quota counts


def test_the_most_exact_quota_counts() -> None:
    """KIP-55: eight levels, and clients under the same name share one measure."""
    order = ["user=u,client-id=c", "user=u,client-id=", "user=u", "user=,client-id=c", "user=,client-id=", "user="]
    order += ["client-id=c", "client-id="]
    while order:
        now = [1.0]
        kept = keeping({text: {"consumer_byte_rate": 1.0 + n} for n, text in enumerate(order)}, now)
        assert kept.fetch_bytes_max(asking("c")) == 10, order[0]
        order.pop(0)
    assert keeping({}, [1.0]).fetch_bytes_max(asking("c")) == quotas.NO_LIMIT


def test_a_client_without_an_id_has_only_quotas_of_its_user() -> None:
    assert [*levels("u", "")] == [("u", None), ("", None)]
    kept = keeping({"client-id=": {"consumer_byte_rate": 1.0}}, [1.0])
    assert kept.fetch_bytes_max(asking("")) == quotas.NO_LIMIT


def test_who_shares_a_quota() -> None:
    """A default is one limit for each, not one for all together; a user's limit is for all clients of the user."""
    kept = keeping({"client-id=": {"consumer_byte_rate": 10.0}}, [1.0])
    assert kept.fetched(asking("a"), 100) == (0, True)
    assert kept.fetched(asking("b"), 100) == (0, True)
    assert kept.fetched(asking("a", "other"), 100)[0] > 0
    kept = keeping({"user=u": {"consumer_byte_rate": 10.0}}, [1.0])
    assert kept.fetched(asking("a"), 100) == (0, True)
    assert kept.fetched(asking("b"), 100) == (10_000, False)
    assert kept.fetched(asking("b", "other"), 10**9) == (0, True)


def test_records_that_are_not_sent_are_not_counted() -> None:
    now = [1.0]
    kept = keeping({"user=u": {"consumer_byte_rate": 10.0}}, now)
    assert kept.fetched(asking("a"), 100) == (0, True)
    assert kept.fetched(asking("a"), 50) == (5_000, False)
    assert kept.fetched(asking("a"), 50) == (5_000, False)
    now[0] = 6.001
    assert kept.fetched(asking("a"), 0) == (0, True)


def test_a_batch_larger_than_all_windows_can_be_read() -> None:
    now = [1.0]
    kept = keeping({"user=u": {"consumer_byte_rate": 10.0}}, now)
    assert kept.fetched(asking("a"), 1_000) == (90_000, True)
    assert kept.fetched(asking("a"), 1_000)[1] is False


def test_many_client_ids_do_not_fill_the_memory() -> None:
    """faults: a new client id for each connection. The measures of users that are in use stay."""
    now = [1.0]
    kept = keeping({"client-id=": {"consumer_byte_rate": 10.0}, "user=u": {"consumer_byte_rate": 10.0}}, now)
    assert kept.fetched(asking("x"), 90) == (0, True)
    for number in range(METERS_MAX + 10):
        now[0] += 0.0001
        kept.fetched(asking(str(number), "other"), 1)
        kept.fetched(asking("x"), 0)
    assert len(kept._meters) <= METERS_MAX
    assert kept.fetched(asking("x"), 90)[1] is False
    now[0] += 60
    for number in range(METERS_MAX + 10):
        kept.fetched(asking(f"later {number}", "other"), 1)
    assert len(kept._meters) <= METERS_MAX


def test_addresses_have_one_spelling() -> None:
    assert plain_address("::ffff:127.0.0.1") == "127.0.0.1"
    assert plain_address("0:0:0::1") == "::1"
    assert plain_address("localhost") is None


# --- at work


@on_loop
async def test_a_producer_over_its_quota_is_answered_at_once_and_then_not_listened_to(tmp_path: Path) -> None:
    """KIP-13, KIP-219: throttle_time_ms in the answer, the next request is looked at after that time."""
    async with serving(tmp_path, SHORT) as served:
        await served.topic("t")
        await limit(served, ANONYMOUS, producer_byte_rate=10_000)
        client, loop = await served.connect(), asyncio.get_running_loop()
        began = loop.time()
        for _ in range(2):
            client.send(produce_request("t", {0: batch(b"x" * 7_000)}), 9)
        client.send(ApiVersionsRequest(), 0)
        first, second = await client.receive(), await client.receive()
        assert first.throttle_time_ms == 0 and second.throttle_time_ms > 100
        await client.receive()
        assert loop.time() - began >= second.throttle_time_ms / 1000
        assert served.node.measures.throttled.labels("producer_byte_rate").value == 1
        other = await served.connect()
        assert (await other.call(DescribeClusterRequest(), 0)).error_code == 0, "others are not concerned"


@on_loop
async def test_pipelined_requests_of_a_muted_client_wait_in_order(tmp_path: Path) -> None:
    """PRT-19: everything that came with the request too many waits, and is answered in order afterwards."""
    async with serving(tmp_path, SHORT) as served:
        await served.topic("t")
        await limit(served, ("client-id", "fast"), producer_byte_rate=20_000)
        client = await served.connect()
        for number in range(6):
            client.send(produce_request("t", {0: batch(b"%d" % number * 8_000)}), 9, "fast")
        answers = [await client.receive() for _ in range(6)]
        offsets = [answer.responses[0].partition_responses[0].base_offset for answer in answers]
        assert offsets == [0, 1, 2, 3, 4, 5]
        assert sum(answer.throttle_time_ms > 0 for answer in answers) >= 2


def test_a_request_that_holds_back_what_follows_does_so_after_a_time_of_silence_too() -> None:
    """It may have begun before its client was muted, and take longer than that."""
    loop = SimpleNamespace(time=lambda: 0.0, call_at=lambda *_: None, call_soon=lambda *_: None)
    node: Any = SimpleNamespace(charging=None)
    listener: Any = SimpleNamespace(node=node, loop=loop)
    connection, request = Connection(listener), object()
    connection.hold(request)
    connection.mute(1.0)
    mute: Any = connection._holds
    loop.time = lambda: 2.0
    connection._unmute(mute)
    assert connection._holds is request
    connection.release(request)
    assert connection._holds is None


@on_loop
async def test_without_acknowledgement_a_producer_is_held_back_all_the_same(tmp_path: Path) -> None:
    async with serving(tmp_path, SHORT) as served:
        await served.topic("t")
        await limit(served, ANONYMOUS, producer_byte_rate=10_000)
        client = await served.connect()
        for _ in range(3):
            client.writer.write(frame(produce_request("t", {0: batch(b"x" * 5_000)}, acks=0), 9))
        client.writer.write(frame(ApiVersionsRequest(), 0))
        assert await client.frame()
        assert served.partition("t").log.end_offset == 3
        assert served.node.measures.throttled.labels("producer_byte_rate").value >= 1


@on_loop
async def test_a_fetch_over_the_quota_brings_nothing(tmp_path: Path) -> None:
    """KIP-219: an empty answer with the time to wait; after it everything comes; sessions stay what they were."""
    async with serving(tmp_path, SHORT) as served:
        await served.topic("t")
        client = await served.connect()
        for _ in range(4):
            await client.produce("t", batch(b"x" * 5_000))
        await limit(served, ANONYMOUS, consumer_byte_rate=12_000)
        for offset in (0, 2):
            client.send(fetch_request("t", {0: offset}, session_epoch=0), 12)
        first, second = await client.receive(), await client.receive()
        assert len(values(first.responses[0].partitions[0].records)) == 2 and first.throttle_time_ms == 0
        assert second.responses == [] and second.throttle_time_ms > 0
        assert second.session_id == 0 and len(served.node.fetch_sessions) == 1
        offset, throttled, session, epoch, rounds = 2, 1, first.session_id, 1, 0
        while offset < 4:
            request = fetch_request(
                "t", {0: offset}, session_id=session, session_epoch=epoch, partition_max_bytes=6_000
            )
            answer = await client.call(request, 12)
            assert answer.error_code == 0
            rounds += 1
            if answer.throttle_time_ms:
                throttled += 1
                assert answer.responses == []
                assert answer.session_id == session
            else:
                offset += len(values(answer.responses[0].partitions[0].records))
            epoch += 1
            assert rounds < 50
        assert served.node.measures.throttled.labels("consumer_byte_rate").value == throttled


@on_loop
async def test_an_answer_brings_no_more_than_the_windows_allow(tmp_path: Path) -> None:
    async with serving(tmp_path, SHORT) as served:
        await served.topic("t")
        client = await served.connect()
        for _ in range(10):
            await client.produce("t", batch(b"x" * 1_000))
        await limit(served, ANONYMOUS, consumer_byte_rate=4_000)
        answer = await client.call(fetch_request("t", {0: 0}), 12)
        assert answer.throttle_time_ms == 0
        assert len(values(answer.responses[0].partitions[0].records)) == 3


@on_loop
async def test_requests_that_keep_the_node_busy(tmp_path: Path) -> None:
    """KIP-124: the share of one processor, in per cent; nobody waits for more than a window."""
    async with serving(tmp_path, SHORT) as served:
        await limit(served, ("client-id", "busy"), request_percentage=0.0001)
        client = await served.connect()
        answer = await client.call(DescribeClusterRequest(), 0, "busy")
        assert 0 < answer.throttle_time_ms <= 1000
        assert (await client.call(ApiVersionsRequest(), 0, "idle")).error_code == 0
        other = await served.connect()
        for _ in range(5):
            assert (await other.call(DescribeClusterRequest(), 0, "idle")).throttle_time_ms == 0


@on_loop
async def test_other_nodes_are_not_held_back(tmp_path: Path) -> None:
    """Whoever copies records, or asks the controller: a quota for all clients is not for them, as in Apache Kafka."""
    async with serving(tmp_path) as served:
        topic_id = await served.topic("t")
        (port,) = [each.port for each in served.node.listeners if each.is_controller]
        node = Client(*await asyncio.open_connection("127.0.0.1", port))
        follower, client = await served.connect(), await served.connect()
        await limit(served, ("client-id", "test"), request_percentage=0.0001)
        following = fetch_request(topic_id, {0: 0})
        following.replica_state = FetchRequest.ReplicaState(replica_id=2, replica_epoch=-1)
        for _ in range(3):
            await follower.call(following, 16)
            await node.call(DescribeQuorumRequest(), 0)
        assert served.node.measures.throttled.labels("request_percentage").value == 0
        await client.call(fetch_request(topic_id, {0: 0}), 16)
        assert served.node.measures.throttled.labels("request_percentage").value == 1
        node.close()


@on_loop
async def test_produce_without_acknowledgement_is_not_held_back_for_the_work_it_makes(tmp_path: Path) -> None:
    """Its client could not be told; Kafka exempts it too."""
    async with serving(tmp_path) as served:
        await served.topic("t")
        await limit(served, ("client-id", "busy"), request_percentage=0.0001)
        client = await served.connect()
        client.writer.write(frame(produce_request("t", {0: batch(b"x")}, acks=0), 9, 1, "busy"))
        client.send(ApiVersionsRequest(), 1, "idle")
        assert (await client.receive()).throttle_time_ms == 0
        assert served.node.measures.throttled.labels("request_percentage").value == 0


@on_loop
async def test_waiting_is_no_work(tmp_path: Path) -> None:
    """A fetch that waits for records uses nothing while it waits."""
    async with serving(tmp_path) as served:
        await served.topic("t")
        await limit(served, ANONYMOUS, request_percentage=10)
        client = await served.connect()
        answer = await client.call(fetch_request("t", {0: 0}, max_wait_ms=1_500), 12)
        assert answer.throttle_time_ms == 0


@on_loop
async def test_being_muted_is_no_work(tmp_path: Path) -> None:
    """A request that came behind one too many has used nothing while nobody looked at it."""
    async with serving(tmp_path) as served:
        await served.topic("t")
        await limit(served, ANONYMOUS, producer_byte_rate=1_000, request_percentage=10)
        client = await served.connect()
        client.send(produce_request("t", {0: batch(b"x" * 11_500)}), 9)
        client.send(ApiVersionsRequest(), 1)
        assert (await client.receive()).throttle_time_ms > 1_400
        assert (await client.receive()).throttle_time_ms == 0


def new_topic(name: str, partitions: int) -> CreateTopicsRequest:
    topics = [CreateTopicsRequest.Topic(name=name, num_partitions=partitions, replication_factor=1)]
    return CreateTopicsRequest(topics=topics, timeout_ms=5000)


def more_partitions(name: str, count: int) -> CreatePartitionsRequest:
    topics = [CreatePartitionsRequest.Topic(name=name, count=count, assignments=None)]
    return CreatePartitionsRequest(topics=topics, timeout_ms=5000)


@on_loop
async def test_changes_of_topics_above_the_quota_are_refused(tmp_path: Path) -> None:
    """KIP-599, strict: as much as wanted while anything is left, then nothing; the client is told how long."""
    async with serving(tmp_path) as served:
        await limit(served, ANONYMOUS, controller_mutation_rate=0.1)  # a bucket of 1.1
        made = await (await served.connect()).call(new_topic("a", 20), 7)
        assert (made.topics[0].error_code, made.throttle_time_ms) == (0, 0)
        refused = Error.THROTTLING_QUOTA_EXCEEDED.code
        answer = await (await served.connect()).call(new_topic("b", 1), 6)
        assert answer.topics[0].error_code == refused and answer.topics[0].error_message is None
        assert 180_000 < answer.throttle_time_ms <= 190_000
        answer = await (await served.connect()).call(more_partitions("a", 30), 3)
        assert answer.results[0].error_code == refused and answer.throttle_time_ms > 100_000
        gone = DeleteTopicsRequest(topics=[DeleteTopicsRequest.Topic(name="a")], timeout_ms=5000)
        answer = await (await served.connect()).call(gone, 6)
        assert answer.responses[0].error_code == refused and answer.throttle_time_ms > 100_000
        assert served.node.quorum.image.topic("b") is None
        topic = served.node.quorum.image.topic("a")
        assert topic is not None and len(topic.partitions) == 20


@on_loop
async def test_topics_that_come_by_being_asked_for_count_too(tmp_path: Path) -> None:
    """As in Apache Kafka the topic is not made, and the client is told that it is not there."""
    async with serving(tmp_path, {"num.partitions": "20"}) as served:
        await limit(served, ANONYMOUS, controller_mutation_rate=0.1)
        client = await served.connect()
        for name in ("first", "second", "third"):
            asked = MetadataRequest(topics=[MetadataRequest.Topic(name=name)], allow_auto_topic_creation=True)
            assert (await client.call(asked, 9)).topics[0].error_code == Error.UNKNOWN_TOPIC_OR_PARTITION.code
        await until(lambda: served.node.quorum.image.topic("first"))
        topic = served.node.quorum.image.topic("first")
        assert topic is not None and len(topic.partitions) == 20
        assert served.node.controller.written.topic("second") is None
        assert served.node.controller.written.topic("third") is None


@on_loop
async def test_what_the_node_asks_of_itself_is_no_users(tmp_path: Path) -> None:
    """A client that made it ask was charged already."""
    async with serving(tmp_path) as served:
        await limit(served, ("user", None), controller_mutation_rate=0.1)
        for name in ("a", "b"):
            answer = await served.node.channel.ask(new_topic(name, 20), 20.0)
            assert (answer.topics[0].error_code, answer.throttle_time_ms) == (0, 0)
        answer = await (await served.connect()).call(new_topic("c", 1), 7)
        assert answer.topics[0].error_code == 0, "nothing of what the client may do was used up"


@on_loop
async def test_older_versions_are_done_and_wait_afterwards(tmp_path: Path) -> None:
    """KIP-599, permissive."""
    async with serving(tmp_path) as served:
        await limit(served, ANONYMOUS, controller_mutation_rate=0.1)
        client = await served.connect()
        answer = await client.call(new_topic("a", 20), 5)
        assert answer.topics[0].error_code == 0 and answer.throttle_time_ms > 100_000
        assert [c.is_muted for c in served.node.listeners[0].connections] == [True]
        assert (await (await served.connect()).call(more_partitions("a", 21), 2)).results[0].error_code == 0
        gone = DeleteTopicsRequest(topic_names=["a"], timeout_ms=5000)
        assert (await (await served.connect()).call(gone, 4)).responses[0].error_code == 0


@on_loop
async def test_connections_of_an_address_above_its_rate_are_closed_after_a_while(tmp_path: Path) -> None:
    """KIP-612: one a second over ten seconds."""
    async with serving(tmp_path) as served:
        await limit(served, ("ip", "127.0.0.1"), connection_creation_rate=1)
        kept, cut = 0, 0
        clients = [await served.connect() for _ in range(15)]
        for client in clients:
            client.send(ApiVersionsRequest(), 0)
        for client in clients:
            try:
                await client.receive()
                kept += 1
            except (asyncio.IncompleteReadError, ConnectionError):
                cut += 1
        assert 10 <= kept <= 13 and kept + cut == 15
        assert served.node.measures.connections_refused.labels("quota").value == cut
        assert not served.node.listeners[0]._unwelcome


@on_loop
async def test_a_default_for_addresses_and_a_host_by_name(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await limit(served, ("ip", None), connection_creation_rate=1)
        clients = [await served.connect() for _ in range(15)]
        assert await clients[-1].is_cut()
        served.node.quotas.obey(FrozenMap({(("ip", "localhost"),): {"connection_creation_rate": 1.0}}))
        assert served.node.quotas.unresolved() == ["localhost"]
        await served.node.quotas.resolve(["localhost"])
        assert served.node.quotas.unresolved() == []


@on_loop
async def test_a_muted_client_that_goes_leaves_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.topic("t")
        await limit(served, ANONYMOUS, producer_byte_rate=1)
        client = await served.connect()
        assert (await produced(client)).throttle_time_ms > 1_000_000
        (connection,) = served.node.listeners[0].connections
        assert connection.is_muted and connection._holds.timer is not None  # type: ignore[attr-defined]
        connection.abort("the test says so")
        await until(lambda: not served.node.listeners[0].connections)
        assert connection._holds.timer.cancelled()  # type: ignore[attr-defined]


async def produced(client: Client) -> Any:
    return await client.call(produce_request("t", {0: batch(b"x" * 8_000)}), 9)


@on_loop
async def test_a_node_stops_while_clients_are_muted(tmp_path: Path) -> None:
    """Both a muted client with requests in hand and one that is about to be turned away."""
    async with serving(tmp_path) as served:
        await served.topic("t")
        client = await served.connect()
        await limit(served, ANONYMOUS, producer_byte_rate=1)
        await limit(served, ("ip", "127.0.0.1"), connection_creation_rate=1)
        client.send(produce_request("t", {0: batch(b"x" * 8_000)}), 9)
        client.send(produce_request("t", {0: batch(b"x" * 8_000)}), 9)
        assert (await client.receive()).throttle_time_ms > 0
        for _ in range(15):
            await served.connect()
        listener, began = served.node.listeners[0], asyncio.get_running_loop().time()
        await listener.close()
        await asyncio.sleep(0.01)
        assert not listener.connections and not listener._unwelcome
    assert asyncio.get_running_loop().time() - began < 30


@on_loop
async def test_quotas_come_back_after_a_restart_and_go_when_removed(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        assert served.node.charging is None
        await limit(served, ANONYMOUS, producer_byte_rate=1)
    async with serving(tmp_path) as served:
        assert served.node.charging is not None
        await served.topic("t")
        assert (await produced(await served.connect())).throttle_time_ms > 0
        await limit(served, ANONYMOUS, producer_byte_rate=None)
        assert served.node.charging is None
        assert (await produced(await served.connect())).throttle_time_ms == 0


@pytest.mark.parametrize("version", [3, 5, 9])
@on_loop
async def test_old_versions_are_told_too(tmp_path: Path, version: int) -> None:
    async with serving(tmp_path) as served:
        await served.topic("t")
        await limit(served, ANONYMOUS, producer_byte_rate=1)
        answer = await (await served.connect()).call(produce_request("t", {0: batch(b"x" * 100)}), version)
        assert answer.throttle_time_ms > 0
