"""What the oracle of transactions says of histories that are told to it by hand: each broken promise has its name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ottla.client.cluster import TopicPartition
from ottla.sim.transaction_checks import Accounts, Attempt, End

T, U, KEYED = TopicPartition("t", 0), TopicPartition("u", 0), TopicPartition("keyed", 0)
Kinds = list[str]


def attempt(accounts: Accounts, *values: tuple[TopicPartition, bytes], end: End = End.COMMITTED) -> Attempt:
    begun = accounts.begin("producer")
    for where, value in values:
        accounts.sends(begun, where, value)
    if end is not End.NOT_ASKED:
        accounts.asks_to_commit(begun)
        accounts.ends(begun, end)
    return begun


def kinds(accounts: Accounts) -> Kinds:
    return [anomaly.kind for anomaly in accounts.found]


@pytest.mark.parametrize(
    ("end", "wanted"),
    [
        (End.COMMITTED, []),
        (End.ASKED, []),
        (End.ABORTED, ["aborted-read"]),
        (End.NOT_ASKED, ["precommitted-read"]),
    ],
    ids=lambda what: getattr(what, "name", None),
)
def test_who_may_be_read(end: End, wanted: Kinds) -> None:
    """At once and by the last reader; at read_uncommitted everything may."""
    for close in (False, True):
        accounts = Accounts()
        attempt(accounts, (T, b"a"), end=end)
        accounts.poll("loose", T, [(0, b"a")], committed=False)
        assert kinds(accounts) == []
        if close:
            accounts.close({T: [(0, b"a")]}, [])
        else:
            accounts.poll("strict", T, [(0, b"a")], committed=True)
        assert kinds(accounts) == wanted


@pytest.mark.parametrize(
    ("end", "wanted"),
    [
        (End.COMMITTED, ["lost-write"]),
        (End.ASKED, ["torn"]),
        (End.ABORTED, ["aborted-read", "torn"]),
        (End.NOT_ASKED, ["precommitted-read", "torn"]),
    ],
    ids=lambda what: getattr(what, "name", None),
)
def test_half_of_a_transaction(end: End, wanted: Kinds) -> None:
    accounts = Accounts()
    attempt(accounts, (T, b"a"), (U, b"b"), end=end)
    accounts.close({T: [(0, b"a")], U: []}, [])
    assert kinds(accounts) == wanted


@pytest.mark.parametrize("end", [End.ASKED, End.ABORTED, End.NOT_ASKED], ids=lambda end: end.name)
def test_nothing_of_a_transaction(end: End) -> None:
    accounts = Accounts()
    attempt(accounts, (T, b"a"), (U, b"b"), end=end)
    accounts.close({T: [], U: []}, [])
    assert kinds(accounts) == []


def test_a_partition_that_does_not_keep_everything_need_not_have_it() -> None:
    accounts = Accounts()
    attempt(accounts, (T, b"a"), (KEYED, b"b"))
    accounts.close({T: [(0, b"a")]}, [])
    assert kinds(accounts) == []


def twice(accounts: Accounts) -> None:
    attempt(accounts, (T, b"a"))
    accounts.poll("strict", T, [(0, b"a"), (1, b"a")], committed=True)


def changed(accounts: Accounts) -> None:
    attempt(accounts, (T, b"a"), (T, b"b"))
    accounts.poll("strict", T, [(0, b"a")], committed=True)
    accounts.poll("strict", T, [(0, b"b")], committed=True)


def unknown(accounts: Accounts) -> None:
    accounts.poll("loose", T, [(0, b"a")], committed=False)


def passed_over(accounts: Accounts) -> None:
    attempt(accounts, (T, b"a"), (T, b"b"))
    accounts.poll("strict", T, [(1, b"b")], committed=True)
    accounts.close({T: [(0, b"a"), (1, b"b")]}, ["strict"])


def in_another_order(accounts: Accounts) -> None:
    attempt(accounts, (T, b"a"), (T, b"b"))
    accounts.close({T: [(0, b"b"), (1, b"a")]}, [])


@pytest.mark.parametrize(
    ("history", "wanted"),
    [
        (twice, "duplicate"),
        (changed, "inconsistent-offsets"),
        (unknown, "phantom"),
        (passed_over, "unseen"),
        (in_another_order, "nonmonotonic-send"),
    ],
)
def test_what_no_transaction_excuses(history: Callable[[Accounts], None], wanted: str) -> None:
    accounts = Accounts()
    history(accounts)
    assert wanted in kinds(accounts)


def committing(accounts: Accounts, offset: int, end: End = End.COMMITTED) -> Attempt:
    begun = attempt(accounts, end=end)
    begun.offsets[T] = offset
    return begun


@pytest.mark.parametrize(
    ("end", "wanted"),
    [(End.COMMITTED, []), (End.ASKED, []), (End.ABORTED, ["aborted-read"]), (End.NOT_ASKED, ["precommitted-read"])],
    ids=lambda what: getattr(what, "name", None),
)
def test_which_offsets_may_be_told(end: End, wanted: Kinds) -> None:
    accounts = Accounts()
    committing(accounts, 5, end)
    accounts.told({T: 5}, accounts.asking())
    assert kinds(accounts) == wanted


def test_an_offset_that_nobody_committed() -> None:
    accounts = Accounts()
    committing(accounts, 5)
    accounts.told({T: 4}, {})
    assert kinds(accounts) == ["phantom"]


def test_an_offset_that_falls() -> None:
    """Below what was told before the question, or committed and acknowledged before it; who asked earlier may hear less."""
    for acknowledged in (False, True):
        accounts = Accounts()
        first, second = committing(accounts, 5), committing(accounts, 7)
        earlier = accounts.asking()
        accounts.committed_offsets(first)
        if acknowledged:
            accounts.committed_offsets(second)
        else:
            accounts.told({T: 7}, {})
        accounts.told({T: 5}, earlier)
        assert kinds(accounts) == []
        accounts.told({T: 5}, accounts.asking())
        assert kinds(accounts) == ["offset-fell"]


@pytest.mark.parametrize(
    ("newest", "wanted"), [((1, b"b"), []), ((2, b"c"), []), ((0, b"a"), ["lost-write"]), (None, ["lost-write"])]
)
def test_the_newest_of_a_key_stays(newest: tuple[int, bytes] | None, wanted: Kinds) -> None:
    accounts = Accounts()
    for number, value in enumerate((b"a", b"b")):
        accounts.sends(begun := accounts.begin("producer"), KEYED, value, b"key")
        accounts.ends(begun, End.COMMITTED)
        accounts.poll("loose", KEYED, [(number, value)], committed=False)
    accounts.sends(open_ended := accounts.begin("producer"), KEYED, b"c", b"key")
    accounts.asks_to_commit(open_ended)
    accounts.check_keys(KEYED, {} if newest is None else {b"key": newest})
    assert kinds(accounts) == wanted


def test_a_key_of_an_aborted_transaction_is_not_read() -> None:
    accounts = Accounts()
    accounts.sends(begun := accounts.begin("producer"), KEYED, b"a", b"key")
    accounts.ends(begun, End.ABORTED)
    accounts.check_keys(KEYED, {b"key": (0, b"a")})
    assert kinds(accounts) == ["aborted-read"]


@pytest.mark.parametrize(
    ("copies", "committed", "wanted"),
    [
        ([b"x"], 1, []),
        ([], 0, []),
        ([b"x", b"y"], 1, ["duplicate"]),
        ([b"x"], 0, ["torn"]),
        ([], 1, ["torn"]),
    ],
)
def test_each_input_is_copied_with_its_offset(copies: list[bytes], committed: int, wanted: Kinds) -> None:
    accounts = Accounts()
    for value in (b"x", b"y"):
        accounts.copies(value, T, 0)
    accounts.check_copies(copies, {T: [0, 1]}, {T: committed})
    assert kinds(accounts) == wanted
