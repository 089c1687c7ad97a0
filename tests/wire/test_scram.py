"""SCRAM against the example of RFC 7677."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from ottla.wire import scram

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
NONCE = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SAID = f"n=user,r=rOprNGfwEbeRWgbNEkqO,r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r={NONCE}".encode()
PROOF = base64.b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
SIGNATURE = base64.b64decode("6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_the_kept_keys_check_a_login_and_answer_it() -> None:
    mechanism = scram.BY_NAME["SCRAM-SHA-256"]
    kept = scram.keys(mechanism, scram.salted(mechanism, "pencil", SALT, 4096))
    assert hmac.digest(kept.server, SAID, "sha256") == SIGNATURE
    mask = hmac.digest(kept.stored, SAID, "sha256")
    client_key = bytes(a ^ b for a, b in zip(PROOF, mask, strict=True))
    assert hashlib.sha256(client_key).digest() == kept.stored


@pytest.mark.parametrize(("name", "number", "size"), [("SCRAM-SHA-256", 1, 32), ("SCRAM-SHA-512", 2, 64)])
def test_mechanisms(name: str, number: int, size: int) -> None:
    """The numbers are those of KIP-554."""
    mechanism = scram.BY_NUMBER[number]
    assert mechanism is scram.BY_NAME[name]
    kept = scram.keys(mechanism, scram.salted(mechanism, "pencil", SALT, 4096))
    assert [len(key) for key in kept] == [size, size]
