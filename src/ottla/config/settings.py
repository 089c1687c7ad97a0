"""The tables, read once: every setting by its name."""

from __future__ import annotations

from ottla.config.kinds import Setting, read_table
from ottla.config.tables.coordination import COORDINATION
from ottla.config.tables.resources import CLIENT_METRICS, GROUPS, TOPICS
from ottla.config.tables.security import SECURITY
from ottla.config.tables.serving import OWN, SERVING
from ottla.config.tables.storage import STORAGE


def _by_name(*tables: str) -> dict[str, Setting]:
    return {setting.name: setting for table in tables for setting in read_table(table)}


BROKER_SETTINGS = _by_name(SERVING, STORAGE, COORDINATION, SECURITY)
OWN_SETTINGS = _by_name(OWN)
NODE_SETTINGS = BROKER_SETTINGS | OWN_SETTINGS
TOPIC_SETTINGS = _by_name(TOPICS)
GROUP_SETTINGS = _by_name(GROUPS)
CLIENT_METRICS_SETTINGS = _by_name(CLIENT_METRICS)

# These exist only as dynamic settings: a properties file cannot set them, and they are listed only where they were set.
DYNAMIC_ONLY = frozenset(
    (
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    )
)

# One value in several units; the first that is set wins. (flush.ms falls back to how often the flusher looks at all.)
UNITS = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)
SAME_VALUE = {name: names for names in UNITS for name in names} | {
    "log.flush.interval.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")
}
MILLISECONDS = {"hours": 3_600_000, "minutes": 60_000}

LISTENER_PREFIX = "listener.name."
# Settings that stand behind a mechanism: listener.name.NAME.MECHANISM.sasl.jaas.config
PER_MECHANISM = (
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
    "connections.max.reauth.ms",
)


def base_name(name: str) -> str:
    """The plain setting behind one that is given for a single listener: listener.name.internal.ssl.client.auth."""
    if not name.startswith(LISTENER_PREFIX):
        return name
    listener_and_name = name.removeprefix(LISTENER_PREFIX).split(".", 1)
    base = listener_and_name[1] if len(listener_and_name) == 2 else name
    return next((suffix for suffix in PER_MECHANISM if base.endswith(suffix)), base)


def broker_setting(name: str) -> Setting | None:
    """The row for a broker setting, also for one that is given per listener; None for a name nobody knows."""
    return NODE_SETTINGS.get(name) or NODE_SETTINGS.get(base_name(name))
