"""Seeds of the cluster that once found something, each with what it was. They are played in every run.

A seed stands for one history only as long as nothing that draws from it changes; what it found has a test of its own where
that was possible.
"""

NAMED: dict[str, tuple[int, int]] = {
    "a wiped voter asks the leader by another name for ever, and never to vote again": (500028, 5),
    "a follower that lost everything tells a reader that its place is outside of the log": (700089, 5),
    "who stepped back from a full disk in an earlier life never comes back": (800323, 5),
    "a follower that had to cut its log never hears of the watermark": (8100421, 5),
    "a member whose answer is long on its way is put out before its session is over": (20262059, 5),
    "a node whose metadata fails while it says goodbye waits for an answer that cannot come": (20262675, 5),
    "a broker gives up its start because the disk of the controller is full": (8300456, 5),
    "all others are killed before anybody notices whose disk was wiped, and wait for that one": (8300752, 5),
    "a member that still talks to a coordinator of before is put out by the next one": (8310025, 5),
    "who is back from a full disk may lead, nobody else may, and nobody looks again": (11820568, 5),
}
