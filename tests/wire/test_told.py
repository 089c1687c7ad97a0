"""Answers whose things were written down one by one are the same bytes as those that were not."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.wire.allowance import ANSWER_BYTES_MAX, REPEATED_BYTES_MAX, Allowance, Overlarge
from ottla.wire.frames import response_frame
from ottla.wire.messages import RESPONSES
from ottla.wire.messages.commits import OffsetFetchResponse
from ottla.wire.messages.groups import DescribeGroupsResponse
from ottla.wire.schema import Layout, ListOf
from ottla.wire.told import KEYS, Told, alone, things_of

# Of OffsetFetch the older versions are about one group, and not about a list of them.
SINCE = {9: 8}


def versions() -> list[tuple[Layout, int]]:
    answers = [RESPONSES[key] for key in sorted(KEYS)]
    return [(a, v) for a in answers for v in range(max(a.versions.low, SINCE.get(a.key, 0)), a.versions.high + 1)]


def joined(answer: Any, version: int) -> bytes:
    return b"".join(bytes(part) for part in response_frame(answer, version, 7))  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, 2, 200])
@pytest.mark.parametrize(("answer", "version"), versions(), ids=lambda it: getattr(it, "__name__", str(it)))
def test_the_bytes_are_the_same(answer: Layout, version: int, count: int) -> None:
    name = things_of(answer)
    kind = answer.fields[-1].kind
    assert isinstance(kind, ListOf)
    things = [kind.element() for _ in range(count)]
    for number, thing in enumerate(things):
        text = next(field.name for field in kind.element.fields if isinstance(getattr(thing, field.name), str))
        setattr(thing, text, f"name {number}")
    told = Told()
    told.things += [alone(answer, thing, version) for thing in things]
    assert joined(answer(**{name: told, "throttle_time_ms": 9}), version) == joined(
        answer(**{name: things, "throttle_time_ms": 9}), version
    )


def test_what_is_told_looks_empty_to_everybody_else() -> None:
    told = Told()
    told.things.append(alone(DescribeGroupsResponse, DescribeGroupsResponse.Group(group_id="g"), 5))
    assert list(told) == [] and not told


def test_older_versions_of_an_answer_that_is_told_in_portions_go_on_as_before() -> None:
    assert joined(OffsetFetchResponse(error_code=3), 5)[-2:] == b"\0\3"


def test_there_is_less_room_for_what_was_named_before() -> None:
    allowance = Allowance()
    allowance.take("a", REPEATED_BYTES_MAX)
    allowance.take("a", REPEATED_BYTES_MAX)
    allowance.take("b", REPEATED_BYTES_MAX)
    with pytest.raises(Overlarge, match="more than once"):
        allowance.take("a", 1)


def test_there_is_an_end_to_all_of_it() -> None:
    assert ANSWER_BYTES_MAX < 2**31
    allowance = Allowance()
    allowance.take("a", ANSWER_BYTES_MAX)
    with pytest.raises(Overlarge, match="more than 134217728 bytes"):
        allowance.take("b", 1)
