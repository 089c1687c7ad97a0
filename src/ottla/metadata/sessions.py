"""Which brokers are heard of: soft state of the active controller, changed by heartbeats and by the clock alone.

A broker's session begins with its registration, lasts `broker.session.timeout.ms` from each heartbeat on, and ends when the
broker is fenced or has been told that it may stop. From the first heartbeat on nobody else can register with the broker's id
while it lasts: a process that died before, or does not know that it was registered, is in nobody's way. A controller that
begins to lead gives everybody who is not fenced a whole session.

A broker that was killed need not be waited for: when the connection on which it was heard is reset and a new one is
refused, nobody listens there any more, and `suspect` makes its session overdue at once. A broker that is only slow keeps its
sockets, so it keeps its session.

A controller that slept itself (stopped, or its machine was) accuses nobody: what it missed is not counted as silence.

Here stand also the offsets that heartbeats report. A broker may be let in once it has read its own registration, and a broker
that wants to stop may go once all others have read that it leads nothing any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.metadata.image import Broker, Image

NOT_STOPPING = -1
NOTHING_READ = -1
FOREVER = (1 << 63) - 1


@dataclass(slots=True)
class Session:
    """What is known of one process of a broker."""

    epoch: int
    contact_ms: int
    registered_at: int
    metadata_offset: int = NOTHING_READ
    stopping_at: int = NOT_STOPPING
    suspected: bool = False
    has_beaten: bool = True


@dataclass(slots=True)
class Sessions:
    timeout_ms: int
    _of: dict[int, Session] = field(default_factory=dict)
    _begun_at: int = NOTHING_READ
    _looked_ms: int | None = None

    @property
    def look_every_ms(self) -> int:
        """How often `overdue` wants to be asked; who asks less often seems to have slept."""
        return max(1, self.timeout_ms // 16)

    def begin(self, image: Image, now_ms: int) -> None:
        """This controller leads from now on."""
        self._begun_at, self._looked_ms = image.offset, None
        self._of = {b.id: self._taken_over(b.epoch, now_ms) for b in image.brokers.values() if not b.fenced}

    def _taken_over(self, epoch: int, now_ms: int) -> Session:
        return Session(epoch, now_ms, max(self._begun_at, epoch))

    # --- what happens

    def registered(self, broker_id: int, epoch: int, offset: int, now_ms: int) -> None:
        """A registration was written at this offset: a new process, or the same again."""
        known = self._of.get(broker_id)
        if known is None or known.epoch != epoch:
            known = self._of[broker_id] = Session(epoch, now_ms, offset, has_beaten=False)
        known.contact_ms, known.registered_at, known.suspected = now_ms, offset, False

    def heard(self, broker_id: int, epoch: int, metadata_offset: int, now_ms: int) -> Session:
        """A heartbeat came from this process, which is known to be the broker's current one."""
        known = self._of.get(broker_id)
        if known is None or known.epoch != epoch:
            known = self._of[broker_id] = self._taken_over(epoch, now_ms)
        known.contact_ms, known.metadata_offset, known.suspected = now_ms, metadata_offset, False
        known.has_beaten = True
        return known

    def suspect(self, broker_id: int) -> None:
        """Its connection was reset, and nobody listens where it was: it is overdue until it is heard again."""
        if broker_id in self._of:
            self._of[broker_id].suspected = True

    def end(self, broker_id: int) -> None:
        self._of.pop(broker_id, None)

    # --- what follows

    def is_live(self, broker_id: int, epoch: int, now_ms: int) -> bool:
        known = self._of.get(broker_id)
        if known is None or known.epoch != epoch:
            return False
        return known.has_beaten and not self._is_overdue(known, now_ms)

    def _is_overdue(self, session: Session, now_ms: int) -> bool:
        return session.suspected or session.contact_ms + self.timeout_ms < now_ms

    def overdue(self, now_ms: int) -> list[tuple[int, int]]:
        """Ids and epochs of those not heard of in time, the longest silent first."""
        self._forgive(now_ms)
        late = [(s.contact_ms, id_, s.epoch) for id_, s in self._of.items() if self._is_overdue(s, now_ms)]
        return [(id_, epoch) for _, id_, epoch in sorted(late)]

    def _forgive(self, now_ms: int) -> None:
        """Time in which this controller did not look either is nobody's silence; nor is a clock that was set back."""
        before, self._looked_ms = self._looked_ms, now_ms
        missed = 0 if before is None else now_ms - before
        if not 0 <= missed <= 4 * self.look_every_ms:
            for session in self._of.values():
                session.contact_ms = min(session.contact_ms + missed, now_ms)

    def registered_at(self, broker: Broker) -> int:
        """The offset that the broker must have read to be let in.

        Of a broker that registered with an earlier controller that is where this one began: it is not before."""
        known = self._of.get(broker.id)
        if known is None or known.epoch != broker.epoch:
            return max(self._begun_at, broker.epoch)
        return known.registered_at

    def stopping_at(self, broker: Broker) -> int:
        """The offset by which it led nothing any more, or NOT_STOPPING."""
        known = self._of.get(broker.id)
        return NOT_STOPPING if known is None or known.epoch != broker.epoch else known.stopping_at

    def read_by_all(self, image: Image) -> int:
        """How far everybody has read who may lead.

        Who may lead has a session, except for the broker of a node that is the quorum alone: it has read everything."""
        known = (self._of.get(broker.id) for broker in image.brokers.values() if broker.active)
        return min((session.metadata_offset for session in known if session is not None), default=FOREVER)
