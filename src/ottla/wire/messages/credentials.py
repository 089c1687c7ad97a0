"""What brokers keep of users' passwords for SCRAM (KIP-554)."""

from ottla.wire.schema import Message, Struct, byte_string, int8, int16, int32, string, v


class DescribeUserScramCredentialsRequest(Message, key=50, versions="0", flexible="0+"):
    """Asks which mechanisms users have a password for; null or none: all users."""

    class User(Struct):
        name: string = v("0+")

    users: list[User] | None = v("0+", nullable="0+")


class DescribeUserScramCredentialsResponse(Message, key=50, versions="0", flexible="0+"):
    """Mechanisms and iterations by user; never anything from which a password could be guessed."""

    class Result(Struct):
        class CredentialInfo(Struct):
            mechanism: int8 = v("0+")  # 1 SCRAM-SHA-256, 2 SCRAM-SHA-512
            iterations: int32 = v("0+")

        user: string = v("0+")
        error_code: int16 = v("0+")
        error_message: string | None = v("0+", nullable="0+")
        credential_infos: list[CredentialInfo] = v("0+")

    throttle_time_ms: int32 = v("0+")
    error_code: int16 = v("0+")
    error_message: string | None = v("0+", nullable="0+")
    results: list[Result] = v("0+")


class AlterUserScramCredentialsRequest(Message, key=51, versions="0", flexible="0+"):
    """Removes and sets passwords; the client salts them, so that they never travel."""

    class Deletion(Struct):
        name: string = v("0+")
        mechanism: int8 = v("0+")

    class Upsertion(Struct):
        name: string = v("0+")
        mechanism: int8 = v("0+")
        iterations: int32 = v("0+")
        salt: byte_string = v("0+")
        salted_password: byte_string = v("0+")

    deletions: list[Deletion] = v("0+")
    upsertions: list[Upsertion] = v("0+")


class AlterUserScramCredentialsResponse(Message, key=51, versions="0", flexible="0+"):
    """What became of each user."""

    class Result(Struct):
        user: string = v("0+")
        error_code: int16 = v("0+")
        error_message: string | None = v("0+", nullable="0+")

    throttle_time_ms: int32 = v("0+")
    results: list[Result] = v("0+")
