"""Limits and passwords as clients ask for them: set, told, kept over a restart; hosts that do not exist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from desk import Desk, on_loop
from ottla.server.handlers import credentials, quotas
from ottla.wire.errors import Error
from ottla.wire.messages.credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
)
from ottla.wire.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
)

Entry, Component = AlterClientQuotasRequest.Entry, DescribeClientQuotasRequest.Component
ALL = DescribeClientQuotasRequest()
EVERYBODY = DescribeUserScramCredentialsRequest(users=None)


def entry(kind: str, name: str | None, **limits: float) -> Entry:
    ops = [Entry.Op(key=key, value=value) for key, value in limits.items()]
    return Entry(entity=[Entry.Entity(entity_type=kind, entity_name=name)], ops=ops)


async def alter(desk: Desk, *entries: Entry, validate_only: bool = False) -> list[tuple[int, str | None]]:
    request = AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)
    answer: AlterClientQuotasResponse = await quotas.alter(request, desk.ctx(1))
    return [(each.error_code, each.error_message) for each in answer.entries]


async def told(desk: Desk, request: DescribeClientQuotasRequest = ALL) -> dict[Any, dict[str, float]]:
    answer = await quotas.describe(request, desk.ctx(1))
    assert answer.error_code == 0 and answer.entries is not None
    return {
        tuple((named.entity_type, named.entity_name) for named in each.entity): {v.key: v.value for v in each.values}
        for each in answer.entries
    }


@on_loop
async def test_limits_are_set_told_and_kept(tmp_path: Path) -> None:
    async with Desk(tmp_path) as desk:
        done = await alter(
            desk, entry("user", "u", producer_byte_rate=5.0), entry("ip", None, connection_creation_rate=2.0)
        )
        assert done == [(0, None), (0, None)]
        assert await alter(desk, entry("user", "v", producer_byte_rate=5.0), validate_only=True) == [(0, None)]
    async with Desk(tmp_path) as desk:
        expected = {(("user", "u"),): {"producer_byte_rate": 5.0}, (("ip", None),): {"connection_creation_rate": 2.0}}
        assert await told(desk) == expected
        only = DescribeClientQuotasRequest(components=[Component(entity_type="user", match_type=2, match=None)])
        assert list(await told(desk, only)) == [(("user", "u"),)]


@on_loop
async def test_a_host_is_looked_up_before_it_gets_a_limit(tmp_path: Path) -> None:
    async with Desk(tmp_path) as desk:
        wanted = [entry("ip", name, connection_creation_rate=1.0) for name in ("localhost", "no such host", "::1")]
        outcomes = await alter(desk, *wanted)
        assert [code for code, _ in outcomes] == [0, Error.INVALID_REQUEST.code, 0]
        assert outcomes[1][1] == "no such host is not a valid IP or resolvable host."


@on_loop
async def test_a_question_that_makes_no_sense_is_answered_without_entries(tmp_path: Path) -> None:
    async with Desk(tmp_path) as desk:
        asked = DescribeClientQuotasRequest(components=[Component(entity_type="odd", match_type=0, match="x")])
        answer = await quotas.describe(asked, desk.ctx(1))
        assert (answer.error_code, answer.entries) == (Error.UNSUPPORTED_VERSION.code, None)


@on_loop
async def test_a_controller_that_ended_refuses_each(tmp_path: Path) -> None:
    async with Desk(tmp_path) as desk:
        desk.quorum._ended, ended = OSError("gone"), desk.quorum._ended
        refused = Error.NOT_CONTROLLER.code
        assert [code for code, _ in await alter(desk, entry("user", "u"), entry("user", "v"))] == [refused, refused]
        assert [code for _, code, _ in await change(desk, ("u", 1, 4096), ("v", 2, None))] == [refused, refused]
        desk.quorum._ended = ended


async def change(desk: Desk, *changes: tuple[str, int, int | None]) -> list[tuple[str, int, str | None]]:
    kind = AlterUserScramCredentialsRequest
    request = kind(
        deletions=[kind.Deletion(name=user, mechanism=how) for user, how, count in changes if count is None],
        upsertions=[
            kind.Upsertion(name=user, mechanism=how, iterations=count, salt=b"salt", salted_password=b"salted")
            for user, how, count in changes
            if count is not None
        ],
    )
    answer: AlterUserScramCredentialsResponse = await credentials.alter(request, desk.ctx())
    return [(each.user, each.error_code, each.error_message) for each in answer.results]


@on_loop
async def test_trap_75_both_mechanisms_survive_a_restart(tmp_path: Path) -> None:
    """TRAP-75, and twice: the second start reads the log of the first."""
    async with Desk(tmp_path) as desk:
        assert await change(desk, ("u", 1, 4096)) == [("u", 0, None)]
        assert await change(desk, ("u", 2, 16384)) == [("u", 0, None)]
    for _ in range(2):
        async with Desk(tmp_path) as desk:
            answer = await credentials.describe(EVERYBODY, desk.ctx())
            (user,) = answer.results
            assert [(each.mechanism, each.iterations) for each in user.credential_infos] == [(1, 4096), (2, 16384)]


@on_loop
async def test_users_that_are_not_there(tmp_path: Path) -> None:
    async with Desk(tmp_path) as desk:
        asked = DescribeUserScramCredentialsRequest(users=[DescribeUserScramCredentialsRequest.User(name="nobody")])
        answer = await credentials.describe(asked, desk.ctx())
        assert answer.error_code == 0
        assert [each.error_code for each in answer.results] == [Error.RESOURCE_NOT_FOUND.code]
        ((user, code, why),) = await change(desk, ("nobody", 1, None))
        assert (user, code) == ("nobody", Error.RESOURCE_NOT_FOUND.code) and why is not None
