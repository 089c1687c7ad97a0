"""Class bodies that are layouts: spans, defaults, constructors, and what is refused."""

import subprocess
import sys

import pytest

from ottla.wire.codec import decode, encode
from ottla.wire.schema import (
    ZERO_UUID,
    Message,
    Span,
    Struct,
    boolean,
    byte_string,
    float64,
    int8,
    int32,
    maker,
    string,
    uuid,
    v,
)


class Leader(Struct):
    node: int32 = v("0+", -1)
    epoch: int32 = v("0+", -1)


class Sample(Message, key=7, versions="1-4", flexible="3+"):
    """Something of everything; its first field is called as a fact about the class is."""

    key: string = v("0+")
    limit: int32 = v("0+", 2000)
    names: list[string] | None = v("0+", nullable="2+")
    note: string | None = v("2+", None, nullable="2+")
    id: uuid = v("2-3")
    blob: byte_string = v()
    ratio: float64 = v()
    open: boolean = v("0+", True)
    leader: Leader = v("3+", tag=0)
    next: Leader | None = v("4+", None, nullable="4+")


def test_spans():
    assert Span.of("3+") == (3, 32767)
    assert Span.of("3-7") == (3, 7)
    assert Span.of("5") == (5, 5)
    assert 0 not in Span.of("")
    assert 7 in Span.of("3-7")
    assert 8 not in Span.of("3-7")


def test_every_field_has_a_default():
    blank = Sample()
    assert (blank.key, blank.limit, blank.names, blank.note, blank.id) == ("", 2000, [], None, ZERO_UUID)
    assert (blank.blob, blank.ratio, blank.open, blank.next) == (b"", 0.0, True, None)
    assert blank.leader == Leader()


def test_lists_are_not_shared_and_structs_are_frozen():
    one, other = Sample(), Sample()
    one.names.append("x")
    assert other.names == []
    with pytest.raises(AttributeError, match="shared"):
        one.leader.node = 5
    assert other.leader.node == -1
    one.leader = Leader(node=5)
    assert (one.leader.node, other.leader.node) == (5, -1)


def test_facts_about_the_class_do_not_disturb_fields():
    assert (Sample.key, Sample.versions, Sample.flexible_from) == (7, (1, 4), 3)
    assert Sample(key="k").key == "k"
    assert not hasattr(Sample(), "versions")
    assert Leader.key == -1


def test_objects_are_slots_with_keyword_constructors():
    with pytest.raises(TypeError):
        Sample(lmit=3)
    with pytest.raises(TypeError):
        Sample("k")
    with pytest.raises(AttributeError):
        Sample().lmit = 3
    with pytest.raises(TypeError):
        hash(Sample())


def test_a_maker_makes_what_the_constructor_does():
    make = maker(Sample, "names", "key")
    assert make(["a"], "k") == Sample(key="k", names=["a"])
    other = maker(Sample, "key")
    one, two = other("k"), other("k")
    assert one == two == Sample(key="k")
    one.names.append("b")
    assert two.names == [], "lists are not shared"


def test_equality_and_repr():
    assert Sample(limit=1) == Sample(limit=1)
    assert Sample(limit=1) != Sample(limit=2)
    assert Leader() != Sample()
    assert Sample().leader == Leader() and Leader() == Sample().leader
    assert repr(Leader(node=2)) == "Leader(node=2, epoch=-1)"


def test_a_field_without_a_right_side_is_refused():
    class Half(Message, versions="0"):
        name: string

    with pytest.raises(TypeError, match="name"):
        Half()


def test_null_in_type_and_layout_go_together():
    class Silent(Message, versions="0"):
        name: string = v("0+", nullable="0+")

    class Boastful(Message, versions="0"):
        name: string | None = v("0+")

    for wrong in (Silent, Boastful):
        with pytest.raises(TypeError, match="go together"):
            wrong()


def test_postponed_annotations_are_refused():
    scope = {"__name__": "postponed"}
    source = "from ottla.wire.schema import *\nclass Late(Message, versions='0'):\n    x: 'int32' = v()\n"
    exec(source, scope)
    with pytest.raises(TypeError, match="postpone"):
        scope["Late"]()


def test_a_tag_needs_a_flexible_version():
    class Early(Message, versions="0-1", flexible="1+"):
        x: int8 = v("0+", tag=0)

    assert encode(Early(x=2), 1) == b"\1\0\1\2"
    with pytest.raises(TypeError, match="not flexible"):
        encode(Early(), 0)


def test_tagged_only_from_a_version_on():
    class Moved(Message, versions="0-2", flexible="1+"):
        x: int8 = v("0+", tag=3, tagged="2+")

    assert encode(Moved(x=5), 0) == b"\5"
    assert encode(Moved(x=5), 1) == b"\5\0"
    assert encode(Moved(x=5), 2) == b"\1\3\1\5"
    for version in (0, 1, 2):
        assert decode(Moved, encode(Moved(x=5), version), version) == Moved(x=5)


def test_a_message_without_fields():
    class Nothing(Message, versions="0-1", flexible="1+"):
        """As some requests are."""

    assert encode(Nothing(), 0) == b""
    assert encode(Nothing(), 1) == b"\0"
    assert decode(Nothing, b"", 0) == Nothing()


def test_importing_every_message_is_quick_and_compiles_nothing():
    """The whole package has 150 ms to be imported in. Nothing may be compiled before it is used."""
    script = (
        "import dataclasses, enum, struct, sys, time, typing\n"
        "start = time.process_time()\n"
        "from ottla.wire import frames\n"
        "from ottla.wire.messages import REQUESTS, RESPONSES\n"
        "spent = time.process_time() - start\n"
        "every = [*REQUESTS.values(), *RESPONSES.values()]\n"
        "assert all(c.__facts__.fields is None and not c.__facts__.decoders for c in every)\n"
        "print(spent)\n"
    )
    times = [float(subprocess.check_output([sys.executable, "-c", script])) for _ in range(3)]
    assert min(times) < 0.1, times
