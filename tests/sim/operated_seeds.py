"""Seeds of the operated cluster that once found something, each with what it was. They are played in every run.

A seed stands for one history only as long as nothing that draws from it changes; what it found has a test of its own.
"""

NAMED: dict[str, tuple[int, ...]] = {
    "a batch that was taken when segments were larger can be copied to nobody any more": (11, 15),
    "a controller that has just begun lists no moves, though some are under way": (9, 13),
    "who was deposed without knowing need not have what was written before it and committed after it": (20261208,),
}
