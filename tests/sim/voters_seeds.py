"""Seeds of clusters whose voters change that once found something, each with what it was. They are played in every run.

A seed stands for one history only as long as nothing that draws from it changes; what it found has a test of its own.
"""

NAMED: dict[str, tuple[int, ...]] = {}
