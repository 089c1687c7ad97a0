"""Control records: ends of transactions, and what the metadata quorum notes down in its own log."""

from __future__ import annotations

from ottla.cli.dump.jsonform import as_json, text
from ottla.wire.codec import Malformed, decode
from ottla.wire.messages.quorum import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from ottla.wire.records import ControlType, Record, control_type, marker_epoch
from ottla.wire.schema import Message

# How each is announced, and its layout.
NOTES: dict[int, tuple[str, type[Message]]] = {
    ControlType.LEADER_CHANGE: ("LeaderChange:", LeaderChangeMessage),
    ControlType.SNAPSHOT_HEADER: ("SnapshotHeader", SnapshotHeaderRecord),
    ControlType.SNAPSHOT_FOOTER: ("SnapshotFooter", SnapshotFooterRecord),
    ControlType.KRAFT_VERSION: ("KRaftVersion", KRaftVersionRecord),
    ControlType.KRAFT_VOTERS: ("KRaftVoters", VotersRecord),
}


def control_message(record: Record) -> tuple[str, Message, int] | None:
    """A note of the quorum: how it is called, what it says, and in which version; None for ends of transactions.

    Malformed if it cannot be read.
    """
    note = NOTES.get(control_type(record.key))
    if note is None or record.value is None:
        return None
    # Each begins with its version.
    version = min(int.from_bytes(record.value[:2], "big", signed=True), note[1].versions.high)
    message: Message = decode(note[1], record.value, version)
    return note[0], message, version


def control_text(record: Record) -> str:
    """What the tool writes behind the sizes of a control record."""
    kind = control_type(record.key)
    if kind in (ControlType.ABORT, ControlType.COMMIT):
        return f" endTxnMarker: {ControlType(kind).name} coordinatorEpoch: {marker_epoch(record.value)}"
    try:
        note = control_message(record)
    except Malformed as error:
        return f" {NOTES[kind][0]} cannot be decoded: {error}"
    if note is None:
        return f" controlType: UNKNOWN({kind})"
    name, message, version = note
    return f" {name} {text(as_json(message, version))}"
