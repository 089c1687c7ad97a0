"""One connection, against servers that misbehave in known ways."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable

import pytest

from ottla.client.cluster import Cluster, Unreachable, addresses
from ottla.client.connection import Connection, Lost, check
from ottla.wire.codec import encode
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.cluster import ApiVersionsResponse
from ottla.wire.messages.metadata import MetadataRequest, MetadataResponse
from ottla.wire.messages.produce import ProduceRequest

ApiVersion = ApiVersionsResponse.ApiVersion
SERVED = [ApiVersion(api_key=18, max_version=3), ApiVersion(api_key=3, min_version=1, max_version=9)]
Answer = Callable[[int, int, int], Awaitable[list[bytes]]]


class Script:
    """A server that answers each request as a function (key, version, correlation id) -> frames says."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.seen: list[tuple[int, int]] = []

    async def __aenter__(self) -> int:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        return int(self.server.sockets[0].getsockname()[1])

    async def __aexit__(self, *_: object) -> None:
        self.server.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                key, version, correlation_id = struct.unpack_from(">hhi", await reader.readexactly(size))
                self.seen.append((key, version))
                for frame in await self.answer(key, version, correlation_id):
                    writer.write(struct.pack(">i", len(frame)) + frame)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def versions_frame(correlation_id: int, version: int, error: Error = Error.NONE) -> bytes:
    body = encode(ApiVersionsResponse(error_code=error.code, api_keys=SERVED), version)
    return struct.pack(">i", correlation_id) + body


async def like_a_broker(key: int, version: int, correlation_id: int) -> list[bytes]:
    if key == 18 and version > 3:
        return [versions_frame(correlation_id, 0, Error.UNSUPPORTED_VERSION)]
    if key == 18:
        return [versions_frame(correlation_id, version)]
    body = encode(MetadataResponse(cluster_id=f"answer {correlation_id}"), version)
    return [struct.pack(">ib", correlation_id, 0) + body]


def run(answer: Answer, act: Callable[[int], Awaitable[None]]) -> Script:
    script = Script(answer)

    async def main() -> None:
        async with script as port:
            await act(port)

    asyncio.run(main())
    return script


def test_an_older_broker_is_asked_again_in_its_own_version():
    """PRT-01, KIP-511: the refusal has a version 0 body and says up to where the broker knows ApiVersions."""

    async def act(port: int) -> None:
        connection = await Connection.open("127.0.0.1", port)
        assert connection.served == {18: (0, 3), 3: (1, 9)}
        assert connection.version_of(MetadataRequest) == 9
        with pytest.raises(KafkaError) as refused:
            connection.version_of(ProduceRequest)
        assert refused.value.error is Error.UNSUPPORTED_VERSION
        connection.close()

    assert run(like_a_broker, act).seen == [(18, 4), (18, 3)]


def test_requests_are_pipelined_and_answers_matched():
    """PRT-19: several requests in flight, answers in order."""

    async def act(port: int) -> None:
        connection = await Connection.open("127.0.0.1", port)
        answers = await asyncio.gather(*(connection.request(MetadataRequest()) for _ in range(50)))
        assert [answer.cluster_id for answer in answers] == [f"answer {number}" for number in range(3, 53)]
        connection.close()

    run(like_a_broker, act)


def talk(go_on: Callable[[int, MetadataResponse], MetadataRequest | None], lives: int = 9) -> tuple[list[int], object]:
    """Questions that follow from answers: how many were asked in all, and how it ended. After `lives` the server goes."""

    async def answers_so_often(key: int, version: int, correlation_id: int) -> list[bytes]:
        if key != 18 and len(script.seen) > lives + 2:
            raise ConnectionError
        return await like_a_broker(key, version, correlation_id)

    script, heard = Script(answers_so_often), []

    def hear(response: MetadataResponse) -> MetadataRequest | None:
        heard.append(len(heard))
        return go_on(len(heard), response)

    async def run() -> object:
        async with script as port:
            connection = await Connection.open("127.0.0.1", port)
            try:
                answer = await connection.request(MetadataRequest(), go_on=hear)
                later = await connection.request(MetadataRequest())  # it can be asked as before
                return answer.cluster_id, later.cluster_id
            except Exception as error:
                return error
            finally:
                connection.close()

    return heard, asyncio.run(run())


def test_the_next_question_follows_from_an_answer():
    heard, end = talk(lambda count, _: MetadataRequest() if count < 4 else None)
    assert len(heard) == 4
    assert end == ("answer 6", "answer 7")


def test_what_is_raised_while_an_answer_is_heard_ends_the_waiting():
    def fails(count: int, response: MetadataResponse) -> MetadataRequest | None:
        if count == 2:
            raise KafkaError(Error.FENCED_LEADER_EPOCH)
        return MetadataRequest()

    heard, end = talk(fails)
    assert len(heard) == 2
    assert isinstance(end, KafkaError)
    assert end.error is Error.FENCED_LEADER_EPOCH


def test_a_connection_that_is_lost_between_questions_ends_the_waiting():
    heard, end = talk(lambda count, _: MetadataRequest(), lives=3)
    assert len(heard) == 3
    assert isinstance(end, Lost)


@pytest.mark.parametrize("frame", [b"", b"\0\0\0\x63", b"\0\0\0\x03\0rubbish", bytes(40)])
def test_an_answer_that_is_none_ends_the_connection(frame):
    async def rubbish(key: int, version: int, correlation_id: int) -> list[bytes]:
        return await like_a_broker(key, version, correlation_id) if key == 18 else [frame]

    async def act(port: int) -> None:
        connection = await Connection.open("127.0.0.1", port)
        with pytest.raises(Lost):
            await connection.request(MetadataRequest(), timeout_s=30)
        assert connection.closed
        with pytest.raises(Lost):
            await connection.request(MetadataRequest())

    run(rubbish, act)


def test_no_answer_in_time_ends_the_connection():
    """Answers come in order, so those behind a missing one would never come either."""

    async def silent(key: int, version: int, correlation_id: int) -> list[bytes]:
        return await like_a_broker(key, version, correlation_id) if key == 18 else []

    async def act(port: int) -> None:
        connection = await Connection.open("127.0.0.1", port)
        later = asyncio.ensure_future(connection.request(MetadataRequest(), timeout_s=60))
        with pytest.raises(Lost, match=r"no answer within 0\.05 s"):
            await connection.request(MetadataRequest(), timeout_s=0.05)
        with pytest.raises(Lost):
            await later

    run(silent, act)


def test_a_closed_connection_fails_what_is_under_way():
    async def act(port: int) -> None:
        connection = await Connection.open("127.0.0.1", port)
        waiting = asyncio.ensure_future(connection.request(MetadataRequest()))
        await asyncio.sleep(0)
        connection.close()
        with pytest.raises(Lost, match="closed by this client"):
            await waiting

    run(like_a_broker, act)


def test_nobody_there_is_said_with_the_address():
    async def main() -> None:
        with pytest.raises(Unreachable, match=r"no broker at 127\.0\.0\.1:1 \(connection refused\)"):
            await Cluster("127.0.0.1:1").any()

    asyncio.run(main())


def test_the_second_address_is_tried_when_the_first_is_dead():
    """CLI-19: a list of brokers to begin with."""

    async def act(port: int) -> None:
        async with Cluster(f"127.0.0.1:1,127.0.0.1:{port}") as cluster:
            assert (await cluster.any()).served

    run(like_a_broker, act)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("localhost:9092", [("localhost", 9092)]),
        ("kafka-1:9092, kafka-2:9093", [("kafka-1", 9092), ("kafka-2", 9093)]),
        ("broker", [("broker", 9092)]),
        ("[::1]:9094", [("::1", 9094)]),
        ("[::1]", [("::1", 9092)]),
        (":9095", [("localhost", 9095)]),
    ],
)
def test_addresses(text, found):
    assert addresses(text) == found


@pytest.mark.parametrize("text", ["", " , ", "host:port", "host:0", "host:65536"])
def test_what_is_no_address(text):
    with pytest.raises(ValueError, match="host:port"):
        addresses(text)


def test_an_error_number_newer_than_our_table():
    with pytest.raises(KafkaError, match="error 9999"):
        check(9999)
