"""What went wrong, for whoever typed the command: one line that says what to do."""

from __future__ import annotations


class Mistake(Exception):
    """The command line or its input asks for something that cannot be; the text says what would be right."""


def explain(error: Exception) -> str | None:
    """What happened and what to do, in one line; None for what should never happen."""
    from ottla.client.cluster import NoTopic, Unreachable
    from ottla.wire.errors import Error, KafkaError

    if isinstance(error, Mistake):
        return str(error)
    if isinstance(error, Unreachable):
        return f"{error}: start one with `ottla serve`, or name another with --bootstrap-server"
    if isinstance(error, NoTopic):
        see = f"{meant(error)} See" if meant(error) else ": see"
        return f"there is no topic {error.topic!r}{see} `ottla topic list`, or `ottla topic create {error.topic}`"
    if isinstance(error, KafkaError):
        hint = ": `ottla doctor` says why" if error.error is Error.COORDINATOR_NOT_AVAILABLE else ""
        return f"{_sentence(error.message, meant(error) + hint)} ({error.error.name})"
    if isinstance(error, OSError):
        return _explain_system(error)
    return None


def meant(error: BaseException) -> str:
    """`: did you mean ...?`, if somebody noted that with the error."""
    return "".join(getattr(error, "__notes__", ()))


def _explain_system(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"there is no file {error.filename}"
    if isinstance(error, PermissionError):
        return f"no permission to read {error.filename}"
    return _one_line(error)


def _sentence(text: str, rest: str) -> str:
    """A full stop gives way to what is said behind it."""
    line = _one_line(text)
    return f"{line.removesuffix('.')}{rest}" if rest else line


def _one_line(text: object) -> str:
    return " ".join(str(text).split())
