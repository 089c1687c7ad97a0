"""Seeds of clusters whose voters change that once found something, each with what it was. They are played in every run.

A seed stands for one history only as long as nothing that draws from it changes; what it found has a test of its own.
"""

NAMED: dict[str, tuple[str, ...]] = {
    "a controller whose disk is full looks for its place among the brokers, and never again for room": (
        "v20261119719",
    ),
}
