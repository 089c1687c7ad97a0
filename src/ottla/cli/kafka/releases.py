"""Releases of Kafka and the feature levels that belong to them, as Kafka 4.3 knows them."""

from __future__ import annotations

from ottla.cli.kafka.options import Failed

METADATA_VERSION = "metadata.version"
FIRST_LEVEL = 7
# Every metadata.version in order, from level 7 on. The last is not out yet.
VERSIONS = (
    *("3.3-IV3", "3.4-IV0", "3.5-IV0", "3.5-IV1", "3.5-IV2", "3.6-IV0", "3.6-IV1", "3.6-IV2"),
    *("3.7-IV0", "3.7-IV1", "3.7-IV2", "3.7-IV3", "3.7-IV4", "3.8-IV0", "3.9-IV0"),
    *("4.0-IV0", "4.0-IV1", "4.0-IV2", "4.0-IV3", "4.1-IV0", "4.1-IV1", "4.2-IV0", "4.2-IV1", "4.3-IV0", "4.4-IV0"),
)
LATEST = "4.3-IV0"
# The features beside metadata.version: their highest level, and the metadata.version from which on that is the default.
FEATURES = {
    "kraft.version": (1, "3.9-IV0"),
    "transaction.version": (2, "4.0-IV2"),
    "group.version": (1, "4.0-IV0"),
    "eligible.leader.replicas.version": (1, "4.1-IV0"),
    "share.version": (1, "4.2-IV0"),
    "streams.version": (1, "4.2-IV1"),
}
# The only level of any feature that needs something of metadata.version.
DEPENDENCIES = {("eligible.leader.replicas.version", 1): 23}
SHORT_MAX = 32767


def level_of(version: str) -> int:
    """The level behind `4.0-IV3`, or `4.0` or `4.0.1` for the last of that release."""
    if version in VERSIONS:
        return FIRST_LEVEL + VERSIONS.index(version)
    release = ".".join(version.split(".")[:2])
    stable = VERSIONS[: VERSIONS.index(LATEST) + 1]
    matching = [name for name in stable if name.split("-")[0] == release]
    if "-" in version or not matching:
        raise Unknown(version)
    return FIRST_LEVEL + VERSIONS.index(matching[-1])


class Unknown(Failed):
    """There is no such metadata.version; `supported` lists those there are, stable ones only or all."""

    def __init__(self, version: str, names: tuple[str, ...] = VERSIONS) -> None:
        super().__init__(f"Unknown metadata.version '{version}'. Supported metadata.version are: {', '.join(names)}")


def stable_level_of(version: str) -> int:
    """The same where only what is out may be used."""
    stable = VERSIONS[: VERSIONS.index(LATEST) + 1]
    try:
        level = level_of(version)
    except Unknown:
        raise Unknown(version, stable)
    if level > FIRST_LEVEL + len(stable) - 1:
        raise Unknown(version, stable)
    return level


def name_of(level: int) -> str | None:
    """`3.9-IV0` for 21; None for a level that nobody knows."""
    return VERSIONS[level - FIRST_LEVEL] if FIRST_LEVEL <= level < FIRST_LEVEL + len(VERSIONS) else None


def defaults(metadata_level: int) -> dict[str, int]:
    """The levels of the other features that go with a metadata.version."""
    return {name: top if metadata_level >= level_of(since) else 0 for name, (top, since) in FEATURES.items()}


def mapping_lines(version: str | None) -> list[str]:
    """What `version-mapping` prints."""
    version = version or LATEST
    level = level_of(version)
    return [f"{METADATA_VERSION}={level} ({version})", *(f"{name}={at}" for name, at in defaults(level).items())]


def dependency_lines(feature: str, level: int) -> list[str]:
    """What `feature-dependencies` prints for one feature; ValueError for a level that the feature has not."""
    if feature == METADATA_VERSION:
        name = name_of(level)
        if name is None:
            raise Failed(f"Unknown metadata.version {level}")
        return [f"{feature}={level} ({name}) has no dependencies."]
    if feature not in FEATURES:
        raise Failed(f"Unknown feature: {feature}")
    if not 0 <= level <= FEATURES[feature][0]:
        raise ValueError(f"{feature} has no level {level}")
    needed = DEPENDENCIES.get((feature, level))
    if needed is None:
        return [f"{feature}={level} has no dependencies."]
    return [f"{feature}={level} requires:", f"    {METADATA_VERSION}={needed} ({name_of(needed)})"]


def name_and_level(text: str) -> tuple[str, int]:
    """`group.version=1` in two parts."""
    name, equals, level = text.partition("=")
    if not equals:
        raise Failed(f"Can't parse feature=level string {text}: equals sign not found.")
    try:
        number = int(level)
    except ValueError:
        number = SHORT_MAX + 1
    if not -SHORT_MAX - 1 <= number <= SHORT_MAX:
        raise Failed(f"Can't parse feature=level string {text}: unable to parse {level.strip()} as a short.")
    return name.strip(), number
