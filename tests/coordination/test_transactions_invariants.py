"""Generation 2 under every order of requests: repeated, late, of producers that were replaced, around takeovers and timeouts.

Whatever happens, what was said in an earlier epoch never touches a later transaction. That is read off the log of the
coordinator: each epoch has one transaction at most and one outcome, with the partitions that were added in that epoch, and the
outcome that a client was told.
"""

from collections import defaultdict
from contextlib import contextmanager

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ottla.coordination.transactions.states import State
from ottla.wire.errors import Error
from transactions_bench import TransactionsBench

PARTITIONS = st.sampled_from([("orders", 0), ("orders", 1), ("payments", 0)])
ENDS = {State.PREPARE_COMMIT: True, State.PREPARE_ABORT: False}


class Generation2(RuleBasedStateMachine):
    @initialize(epoch=st.sampled_from([0, 0, 32760]))
    def begin(self, epoch):
        self.bench = TransactionsBench()
        self.identities = [self.bench.init().identity]
        if epoch:
            self.identities = [self.bench.aged(epoch)]
        self.adds = []  # who added what, and what it heard
        self.ends = []

    def who(self, data):
        """Mostly the latest that anybody was given, but any earlier one may speak up again."""
        back = data.draw(st.sampled_from([0, 0, 0, 1, 1, 2, 3]))
        return self.identities[max(len(self.identities) - 1 - back, 0)]

    @rule(data=st.data(), partition=PARTITIONS)
    def add(self, data, partition):
        identity = self.who(data)
        with self.only_as_present(identity):
            self.adds.append((identity, partition, self.bench.add(identity, partition)))

    @rule(data=st.data(), committed=st.booleans())
    def end(self, data, committed):
        identity = self.who(data)
        with self.only_as_present(identity):
            self.ends.append((identity, committed, self.bench.end(identity, committed)))

    @contextmanager
    def only_as_present(self, identity):
        """Nothing is written for who is not the present producer."""
        present, written = self.bench.known().identity, len(self.bench.log)
        yield
        assert identity == present or len(self.bench.log) == written

    @rule(data=st.data(), takes_over=st.booleans())
    def start_again(self, data, takes_over):
        identity = (-1, -1) if takes_over else self.who(data)
        asked = self.bench.init(producer_id=identity[0], producer_epoch=identity[1])
        self.bench.mark()
        self.hand_out(asked)

    @rule()
    def markers(self):
        self.bench.mark()

    @rule(duration_ms=st.sampled_from([1, 101, 61_000]))
    def time(self, duration_ms):
        self.bench.pass_ms(duration_ms)

    @rule()
    def another_coordinator(self):
        self.bench.take_over()

    def hand_out(self, asked):
        if not asked.is_waiting and asked.error is Error.NONE and asked.identity not in self.identities:
            self.identities.append(asked.identity)

    @invariant()
    def nobody_touches_a_later_transaction(self):
        for _, _, asked in self.ends:
            self.hand_out(asked)
        outcomes = self.outcomes_in_the_log()
        for identity, committed, asked in self.ends:
            if not asked.is_waiting and asked.error is Error.NONE:
                assert outcomes[identity][0] is committed, f"{identity} was told another end than it got"
        for identity, partition, asked in self.adds:
            if not asked.is_waiting and asked.error is Error.NONE and identity in outcomes:
                assert partition in outcomes[identity][1], f"{partition} of {identity} was forgotten"
        for identity, (committed, partitions) in outcomes.items():
            assert partitions <= {p for who, p, _ in self.adds if who == identity}
            assert not committed or (identity, True) in {(who, how) for who, how, _ in self.ends}

    def outcomes_in_the_log(self):
        """Whose transactions ended how, with which partitions. Raises unless every epoch has one end at most."""
        outcomes, before, open_in = {}, None, defaultdict(set)
        for value in self.bench.written():
            now, state = (value.producer_id, value.producer_epoch), State(value.transaction_status)
            partitions = {(t.topic, p) for t in value.transaction_partitions or () for p in t.partition_ids}
            assert before is None or now >= before, "an identity came back"
            if state is State.ONGOING:
                assert open_in[now] <= partitions
                open_in[now] = partitions
            if state in ENDS:
                ended = (now[0], now[1] - 1)
                assert ended not in outcomes, "two ends in one epoch"
                assert open_in[ended] == partitions, "the end of another transaction"
                outcomes[ended] = ENDS[state], partitions
            before = now
        return outcomes


TestGeneration2 = Generation2.TestCase
TestGeneration2.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
