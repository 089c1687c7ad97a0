"""Seeds that once found something, each with what it was. They are played in every run.

A seed stands for one history only as long as nothing that draws from it changes; what it found has a test of its own where
that was possible, named here.
"""

NAMED: dict[str, tuple[int, int]] = {
    # (seed, rounds). Told again step by step in test_node.py: test_producer_goes_on_after_a_refused_retry,
    # test_failed_sync_of_the_metadata_ends_the_node, test_start_of_a_log_that_lost_its_records_stays.
    "a retry was refused after its first attempt had been written, and the producer kept its numbers": (1, 4),
    "the error of a failed metadata sync was raised into a task that nobody awaits": (2, 7),
    "a log that began anew at its start did not sync the name that says so": (20746, 9),
    "a number that a forgetful leader had taken was given to another batch": (28, 4),
}

TRANSACTIONS: dict[str, tuple[int, int]] = {
    # Told again by test_transactions_ending.py: test_who_was_replaced_by_a_client_of_generation_1_does_not_become_it.
    "who was replaced by a client of generation 1 was told who that is, and ended its transaction": (700351, 9),
    "the same, and what the successor wrote was committed in part": (700664, 9),
}
