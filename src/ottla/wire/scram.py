"""SCRAM (RFC 5802, with SHA-256 in RFC 7677): what becomes of a password before it is sent, and before it is kept.

Who sets a password salts it and sends the result; who keeps it makes two keys of that. The stored key is enough to check a
login and the server key to answer it, and neither is enough to log in.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import NamedTuple


class Mechanism(NamedTuple):
    """`number` is what requests and records call it."""

    name: str
    number: int
    algorithm: str


MECHANISMS = (Mechanism("SCRAM-SHA-256", 1, "sha256"), Mechanism("SCRAM-SHA-512", 2, "sha512"))
BY_NAME = {mechanism.name: mechanism for mechanism in MECHANISMS}
BY_NUMBER = {mechanism.number: mechanism for mechanism in MECHANISMS}

# Kafka's bounds, the same for both.
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16384


class Keys(NamedTuple):
    stored: bytes
    server: bytes


def salted(mechanism: Mechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """The password as it may travel. Kafka does not normalise it first (RFC 4013), so neither do we."""
    return hashlib.pbkdf2_hmac(mechanism.algorithm, password.encode(), salt, iterations)


def keys(mechanism: Mechanism, salted_password: bytes) -> Keys:
    """What is kept of a salted password."""
    client_key = hmac.digest(salted_password, b"Client Key", mechanism.algorithm)
    stored_key = hashlib.new(mechanism.algorithm, client_key).digest()
    return Keys(stored_key, hmac.digest(salted_password, b"Server Key", mechanism.algorithm))
