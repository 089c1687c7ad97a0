"""What one node measures: every metric it exposes, declared in one place. docs/metrics.md maps Apache's names to these.

Three kinds of use:

- per request: `measures.api[key].observe(seconds, bytes_in, bytes_out)` and `.look(answer)`, which counts the errors in it;
- per partition: keep `topic = measures.topic("orders")` beside the log and add to its numbers: `topic.bytes_in += size`;
- at the scrape: whoever knows a number sets the reading once: `measures.partitions.read = lambda: len(replicas)`.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from ottla.metrics import CHILDREN_MAX, OTHER, SECONDS, Histogram, Labels, Registry
from ottla.server.consensus import Meters
from ottla.server.failures import Codes, error_codes
from ottla.wire.errors import Error
from ottla.wire.schema import Message

# The apparent delay of a loop is measured finely around the millisecond where clients begin to feel it.
STALL_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class ApiMeasure(Histogram):
    """Requests of one API: how long they took, how large they and their answers were, how they failed."""

    __slots__ = ("_codes", "bytes_in", "bytes_out", "errors")

    def __init__(self) -> None:
        super().__init__(SECONDS)
        self._codes: Codes | None = None
        self.bytes_in = 0
        self.bytes_out = 0
        self.errors: dict[str, int] = {}

    def observe(self, value: float, bytes_in: int = 0, bytes_out: int = 0) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out

    def look(self, answer: Message) -> None:
        """Count the errors that an answer tells."""
        if self._codes is None:
            self._codes = error_codes(type(answer))
        if found := self._codes(answer):  # mostly none, and at times a hundred thousand
            for code, count in Counter(found).items():
                self.fail(Error(code).name, count)  # type: ignore[call-arg]

    def fail(self, error: str, count: int = 1) -> None:
        """More answers with this error, by the name it has in the protocol."""
        self.errors[error] = self.errors.get(error, 0) + count


class TopicMeasure:
    """Traffic of one topic. Its users add to the numbers directly."""

    __slots__ = ("bytes_in", "bytes_out", "failed_fetches", "failed_produces", "fetches", "produces", "records_in")

    def __init__(self) -> None:
        self.bytes_in = self.bytes_out = self.records_in = 0
        self.produces = self.failed_produces = 0
        self.fetches = self.failed_fetches = 0


class NodeMetrics:
    def __init__(self, apis: Mapping[int, str], *, version: str = "", topics_max: int = CHILDREN_MAX) -> None:
        """`apis`: the name of each API that is served, by key."""
        self.registry = Registry()
        self.render = self.registry.render
        self._topics: dict[str, TopicMeasure] = {}
        self._topics_max = topics_max
        self._syncing = threading.Lock()
        self._declare_requests(apis)
        self._declare_topics()
        self._declare_connections()
        self._declare_partitions()
        self._declare_disk()
        self._declare_groups()
        self._declare_metadata()
        self._declare_quorum()
        self._declare_copies()
        self._declare_process(version)

    def synced(self, seconds: float, failed: bool) -> None:
        """One fsync, on whichever thread: the only thing here that does not happen on the loop."""
        with self._syncing:
            self.fsync.observe(seconds)
            self.fsync_failures.value += failed

    def topic(self, name: str) -> TopicMeasure:
        """Where traffic of this topic is counted; beyond `topics_max` topics share one."""
        measure = self._topics.get(name)
        if measure is None:
            key = name if len(self._topics) < self._topics_max else OTHER
            measure = self._topics.setdefault(key, TopicMeasure())
        return measure

    def forget_topic(self, name: str) -> None:
        self._topics.pop(name, None)

    def _declare_requests(self, apis: Mapping[int, str]) -> None:
        reg = self.registry
        requests = reg.histograms(
            "ottla_request_seconds",
            "From the last byte of a request to its answer being handed to the connection.",
            "api",
            make=ApiMeasure,
        )
        self.api = {key: requests.labels(name) for key, name in apis.items()}
        named = [((name,), self.api[key]) for key, name in apis.items()]
        reg.readings(
            "ottla_request_bytes_total", "Bytes of requests, with their length prefix.", "api", kind="counter"
        ).read = lambda: ((labels, api.bytes_in) for labels, api in named)
        reg.readings(
            "ottla_response_bytes_total", "Bytes of answers, with their length prefix.", "api", kind="counter"
        ).read = lambda: ((labels, api.bytes_out) for labels, api in named)
        reg.readings(
            "ottla_request_errors_total", "Errors in answers, by their name.", "api", "error", kind="counter"
        ).read = lambda: (
            ((name, error), count) for (name,), api in named for error, count in sorted(api.errors.items())
        )
        self.waiting_produces = reg.reading(
            "ottla_produces_waiting", "Produce requests that wait to be safe on enough replicas."
        )
        self.waiting_fetches = reg.reading("ottla_fetches_waiting", "Fetch requests that wait for more bytes.")
        self.fetch_sessions = reg.reading("ottla_fetch_sessions", "Incremental fetch sessions that are open.")
        self.malformed = reg.counter("ottla_malformed_requests_total", "Requests that could not be read.")

    def _declare_topics(self) -> None:
        self._per_topic("ottla_topic_bytes_in_total", "Bytes of batches appended.", lambda t: t.bytes_in)
        self._per_topic("ottla_topic_bytes_out_total", "Bytes of batches sent to consumers.", lambda t: t.bytes_out)
        self._per_topic("ottla_topic_records_in_total", "Records appended.", lambda t: t.records_in)
        self._per_topic("ottla_topic_produces_total", "Partitions asked to append.", lambda t: t.produces)
        self._per_topic("ottla_topic_failed_produces_total", "Appends refused.", lambda t: t.failed_produces)
        self._per_topic("ottla_topic_fetches_total", "Partitions asked for records.", lambda t: t.fetches)
        self._per_topic("ottla_topic_failed_fetches_total", "Reads answered with an error.", lambda t: t.failed_fetches)

    def _per_topic(self, name: str, help_text: str, number: Callable[[TopicMeasure], int]) -> None:
        def read() -> Iterable[tuple[Labels, float]]:
            return (((topic,), number(measure)) for topic, measure in self._topics.items())

        self.registry.readings(name, help_text, "topic", kind="counter").read = read

    def _declare_connections(self) -> None:
        reg = self.registry
        self.connections = reg.readings("ottla_connections", "Open connections.", "listener")
        self.connections_opened = reg.counters("ottla_connections_opened_total", "Connections accepted.", "listener")
        self.connections_refused = reg.counters(
            "ottla_connections_refused_total", "Connections closed for a limit or a deadline.", "reason"
        )

        self.muted = reg.reading("ottla_muted_connections", "Connections of clients that wait because of a quota.")
        self.throttled = reg.counters(
            "ottla_throttled_requests_total", "Answers after which the client had to wait for a quota.", "quota"
        )
        self.throttled_seconds = reg.counters(
            "ottla_throttled_seconds_total", "How long clients were told to wait for a quota.", "quota"
        )

    def _declare_partitions(self) -> None:
        reg = self.registry
        self.topics = reg.reading("ottla_topics", "Topics in the cluster.")
        self.partitions = reg.reading("ottla_partitions", "Partitions with a replica on this node.")
        self.leaders = reg.reading("ottla_leader_partitions", "Partitions led by this node.")
        self.under_replicated = reg.reading(
            "ottla_under_replicated_partitions", "Partitions led here with fewer in-sync replicas than replicas."
        )
        self.under_min_isr = reg.reading(
            "ottla_under_min_isr_partitions", "Partitions led here with too few in-sync replicas for acks=all."
        )
        self.at_min_isr = reg.reading(
            "ottla_at_min_isr_partitions", "Partitions led here with just enough in-sync replicas for acks=all."
        )
        self.offline = reg.reading("ottla_offline_partitions", "Partitions in the cluster without a leader.")
        self.cluster_partitions = reg.reading("ottla_cluster_partitions", "Partitions in the cluster.")
        self.not_preferred = reg.reading(
            "ottla_partitions_led_by_others", "Partitions in the cluster that their first replica does not lead."
        )
        self.reassigning = reg.reading("ottla_reassigning_partitions", "Partitions led here whose replicas move.")
        self.producer_ids = reg.reading("ottla_producer_ids", "Producer ids remembered for duplicate detection.")
        self.late_transactions = reg.reading(
            "ottla_late_transaction_partitions", "Partitions led here with a transaction that is open for too long."
        )

    def _declare_disk(self) -> None:
        reg = self.registry
        self.log_bytes = reg.readings("ottla_log_bytes", "Bytes of segments on this node.", "topic")
        self.log_segments = reg.reading("ottla_log_segments", "Segments on this node.")
        self.directory_free = reg.readings("ottla_directory_free_bytes", "Free on the volume.", "directory")
        self.directories_full = reg.reading("ottla_directories_full", "Data directories that take no records for now.")
        self.directories_failed = reg.reading(
            "ottla_directories_failed", "Data directories that are given up, because their disk failed."
        )
        self.failed_partitions = reg.reading(
            "ottla_failed_partitions", "Partitions whose disk failed, or that could not be opened."
        )
        self.fsync = reg.histogram("ottla_fsync_seconds", "Duration of one fsync.")
        self.fsync_failures = reg.counter("ottla_fsync_failures_total", "Syncs that failed; the data was not believed.")
        self.write_failures = reg.counter(
            "ottla_write_failures_total", "Writes refused by the disk, such as when full."
        )
        self._declare_compaction()
        self.corrupt_batches = reg.reading(
            "ottla_corrupt_batches_total", "Stored batches that failed their CRC.", kind="counter"
        )
        self.mended_gaps = reg.reading(
            "ottla_mended_gaps_total", "Damaged places written anew as another replica has them.", kind="counter"
        )
        self.recovery = reg.gauge("ottla_recovery_seconds", "How long the logs took to open at the last start.")
        self.recovered_bytes = reg.gauge("ottla_recovery_scanned_bytes", "Bytes rescanned at the last start.")
        self.truncated_bytes = reg.gauge("ottla_recovery_truncated_bytes", "Torn bytes cut off at the last start.")

    def _declare_compaction(self) -> None:
        reg = self.registry
        self.compaction = reg.histogram("ottla_compaction_seconds", "Duration of one compaction of a log.")
        self.compaction_read = reg.counter("ottla_compaction_read_bytes_total", "Bytes of segments compacted.")
        self.compaction_written = reg.counter("ottla_compaction_written_bytes_total", "Bytes left of them.")
        self.compaction_map = reg.gauge("ottla_compaction_map_ratio", "How full the last round's table of keys was.")
        self.dirtiest_ratio = reg.gauge("ottla_dirtiest_log_ratio", "Share of bytes to compact in the dirtiest log.")
        self.uncleanable = reg.reading("ottla_uncleanable_partitions", "Partitions whose records cannot be compacted.")

    def _declare_groups(self) -> None:
        reg = self.registry
        self.groups = reg.readings("ottla_groups", "Groups coordinated here.", "kind", "state")
        self.group_lag = reg.readings("ottla_group_lag", "Records behind what is committed.", "group", "topic")
        self.groups_loading = reg.reading(
            "ottla_group_partitions_loading", "Partitions of the offsets topic not loaded."
        )

    def _declare_metadata(self) -> None:
        reg = self.registry
        self.active_controller = reg.reading("ottla_active_controller", "1 where the cluster is decided upon, else 0.")
        self.metadata_offset = reg.reading("ottla_metadata_offset", "Last offset of the metadata log applied here.")
        self.metadata_end = reg.reading("ottla_metadata_end_offset", "End of the metadata log on this node.")
        self.metadata_epoch = reg.reading("ottla_metadata_epoch", "Epoch of the metadata quorum.")
        self.metadata_snapshot = reg.reading("ottla_metadata_snapshot_offset", "Where the newest snapshot ends.")
        self.loop_stalls = reg.histogram(
            "ottla_loop_stall_seconds", "How late a timer ran that was due every tenth of a second.", STALL_SECONDS
        )

    def _declare_quorum(self) -> None:
        reg = self.registry
        self.quorum = Meters(
            reg.counter("ottla_quorum_elections_total", "How often this node stood for election."),
            reg.counter("ottla_quorum_leaderships_total", "How often this node began to lead the quorum."),
            reg.histogram("ottla_quorum_leaderless_seconds", "How long this node knew of no leader, each time."),
            reg.histogram("ottla_quorum_commit_seconds", "From appending a decision to its being committed."),
        )
        self.quorum_leader = reg.reading("ottla_quorum_leader", "The node that leads the quorum; -1 if none is known.")
        self.quorum_role = reg.readings("ottla_quorum_role", "1 for what this node is in the quorum.", "role")
        self.quorum_voters = reg.reading("ottla_quorum_voters", "Voters of the quorum, as this node knows them.")
        self.quorum_observers = reg.reading("ottla_quorum_observers", "Who only listens; known to the leader.")
        self.quorum_watermark = reg.reading("ottla_quorum_high_watermark", "Up to where the metadata is committed.")
        self.quorum_lag = reg.readings(
            "ottla_quorum_lag", "Records that a node lacks of the metadata; known to the leader.", "node"
        )
        self.brokers = reg.readings("ottla_brokers", "Registered brokers: active, fenced or stopping.", "state")

    def _declare_copies(self) -> None:
        reg = self.registry
        self.replica_fetches = reg.readings(
            "ottla_replica_fetches_total", "Fetches of this follower that were answered.", "leader", kind="counter"
        )
        self.replica_bytes = reg.readings(
            "ottla_replica_fetch_bytes_total", "Bytes of batches copied from a leader.", "leader", kind="counter"
        )
        self.replica_lag = reg.readings("ottla_replica_lag_max", "Records the worst partition is behind.", "leader")
        self.replica_failing = reg.readings(
            "ottla_replica_failing_partitions", "Partitions whose copying failed the last time.", "leader"
        )
        self.isr_expanded = reg.reading("ottla_isr_expands_total", "In-sync sets led here that grew.", kind="counter")
        self.isr_shrunk = reg.reading("ottla_isr_shrinks_total", "In-sync sets led here that shrank.", kind="counter")
        self.isr_failed = reg.reading(
            "ottla_isr_update_failures_total",
            "Changes of in-sync sets that the controller did not make.",
            kind="counter",
        )

    def _declare_process(self, version: str) -> None:
        """These names are the ones that every Prometheus client library uses, so that any dashboard knows them."""
        reg = self.registry
        info = reg.gauges("ottla_build_info", "Always 1; see the labels.", "version", "python")
        info.labels(version, sys.version.split()[0]).value = 1
        started = reg.gauge("process_start_time_seconds", "When the process started, in seconds since 1970.")
        started.value = time.time()
        reg.reading("process_resident_memory_bytes", "Memory in use.").read = resident_bytes
        reg.reading("process_cpu_seconds_total", "CPU time used.", kind="counter").read = cpu_seconds
        reg.reading("process_open_fds", "Open file descriptors.").read = open_fds
        reg.reading("process_max_fds", "File descriptors allowed.").read = lambda: resource.getrlimit(
            resource.RLIMIT_NOFILE
        )[0]


def resident_bytes() -> int:
    """Now, where the system tells; elsewhere the highest it ever was (in bytes on macOS, which alone lands here)."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def open_fds() -> int:
    directory = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    return len(os.listdir(directory)) - 1  # the listing itself holds one open
