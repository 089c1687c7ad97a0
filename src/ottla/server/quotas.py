"""Keeps clients to their quotas (KIP-13, 124, 257, 599, 612): measures what they use, and says for how long they must wait.

A quota belongs to a user, a client id, both, or the default of either; the most exact one that is set counts, in the order
of `levels`. Clients that fall under the same name share one measure. Until somebody logs in, everybody is the user
ANONYMOUS.

Whoever is over a quota is answered at once, told the time to wait (`throttle_time_ms`), and not listened to for that time:
its connection is muted. What is measured:

- Produce: the bytes of requests. Fetch: the bytes of records in answers; a fetch above the quota is answered without
  records, and what it would have brought is not counted. As an exception from Kafka's rule, a batch that is larger than all
  windows together passes if nothing else came with it: else it could never be read.
- Requests: the share of one processor that a client's requests keep busy, in per cent. Every step of a handler is measured,
  the writing of logs and the sending of answers are not. Produce without acknowledgement is not held back for this.
- Changes of topics, by partitions that are made or removed. Newer versions of the requests are refused
  (THROTTLING_QUOTA_EXCEEDED), older ones are done, and the client waits afterwards.
- New connections from one address: those above the rate are closed, after the time to wait.

Without any quota on users and clients `Node.charging` is None, and that is all that requests notice of this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from ottla.metadata.quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    OF_CLIENTS,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
)
from ottla.server.context import ITSELF, Context
from ottla.server.rates import Bucket, Rate, Windows
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.fetch import FetchRequest
from ottla.wire.messages.produce import ProduceRequest

if TYPE_CHECKING:
    from ottla.metadata.frozen import FrozenMap
    from ottla.metadata.image import QuotaEntity
    from ottla.server.dispatch import Exchange
    from ottla.server.measures import NodeMetrics

PRODUCE, FETCH = ProduceRequest.key, FetchRequest.key
SIZE_BYTES = 4  # before each frame; they do not count
# A user and a client id: a name, "" for the default of all, None if the quota does not speak of it.
Level = tuple[str | None, str | None]
# Whoever has the same of these shares a measure: the quota, a user, a client id; for connections an address.
Sharing = tuple[str, str | None, str | None]
# So many measures are kept before those are looked for that nobody needs any more.
METERS_MAX = 10_000
NO_LIMIT = 2**31 - 1


def levels(user: str, client_id: str) -> Iterator[Level]:
    """Where a quota of this client may be set, the most exact first. Nobody can name a client without an id."""
    if client_id:
        yield user, client_id
        yield user, ""
    yield user, None
    if client_id:
        yield "", client_id
        yield "", ""
    yield "", None
    if client_id:
        yield None, client_id
        yield None, ""


class Meter:
    """What those use together who share a quota."""

    __slots__ = ("bucket", "limit", "rate", "used_ms")

    def __init__(self, windows: Windows, limit: float) -> None:
        self.limit = limit
        self.rate = Rate(windows)
        self.bucket = Bucket(windows)
        self.used_ms = 0


class Quotas:
    def __init__(self, config: Any, clock: Callable[[], float], measures: NodeMetrics) -> None:
        """`clock`: seconds that never go back."""
        self._clock = clock
        self._measures = measures
        self._windows = Windows(config["quota.window.num"], config["quota.window.size.seconds"] * 1000)
        self._mutation_windows = Windows(
            config["controller.quota.window.num"], config["controller.quota.window.size.seconds"] * 1000
        )
        self._limits: dict[str, dict[Level, float]] = {}
        self._address_limits: dict[str | None, float] = {}
        self._hosts: dict[str, str] = {}
        self._meters: dict[Sharing, Meter] = {}
        # What was found out for a quota, a user and a client id: only to be quick.
        self._found: dict[tuple[str, str, str], tuple[Sharing, float] | None] = {}
        self._working_since = 0.0

    def obey(self, quotas: FrozenMap[QuotaEntity, Mapping[str, float]]) -> Quotas | None:
        """Take over what is set now. Itself, if there is anything to keep users and clients to."""
        self._limits = {}
        self._address_limits = {}
        self._found = {}
        for entity, limits in quotas.items():
            named = dict(entity)
            if IP in named:
                self._limit_address(named[IP], limits)
            else:
                self._limit_clients(named, limits)
        return self if self._limits else None

    def _limit_clients(self, named: Mapping[str, str | None], limits: Mapping[str, float]) -> None:
        level = tuple((named[kind] or "") if kind in named else None for kind in (USER, CLIENT_ID))
        for key, limit in limits.items():
            if key in OF_CLIENTS:
                self._limits.setdefault(key, {})[level] = limit  # type: ignore[index]

    def _limit_address(self, name: str | None, limits: Mapping[str, float]) -> None:
        if CONNECTION_CREATION_RATE in limits:
            address = None if name is None else self._hosts.get(name) or plain_address(name) or name
            self._address_limits[address] = limits[CONNECTION_CREATION_RATE]

    def unresolved(self) -> list[str]:
        """Hosts that have a limit and whose address is not known yet."""
        return [name for name in self._address_limits if name is not None and plain_address(name) is None]

    async def resolve(self, names: Iterable[str]) -> None:
        """Find out which addresses these hosts have now; a host that is gone is not limited."""
        for name in names:
            try:
                found = await asyncio.get_running_loop().getaddrinfo(name, None)
            except OSError:
                continue
            self._hosts[name] = address = plain_address(str(found[0][4][0])) or name
            if name in self._address_limits:
                self._address_limits[address] = self._address_limits.pop(name)

    # --- requests

    def settle(self, exchange: Exchange) -> None:
        """A request is answered: count what it used, and mute its connection if that was too much."""
        spent, now_ms = self._spent(exchange), self.now_ms()
        if exchange.connection.is_exempt:
            return
        key, answer = exchange.handler.key, exchange.response
        # A handler tells a time itself, for records that were fetched or for changes of topics.
        longest = getattr(answer, "throttle_time_ms", 0)
        blamed = CONSUMER_BYTE_RATE if key == FETCH else CONTROLLER_MUTATION_RATE
        if key != PRODUCE or answer is not None:
            wait_ms = min(self._charge(exchange, REQUEST_PERCENTAGE, spent * 100, now_ms), self._windows.size_ms)
            if wait_ms > longest:
                longest, blamed = wait_ms, REQUEST_PERCENTAGE
        if key == PRODUCE:
            wait_ms = self._charge(exchange, PRODUCER_BYTE_RATE, exchange.size - SIZE_BYTES, now_ms)
            if wait_ms > longest:
                longest, blamed = wait_ms, PRODUCER_BYTE_RATE
        if longest:
            self._throttle(exchange, longest, blamed)

    def _throttle(self, exchange: Exchange, wait_ms: int, blamed: str) -> None:
        answer: Any = exchange.response
        if hasattr(answer, "throttle_time_ms"):
            answer.throttle_time_ms = wait_ms
        self._measures.throttled.labels(blamed).value += 1
        self._measures.throttled_seconds.labels(blamed).value += wait_ms / 1000
        exchange.connection.mute(wait_ms / 1000)

    def begins(self) -> None:
        """From here on the loop works for a request that came in earlier."""
        self._working_since = self._clock()

    def waits(self, exchange: Exchange) -> None:
        """A handler waits for something; what it has used so far is kept with it."""
        exchange.spent_s = self._spent(exchange)

    def _spent(self, exchange: Exchange) -> float:
        """Seconds of the loop that a request used. They are counted from when it came in, or the last one was done."""
        now, since = self._clock(), self._working_since
        self._working_since = now
        before: float | None = getattr(exchange, "spent_s", None)
        if before is None:
            return now - max(since, exchange.started)
        return before + now - since

    def _charge(self, ctx: Context, key: str, value: float, now_ms: int) -> int:
        """How long to wait after so much more, in ms."""
        meter = self.meter(ctx, key, now_ms)
        if meter is None:
            return 0
        meter.rate.record(value, now_ms)
        return meter.rate.excess_ms(meter.limit, now_ms)

    def meter(self, ctx: Context, key: str, now_ms: int) -> Meter | None:
        """The measure of this quota that the client of a request falls under."""
        if key not in self._limits or ctx.principal == ITSELF:
            return None
        client = (key, ctx.principal.partition(":")[2], ctx.client_id or "")
        if client not in self._found:
            if len(self._found) >= METERS_MAX:
                self._found.clear()
            self._found[client] = self._find(*client)
        found = self._found[client]
        return None if found is None else self._meter_of(*found, now_ms)

    def _find(self, key: str, user: str, client_id: str) -> tuple[Sharing, float] | None:
        limits = self._limits[key]
        for level in levels(user, client_id):
            if (limit := limits.get(level)) is not None:
                return (key, None if level[0] is None else user, None if level[1] is None else client_id), limit
        return None

    def _meter_of(self, sharing: Sharing, limit: float, now_ms: int) -> Meter:
        meter = self._meters.get(sharing)
        if meter is None:
            if len(self._meters) >= METERS_MAX:
                self._forget_idle(now_ms)
            windows = self._mutation_windows if sharing[0] == CONTROLLER_MUTATION_RATE else self._windows
            meter = self._meters[sharing] = Meter(windows, limit)
        meter.limit, meter.used_ms = limit, now_ms
        return meter

    def _forget_idle(self, now_ms: int) -> None:
        """A measure that was not used for all its windows is as good as a new one; of the others the oldest half goes."""
        longest = int(max(self._windows.seconds, self._mutation_windows.seconds) * 1000)
        kept = {key: meter for key, meter in self._meters.items() if now_ms - meter.used_ms <= longest}
        if len(kept) >= METERS_MAX:
            by_use = sorted(kept, key=lambda key: kept[key].used_ms)
            kept = {key: kept[key] for key in by_use[METERS_MAX // 2 :]}
        self._meters = kept

    def now_ms(self) -> int:
        return int(self._clock() * 1000)

    # --- what handlers ask

    def fetch_bytes_max(self, ctx: Context) -> int:
        """How much an answer may bring without being too much for certain."""
        meter = self.meter(ctx, CONSUMER_BYTE_RATE, self.now_ms())
        if meter is None:
            return NO_LIMIT
        count, size_ms = self._windows
        return int(min(meter.limit * (count - 1) * size_ms / 1000, NO_LIMIT))

    def fetched(self, ctx: Context, size: int) -> tuple[int, bool]:
        """How long to wait for records of this size, and whether they may be sent all the same."""
        now_ms = self.now_ms()
        meter = self.meter(ctx, CONSUMER_BYTE_RATE, now_ms)
        if meter is None:
            return 0, True
        is_alone = meter.rate.total(now_ms) == 0
        meter.rate.record(size, now_ms)
        wait_ms = meter.rate.excess_ms(meter.limit, now_ms)
        if wait_ms and not is_alone:
            meter.rate.record(-size, now_ms)
        return wait_ms, not wait_ms or is_alone

    # --- connections

    def connection_wait_s(self, host: str) -> float:
        """0 for a connection that may stay; for one too many, after how long it is to be closed."""
        if not self._address_limits:
            return 0.0
        address = plain_address(host) or host
        limit = self._address_limits.get(address, self._address_limits.get(None))
        if limit is None or limit >= NO_LIMIT:
            return 0.0
        now_ms = self.now_ms()
        meter = self._meter_of((CONNECTION_CREATION_RATE, address, None), limit, now_ms)
        meter.rate.record(1, now_ms)
        wait_ms = meter.rate.excess_ms(limit, now_ms)
        if wait_ms:
            meter.rate.record(-1, now_ms)
        return min(wait_ms, self._windows.size_ms) / 1000


class Mutations:
    """The quota on changes of topics, for one request, if there is one. `strict_since`: the version that is refused."""

    __slots__ = ("_ctx", "_quotas", "_strict", "_until_ms")

    def __init__(self, ctx: Context, strict_since: int) -> None:
        self._quotas, self._ctx, self._strict = ctx.node.charging, ctx, ctx.version >= strict_since
        self._until_ms = 0

    def charge(self, partitions: int) -> None:
        """So many partitions more. Strict: none at all once the quota is used up, but as many as wanted before."""
        if self._quotas is None:
            return
        now_ms = self._quotas.now_ms()
        meter = self._quotas.meter(self._ctx, CONTROLLER_MUTATION_RATE, now_ms)
        if meter is None:
            return
        if self._strict and (wait_ms := meter.bucket.excess_ms(meter.limit, now_ms)):
            self._until_ms = now_ms + wait_ms
            raise KafkaError(Error.THROTTLING_QUOTA_EXCEEDED)
        meter.bucket.take(partitions, meter.limit, now_ms)
        if not self._strict and (wait_ms := meter.bucket.excess_ms(meter.limit, now_ms)):
            self._until_ms = now_ms + wait_ms

    @property
    def wait_ms(self) -> int:
        """How long the client has to wait; deciding took some time already."""
        return 0 if self._quotas is None else max(0, self._until_ms - self._quotas.now_ms())


def plain_address(text: str) -> str | None:
    """One spelling of an address, of IPv4 wrapped into IPv6 too; None for what is none."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
