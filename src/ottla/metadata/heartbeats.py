"""Heartbeats: what a broker wants, whether it gets it, and what is written for that.

A broker is FENCED (registered, leads nothing), LET_IN, STOPPING (it leads nothing any more, and waits until the others have
read so) or may GO, which fences it. What a heartbeat moves it to depends on what it is and what it wants:

    FENCED    wants to stop: GO; wants in and has read its own registration: LET_IN
    LET_IN    wants the fence: FENCED, or GO if it wants to stop as well; wants to stop: STOPPING, or GO if it leads nothing
    STOPPING  leads nothing, and everybody who may lead has read that: GO
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.metadata.brokers import begin_shutdown, check_epoch, cordon, fence, unfence_only
from ottla.metadata.decisions import Decision, Rules, Versioned
from ottla.metadata.directories import fail_directories
from ottla.metadata.image import Broker, Image
from ottla.metadata.replay import replay
from ottla.metadata.sessions import NOT_STOPPING, Sessions
from ottla.wire.messages.brokers import BrokerHeartbeatRequest

FENCED, LET_IN, STOPPING, GO = range(4)


class Standing(NamedTuple):
    """What a broker is told of itself. `stopping_at` is the offset that the others must have read before it goes."""

    is_caught_up: bool
    state: int
    stopping_at: int = NOT_STOPPING

    @property
    def is_fenced(self) -> bool:
        return self.state in (FENCED, GO)

    @property
    def may_go(self) -> bool:
        return self.state == GO


def heartbeat(image: Image, beat: BrokerHeartbeatRequest, sessions: Sessions, rules: Rules) -> Decision[Standing]:
    """The sessions are only looked at; see `noted`."""
    broker = check_epoch(image, beat.broker_id, beat.broker_epoch)
    caught_up = beat.current_metadata_offset >= sessions.registered_at(broker)
    now, then = _state(broker, sessions), _next_state(image, broker, beat, sessions, caught_up)
    records = [] if now == then else _moved(image, broker.id, then, rules)
    stopping_at = image.offset + len(records) if then == STOPPING else NOT_STOPPING
    image = _after(image, records)
    more = fail_directories(image, image.brokers[broker.id], beat.offline_log_dirs, rules)
    image = _after(image, more)
    if beat.cordoned_log_dirs is not None:
        more += cordon(image, image.brokers[broker.id], beat.cordoned_log_dirs)
    return Decision(records + more, Standing(caught_up, then, stopping_at))


def noted(sessions: Sessions, beat: BrokerHeartbeatRequest, standing: Standing, now_ms: int) -> None:
    """What the sessions learn from a heartbeat that was decided."""
    session = sessions.heard(beat.broker_id, beat.broker_epoch, beat.current_metadata_offset, now_ms)
    if standing.state != STOPPING:
        session.stopping_at = NOT_STOPPING
    elif session.stopping_at == NOT_STOPPING:
        session.stopping_at = standing.stopping_at
    if standing.may_go:
        sessions.end(beat.broker_id)


def _state(broker: Broker, sessions: Sessions) -> int:
    if broker.fenced:
        return FENCED
    # A controller that took over does not know when the broker stopped leading: it begins anew.
    return LET_IN if sessions.stopping_at(broker) == NOT_STOPPING else STOPPING


def _next_state(image: Image, broker: Broker, beat: BrokerHeartbeatRequest, sessions: Sessions, caught_up: bool) -> int:
    state = _state(broker, sessions)
    if state == FENCED:
        if beat.want_shut_down:
            return GO
        # Who once wanted to stop has no way back but to register anew.
        return LET_IN if caught_up and not beat.want_fence and not broker.in_controlled_shutdown else FENCED
    if state == STOPPING:
        waits = leads_anything(image, broker.id) or sessions.stopping_at(broker) > sessions.read_by_all(image)
        return STOPPING if waits else GO
    if beat.want_fence:
        return GO if beat.want_shut_down else FENCED
    if beat.want_shut_down:
        return STOPPING if broker.in_controlled_shutdown or leads_anything(image, broker.id) else GO
    return LET_IN


def leads_anything(image: Image, broker_id: int) -> bool:
    return any(p.leader == broker_id for topic in image.topics.values() for p in topic.partitions.values())


def _moved(image: Image, broker_id: int, state: int, rules: Rules) -> list[Versioned]:
    move = {FENCED: fence, LET_IN: unfence_only, STOPPING: begin_shutdown, GO: fence}[state]
    return move(image, broker_id, rules).records


def _after(image: Image, records: list[Versioned]) -> Image:
    """What the rest of a decision must see of its own beginning."""
    if not records:
        return image
    return replay(image, [record for record, _ in records], image.offset + len(records), image.epoch)[0]
