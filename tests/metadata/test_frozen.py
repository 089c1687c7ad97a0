from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.metadata.frozen import FrozenMap

KEYS = st.text(max_size=3)


@given(st.lists(st.dictionaries(KEYS, st.none() | st.integers(), max_size=20), max_size=8))
def test_it_is_a_dict_that_keeps_all_its_pasts(steps: list[dict[str, int | None]]) -> None:
    expected: dict[str, int] = {}
    pasts: list[tuple[FrozenMap[str, int], dict[str, int]]] = []
    now: FrozenMap[str, int] = FrozenMap()
    for changes in steps:
        now = now.changed(changes)
        merged = {**expected, **changes}
        expected = {key: value for key, value in merged.items() if value is not None}
        pasts.append((now, expected))
    for image, wanted in pasts:
        assert dict(image.items()) == wanted
        assert len(image) == len(wanted)
        assert set(image) == set(wanted)
        assert all(image.get(key) == value and key in image for key, value in wanted.items())


def test_it_grows_and_shares_what_did_not_change() -> None:
    big = FrozenMap({index.to_bytes(16, "big"): index for index in range(10_000)})
    key = (77).to_bytes(16, "big")
    after = big.changed({key: -1})
    assert len(big) == len(after) == 10_000
    assert (big[key], after[key]) == (77, -1)
    shared = sum(a is b for a, b in zip(big._buckets, after._buckets, strict=True))
    assert shared == len(big._buckets) - 1


def test_the_order_is_the_same_in_every_process() -> None:
    """Two runs of one seed must walk a map alike, so places never depend on the salted hash of strings."""
    assert list(FrozenMap(dict.fromkeys(("a", "b", "c", "topic"), 0))) == ["a", "b", "topic", "c"]
