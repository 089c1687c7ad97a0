"""ottla log dump | check: what lies in the files of a data directory"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from ottla.cli.mistakes import Mistake
from ottla.cli.options import add_bare_action, add_json
from ottla.cli.text import compact, header_name, shown, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ottla.cli.dump.decoders import Decoder
    from ottla.cli.dump.segments import Found

EXAMPLES = """examples:
  ottla log dump data/clicks-0                          every batch of a partition
  ottla log dump data/clicks-0 --records --json         every record, a line of JSON each
  ottla log dump data/__cluster_metadata-0 --records    the metadata, decoded
  ottla log check data                                  every CRC of every segment; exit code 1 if one is wrong"""

# What is decoded without being asked for, by the name of the directory.
DECODED = {
    "__cluster_metadata": "cluster_metadata",
    "__consumer_offsets": "offsets",
    "__transaction_state": "transactions",
    "__share_group_state": "share_state",
}
SUFFIXES = (".log", ".checkpoint")


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    dump = _action(actions, "dump", "print batches or records", "ottla log dump data/clicks-0 --records")
    dump.add_argument("-r", "--records", action="store_true", help="print records instead of batches")
    dump.add_argument("--from-offset", type=int, default=0, metavar="N", help="begin at this offset")
    dump.add_argument("-n", "--count", type=int, metavar="N", help="stop after so many lines")
    _action(actions, "check", "verify the CRC of every batch", "ottla log check data")


def _action(actions: Any, name: str, what: str, example: str) -> argparse.ArgumentParser:
    parser = add_bare_action(actions, name, what, example)
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a segment, or a directory with segments in it")
    add_json(parser, "one line of JSON each")
    return parser


def run(args: argparse.Namespace) -> int:
    files = [file for path in args.paths for file in _segments(path)]
    if args.action == "check":
        return _check(files, args.json)
    _dump(files, args)
    return 0


def _segments(path: str) -> list[str]:
    if not os.path.exists(path):
        raise Mistake(f"there is no {path}")
    if not os.path.isdir(path):
        return [path]
    found = [
        os.path.join(where, name)
        for where, _, names in os.walk(path)
        for name in names
        if name.endswith(SUFFIXES) and (name.endswith(".log") or name == "bootstrap.checkpoint" or "-" in name)
    ]
    if not found:
        raise Mistake(f"there are no segments in {path}")
    return sorted(found)


# Dumping.


def _dump(files: list[str], args: argparse.Namespace) -> None:
    lines = (line for file in files for line in _lines(file, args))
    rows: list[tuple[object, ...]] = []
    for number, line in enumerate(lines):
        if args.count is not None and number >= args.count:
            break
        if args.json:
            print(compact(line).decode())
        elif args.records:
            print(_record_text(line))
        else:
            rows.append(tuple("-" if value is None else value for value in line.values()))
    if rows:
        print(table([tuple(_headings()), *rows]))


def _headings() -> list[str]:
    return ["file", "base", "last", "records", "bytes", "position", "codec", "producer", "epoch", "time", "kind", "crc"]


def _lines(path: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from ottla.cli.dump.segments import SegmentFile
    from ottla.cli.progress import bar

    decoder = _decoder(path) if args.records else None
    segment = SegmentFile(path)
    with bar(os.path.basename(path), among_lines=True) as progress:
        for found in segment.batches(progress):
            if found.head.last_offset < args.from_offset:
                continue
            if args.records:
                yield from _records(found, decoder, args.from_offset)
            else:
                yield _batch(path, found)


def _decoder(path: str) -> Decoder | None:
    from ottla.cli.dump import decoders

    place = os.path.basename(os.path.dirname(os.path.abspath(path))).rpartition("-")[0]
    if os.path.basename(path) == "bootstrap.checkpoint":
        place = "__cluster_metadata"
    found: Decoder | None = getattr(decoders, DECODED[place]) if place in DECODED else None
    return found


def _batch(path: str, found: Found) -> dict[str, Any]:
    head = found.head
    kind = "control" if head.is_control else "transaction" if head.is_transactional else "data"
    return {
        "file": os.path.basename(path),
        "base": head.base_offset,
        "last": head.last_offset,
        "records": head.count,
        "bytes": head.size,
        "position": found.position,
        "codec": found.codec,
        "producer": head.producer_id if head.producer_id >= 0 else None,
        "epoch": head.leader_epoch,
        "time": head.max_timestamp,
        "kind": kind,
        "crc": "right" if found.is_valid else "WRONG",
    }


def _records(found: Found, decoder: Decoder | None, start: int) -> Iterator[dict[str, Any]]:
    for record in found.records():
        if record.offset < start:
            continue
        line: dict[str, Any] = {"offset": record.offset, "time": record.timestamp}
        if found.head.is_control:
            from ottla.cli.dump.control import control_text

            line["control"] = control_text(record).strip()
        elif decoder is not None:
            key, value = decoder(record)
            line |= {"key": key, "value": value}
        else:
            line |= {"key": shown(record.key), "value": shown(record.value)}
        if record.headers:
            line["headers"] = {header_name(name): shown(value) for name, value in record.headers}
        yield line


def _record_text(line: dict[str, Any]) -> str:
    rest = {name: value for name, value in line.items() if name != "offset" and value is not None}
    return f"{line['offset']:>8}  " + "  ".join(
        f"{name} {value if isinstance(value, (str, int)) else compact(value).decode()}" for name, value in rest.items()
    )


# Checking.


def _check(files: list[str], as_json: bool) -> int:
    from ottla.cli.dump.segments import SegmentFile
    from ottla.cli.progress import bar

    bad = 0
    for path in files:
        segment, batches, wrong = SegmentFile(path), 0, 0
        with bar(os.path.basename(path)) as progress:
            for found in segment.batches(progress):
                batches += 1
                if not found.is_valid:
                    wrong += 1
        torn = segment.size - segment.valid_bytes
        bad += bool(wrong or torn)
        if as_json:
            facts = {"file": path, "batches": batches, "wrong": wrong, "bytes_behind_the_last_batch": torn}
            print(compact(facts).decode())
        elif wrong or torn:
            print(f"{path}: {wrong} of {batches} batches are damaged, {torn} bytes behind the last whole batch")
    if not as_json:
        print(f"{len(files)} files, {bad} damaged" if bad else f"{len(files)} files, all batches are right")
    return 1 if bad else 0
