"""``/openapi.json``: the routes as an OpenAPI 3.1 document.

Everything comes from the declarations in ``routes/``: what a route takes, answers and needs is written there
once. An answer of ``str`` is plain text, of a class made from it with a ``media_type`` that, ``None`` is no
content, ``X | str`` is JSON or text as asked for.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, get_args

import msgspec

from queenstream import errors
from queenstream.broker.http.routing import JSON, Role, Route
from queenstream.broker.schemas.messages import ErrorBody

TEXT = "text/plain"
REF = "#/components/schemas/{name}"
SCHEME = "bearer"

_INTRODUCTION = (
    "Queues and windows on PostgreSQL. Without a key in the broker's settings, no token is asked for; "
    "with one, `x-role` says what the token of each operation must carry."
)

Json = dict[str, Any]


def document(routes: Iterable[Route], version: str) -> Json:
    """The whole document.

    >>> from queenstream.broker.api import ROUTES
    >>> made = document(ROUTES, "1.0")
    >>> made["openapi"], made["paths"]["/api/v1/push"]["post"]["operationId"]
    ('3.1.0', 'push')
    """
    routes = tuple(routes)
    schemas = _Schemas(routes)
    paths: dict[str, Json] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Queenstream",
            "version": version,
            "description": _INTRODUCTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in dict.fromkeys(route.tag for route in routes)],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": dict(sorted(schemas.components.items())),
            "securitySchemes": {
                SCHEME: {
                    "type": "http",
                    "scheme": "bearer",
                    "bearerFormat": "JWT",
                    "description": "HS256, RS256 or EdDSA, with the claims sub, exp and role.",
                }
            },
        },
    }


def role_name(role: Role) -> str:
    """A role as tokens spell it.

    >>> role_name(Role.READ_ONLY)
    'read-only'
    """
    return role.name.lower().replace("_", "-")


class _Schemas:
    """The schema of each type that a body or an answer has, and those they refer to."""

    def __init__(self, routes: tuple[Route, ...]) -> None:
        wanted: dict[Any, None] = {ErrorBody: None}
        for route in routes:
            wanted.update(dict.fromkeys(json for json, _ in map(_split, route.answers.values()) if json))
            if route.body is not None:
                wanted[route.body] = None
        made, components = msgspec.json.schema_components(list(wanted), ref_template=REF)
        self.components: dict[str, Any] = components
        self._of: dict[Any, Json] = dict(zip(wanted, made, strict=True))

    def __getitem__(self, type_: Any) -> Json:
        return self._of[type_]

    def fields(self, struct: Any) -> tuple[Json, list[str]]:
        """The properties of a query's struct; it is spread out as parameters, and no component itself."""
        (made,), components = msgspec.json.schema_components([struct], ref_template=REF)
        own = components.pop(made["$ref"].rpartition("/")[2])
        self.components.update(components)
        return own["properties"], own["required"]


def _split(answer: Any) -> tuple[Any, str | None]:
    """The JSON part of an answer (None: there is none), and what kind of text it may be."""
    parts = get_args(answer) if isinstance(answer, types.UnionType) else (answer,)
    text = [part for part in parts if isinstance(part, type) and issubclass(part, str)]
    json = [part for part in parts if part not in text]
    return (json[0] if json else None), (getattr(text[0], "media_type", TEXT) if text else None)


def _operation(route: Route, schemas: _Schemas) -> Json:
    parameters = [
        {"name": segment[1:-1], "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for segment in route.path.split("/")
        if segment.startswith("{")
    ]
    if route.query is not None:
        properties, required = schemas.fields(route.query)
        parameters += [_query_parameter(n, s, n in required) for n, s in properties.items()]
    operation: Json = {
        "operationId": route.handler.__name__,
        "summary": route.summary,
        "tags": [route.tag],
        "x-role": role_name(route.role),
        "security": [] if route.role is Role.PUBLIC else [{SCHEME: []}],
    }
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {
            "required": not route.body_optional,
            "content": {JSON: {"schema": schemas[route.body]}},
        }
    answers = dict.fromkeys(_refusals(route, bool(parameters)), ErrorBody) | route.answers
    operation["responses"] = {
        str(status): _response(status, answers[status], schemas) for status in sorted(answers)
    }
    return operation


def _query_parameter(name: str, schema: Json, required: bool) -> Json:
    # A query string knows no null: what may be null may be left out.
    choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    if rest.get("default", ...) is None:
        del rest["default"]
    if len(choices) == 1:
        rest |= choices[0]
    elif choices:
        rest["anyOf"] = choices
    return {"name": name, "in": "query", "required": required, "schema": rest}


def _refusals(route: Route, parameters: bool) -> list[int]:
    """The errors that any route of its kind may answer; others are in its ``answers``."""
    found = [403, 500, 503]
    if parameters or route.body is not None:
        found.append(400)
    if route.body is not None:
        found.append(413)
    if route.role is not Role.PUBLIC:
        found.append(401)
    return found


_WORDS = {
    error.status: (error.__doc__ or "").strip().splitlines()[0]
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, errors.RequestError)
} | {500: "The broker failed; its log says why."}
_RETRY = {status.value for status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)}


def _response(status: int, answer: Any, schemas: _Schemas) -> Json:
    response: Json = {"description": _WORDS.get(status, HTTPStatus(status).phrase)}
    if status in _RETRY:
        response["headers"] = {
            "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}
        }
    json, text = _split(answer)
    content: Json = {}
    if json is not None:
        content[JSON] = {"schema": schemas[json]}
    if text:
        # A stream of events has no end, and so no schema as a whole.
        content[text] = {"schema": {"type": "string"}} if text == TEXT else {}
    if content:
        response["content"] = content
    return response
