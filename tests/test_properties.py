"""Java's .properties files."""

from __future__ import annotations

from ottla.properties import escaped, read_properties


def test_a_properties_file_is_read_as_java_reads_it() -> None:
    text = """
# a comment
! another
node.id=1
process.roles : broker,\\
    controller
log.dirs   /a b
empty=
with\\=sign=x\\ty\\u0041
  twice=1
twice=2
trailing\\\\
"""
    assert read_properties(text) == {
        "node.id": "1",
        "process.roles": "broker,controller",
        "log.dirs": "/a b",
        "empty": "",
        "with=sign": "x\tyA",
        "twice": "2",
        "trailing\\": "",
    }


def test_what_is_escaped_is_read_back() -> None:
    odd = "a:b=c#d!e\\f"
    assert escaped(odd) == "a\\:b\\=c\\#d\\!e\\\\f"
    assert read_properties(f"name={escaped(odd)}") == {"name": odd}
