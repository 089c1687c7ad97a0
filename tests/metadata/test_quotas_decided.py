"""Limits and passwords, decided and told as functions of a picture."""

from __future__ import annotations

import hashlib
import hmac
import math

import pytest

from ottla.metadata.controller import alter_client_quotas, alter_scram_credentials
from ottla.metadata.credentials import Deletion, Upsertion, describe_scram_credentials
from ottla.metadata.decisions import RECORDS_PER_REQUEST_MAX, Decision
from ottla.metadata.image import Delta, Image
from ottla.metadata.quotas import Alteration, Component, describe_client_quotas, names_to_resolve
from ottla.metadata.records import FeatureLevelRecord, frame, unframe
from ottla.metadata.replay import replay
from ottla.metadata.snapshot import records_of
from ottla.wire.errors import Error, KafkaError

EMPTY = replay(Image(), [FeatureLevelRecord(name="metadata.version", feature_level=30)], 0, 1)[0]
Named = tuple[str, str | None]


def after(image: Image, decision: Decision[object]) -> Image:
    """The picture after a decision whose records went to the disk and came back."""
    held = [unframe(frame(record, version)) for record, version in decision.records]
    return replay(image, held, image.offset + len(held), 1)[0]


def limit(*named: Named, **limits: float | None) -> Alteration:
    return Alteration.of(named, limits.items())


def altered(image: Image, *wanted: Alteration) -> Image:
    decision = alter_client_quotas(image, wanted)
    assert list(decision.reply.values()) == [None] * len(wanted)
    return after(image, decision)


def refusal(*wanted: Alteration, unresolved: tuple[str, ...] = ()) -> str:
    """Why something is refused; nothing else than an invalid request is ever said."""
    (error,) = alter_client_quotas(EMPTY, wanted, unresolved).reply.values()
    assert error is not None and error.error is Error.INVALID_REQUEST
    return error.message


class TestAlteringQuotas:
    def test_set_changed_and_removed(self) -> None:
        image = altered(EMPTY, limit(("user", "u"), producer_byte_rate=10.0, request_percentage=1.5))
        entity = (("user", "u"),)
        assert image.quotas[entity] == {"producer_byte_rate": 10.0, "request_percentage": 1.5}
        image = altered(image, limit(("user", "u"), producer_byte_rate=20.0, request_percentage=None))
        assert image.quotas[entity] == {"producer_byte_rate": 20.0}
        image = altered(image, limit(("user", "u"), producer_byte_rate=None))
        assert entity not in image.quotas and not len(image.quotas)

    def test_only_what_changes_is_written(self) -> None:
        image = altered(EMPTY, limit(("user", "u"), producer_byte_rate=10.0, request_percentage=math.nan))
        same = limit(("user", "u"), producer_byte_rate=10.0, request_percentage=math.nan, consumer_byte_rate=None)
        assert alter_client_quotas(image, [same]).records == []

    def test_the_order_of_types_makes_no_difference(self) -> None:
        image = altered(EMPTY, limit(("user", "u"), ("client-id", None), consumer_byte_rate=1.0))
        image = altered(image, limit(("client-id", None), ("user", "u"), consumer_byte_rate=2.0))
        assert dict(image.quotas.items()) == {(("client-id", None), ("user", "u")): {"consumer_byte_rate": 2.0}}

    def test_validating_writes_nothing(self) -> None:
        decision = alter_client_quotas(EMPTY, [limit(("user", "u"), producer_byte_rate=1.0)], validate_only=True)
        assert decision == ([], {(("user", "u"),): None})

    @pytest.mark.parametrize(
        ("wanted", "why"),
        [
            (limit(producer_byte_rate=1.0), "Invalid empty client quota entity"),
            (limit(("odd", "u")), "Unhandled client quota entity type: odd"),
            (limit(("user", "")), "Empty user not supported"),
            (limit(("user", "u"), odd=1.0), "Invalid configuration key odd"),
            (limit(("user", "u"), connection_creation_rate=1.0), "Invalid configuration key connection_creation_rate"),
            (limit(("user", "u"), producer_byte_rate=0.0), "Quota producer_byte_rate must be greater than 0"),
            (limit(("user", "u"), consumer_byte_rate=1.5), "consumer_byte_rate cannot be a fractional value."),
            (
                limit(("user", "u"), consumer_byte_rate=math.inf),
                "Proposed value for consumer_byte_rate is too large for a LONG.",
            ),
            (
                limit(("ip", "::1"), connection_creation_rate=2.0**31),
                "Proposed value for connection_creation_rate is too large for an INT.",
            ),
            (
                limit(("ip", "::1"), ("user", None)),
                "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId",
            ),
        ],
    )
    def test_what_is_refused(self, wanted: Alteration, why: str) -> None:
        assert refusal(wanted) == why

    def test_hosts_have_to_exist(self) -> None:
        wanted = [limit(("ip", "::1")), limit(("ip", "nowhere")), limit(("ip", None)), limit(("user", "somewhere"))]
        assert names_to_resolve(wanted) == {"nowhere"}
        assert refusal(wanted[1], unresolved=("nowhere",)) == "nowhere is not a valid IP or resolvable host."

    def test_an_entity_twice(self) -> None:
        """As in Apache Kafka the first change is made, though the answer speaks of the second."""
        twice = [limit(("user", "u"), producer_byte_rate=1.0), limit(("user", "u"), producer_byte_rate=2.0)]
        decision = alter_client_quotas(EMPTY, twice)
        (error,) = decision.reply.values()
        assert error is not None and "duplicate entity ClientQuotaEntity(entries={user=u})" in error.message
        assert after(EMPTY, decision).quotas[(("user", "u"),)] == {"producer_byte_rate": 1.0}
        same_key = Alteration.of([("user", None)], [("producer_byte_rate", 1.0), ("producer_byte_rate", None)])
        assert "entries={user=null}" in refusal(same_key)

    def test_one_that_fails_does_not_keep_others_from_being_done(self) -> None:
        decision = alter_client_quotas(EMPTY, [limit(("user", "")), limit(("user", "u"), request_percentage=5.0)])
        assert [error is None for error in decision.reply.values()] == [False, True]
        assert len(decision.records) == 1

    def test_one_request_has_a_limit(self) -> None:
        many = [limit(("user", str(n)), request_percentage=1.0) for n in range(RECORDS_PER_REQUEST_MAX + 1)]
        with pytest.raises(KafkaError) as caught:
            alter_client_quotas(EMPTY, many)
        assert caught.value.error is Error.POLICY_VIOLATION


class TestDescribingQuotas:
    IMAGE = altered(
        EMPTY,
        limit(("user", "u"), request_percentage=1.0),
        limit(("user", None), request_percentage=2.0),
        limit(("client-id", "c"), request_percentage=3.0),
        limit(("user", "u"), ("client-id", "c"), request_percentage=4.0),
        limit(("user", "u"), ("client-id", None), request_percentage=5.0),
        limit(("ip", "::1"), connection_creation_rate=6.0),
    )

    def found(self, *asked: tuple[str, int, str | None], strict: bool = False) -> list[float]:
        told = describe_client_quotas(self.IMAGE, [Component(*each) for each in asked], strict)
        return sorted(limit for _, limits in told for limit in limits.values())

    def test_told_in_the_order_that_tests_of_clients_expect(self) -> None:
        """Those of @platformatic/kafka compare the whole answer with what Apache Kafka says."""
        limits = {"producer_byte_rate": 1000.0, "consumer_byte_rate": 1000.0, "request_percentage": 0.5}
        both = limit(("user", "u"), ("client-id", "c"), **limits)
        image = altered(EMPTY, both, limit(("user", "u"), **limits))
        told = describe_client_quotas(image, [Component("user", 0, "u")], strict=False)
        assert [[kind for kind, _ in entity] for entity, _ in told] == [["user"], ["client-id", "user"]]
        order = ["consumer_byte_rate", "request_percentage", "producer_byte_rate"]
        assert [list(values) for _, values in told] == [order, order]

    def test_by_name_by_default_and_by_type(self) -> None:
        assert self.found() == [1, 2, 3, 4, 5, 6]
        assert self.found(strict=True) == []
        assert self.found(("user", 0, "u")) == [1, 4, 5]
        assert self.found(("user", 0, "u"), strict=True) == [1]
        assert self.found(("user", 1, None)) == [2]
        assert self.found(("user", 2, None)) == [1, 2, 4, 5]
        assert self.found(("client-id", 2, None), strict=True) == [3]
        assert self.found(("user", 2, None), ("client-id", 1, None)) == [5]
        assert self.found(("ip", 2, None)) == [6]
        assert self.found(("ip", 0, "nobody")) == []

    @pytest.mark.parametrize(
        ("asked", "error"),
        [
            ([("", 0, "x")], Error.INVALID_REQUEST),
            ([("odd", 0, "x")], Error.UNSUPPORTED_VERSION),
            ([("user", 0, None)], Error.INVALID_REQUEST),
            ([("user", 1, "x")], Error.INVALID_REQUEST),
            ([("user", 2, "x")], Error.INVALID_REQUEST),
            ([("user", 3, None)], Error.INVALID_REQUEST),
            ([("user", 2, None), ("user", 1, None)], Error.INVALID_REQUEST),
            ([("user", 2, None), ("ip", 2, None)], Error.INVALID_REQUEST),
        ],
    )
    def test_questions_that_make_no_sense(self, asked: list[tuple[str, int, str | None]], error: Error) -> None:
        with pytest.raises(KafkaError) as caught:
            self.found(*asked)
        assert caught.value.error is error


def scram(name: str, mechanism: int = 1, iterations: int = 4096, password: bytes = b"salted") -> Upsertion:
    return Upsertion(name, mechanism, iterations, b"salt", password)


class TestCredentials:
    def test_what_is_kept_is_that_of_rfc_5802(self) -> None:
        """Enough to check a login, not enough to make one."""
        image = after(EMPTY, alter_scram_credentials(EMPTY, [], [scram("u", 2, 5000)]))
        held = image.credentials["u", 2]
        client_key = hmac.new(b"salted", b"Client Key", hashlib.sha512).digest()
        assert held.stored_key == hashlib.sha512(client_key).digest()
        assert held.server_key == hmac.new(b"salted", b"Server Key", hashlib.sha512).digest()
        assert (held.salt, held.iterations) == (b"salt", 5000)

    def test_trap_75_both_mechanisms_of_a_user_are_kept_and_survive_a_snapshot(self) -> None:
        """TRAP-75: by replay of the log, and of a snapshot."""
        image = after(EMPTY, alter_scram_credentials(EMPTY, [], [scram("u", 1)]))
        image = after(image, alter_scram_credentials(image, [], [scram("u", 2, 8192)]))
        image = altered(image, limit(("user", "u"), request_percentage=1.0))
        again = replay(Image(), [record for record, _ in records_of(image)], image.offset, 1)[0]
        assert again == image
        assert describe_scram_credentials(again, ["u"])[0].held == [(1, 4096), (2, 8192)]
        assert Delta.everything(again).quotas == {(("user", "u"),): {"request_percentage": 1.0}}

    def test_removed_once(self) -> None:
        image = after(EMPTY, alter_scram_credentials(EMPTY, [], [scram("u", 1)]))
        gone = alter_scram_credentials(image, [Deletion("u", 1), Deletion("nobody", 2)], [])
        assert [error and error.error for error in gone.reply.values()] == [None, Error.RESOURCE_NOT_FOUND]
        assert not len(after(image, gone).credentials)

    @pytest.mark.parametrize(
        ("wanted", "error"),
        [
            (scram(""), Error.UNACCEPTABLE_CREDENTIAL),
            (scram("u", 0), Error.UNSUPPORTED_SASL_MECHANISM),
            (scram("u", 3), Error.UNSUPPORTED_SASL_MECHANISM),
            (scram("u", 1, 4095), Error.UNACCEPTABLE_CREDENTIAL),
            (scram("u", 2, 16385), Error.UNACCEPTABLE_CREDENTIAL),
            (scram("u", password=b""), Error.UNKNOWN_SERVER_ERROR),
        ],
    )
    def test_what_is_refused(self, wanted: Upsertion, error: Error) -> None:
        decision = alter_scram_credentials(EMPTY, [], [wanted])
        (told,) = decision.reply.values()
        assert told is not None and told.error is error and decision.records == []

    def test_a_user_once_in_a_request(self) -> None:
        """TRAP-75: a second mechanism needs a second request."""
        decision = alter_scram_credentials(EMPTY, [], [scram("u", 1), scram("u", 2), scram("other")])
        assert {user: error and error.error for user, error in decision.reply.items()} == {
            "other": None,
            "u": Error.DUPLICATE_RESOURCE,
        }
        assert len(decision.records) == 1

    def test_an_old_cluster_has_no_place_for_them(self) -> None:
        old = replay(Image(), [FeatureLevelRecord(name="metadata.version", feature_level=10)], 0, 1)[0]
        (told,) = alter_scram_credentials(old, [], [scram("u")]).reply.values()
        assert told is not None and told.error is Error.UNSUPPORTED_VERSION

    def test_described(self) -> None:
        image = after(EMPTY, alter_scram_credentials(EMPTY, [], [scram("a", 1), scram("b", 2)]))
        assert [each.user for each in describe_scram_credentials(image, [])] == ["a", "b"]
        told = describe_scram_credentials(image, ["b", "nobody", "a", "a"])
        assert [each.error and each.error.error for each in told] == [
            None,
            Error.RESOURCE_NOT_FOUND,
            Error.DUPLICATE_RESOURCE,
        ]
