"""Round after round of misfortune for three processes, under a load that is counted: OTTLA_ROUNDS says how many (50).

Which misfortune comes when follows from a seed, which is printed; what the processes make of it does not.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.conftest import KIND
from cluster.loads import JavaWriter, Writer
from cluster.network import Network
from cluster.nodes import STATIC, Cluster

PARTITIONS = 3
ROUNDS = int(os.environ.get("OTTLA_ROUNDS", "50"))
SEED = int(os.environ.get("OTTLA_SEED", "0")) or random.randrange(1 << 30)
# A few seconds for what takes longer by default, so that a round is over soon.
IMPATIENT = {
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "4000",
}


class Misfortunes:
    """What can happen to a cluster. Each ends with three nodes that run and hear each other."""

    def __init__(self, nodes: Cluster, network: Network, chance: random.Random) -> None:
        self.nodes, self.network, self.chance = nodes, network, chance
        self.all: list[Callable[[int], None]] = [
            *(self.kill, self.kill_and_start_at_once, self.pause, self.stop, self.cut_off, self.cut_one_way),
            self.kill_two,
        ]

    def kill(self, node_id: int) -> None:
        self.nodes.members[node_id].kill()
        self._while()
        self.nodes.members[node_id].start()

    def kill_and_start_at_once(self, node_id: int) -> None:
        self.nodes.members[node_id].kill()
        self.nodes.members[node_id].start()

    def kill_two(self, node_id: int) -> None:
        others = [n for n in self.nodes.members if n != node_id]
        for n in others:
            self.nodes.members[n].kill()
        for n in others:
            self.nodes.members[n].launch()

    def pause(self, node_id: int) -> None:
        self.nodes.members[node_id].pause()
        self._while()
        self.nodes.members[node_id].resume()

    def stop(self, node_id: int) -> None:
        self.nodes.members[node_id].stop(60)
        self.nodes.members[node_id].start()

    def cut_off(self, node_id: int) -> None:
        self.network.isolate(node_id)
        self._while()
        self.network.heal()

    def cut_one_way(self, node_id: int) -> None:
        self.network.cut(*((node_id, n) for n in self.nodes.members if n != node_id))
        self._while()
        self.network.heal()

    def _while(self) -> None:
        time.sleep(self.chance.uniform(0.2, 6.0))


@pytest.mark.apache
@pytest.mark.slow
@pytest.mark.timeout(120 + 60 * ROUNDS)
def test_rounds_of_misfortune(tmp_path: Path) -> None:
    """REP-07, REP-12, REP-17, KRF-18, OPS-05: kill -9, SIGSTOP, restarts and partitions; every acknowledged record is
    read back once, in order."""
    chance = random.Random(SEED)
    made = Cluster(tmp_path, quorum=STATIC, settings=IMPATIENT, kinds=dict.fromkeys((1, 2, 3), KIND))
    with Network(made) as network, made as nodes:
        nodes.start()
        nodes.create("rounds", PARTITIONS)
        nodes.create("rounds-of-java", PARTITIONS)
        misfortunes, happened = Misfortunes(nodes, network, chance), Counter[str]()
        with (
            Writer(nodes.bootstrap, "rounds", PARTITIONS, per_second=300) as writer,
            JavaWriter(nodes.bootstrap, "rounds-of-java", PARTITIONS, tmp_path) as java,
        ):
            java.wait_for(100)
            for number in range(ROUNDS):
                happens, whom = chance.choice(misfortunes.all), chance.choice((1, 2, 3))
                print(f"seed {SEED}, round {number}: {happens.__name__} {whom}", flush=True)
                happens(whom)
                happened[happens.__name__] += 1
                nodes.wait_ready()
                nodes.wait_in_sync("rounds")
                nodes.wait_in_sync("rounds-of-java")
                writer.wait_for(20)
                java.wait_for(20)
            writer.finish()
            java.finish()
        print(f"{happened.total()} rounds:", *(f"{kind} {count}" for kind, count in sorted(happened.items())))
        print(f"{writer.check(nodes.bootstrap)} records, longest gap {max(writer.gaps_s):.1f} s")
        print(f"{java.check(nodes.bootstrap)} records of Java's client")
