"""Where requests about groups come in: whoever knocks, the kind of the group decides who answers."""

from __future__ import annotations

from ottla.coordination import classic, consumer

join = classic.join
sync = classic.sync
heartbeat = classic.heartbeat
leave = classic.leave
consumer_heartbeat = consumer.heartbeat
