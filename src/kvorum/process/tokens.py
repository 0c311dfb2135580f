"""Make the token provider that `--auth-token` selects, and read its key files.

A change of a key file takes effect at the next start, as with etcd.
"""

import errno
from pathlib import Path
from typing import TYPE_CHECKING

from kvorum.process.settings.config import Config, ConfigError
from kvorum.server.telemetry.logs import Logger
from kvorum.state.auth.options import (
    Notice,
    TokenKind,
    TokenOptions,
    TokenOptionsError,
    not_loaded,
    parse_token_options,
)
from kvorum.state.auth.tokens import NoTokens, SimpleTokens, Tokens

if TYPE_CHECKING:
    from kvorum.state.auth.jwt_tokens import JwtTokens


def open_tokens(config: Config, logger: Logger) -> Tokens:
    """Return the token provider that the flag selects.

    Logs each mistake, and raises ConfigError with etcd's text.
    """
    try:
        options = parse_token_options(config.auth_token)
        signed = _jwt_tokens(options) if options.kind is TokenKind.JWT else None
    except TokenOptionsError as error:
        for notice in error.notices:
            _log(logger, notice)
        logger.warning("failed to create token provider", error=str(error))
        raise ConfigError(str(error)) from None
    for notice in options.warnings:
        _log(logger, notice)
    if signed is not None:
        if signed.weakness is not None:
            logger.warning("the key of auth tokens is weak", reason=signed.weakness)
        return signed
    if options.kind is TokenKind.SIMPLE:
        return SimpleTokens(float(config.token_ttl_seconds))
    return NoTokens()


def _jwt_tokens(options: TokenOptions) -> "JwtTokens":
    # Imported late: these modules take 10 MiB, which members with simple tokens do not need.
    from kvorum.state.auth.jwt_keys import read_keys
    from kvorum.state.auth.jwt_tokens import JwtTokens

    public = _read(options.public_key_file)
    private = _read(options.private_key_file)
    return JwtTokens(read_keys(options.sign_method, private, public), options.ttl_seconds)


def _read(path: str) -> bytes:
    if not path:
        return b""
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        # A ValueError means a zero byte in the path.
        number = error.errno if isinstance(error, OSError) else errno.EINVAL
        action = "read" if number == errno.EISDIR else "open"
        reason = error.strerror if isinstance(error, OSError) else "invalid argument"
        raise not_loaded(f"{action} {path}: {(reason or str(error)).lower()}") from None


def _log(logger: Logger, notice: Notice) -> None:
    log = logger.error if notice.is_error else logger.warning
    log(notice.message, **notice.fields)
