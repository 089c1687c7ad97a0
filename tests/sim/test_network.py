"""The simulated network: TCP's promises and no more, and the faults."""

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest

from ottla.sim.loop import Mishap, SimLoop, run
from ottla.sim.network import ANY
from ottla.sim.transport import WINDOW_BYTES

SEEDS = range(12)


class Ear(asyncio.Protocol):
    """Notes all that happens to it."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.data = b""
        self.reads = 0
        self.lost: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport: Any = transport
        self.said.append("made")

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.reads += 1

    def eof_received(self) -> bool:
        self.said.append("eof")
        return False

    def pause_writing(self) -> None:
        self.said.append("pause")

    def resume_writing(self) -> None:
        self.said.append("resume")

    def connection_lost(self, error: BaseException | None) -> None:
        self.said.append("lost")
        self.lost.set_result(error)


class BufferedEar(asyncio.BufferedProtocol):
    """Reads into one small buffer of its own."""

    def __init__(self) -> None:
        self.buffer = bytearray(1000)
        self.data = b""
        self.ended = asyncio.get_running_loop().create_future()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, count: int) -> None:
        assert 0 < count <= 1000
        self.data += self.buffer[:count]

    def connection_lost(self, error: BaseException | None) -> None:
        self.ended.set_result(error)


async def pair(
    loop: SimLoop, ear: Callable[[], Any] = Ear, mouth: Callable[[], Any] = Ear, name: str = "b0"
) -> tuple[Any, Any]:
    """A node that listens, and a connection to it from outside: the protocols of (client, server)."""
    accepted: asyncio.Queue[Any] = asyncio.Queue()

    def accept() -> Any:
        accepted.put_nowait(protocol := ear())
        return protocol

    async def node() -> None:
        await loop.create_server(accept, None, 9092)
        await asyncio.sleep(1e6)

    loop.boot(name, node())
    await asyncio.sleep(0.1)
    _, client = await loop.create_connection(mouth, name, 9092)
    return client, await accepted.get()


def test_bytes_arrive_in_order_whatever_the_latency():
    """Many small writes at one moment, drawn latencies, shuffled callbacks: the stream is what was written."""
    sent = random.Random(1).randbytes(300_000)

    async def main(loop: SimLoop) -> tuple[bytes, int]:
        client, server = await pair(loop)
        position = 0
        while position < len(sent):
            size = loop.chance("cut", position).randrange(1, 9000)
            client.transport.write(sent[position : position + size])
            position += size
        client.transport.close()
        await server.lost
        return server.data, server.reads

    reads = set()
    for seed in SEEDS:
        data, count = run(seed, main)
        assert data == sent
        reads.add(count)
    assert len(reads) > 3  # the same bytes come in different pieces


def test_a_buffered_protocol_gets_its_own_buffer_filled():
    sent = random.Random(1).randbytes(200_000)

    async def main(loop: SimLoop) -> bytes:
        client, server = await pair(loop, ear=BufferedEar)
        client.transport.write(sent)
        client.transport.close()
        assert await server.ended is None
        return server.data

    for seed in SEEDS:
        assert run(seed, main) == sent


def test_back_pressure_follows_the_limits_that_were_set():
    """high=0: a pause as soon as the kernel takes no more, a resume only when the buffer is empty (asyncio's rules)."""

    async def main(loop: SimLoop) -> None:
        client, server = await pair(loop)
        client.transport.set_write_buffer_limits(high=0)
        assert client.transport.get_write_buffer_limits() == (0, 0)
        server.transport.pause_reading()
        client.transport.write(bytes(WINDOW_BYTES))
        assert client.said == ["made"] and client.transport.get_write_buffer_size() == 0
        client.transport.write(b"x")
        assert client.said == ["made", "pause"] and client.transport.get_write_buffer_size() == 1
        await asyncio.sleep(10)
        assert client.said == ["made", "pause"] and server.data == b""
        server.transport.resume_reading()
        await asyncio.sleep(10)
        assert client.said == ["made", "pause", "resume"] and client.transport.get_write_buffer_size() == 0
        assert server.data == bytes(WINDOW_BYTES) + b"x"

    for seed in SEEDS:
        run(seed, main)


def test_without_limits_64_kib_are_taken_before_the_pause():
    async def main(loop: SimLoop) -> None:
        client, server = await pair(loop)
        server.transport.pause_reading()
        client.transport.write(bytes(WINDOW_BYTES + 65536))
        assert client.said == ["made"]
        client.transport.write(b"x")
        assert client.said == ["made", "pause"]
        server.transport.resume_reading()
        await asyncio.sleep(10)
        assert len(server.data) == WINDOW_BYTES + 65537

    run(1, main)


def test_close_flushes_and_abort_drops():
    async def main(loop: SimLoop, how: str) -> tuple[int, list[str]]:
        client, server = await pair(loop)
        server.transport.pause_reading()
        client.transport.write(bytes(300_000))
        getattr(client.transport, how)()
        server.transport.resume_reading()
        await server.lost
        await client.lost
        return len(server.data), server.said

    for seed in SEEDS:
        assert run(seed, lambda loop: main(loop, "close")) == (300_000, ["made", "eof", "lost"])
        assert run(seed, lambda loop: main(loop, "abort")) == (WINDOW_BYTES, ["made", "eof", "lost"])


def test_half_close_lets_the_other_side_finish():
    async def main(loop: SimLoop) -> bytes:
        async def upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write((await reader.read()).upper())
            writer.close()

        async def node() -> None:
            server = await asyncio.start_server(upper, "b0", 9092)
            await server.serve_forever()

        loop.boot("b0", node())
        await asyncio.sleep(0.1)
        reader, writer = await asyncio.open_connection("b0", 9092)
        writer.write(b"some words " * 20_000)
        writer.write_eof()
        with pytest.raises(RuntimeError):
            writer.write(b"more")
        return await reader.read()

    for seed in SEEDS:
        assert run(seed, main) == b"SOME WORDS " * 20_000


def test_writing_to_a_connection_the_peer_has_closed_ends_in_a_reset():
    async def main(loop: SimLoop) -> BaseException | None:
        class Deaf(Ear):
            def eof_received(self) -> bool:
                return True

        client, server = await pair(loop, mouth=Deaf)
        server.transport.close()
        await asyncio.sleep(1)
        assert not client.lost.done()
        client.transport.write(b"hello?")
        await asyncio.sleep(1)
        client.transport.write(b"still there?")
        return await client.lost

    assert isinstance(run(1, main), ConnectionResetError)


def test_addresses_and_the_absence_of_a_socket():
    async def main(loop: SimLoop) -> None:
        client, server = await pair(loop)
        node = loop.node("b0")
        assert client.transport.get_extra_info("peername") == (node.address, 9092)
        assert server.transport.get_extra_info("peername") == client.transport.get_extra_info("sockname")
        assert server.transport.get_extra_info("sockname") == (node.address, 9092)
        for name in ("socket", "sslcontext"):
            assert server.transport.get_extra_info(name) is None

    run(1, main)


def test_an_error_inside_data_received_is_a_finding_and_breaks_the_connection():
    class Broken(Ear):
        def data_received(self, data: bytes) -> None:
            raise ValueError("cannot read this")

    async def main(loop: SimLoop) -> None:
        client, server = await pair(loop, ear=Broken)
        client.transport.write(b"x")
        await client.lost
        assert isinstance(await server.lost, ValueError)

    with pytest.raises(Mishap, match="cannot read this"):
        run(1, main)


def test_closing_inside_resume_writing_is_a_finding():
    """Python 3.11 runs connection_lost twice then; the simulator says so on every version."""

    class Hasty(Ear):
        def resume_writing(self) -> None:
            self.transport.close()

    async def main(loop: SimLoop) -> None:
        client, _ = await pair(loop, mouth=Hasty)
        client.transport.set_write_buffer_limits(high=0)
        client.transport.write(bytes(200_000))
        await client.lost

    with pytest.raises(Mishap, match="inside resume_writing"):
        run(1, main)


class TestServers:
    def test_nobody_listens(self):
        async def main(loop: SimLoop) -> None:
            loop.boot("b0", asyncio.sleep(100))
            with pytest.raises(ConnectionRefusedError):
                await loop.create_connection(Ear, "b0", 9092)
            with pytest.raises(OSError, match="nowhere"):
                await loop.create_connection(Ear, "nowhere", 9092)

        run(1, main)

    def test_loopback_is_each_node_for_itself(self):
        """TRAP of many a test: a broker bound to localhost is not reachable from another machine."""

        async def main(loop: SimLoop) -> list[str]:
            async def local() -> str:
                await loop.create_server(Ear, "127.0.0.1", 9092)
                await loop.create_connection(Ear, "localhost", 9092)
                await asyncio.sleep(100)
                return "connected to itself"

            async def remote(host: str) -> str:
                await asyncio.sleep(1)
                try:
                    await loop.create_connection(Ear, host, 9092)
                except ConnectionRefusedError:
                    return "refused"
                return "connected"

            tasks = [loop.boot("b0", local()), loop.boot("c1", remote("localhost")), loop.boot("c2", remote("b0"))]
            return [await task for task in tasks]

        assert run(1, main) == ["connected to itself", "refused", "refused"]

    def test_ports_are_taken_and_given_back(self):
        async def main(loop: SimLoop) -> None:
            first = await loop.create_server(Ear, ["127.0.0.1", "::1"], 9092)
            with pytest.raises(OSError, match="already listens"):
                await loop.create_server(Ear, "::1", 9092)
            with pytest.raises(OSError, match="not an address"):
                await loop.create_server(Ear, "10.9.9.9", 9093)
            first.close()
            await first.wait_closed()
            assert not first.is_serving()
            second = await loop.create_server(Ear, "::1", 9092)
            third = await loop.create_server(Ear, None, 0)
            assert second.sockets[0].getsockname() == ("::1", 9092)
            port = third.sockets[0].getsockname()[1]
            await loop.create_connection(Ear, "localhost", port)

        run(1, main)

    def test_a_closed_server_refuses_but_its_connections_live_on(self):
        async def main(loop: SimLoop) -> None:
            made: list[Ear] = []

            def factory() -> Ear:
                made.append(Ear())
                return made[-1]

            server = await loop.create_server(factory, None, 9092)
            transport, _ = await loop.create_connection(Ear, "localhost", 9092)
            await asyncio.sleep(0.1)
            server.close()
            with pytest.raises(ConnectionRefusedError):
                await loop.create_connection(Ear, "localhost", 9092)
            transport.write(b"still here")
            await asyncio.sleep(1)
            assert made[0].data == b"still here"
            waiting = asyncio.create_task(server.wait_closed())
            await asyncio.sleep(1)
            assert not waiting.done()
            transport.close()
            await waiting

        run(1, main)

    def test_tls_is_refused_clearly(self):
        async def main(loop: SimLoop) -> None:
            with pytest.raises(NotImplementedError, match="TLS"):
                await loop.create_server(Ear, None, 9092, ssl=object())

        run(1, main)


class TestFaults:
    def test_a_one_way_cut_stalls_one_way_and_loses_nothing(self):
        async def main(loop: SimLoop) -> None:
            client, server = await pair(loop)
            loop.network.cut("outside", "b0")
            client.transport.write(b"one ")
            client.transport.write(b"two ")
            server.transport.write(b"from the server")
            await asyncio.sleep(60)
            assert server.data == b"" and client.data == b"from the server"
            client.transport.write(b"three")
            loop.network.heal("outside", "b0")
            await asyncio.sleep(1)
            assert server.data == b"one two three"

        for seed in SEEDS:
            run(seed, main)

    def test_without_acknowledgements_the_window_fills(self):
        """Data flows one way, its acknowledgements do not: after 64 KiB the sender stands."""

        async def main(loop: SimLoop) -> None:
            client, server = await pair(loop)
            client.transport.set_write_buffer_limits(high=0)
            loop.network.cut("b0", "outside")
            for _ in range(20):
                client.transport.write(bytes(10_000))
                await asyncio.sleep(1)
            assert len(server.data) == WINDOW_BYTES and "pause" in client.said
            loop.network.heal_all()
            await asyncio.sleep(1)
            assert len(server.data) == 200_000 and client.said[-1] == "resume"

        for seed in SEEDS:
            run(seed, main)

    def test_connecting_across_a_cut_hangs_until_it_heals(self):
        async def main(loop: SimLoop) -> float:
            await pair(loop)
            loop.network.isolate("b0")
            loop.call_later(20, loop.network.heal_all)
            started = loop.time()
            await loop.create_connection(Ear, "b0", 9092)
            return loop.time() - started

        assert 20 < run(1, main) < 40

    def test_connecting_across_a_lasting_cut_times_out(self):
        async def main(loop: SimLoop) -> float:
            await pair(loop)
            loop.network.cut("b0", ANY)
            started = loop.time()
            with pytest.raises(TimeoutError):
                await loop.create_connection(Ear, "b0", 9092)
            return loop.time() - started

        assert 120 < run(1, main) < 140

    def test_groups_are_parted_and_whoever_is_in_both_is_not(self):
        async def main(loop: SimLoop) -> None:
            loop.network.part(["a", "b"], ["b", "c"])
            blocked = [(x, y) for x in "abc" for y in "abc" if loop.network.blocked(x, y)]
            assert blocked == [("a", "b"), ("a", "c"), ("b", "a"), ("b", "c"), ("c", "a"), ("c", "b")]
            loop.network.heal_all()
            loop.network.part(["a"], ["c"])
            assert loop.network.blocked("a", "c") and not loop.network.blocked("a", "b")

        run(1, main)

    def test_a_machine_without_power_is_silent_until_it_is_on_again(self):
        async def main(loop: SimLoop) -> None:
            client, _ = await pair(loop)
            loop.network.darken("b0")
            loop.kill("b0")
            await asyncio.sleep(60)
            assert not client.lost.done()
            loop.network.light_up("b0")
            await asyncio.sleep(1)
            assert client.lost.done()

        run(1, main)

    def test_a_stall_heals_itself(self):
        async def main(loop: SimLoop) -> None:
            client, server = await pair(loop)
            loop.network.stall("outside", "b0", 5)
            client.transport.write(b"x")
            await asyncio.sleep(4.9)
            assert server.data == b""
            await asyncio.sleep(0.5)
            assert server.data == b"x"

        run(1, main)

    def test_a_slow_link_is_slow_one_way(self):
        async def main(loop: SimLoop) -> None:
            client, server = await pair(loop)
            loop.network.slow("outside", "b0", 2)
            client.transport.write(b"x")
            server.transport.write(b"y")
            await asyncio.sleep(0.5)
            assert (server.data, client.data) == (b"", b"y")
            await asyncio.sleep(2)
            assert server.data == b"x"

        run(1, main)

    def test_a_reset_is_seen_at_both_ends(self):
        async def main(loop: SimLoop) -> None:
            client, server = await pair(loop)
            assert loop.network.reset("b0", "outside") == 2
            for protocol in (client, server):
                assert isinstance(await protocol.lost, ConnectionResetError)

        for seed in SEEDS:
            run(seed, main)

    def test_a_reset_is_noticed_when_writing_even_if_reading_is_paused(self):
        async def main(loop: SimLoop) -> None:
            client, _ = await pair(loop)
            client.transport.pause_reading()
            loop.network.reset("b0", "outside")
            await asyncio.sleep(10)
            assert not client.lost.done()
            client.transport.write(b"x")
            assert isinstance(await client.lost, ConnectionResetError)

        run(1, main)

    def test_a_kill_lets_sent_bytes_arrive_and_then_resets(self):
        async def main(loop: SimLoop) -> tuple[bytes, BaseException | None]:
            client, server = await pair(loop)
            server.transport.write(b"last words")
            loop.kill("b0")
            error = await client.lost
            with pytest.raises(ConnectionRefusedError):
                await loop.create_connection(Ear, "b0", 9092)
            assert server.said == ["made"]  # the dead hear nothing
            return client.data, error

        for seed in SEEDS:
            data, error = run(seed, main)
            assert data == b"last words" and isinstance(error, ConnectionResetError)

    def test_what_the_process_still_held_dies_with_it(self):
        async def main(loop: SimLoop) -> int:
            client, server = await pair(loop)
            server.transport.write(bytes(300_000))
            loop.kill("b0")
            await client.lost
            return len(client.data)

        assert run(1, main) == WINDOW_BYTES

    def test_a_kill_behind_a_cut_is_noticed_after_the_heal(self):
        async def main(loop: SimLoop) -> None:
            client, _ = await pair(loop)
            loop.network.isolate("b0")
            loop.kill("b0")
            await asyncio.sleep(100)
            assert not client.lost.done()
            loop.network.heal_all()
            assert isinstance(await client.lost, ConnectionResetError)

        for seed in SEEDS:
            run(seed, main)

    def test_the_kernel_of_a_paused_node_still_takes_connections_and_bytes(self):
        async def main(loop: SimLoop) -> None:
            client, server = await pair(loop)
            loop.pause("b0")
            client.transport.write(bytes(100))
            transport, _ = await loop.create_connection(Ear, "b0", 9092)
            transport.set_write_buffer_limits(high=0)
            transport.write(bytes(WINDOW_BYTES))
            assert transport.get_write_buffer_size() == 0
            await asyncio.sleep(5)
            assert server.data == b""
            loop.resume("b0")
            await asyncio.sleep(1)
            assert server.data == bytes(100)

        for seed in SEEDS:
            run(seed, main)


def test_a_storm_of_everything_keeps_every_stream_whole():
    """Requests and answers over streams under kills, cuts, pauses and resets: whatever arrives is a prefix of what was
    sent, and the clients get through once the weather clears."""

    async def main(loop: SimLoop) -> int:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while line := await reader.readline():
                    writer.write(line)
                    await writer.drain()
            writer.close()

        async def node() -> None:
            server = await asyncio.start_server(echo, "b0", 9092, limit=1 << 20)
            await server.serve_forever()

        async def client(name: str) -> int:
            rng, done, tries = loop.chance(name), 0, 0
            while done < 60:
                tries += 1
                try:
                    reader, writer = await asyncio.wait_for(asyncio.open_connection("b0", 9092, limit=1 << 20), 3)
                    while done < 60:
                        line = b"%d " % done + b"x" * rng.randrange(200_000) + b"\n"
                        writer.write(line)
                        answer = await asyncio.wait_for(reader.readline(), 3)
                        assert line.startswith(answer)
                        if answer != line:
                            raise ConnectionError
                        done += 1
                        await asyncio.sleep(0.05)
                except (OSError, TimeoutError, asyncio.IncompleteReadError):
                    await asyncio.sleep(0.2)
            return tries

        loop.boot("b0", node())
        clients = [loop.boot(f"c{n}", client(f"c{n}")) for n in range(3)]
        rng = loop.chance("weather")
        for _ in range(12):
            await asyncio.sleep(rng.random())
            fault = rng.choice(["kill", "cut", "pause", "reset", "slow"])
            if fault == "kill":
                loop.kill("b0")
                await asyncio.sleep(rng.random())
                loop.boot("b0", node())
            elif fault == "cut":
                loop.network.cut(*rng.sample(["b0", "c0", "c1", "c2"], 2))
            elif fault == "pause":
                loop.pause("b0")
                await asyncio.sleep(rng.random() * 5)
                loop.resume("b0")
            elif fault == "reset":
                loop.network.reset("b0", ANY)
            else:
                loop.network.slow("b0", "c1", rng.random())
        loop.network.heal_all()
        return sum([await task for task in clients])

    assert sum(run(seed, main) for seed in range(6)) > 6 * 3
