"""Brokers that come, are heard of, fall silent and go: registrations, heartbeats, sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ottla.metadata import controller
from ottla.metadata.features import SERVED
from ottla.metadata.heartbeats import FENCED, GO, LET_IN, STOPPING
from ottla.metadata.records import BrokerRegistrationChangeRecord, PartitionChangeRecord, RegisterBrokerRecord
from ottla.metadata.sessions import Sessions
from ottla.wire.errors import Error, KafkaError
from pictures import TIMEOUT_MS, Pictured, directory


def error_of(call: Callable[[], object]) -> Error:
    with pytest.raises(KafkaError) as refused:
        call()
    return refused.value.error


class TestRegistration:
    def test_a_new_process_gets_a_new_epoch_and_is_fenced(self) -> None:
        """KRF-08, TRAP-37."""
        cluster = Pictured(1)
        who = cluster.registration(2, rack="r")
        at = cluster.image.offset + 1
        assert cluster.register(who) == at
        ((record, version),) = cluster.written
        assert isinstance(record, RegisterBrokerRecord) and (record.broker_epoch, version) == (at, 4)
        broker = cluster.image.brokers[2]
        assert (broker.fenced, broker.rack, broker.directories) == (True, "r", (directory(2),))

    def test_the_same_process_again_keeps_its_epoch_and_its_standing(self) -> None:
        """Its answer was lost, or it has something new to say about itself."""
        cluster = Pictured(1, 2)
        cluster.topic((1, 2))
        before, was = cluster.image.brokers[2], cluster.partition()
        again = cluster.registration(2, incarnation=before.incarnation, rack="elsewhere")
        assert cluster.register(again) == before.epoch
        assert cluster.image.brokers[2] == before._replace(rack="elsewhere", cordoned=None)
        assert cluster.partition() == was and len(cluster.written) == 1

    def test_another_process_must_wait_for_the_session_to_end(self) -> None:
        """TRAP-38."""
        cluster = Pictured(1, 2)
        cluster.now_ms += TIMEOUT_MS
        assert error_of(lambda: cluster.register(cluster.registration(2))) is Error.DUPLICATE_BROKER_REGISTRATION
        cluster.now_ms += 1
        assert cluster.register(cluster.registration(2)) > 0

    def test_nobody_waits_for_a_process_whose_door_is_closed(self) -> None:
        """TRAP-38: a reset of its connection ends the session, so a quick restart after kill -9 is let in."""
        cluster = Pictured(1, 2)
        cluster.sessions.suspect(2)
        assert cluster.register(cluster.registration(2)) > 0

    def test_nobody_waits_for_a_process_that_was_let_go(self) -> None:
        cluster = Pictured(1, 2)
        assert cluster.beat(2, want_shut_down=True).may_go
        assert cluster.register(cluster.registration(2)) > 0

    def test_one_that_waits_behind_the_fence_keeps_its_id(self) -> None:
        """Two processes with one id: the first is still starting, and must not be pushed aside. As in Apache Kafka it has
        the id from its first heartbeat on: one that died before that, or never heard of its registration, keeps nobody out."""
        cluster = Pictured(1)
        cluster.register(cluster.registration(2))
        cluster.register(cluster.registration(2))
        assert cluster.beat(2, want_fence=True).is_fenced
        assert error_of(lambda: cluster.register(cluster.registration(2))) is Error.DUPLICATE_BROKER_REGISTRATION

    @pytest.mark.parametrize(
        ("said", "error"),
        [
            ({"cluster_id": "another"}, Error.INCONSISTENT_CLUSTER_ID),
            ({"directories": []}, Error.INVALID_REGISTRATION),
            ({"directories": [bytes(15) + b"\x05"]}, Error.INVALID_REGISTRATION),
            ({"directories": [b"d" * 16, b"d" * 16]}, Error.INVALID_REGISTRATION),
            ({"directories": [directory(1)]}, Error.INVALID_REGISTRATION),
            ({"features": {}}, Error.INVALID_REGISTRATION),
            ({"features": {**SERVED, "metadata.version": (7, 29)}}, Error.UNSUPPORTED_VERSION),
            ({"features": {**SERVED, "group.version": (2, 3)}}, Error.UNSUPPORTED_VERSION),
            ({"features": {"metadata.version": (7, 30)}}, Error.UNSUPPORTED_VERSION),
            ({"features": {**SERVED, "new.version": (1, 3)}}, Error.UNSUPPORTED_VERSION),
        ],
    )
    def test_who_is_kept_out(self, said: dict[str, Any], error: Error) -> None:
        cluster = Pictured(1)
        assert error_of(lambda: cluster.register(cluster.registration(2, **said))) is error
        assert 2 not in cluster.image.brokers

    def test_features_that_the_controller_does_not_know_may_begin_at_0(self) -> None:
        cluster = Pictured(1)
        cluster.start(2, features={**SERVED, "new.version": (0, 3)})
        assert cluster.image.brokers[2].features["new.version"] == (0, 3)

    @pytest.mark.parametrize("clean", [True, False])
    def test_after_an_unclean_stop_it_is_not_eligible_any_more(self, clean: bool) -> None:
        """KIP-966, TRAP-12: what was not synced may be gone, so it must not count as having all that is committed."""
        cluster = Pictured(1, 2, 3, min_isr=2)
        cluster.topic((1, 2, 3))
        epoch = cluster.image.brokers[1].epoch
        for broker_id in (2, 3, 1):
            cluster.silence(broker_id)
        assert (cluster.partition().isr, cluster.partition().elr) == ((), (1, 3))
        assert cluster.partition().last_known_elr == (1,)
        cluster.start(1, previous_epoch=epoch if clean else -1)
        partition = cluster.partition()
        assert (partition.leader, partition.elr) == ((1, (3,)) if clean else (-1, (3,)))
        cluster.start(3, previous_epoch=cluster.image.brokers[3].epoch)
        assert cluster.partition().leader == (1 if clean else 3) and not cluster.partition().recovering

    def test_one_that_was_unregistered_comes_back_with_nothing(self) -> None:
        """It stays eligible while it is away, but nobody knows what became of its disks."""
        cluster = Pictured(1, 2, min_isr=2)
        cluster.topic((1, 2))
        cluster.silence(2)
        assert cluster.partition().elr == (2,)
        cluster.apply(controller.unregister(cluster.image, 2, cluster.rules))
        cluster.start(2, previous_epoch=0)
        assert (cluster.partition().isr, cluster.partition().elr) == ((1,), ())


class TestHeartbeat:
    def test_it_is_let_in_once_it_has_read_its_own_registration(self) -> None:
        """TRAP-37."""
        cluster = Pictured(1)
        cluster.topic((1,))
        cluster.register(cluster.registration(2))
        at = cluster.image.offset
        behind = cluster.beat(2, read=at - 1)
        assert (behind.is_caught_up, behind.state) == (False, FENCED)
        assert cluster.beat(2, read=at, want_fence=True).state == FENCED, "not before it wants to"
        caught_up = cluster.beat(2, read=at)
        assert (caught_up.is_caught_up, caught_up.state, caught_up.is_fenced) == (True, LET_IN, False)
        assert not cluster.image.brokers[2].fenced

    def test_what_is_written_when_it_is_let_in(self) -> None:
        """As Apache Kafka 4.3 does: one field in a record, in the oldest version that has it."""
        cluster = Pictured()
        cluster.register(cluster.registration(1))
        cluster.beat(1)
        written = [(r.fenced, r.cordoned_log_dirs, v) for r, v in cluster.written]  # type: ignore[attr-defined]
        assert written == [(-1, None, 0), (0, [], 3)]
        cluster.beat(1)
        assert cluster.written == []
        cluster.beat(1, cordoned_log_dirs=[directory(1)])
        assert cluster.image.brokers[1].cordoned == (directory(1),)

    def test_another_process_is_told_so(self) -> None:
        cluster = Pictured(1)
        epoch = cluster.image.brokers[1].epoch
        assert error_of(lambda: cluster.beat(1, epoch=epoch - 1)) is Error.STALE_BROKER_EPOCH
        cluster.apply(controller.unregister(cluster.image, 1, cluster.rules))
        assert error_of(lambda: cluster.beat(1, epoch=epoch)) is Error.STALE_BROKER_EPOCH

    def test_it_may_ask_for_the_fence(self) -> None:
        cluster = Pictured(1, 2)
        cluster.topic((1, 2))
        assert cluster.beat(1, want_fence=True).state == FENCED
        assert cluster.image.brokers[1].fenced and cluster.partition().leader == 2
        cluster.beat(1)
        assert not cluster.image.brokers[1].fenced and cluster.partition().leader == 2

    def test_partitions_without_a_leader_get_whoever_comes_back(self) -> None:
        """REP-12."""
        cluster = Pictured(1, 2)
        cluster.topic((1, 2))
        cluster.silence(2)
        cluster.silence(1)
        assert cluster.partition().leader == -1
        cluster.beat(1)
        assert (cluster.partition().leader, cluster.partition().isr) == (1, (1,))


class TestStopping:
    def test_it_goes_once_it_leads_nothing_and_the_others_know(self) -> None:
        """TRAP-39."""
        cluster = Pictured(1, 2, 3)
        cluster.topic((1, 2, 3), (2, 3, 1))
        first = cluster.beat(1, want_shut_down=True)
        assert (first.state, first.may_go) == (STOPPING, False)
        assert cluster.partition().leader == 2 and 1 not in cluster.partition(1).isr
        flag = cluster.written[0]
        assert (
            flag[0]
            == BrokerRegistrationChangeRecord(
                broker_id=1, broker_epoch=cluster.image.brokers[1].epoch, in_controlled_shutdown=1
            )
            and flag[1] == 1
        )
        moved = cluster.image.offset
        assert cluster.beat(1, want_shut_down=True).state == STOPPING and cluster.written == []
        cluster.beat(2, read=moved)
        cluster.beat(3, read=moved - 1)
        assert cluster.beat(1, want_shut_down=True).state == STOPPING, "broker 3 has not read who leads now"
        cluster.beat(3, read=moved)
        last = cluster.beat(1, want_shut_down=True)
        assert last.may_go and last.is_fenced and cluster.image.brokers[1].fenced

    def test_who_leads_nothing_goes_at_once(self) -> None:
        cluster = Pictured(1, 2)
        cluster.topic((2, 1))
        assert cluster.beat(1, want_shut_down=True).state == GO
        assert cluster.partition().isr == (2,)
        assert cluster.beat(1, want_shut_down=True).state == GO, "told twice if the first answer was lost"

    def test_the_last_one_goes_too(self) -> None:
        """REP-25: nobody is left to read anything."""
        cluster = Pictured(1)
        cluster.topic((1,))
        assert cluster.beat(1, want_shut_down=True).state == STOPPING
        assert cluster.partition().leader == -1
        assert cluster.beat(1, want_shut_down=True).state == GO

    def test_two_at_once_do_not_wait_for_each_other(self) -> None:
        cluster = Pictured(1, 2)
        cluster.topic((1, 2), (2, 1))
        assert cluster.beat(1, want_shut_down=True).state == STOPPING
        assert cluster.beat(2, want_shut_down=True).state == STOPPING
        assert cluster.beat(1, want_shut_down=True).state == GO
        assert cluster.beat(2, want_shut_down=True).state == GO

    def test_a_controller_that_takes_over_does_not_let_it_go_too_early(self) -> None:
        cluster = Pictured(1, 2, 3)
        cluster.topic((1, 2, 3))
        cluster.beat(1, want_shut_down=True)
        cluster.sessions = Sessions(TIMEOUT_MS)
        cluster.sessions.begin(cluster.image, cluster.now_ms)
        assert cluster.beat(1, want_shut_down=True).state == STOPPING
        assert cluster.beat(1, want_shut_down=True).state == STOPPING, "nothing was heard of the others yet"
        cluster.beat(2)
        cluster.beat(3)
        assert cluster.beat(1, want_shut_down=True).state == GO

    def test_there_is_no_way_back(self) -> None:
        """A process that wanted to stop, fell silent and thinks better of it must register anew."""
        cluster = Pictured(1, 2)
        cluster.topic((1, 2))
        cluster.beat(1, want_shut_down=True)
        cluster.silence(1)
        cluster.silence(2)
        assert cluster.beat(1).state == FENCED and cluster.partition().leader == -1
        cluster.sessions.suspect(1)
        cluster.start(1, previous_epoch=cluster.image.brokers[1].epoch)
        assert cluster.image.brokers[1].active and cluster.partition().leader == -1, "broker 2 has what it missed"

    def test_in_a_hurry(self) -> None:
        cluster = Pictured(1, 2)
        cluster.topic((1, 2))
        assert cluster.beat(1, want_fence=True, want_shut_down=True).state == GO
        assert cluster.partition().leader == 2


class TestDirectoriesThatFail:
    def test_replicas_in_them_lose_leadership_and_the_others_stay(self) -> None:
        """KIP-858, REP-20."""
        cluster = Pictured(1, 2)
        cluster.silence(1)
        cluster.start(1, directories=[directory(1, 0), directory(1, 1)])
        cluster.topic((1, 2), (1, 2))
        topic = cluster.image.topic("t")
        assert topic is not None
        for index in (0, 1):
            places = [directory(1, index), directory(2)]
            cluster.replay(PartitionChangeRecord(partition_id=index, topic_id=topic.id, directories=places))
        cluster.beat(1, offline_log_dirs=[directory(1, 1)])
        assert (cluster.partition(0).leader, cluster.partition(0).isr) == (1, (1, 2))
        assert (cluster.partition(1).leader, cluster.partition(1).isr) == (2, (2,))
        assert cluster.image.brokers[1].directories == (directory(1, 0),)
        ((_, _), (record, version)) = cluster.written
        assert isinstance(record, BrokerRegistrationChangeRecord) and version == 2
        cluster.beat(1, offline_log_dirs=[directory(1, 1)])
        assert cluster.written == [], "it says so in every heartbeat, and it is news only once"

    def test_one_heartbeat_may_bring_it_in_and_tell_of_a_failure(self) -> None:
        """Both change the same partitions, and the second must see the first."""
        cluster = Pictured(1, elr=False)
        cluster.silence(1)
        cluster.start(1, directories=[directory(1, 0), directory(1, 1)])
        cluster.topic((1,))
        topic = cluster.image.topic("t")
        assert topic is not None
        cluster.replay(PartitionChangeRecord(partition_id=0, topic_id=topic.id, directories=[directory(1, 1)]))
        cluster.silence(1)
        cluster.beat(1, offline_log_dirs=[directory(1, 1)])
        assert not cluster.image.brokers[1].fenced and cluster.partition().leader == -1


class TestSessions:
    def sessions(self, *brokers: int) -> Sessions:
        sessions = Sessions(TIMEOUT_MS)
        for order, broker_id in enumerate(brokers):
            sessions.registered(broker_id, epoch=broker_id * 10, offset=0, now_ms=1_000 + order)
        return sessions

    def looking(self, sessions: Sessions, start_ms: int, end_ms: int) -> list[tuple[int, int]]:
        """Who is overdue at the end, for a controller that looks as often as it should."""
        for now_ms in range(start_ms, end_ms, sessions.look_every_ms):
            assert sessions.overdue(now_ms) == []
        return sessions.overdue(end_ms)

    def test_silence_is_noticed_when_the_time_is_over_and_not_before(self) -> None:
        """KRF-12: the longest silent first."""
        sessions = self.sessions(3, 1, 2)
        sessions.heard(1, 10, 5, 2_000)
        assert self.looking(sessions, 1_000, 1_000 + TIMEOUT_MS) == []
        assert sessions.overdue(1_003 + TIMEOUT_MS) == [(3, 30), (2, 20)]
        sessions.end(3)
        sessions.end(2)
        assert sessions.overdue(1_003 + TIMEOUT_MS) == [] and sessions.is_live(1, 10, 1_003 + TIMEOUT_MS)

    def test_a_broker_that_is_gone_is_overdue_at_once_and_a_slow_one_is_not(self) -> None:
        """The kernel closes the sockets of a process that was killed; one that is stopped keeps them."""
        sessions = self.sessions(1, 2)
        sessions.suspect(2)
        assert sessions.overdue(1_500) == [(2, 20)]
        sessions.heard(2, 20, 5, 1_600)
        assert sessions.overdue(1_700) == [], "it was heard again: the connection alone had broken"
        sessions.suspect(9)
        assert self.looking(sessions, 1_700, 1_700 + 5_000) == []

    @pytest.mark.parametrize("slept_ms", [5_000, 60_000])
    def test_a_controller_that_slept_accuses_nobody(self, slept_ms: int) -> None:
        """What brokers said meanwhile waits in sockets that it has not read yet."""
        sessions = self.sessions(1, 2)
        assert self.looking(sessions, 1_000, 6_000) == []
        woken = 6_000 + slept_ms
        assert sessions.overdue(woken) == []
        sessions.heard(1, 10, 5, woken)
        assert self.looking(sessions, woken, woken + 4_000) == []
        assert sessions.overdue(woken + 4_200) == [(2, 20)]

    def test_a_controller_that_takes_over_gives_everybody_a_whole_session(self) -> None:
        """KRF-11."""
        cluster = Pictured(1, 2, 3)
        cluster.silence(3)
        sessions = Sessions(TIMEOUT_MS)
        sessions.begin(cluster.image, 50_000)
        assert [sessions.is_live(b, cluster.image.brokers[b].epoch, 59_000) for b in (1, 2, 3)] == [True, True, False]
        assert not sessions.is_live(1, 0, 50_000), "that is another process"
        assert not sessions.is_live(1, cluster.image.brokers[1].epoch, 59_001), "and no more than that"
        assert sessions.registered_at(cluster.image.brokers[3]) == cluster.image.offset

    def test_nobody_to_wait_for(self) -> None:
        assert Sessions(TIMEOUT_MS).overdue(5) == []
