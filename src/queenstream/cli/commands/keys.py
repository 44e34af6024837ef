"""``queen keys``: keys that tokens are signed and checked with."""

from __future__ import annotations

import os
import secrets
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from queenstream.cli.support.help import help_text
from queenstream.cli.support.output import write
from queenstream.errors import ConfigError

SECRET_BYTES = 32

app = typer.Typer(
    help=help_text(
        "Keys: what tokens are signed and checked with.",
        "queen keys new --file secret.txt",
        "QUEEN_AUTH_SECRET_FILE=secret.txt queen up",
    ),
    no_args_is_help=True,
)


class KeyType(StrEnum):
    """A secret that signs and checks, or a private key that signs and a public one that checks."""

    HS256 = "hs256"
    ED25519 = "ed25519"


@app.command(
    "new",
    help=help_text(
        "Make a key for tokens.",
        "queen keys new",
        "queen keys new --file secret.txt",
        "queen keys new --type ed25519 --file token-key.pem",
        more="hs256 makes a secret for QUEEN_AUTH_SECRET. ed25519 makes a private key, which stays where "
        "tokens are signed, and the public key for QUEEN_AUTH_PUBLIC_KEY. A file gets mode 0600, and the "
        "public key the same name with .pub; nothing is written over.",
    ),
)
def new(
    kind: Annotated[KeyType, typer.Option("--type", help="Kind of key.")] = KeyType.HS256,
    file: Annotated[Path | None, typer.Option(help="Write it there instead of printing it.")] = None,
) -> None:
    public = None
    if kind is KeyType.HS256:
        made = secrets.token_urlsafe(SECRET_BYTES) + "\n"
    else:
        made, public = _key_pair()
    if file is None:
        write(made + (public or ""))
        return
    _store(file, made, 0o600)
    if public is not None:
        _store(file.with_name(f"{file.name}.pub"), public, 0o644)
        write(f"private key {file}, public key {file}.pub\n")
    else:
        write(f"secret {file}\n")


def _key_pair() -> tuple[str, str]:
    """A private and a public key as PEM."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    pem = serialization.Encoding.PEM
    return (
        private.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode(),
        private.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo).decode(),
    )


def _store(path: Path, text: str, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise ConfigError(f"{path} exists, and is not written over; choose another --file") from None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; choose another --file") from None
    with os.fdopen(descriptor, "w", encoding="ascii") as opened:
        opened.write(text)
