"""Seeds that once found something, each with what it was. They are played in every run.

A seed stands for one history only as long as nothing that draws from it changes; what it found has a test of its own where
that was possible, named here.
"""

NAMED: dict[str, tuple[int, int]] = {
    # (seed, rounds). Where a finding is told again step by step: test_node.py, test_producer_goes_on_after_a_refused_retry.
    "a retry was refused after its first attempt had been written, and the producer kept its numbers": (133, 7),
    "the error of a failed metadata sync was raised into a task that nobody awaits": (2, 7),
}
