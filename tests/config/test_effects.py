"""The word `inert` in the tables is the truth: settings without it are read by the code, those with it are not.

What is listed as accepted without effect in docs/compatibility.md comes from that word. When a setting begins to do
what it says, take the word away; when code that read it goes, put it back.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from ottla.config.settings import GROUP_SETTINGS, NODE_SETTINGS, TOPIC_SETTINGS, Setting
from ottla.log.settings import LogSettings

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "ottla"

# Read inside `config` itself, which hands on what follows from them.
BY_CONFIG = {
    "node.id",
    "broker.id",
    "process.roles",
    "listeners",
    "advertised.listeners",
    "listener.security.protocol.map",
    "controller.listener.names",
    "log.dirs",
    "log.dir",
    "metadata.log.dir",
    "inter.broker.listener.name",
    "security.inter.broker.protocol",
    *(
        f"group.consumer.{bound}.{what}.ms"
        for bound in ("min", "max")
        for what in ("session.timeout", "heartbeat.interval", "assignment.interval")
    ),
}

WHOLE = re.compile(r'"((?:[a-z0-9]+\.)+[a-z0-9]+)"')
# config[f"{prefix}.segment.bytes"], with each prefix as a text of its own in the same file
COMPOSED = re.compile(r'f"\{\w+\}\.((?:[a-z]+\.)*[a-z]+)"')


def read_by_code() -> set[str]:
    names: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        if not {"config", "cli"} & set(path.relative_to(SOURCE).parts):  # a tool that sets something does not obey it
            text = path.read_text()
            whole = set(WHOLE.findall(text))
            names |= whole | {f"{prefix}.{suffix}" for suffix in COMPOSED.findall(text) for prefix in whole}
    return names


def topic_settings_in_use(read: set[str]) -> set[str]:
    of_logs = {field.name.replace("_", ".") for field in dataclasses.fields(LogSettings)}
    return {name for name in TOPIC_SETTINGS if name in read or name in of_logs} | {"internal.segment.bytes"}


def disagreeing(settings: dict[str, Setting], used: set[str]) -> tuple[list[str], list[str]]:
    """Settings that claim an effect nobody gives them, and settings in use that claim none."""
    idle = [name for name, row in settings.items() if row.effect and name not in used]
    active = [name for name, row in settings.items() if not row.effect and name in used]
    return idle, active


def test_what_is_said_to_have_an_effect_is_read_and_nothing_else() -> None:
    read = read_by_code()
    of_topics = topic_settings_in_use(read)
    stand_ins = {name for topic in of_topics for name in TOPIC_SETTINGS[topic].stand_ins}
    stand_ins |= {name for group in read & GROUP_SETTINGS.keys() for name in GROUP_SETTINGS[group].stand_ins}
    of_logs = {"producer.id.expiration.ms"}
    assert disagreeing(TOPIC_SETTINGS, of_topics) == ([], [])
    assert disagreeing(NODE_SETTINGS, (read | stand_ins | of_logs | BY_CONFIG)) == ([], [])
    assert disagreeing(GROUP_SETTINGS, read) == ([], [])


def named_after(page: str, words: str) -> set[str]:
    """The settings in the paragraph after these words."""
    return set(re.findall(r"`([^`]+)`", page.split(words, 1)[1].split("\n\n", 2)[1]))


def test_the_page_lists_what_has_an_effect() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text()
    of_kafka = {name: row for name, row in NODE_SETTINGS.items() if not name.startswith("ottla.")}
    assert named_after(page, "broker settings have an effect:") == {n for n, row in of_kafka.items() if row.effect}
    assert named_after(page, "but have none yet:") == {n for n, row in TOPIC_SETTINGS.items() if not row.effect}
    changed_in_vain = {name for name, row in NODE_SETTINGS.items() if row.scope and not row.effect}
    assert named_after(page, "of `ssl.` and `sasl.`, and:") == {
        name for name in changed_in_vain if not name.startswith(("ssl.", "sasl."))
    }
    assert {name for name, row in GROUP_SETTINGS.items() if row.effect} == {
        name for name in GROUP_SETTINGS if name.startswith("consumer.")
    }
