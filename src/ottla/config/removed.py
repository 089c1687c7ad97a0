"""Settings that no longer exist, and what to use instead."""

from __future__ import annotations

ZOOKEEPER = (
    "ZooKeeper is gone; metadata lives in the nodes themselves (process.roles, controller.quorum.bootstrap.servers)"
)
LISTENERS = "use listeners and advertised.listeners"
RECORD_FORMAT = "there is one record format (v2), which every client since 0.11 speaks"
QUOTAS = "quotas are set per user or client id, with kafka-configs.sh or AlterClientQuotas"
SHUTDOWN = "the controller paces a controlled shutdown itself"
PASSWORDS = "dynamic passwords are not stored encrypted any more"

REMOVED = {
    "host.name": LISTENERS,
    "port": LISTENERS,
    "advertised.host.name": LISTENERS,
    "advertised.port": LISTENERS,
    "control.plane.listener.name": "the controller has listeners of its own: controller.listener.names",
    "replica.lag.max.messages": "copies are judged by time alone: replica.lag.time.max.ms",
    "rebalance.delay.ms": "the setting is called group.initial.rebalance.delay.ms",
    "log.message.format.version": RECORD_FORMAT,
    "message.format.version": RECORD_FORMAT,
    "log.message.downconversion.enable": RECORD_FORMAT,
    "inter.broker.protocol.version": "the feature metadata.version decides, see kafka-features.sh",
    "log.message.timestamp.difference.max.ms": "use log.message.timestamp.before.max.ms and ....after.max.ms",
    "eligible.leader.replicas.enable": "the feature eligible.leader.replicas.version decides, see kafka-features.sh",
    "group.coordinator.new.enable": "there is one group coordinator, the new one",
    "offsets.commit.required.acks": "commits always wait for all in-sync copies",
    "offsets.storage": "offsets are always stored in a topic",
    "dual.commit.enabled": "offsets are always stored in a topic",
    "leader.imbalance.per.broker.percentage": "any imbalance is corrected, at leader.imbalance.check.interval.seconds",
    "controlled.shutdown.max.retries": SHUTDOWN,
    "controlled.shutdown.retry.backoff.ms": SHUTDOWN,
    "broker.id.generation.enable": "give each node a node.id",
    "reserved.broker.max.id": "give each node a node.id",
    "quota.producer.default": QUOTAS,
    "quota.consumer.default": QUOTAS,
    "password.encoder.secret": PASSWORDS,
    "password.encoder.old.secret": PASSWORDS,
    "auto.include.jmx.reporter": "list the reporter in metric.reporters",
    "log.flush.interval": "use log.flush.interval.messages",
    "log.file.size": "use log.segment.bytes",
    "log.retention.size": "use log.retention.bytes",
    "log.cleanup.interval.mins": "use log.retention.check.interval.ms",
    "max.message.size": "use message.max.bytes",
    "brokerid": "use node.id",
    "enable.zookeeper": ZOOKEEPER,
}


def replacement(name: str) -> str | None:
    """What to use instead of a setting that was removed; None for any other name."""
    return ZOOKEEPER if name.startswith("zookeeper.") else REMOVED.get(name)
