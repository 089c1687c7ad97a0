"""kafka-broker-api-versions.sh: which versions of each API the brokers speak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cli.kafka.options import Options, Parser, run, takes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ottla.client.cluster import Cluster

PARSER = Parser(
    "This tool helps to retrieve broker version information.",
    takes("bootstrap-server", "REQUIRED: The server to connect to.", "server(s) to use for bootstrapping"),
    takes(
        "command-config",
        "A property file containing configs to be passed to Admin Client.",
        "command config property file",
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    return run(PARSER, argv, _show)


def _show(options: Options) -> None:
    from ottla.cli.kafka.connecting import with_cluster

    options.require("bootstrap-server")
    with_cluster(options.text("bootstrap-server"), options.value("command-config"), show_all)


async def show_all(cluster: Cluster) -> None:
    for broker in sorted((await cluster.metadata([])).brokers, key=lambda broker: broker.node_id):
        name = f"{broker.host}:{broker.port} (id: {broker.node_id} rack: {broker.rack or 'null'} isFenced: false)"
        try:
            connection = await cluster.broker(broker.node_id)
            print(f"{name} -> {as_text(connection.served)}")
        except OSError as error:
            print(f"{name} -> ERROR: {error}")


def as_text(served: Mapping[int, tuple[int, int]]) -> str:
    """A line per API, those that the broker lacks among them."""
    from ottla.cli.kafka.apis import APIS

    lines = {key: f"UNKNOWN({key}): {_range(*versions)}" for key, versions in served.items()}
    for api in APIS:
        if api.key in served:
            versions = served[api.key]
            lines[api.key] = f"{api.name}({api.key}): {_range(*versions)} {_use(api.oldest, api.latest, *versions)}"
        elif api.is_for_clients:
            lines[api.key] = f"{api.name}({api.key}): UNSUPPORTED"
    return "(\n\t" + ",\n\t".join(lines[key] for key in sorted(lines)) + "\n)"


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def _use(oldest: int, latest: int, low: int, high: int) -> str:
    if latest < low:
        return "[unusable: node too new]"
    return "[unusable: node too old]" if high < oldest else f"[usable: {min(latest, high)}]"
