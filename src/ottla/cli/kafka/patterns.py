"""Whether a text is a regular expression of RE2, which is what consumer groups subscribe with (KIP-848)."""

from __future__ import annotations

import re

# What Python's expressions have and RE2's have not: looking around, remembering, possessive and atomic groups.
PERL = re.compile(r"\(\?(?:[=!>]|<[=!]|P=|P>|\(|#)")
REMEMBERED = re.compile(r"\\[1-9]")
COMPLAINTS = {
    "missing ), unterminated subpattern": "missing closing )",
    "unbalanced parenthesis": "unexpected )",
    "unterminated character set": "missing closing ]",
    "nothing to repeat": "missing argument to repetition operator",
    "multiple repeat": "invalid nested repetition operator",
    "bad escape (end of pattern)": "trailing backslash at end of expression",
}


def complaint(pattern: str) -> str | None:
    """What is wrong with it, in RE2's words; None when nothing is."""
    plain = pattern.replace(r"\\", "")
    if PERL.search(plain):
        return "invalid or unsupported Perl syntax"
    if REMEMBERED.search(plain):
        return "invalid escape sequence"
    try:
        re.compile(pattern)
    except re.error as error:
        return _in_its_words(error.msg)
    except RecursionError:
        return "expression nests too deeply"
    return None


def _in_its_words(message: str) -> str:
    if message in COMPLAINTS:
        return COMPLAINTS[message]
    if message.startswith("bad character range"):
        return "invalid character class range"
    return "invalid escape sequence" if message.startswith("bad escape") else message
