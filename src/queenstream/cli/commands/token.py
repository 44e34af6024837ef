"""``queen token``: tokens for a broker whose key is at hand."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from queenstream import config
from queenstream.cli.support.help import help_text
from queenstream.cli.support.output import write
from queenstream.core import durations
from queenstream.errors import ConfigError

LONGEST = "3650d"

app = typer.Typer(
    help=help_text(
        "Tokens: who may do what at a broker with a key.",
        "queen token create --sub ann --role read-write --ttl 30d",
    ),
    no_args_is_help=True,
)


class RoleName(StrEnum):
    """What a token allows; a later one includes those before."""

    READ_ONLY = "read-only"
    READ_WRITE = "read-write"
    ADMIN = "admin"


@app.command(
    "create",
    help=help_text(
        "Create a token, signed with the broker's secret or a private key.",
        "queen token create --sub ann",
        "queen token create --sub shop --role read-write --queue orders --ttl 30d",
        "queen token create --sub ops --role admin --ttl 15m --key token-key.pem",
        more="The secret is that of the broker's settings: QUEEN_AUTH_SECRET, QUEEN_AUTH_SECRET_FILE, or "
        "queen.toml; so are issuer, audience and the name of the role claim. The token is printed.",
    ),
)
def create(
    sub: Annotated[str, typer.Option(metavar="NAME", help="Who it is for; noted with what they do.")],
    role: Annotated[RoleName, typer.Option(help="What it allows.")] = RoleName.READ_ONLY,
    ttl: Annotated[str, typer.Option(metavar="DURATION", help="How long it holds: 15m, 30d.")] = "1d",
    queue: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Limit it to queues of this name; * matches any text."),
    ] = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Limit it to queues of this namespace."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Sign with this private key instead (PEM).")
    ] = None,
    config_file: Annotated[
        Path | None, typer.Option("--config", help="TOML file with settings. (QUEEN_CONFIG)")
    ] = None,
) -> None:
    # Only here: they take long to import, and other commands do without.
    import time

    import jwt

    settings = config.load({}, os.environ, config_file)
    algorithm, signer = _signer(settings, key)
    claims: dict[str, Any] = {
        "sub": sub,
        settings.auth_role_claim: role.value,
        "exp": int(time.time() + _seconds(ttl)),
    }
    if settings.auth_issuer is not None:
        claims["iss"] = settings.auth_issuer
    if settings.auth_audience is not None:
        claims["aud"] = settings.auth_audience
    if queue:
        claims["queues"] = queue
    if namespace:
        claims["namespaces"] = namespace
    write(jwt.encode(claims, signer, algorithm=algorithm) + "\n")


def _seconds(ttl: str) -> float:
    try:
        seconds = durations.seconds(ttl)
    except (ValueError, ConfigError):
        seconds = 0.0
    if not 1 <= seconds <= durations.seconds(LONGEST):
        raise ConfigError(f"--ttl {ttl} is not a duration from 1s to {LONGEST}; write it like 15m or 30d")
    return seconds


def _signer(settings: config.Settings, key: Path | None) -> tuple[str, Any]:
    """The algorithm, and what signs."""
    from queenstream.broker.auth.key_files import current_secret

    if key is None:
        secret = current_secret(settings)
        if secret is None:
            raise ConfigError(
                "there is no secret to sign with; set QUEEN_AUTH_SECRET or QUEEN_AUTH_SECRET_FILE as for the "
                "broker (make one with `queen keys new`), or give a private key with --key"
            )
        return "HS256", secret
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        found = load_pem_private_key(key.read_bytes(), password=None)
    except OSError as error:
        raise ConfigError(f"cannot read {key}: {error.strerror}; check --key") from None
    except (ValueError, TypeError):
        raise ConfigError(f"{key} is not a private key in PEM without a password; check --key") from None
    if isinstance(found, Ed25519PrivateKey):
        return "EdDSA", found
    if isinstance(found, RSAPrivateKey):
        return "RS256", found
    raise ConfigError(f"{key} is neither Ed25519 nor RSA; make one with `queen keys new --type ed25519`")
