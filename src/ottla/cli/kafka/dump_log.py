"""kafka-dump-log.sh: what lies in segments, indexes, snapshots and checkpoints of a data directory."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from ottla.cli.kafka.options import Failed, Options, Parser, flag, run, takes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ottla.cli.dump.decoders import Decoder
    from ottla.cli.dump.indexes import Complaints
    from ottla.cli.dump.segments import Found
    from ottla.wire.records import Record

BYTES_MAX = (1 << 31) - 1
MESSAGE_BYTES_MAX = 5 << 20
STRING_DECODER = "org.apache.kafka.tools.api.StringDecoder"
ABOUT_DECODERS = (
    "This class should implement org.apache.kafka.tools.api.Decoder trait. Custom jar should be available in kafka/libs "
    "directory."
)
INTERNAL = {
    "offsets-decoder": "offsets",
    "transaction-log-decoder": "transactions",
    "cluster-metadata-decoder": "cluster_metadata",
    "share-group-state-decoder": "share_state",
}
PRINTING = (*INTERNAL, "print-data-log", "remote-log-metadata-decoder", "value-decoder-class", "key-decoder-class")

PARSER = Parser(
    "This tool helps to parse a log file and dump its contents to the console, useful for debugging a seemingly corrupt "
    "log segment.",
    flag(
        "print-data-log",
        "If set, printing the messages content when dumping data logs. Automatically set if any decoder option is "
        "specified.",
    ),
    flag("verify-index-only", "If set, just verify the index log without printing its content."),
    flag(
        "index-sanity-check",
        "If set, just checks the index sanity without printing its content. This is the same check that is executed on "
        "broker startup to determine if an index needs rebuilding or not.",
    ),
    takes("files", "REQUIRED: The comma separated list of data and index log files to be dumped.", "file1, file2, ..."),
    takes("max-message-size", "Size of largest message.", "size", kind="Integer", default=MESSAGE_BYTES_MAX),
    takes(
        "max-bytes",
        "Limit the amount of total batches read in bytes avoiding reading the whole .log file(s).",
        "size",
        kind="Integer",
        default=BYTES_MAX,
    ),
    flag(
        "deep-iteration",
        "If set, uses deep instead of shallow iteration. Automatically set if print-data-log is enabled.",
    ),
    takes(
        "value-decoder-class",
        f"If set, used to deserialize the messages. {ABOUT_DECODERS}",
        is_optional=True,
        default=STRING_DECODER,
    ),
    takes(
        "key-decoder-class",
        f"If set, used to deserialize the keys. {ABOUT_DECODERS}",
        is_optional=True,
        default=STRING_DECODER,
    ),
    flag("offsets-decoder", "If set, log data will be parsed as offset data from the __consumer_offsets topic."),
    flag(
        "transaction-log-decoder",
        "If set, log data will be parsed as transaction metadata from the __transaction_state topic.",
    ),
    flag("cluster-metadata-decoder", "If set, log data will be parsed as cluster metadata records."),
    flag(
        "remote-log-metadata-decoder",
        "If set, log data will be parsed as TopicBasedRemoteLogMetadataManager (RLMM) metadata records. Instead, the "
        "value-decoder-class option can be used if a custom RLMM implementation is configured.",
    ),
    flag(
        "share-group-state-decoder",
        "If set, log data will be parsed as share group state data from the __share_group_state topic.",
    ),
    flag("skip-record-metadata", "Skip metadata when printing records. This flag also skips control records."),
)


def main(argv: Sequence[str] | None = None) -> int:
    return run(PARSER, argv, _dump)


def _dump(options: Options) -> None:
    from ottla.cli.dump import indexes

    options.require("files")
    if options.has("remote-log-metadata-decoder"):
        raise Failed("--remote-log-metadata-decoder: there is no tiered storage here whose records could be decoded")
    decoder = _decoder(options)
    complaints = indexes.Complaints()
    gaps: dict[str, list[tuple[int, int]]] = {}
    for path in options.text("files").split(","):
        print(f"Dumping {path}")
        _dump_file(path, options, decoder, complaints, gaps)
    for line in complaints.lines():
        print(line, file=sys.stderr)
    for path, pairs in gaps.items():
        print(f"Non-consecutive offsets in {path}", file=sys.stderr)
        for first, second in pairs:
            print(f"  {first} is followed by {second}", file=sys.stderr)


def _dump_file(
    path: str, options: Options, decoder: Decoder, complaints: Complaints, gaps: dict[str, list[tuple[int, int]]]
) -> None:
    from ottla.cli.dump import indexes

    suffix = os.path.splitext(path)[1]
    sanity, verify = options.has("index-sanity-check"), options.has("verify-index-only")
    if suffix in (".log", ".checkpoint"):
        _dump_batches(path, options, decoder, gaps)
    elif suffix == ".index":
        _print_all(indexes.offset_index(path, sanity, verify, complaints))
    elif suffix == ".timeindex":
        _print_all(indexes.time_index(path, sanity, verify, complaints))
    elif suffix == ".snapshot":
        try:
            _print_all(indexes.producers(path))
        except Failed as damage:  # the one thing that is told and passed over
            print(damage, file=sys.stderr)
    elif suffix == ".txnindex":
        _print_all(indexes.aborted_transactions(path))
    else:
        print(f"Ignoring unknown file {path}", file=sys.stderr)


def _print_all(lines: Iterator[str]) -> None:
    from ottla.cli.dump.indexes import Damaged

    try:
        for line in lines:
            print(line)
    except Damaged as error:
        raise Failed(str(error))


def _decoder(options: Options) -> Decoder:
    from ottla.cli.dump import decoders

    for option, name in INTERNAL.items():
        if options.has(option):
            found: Decoder = getattr(decoders, name)
            return found
    classes = [options.value(option) or STRING_DECODER for option in ("key-decoder-class", "value-decoder-class")]
    for name in classes:
        if name not in decoders.CLASSES:
            raise Failed(f"{name}: a Java class cannot be loaded here; there are {', '.join(decoders.CLASSES)}")
    return decoders.plain(*(decoders.CLASSES[name] for name in classes))


# Batches and records.


def _dump_batches(path: str, options: Options, decoder: Decoder, gaps: dict[str, list[tuple[int, int]]]) -> None:
    from ottla.cli.dump.segments import SegmentFile
    from ottla.cli.progress import bar

    print(_heading(path))
    bytes_max = options.number("max-bytes") or 0
    shows_data = any(options.has(name) for name in PRINTING)
    deep = shows_data or options.has("deep-iteration")
    segment, last = SegmentFile(path, bytes_max), -1
    with bar(os.path.basename(path), among_lines=True) as progress:
        for found in segment.batches(progress):
            print(_batch_line(found))
            for record in found.records() if deep else ():
                if last >= 0 and record.offset != last + 1:
                    gaps.setdefault(os.path.abspath(path), []).append((last, record.offset))
                last = record.offset
                print(_record_line(found, record, decoder if shows_data else None, options))
    trailing = segment.size - segment.valid_bytes
    if trailing > 0 and bytes_max == BYTES_MAX:
        print(f"Found {trailing} invalid bytes at the end of {os.path.basename(path)}")


def _heading(path: str) -> str:
    name = os.path.basename(path)
    if name == "bootstrap.checkpoint":
        return "KRaft bootstrap snapshot"
    try:
        if name.endswith(".checkpoint"):
            offset, _, epoch = name.split(".")[0].partition("-")
            return f"Snapshot end offset: {int(offset)}, epoch: {int(epoch)}"
        return f"Log starting offset: {int(name.split('.')[0])}"
    except ValueError:
        raise Failed(f'For input string: "{name.split(".")[0]}"')


def _batch_line(found: Found) -> str:
    from ottla.cli.kafka.java import boolean_text

    head, horizon = found.head, found.delete_horizon_ms
    shown = "OptionalLong.empty" if horizon is None else f"OptionalLong[{horizon}]"
    return (
        f"baseOffset: {head.base_offset} lastOffset: {head.last_offset} count: {head.count}"
        f" baseSequence: {head.base_sequence} lastSequence: {head.last_sequence} producerId: {head.producer_id}"
        f" producerEpoch: {head.producer_epoch} partitionLeaderEpoch: {head.leader_epoch}"
        f" isTransactional: {boolean_text(head.is_transactional)} isControl: {boolean_text(head.is_control)}"
        f" deleteHorizonMs: {shown} position: {found.position} {_time_type(found)}: {head.max_timestamp}"
        f" size: {head.size} magic: {head.magic} compresscodec: {found.codec} crc: {head.crc}"
        f" isvalid: {boolean_text(found.is_valid)}"
    )


def _time_type(found: Found) -> str:
    return "LogAppendTime" if found.head.timestamp_type else "CreateTime"


def _record_line(found: Found, record: Record, decoder: Decoder | None, options: Options) -> str:
    bare = options.has("skip-record-metadata")
    line = "|" if bare else "| " + _metadata(found, record)
    if decoder is None or found.head.is_control:
        return "" if bare else line
    key, payload = decoder(record)
    if key is not None:
        line += f" key: {key}"
    return line if payload is None else f"{line} payload: {payload}"


def _metadata(found: Found, record: Record) -> str:
    sizes = [-1 if data is None else len(data) for data in (record.key, record.value)]
    headers = ",".join(name for name, _ in record.headers)
    line = (
        f"offset: {record.offset} {_time_type(found)}: {record.timestamp} keySize: {sizes[0]} valueSize: {sizes[1]}"
        f" sequence: {found.sequence(record)} headerKeys: [{headers}]"
    )
    if found.head.is_control:
        from ottla.cli.dump.control import control_text

        line += control_text(record)
    return line
