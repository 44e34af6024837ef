"""Files for browsers, read once into memory: compressed, with an entity tag, and told how long they hold.

files = Files(folder)
files.answer("index.html", request)     # 200, or 304 if the browser has it
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import re
from dataclasses import dataclass
from importlib.resources.abc import Traversable

from queenstream.broker.http.routing import Request, Response
from queenstream.errors import NotFound

# Scripts and styles from here only, markup never from text: a payload that is taken for HTML does not run.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types svelte-trusted-html"
)
_ALWAYS = (
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Vary", "Accept-Encoding"),
)
_HASHED = re.compile(r"-[A-Za-z0-9_-]{8}\.[a-z]+$")  # the build names such a file after its content
_NO_GZIP = re.compile(rb"gzip\s*;\s*q=0(\.0*)?\s*(,|$)")
_SMALLEST = 512  # bytes; below that compression gains nothing
_TEXT = ("text/", "application/json", "image/svg+xml")


@dataclass(frozen=True)
class _File:
    body: bytes
    packed: bytes | None
    content_type: str
    headers: tuple[tuple[str, str], ...]
    tag: str


class Files:
    """The files of one folder, without those below it."""

    def __init__(self, folder: Traversable) -> None:
        found = folder.iterdir() if folder.is_dir() else ()
        self._files = {each.name: _read(each) for each in found if each.is_file()}

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def answer(self, name: str, request: Request) -> Response:
        """The file, in the form that this browser takes; 304 without it, if the browser has it."""
        file = self._files.get(name)
        if file is None:
            raise NotFound(f"the console has no file {name[:200]}; reload the page")
        packed = file.packed if _takes_gzip(request) else None
        tag = f'"{file.tag}-gz"' if packed else f'"{file.tag}"'
        headers = (*file.headers, ("ETag", tag))
        known = request.headers.get(b"if-none-match", b"").decode("latin-1")
        if tag in (each.strip().removeprefix("W/") for each in known.split(",")):
            return Response(304, b"", file.content_type, headers)
        if packed:
            return Response(200, packed, file.content_type, (*headers, ("Content-Encoding", "gzip")))
        return Response(200, file.body, file.content_type, headers)


def _read(path: Traversable) -> _File:
    body = path.read_bytes()
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    is_text = kind.startswith(_TEXT)
    packed = gzip.compress(body, mtime=0) if is_text and len(body) >= _SMALLEST else None
    lasts = "public, max-age=31536000, immutable" if _HASHED.search(path.name) else "no-cache"
    return _File(
        body,
        packed,
        f"{kind}; charset=utf-8" if is_text else kind,
        (*_ALWAYS, ("Cache-Control", lasts)),
        hashlib.sha256(body).hexdigest()[:32],
    )


def _takes_gzip(request: Request) -> bool:
    accepted = request.headers.get(b"accept-encoding", b"").lower()
    return b"gzip" in accepted and not _NO_GZIP.search(accepted)
