"""A broker that is unregistered while it runs: whoever supervises it can tell."""

from __future__ import annotations

from pathlib import Path

from cluster.apart import BROKERS, Counted, three_brokers
from cluster.nodes import eventually
from operations.speaking import page
from ottla.wire.messages.brokers import UnregisterBrokerRequest, UnregisterBrokerResponse


def test_it_is_not_ready_until_it_is_started_again(tmp_path: Path) -> None:
    with three_brokers(tmp_path, brokers=Counted) as nodes:
        nodes.start()
        out = nodes.members[BROKERS[0]]
        assert isinstance(out, Counted)
        assert page(out.metrics_port, "/ready")[0] == 200
        request = UnregisterBrokerRequest(broker_id=out.node_id)
        assert nodes.ask(lambda line: line.ask(request, UnregisterBrokerResponse, 0)).error_code == 0
        eventually(lambda: "unregistered" in page(out.metrics_port, "/ready")[1], "/ready says why it is not")
        assert page(out.metrics_port, "/ready")[0] == 503
        out.stop(60)
        out.start()
        eventually(lambda: page(out.metrics_port, "/ready")[0] == 200, "it is a broker again")
