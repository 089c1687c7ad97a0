"""Which name was probably meant, where one was not found and those that exist are at hand: a note that goes with the error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cli.parsing import suggestion
from ottla.client.cluster import Cluster, NoTopic
from ottla.wire.errors import Error, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.client.groups import GroupAdmin


class Helpful(Cluster):
    """A cluster that looks, when a topic was not found, whether it has one of nearly that name."""

    async def __aexit__(self, *raised: object) -> None:
        error = raised[1]
        try:
            if isinstance(error, NoTopic):
                note(error, error.topic, [topic.name or "" for topic in (await self.metadata(None)).topics])
        except (KafkaError, OSError):
            pass  # no help is no second error
        finally:
            self.close()


def note(error: BaseException, typed: str, known: Iterable[str]) -> None:
    if meant := suggestion(typed, known):
        error.add_note(meant)


async def note_group(groups: GroupAdmin, error: KafkaError, name: str) -> None:
    if error.error is Error.GROUP_ID_NOT_FOUND:
        note(error, name, [found.group for found in await groups.groups()])


def note_settings(error: KafkaError, names: Iterable[str], known: Iterable[str]) -> None:
    """The first setting that nobody knows is the one that was refused."""
    existing = list(known)
    unknown = [name for name in names if name not in existing]
    if error.error is Error.INVALID_CONFIG and unknown:
        note(error, unknown[0], existing)
