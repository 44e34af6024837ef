"""What the documentation site has beside docs/: pages that are made of the project itself, when it is built.

MkDocs calls the functions at the end (``hooks`` in mkdocs.yml). The front page is the README, the internals
are ARCHITECTURE.md, every example is a page with what it prints, and the reference is made of the docstrings
of all public names and of the routes. Links between files of the repository become links between pages.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]

RENAMED = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "internals.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
    "examples/README.md": "examples/index.md",
}
"""Files outside docs/ that are pages, and where."""

REFERENCE: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "client": (
        "Client",
        {
            "queenstream": (
                "Queen",
                "AsyncQueen",
                "Message",
                "Messages",
                "AsyncMessage",
                "AsyncMessages",
                "Window",
                "AsyncWindow",
                "Producer",
                "AsyncProducer",
                "Backpressure",
                "PushResult",
                "AckResult",
            )
        },
    ),
    "pipelines": (
        "Pipelines",
        {
            "queenstream": (
                "Pipeline",
                "Queue",
                "Stream",
                "Kafka",
                "Cassandra",
                "Postgres",
                "Files",
                "Memory",
                "Generator",
                "Function",
                "DeadLetters",
                "Letters",
                "retry",
                "tumbling",
                "sliding",
                "session",
                "col",
                "lit",
                "when",
                "coalesce",
            )
        },
    ),
    "aggregates": (
        "Aggregates",
        {
            "queenstream": (
                "count",
                "sum_",
                "avg",
                "min_",
                "max_",
                "first",
                "last",
                "collect_list",
                "collect_set",
                "count_distinct",
                "stddev",
                "percentile",
                "custom",
            )
        },
    ),
    "stream-processor": (
        "StreamProcessor",
        {"queenstream": ("StreamProcessor", "Event", "EventWindow", "LateEvent")},
    ),
    "spark": ("Spark", {"queenstream.spark": ("session", "register", "log_file")}),
    "testing": ("Testing", {"queenstream.testing": ("PipelineDriver", "TemporaryBrokers")}),
    "errors": ("Errors", {"queenstream": ("errors",)}),
}
"""The pages of the reference: a title, and which names of which module are on it."""

_LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)")


def repository_pages() -> dict[str, str]:
    """Every file of the repository that is a page, and where that page is in the site.

    >>> repository_pages()["examples/01_push_and_pop.py"]
    'examples/01_push_and_pop.md'
    """
    examples = (path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "examples").rglob("*.py")))
    docs = (path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*")))
    deployed = (path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "deploy").rglob("*.*")))
    return {
        **RENAMED,
        **{path: posixpath.splitext(path)[0] + ".md" for path in examples},
        **{path: path.removeprefix("docs/") for path in docs},
        **{path: path for path in deployed},
    }


def relinked(text: str, file: str, page: str, pages: Mapping[str, str]) -> str:
    """A file's text with links that are right on its page; one that leads to no page stays as it is.

    >>> relinked("[x](../examples/README.md#y)", "docs/a.md", "a.md", repository_pages())
    '[x](examples/index.md#y)'
    """

    def turn(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(file), found[1]))
        if target not in pages:
            return found[1]
        return posixpath.relpath(pages[target], posixpath.dirname(page) or ".")

    return _LINK.sub(turn, text)


def spaced(text: str) -> str:
    """Markdown as most write it, as Python-Markdown reads it: empty lines before lists, four spaces inside.

    >>> spaced("Two:\\n- a\\n  - b")
    'Two:\\n\\n- a\\n    - b'
    """
    lines: list[str] = []
    fenced, kind = False, ""  # of the lines since the last empty one
    for line in text.split("\n"):
        if line.startswith("```"):
            fenced = not fenced
        starts = "" if fenced else _kind(line)
        if not kind or not line:
            kind = starts
        elif kind == "text" and starts in ("list", "table"):
            lines.append("")
            kind = starts
        inner = kind == "list" and re.match(r"  (?=- |[0-9]+[.] )", line)
        lines.append(f"  {line}" if inner and not fenced else line)
    return "\n".join(lines)


def _kind(line: str) -> str:
    if re.match(r"- |[0-9]+[.] ", line):
        return "list"
    if line.startswith("|"):
        return "table"
    return ("code" if line.startswith("    ") else "text") if line else ""


def example_page(path: Path) -> str:
    """An example with what it prints."""
    code = path.read_text("utf-8")
    expected = path.parent / "expected" / f"{path.stem}.txt"
    printed = f"\nIt prints\n\n```text\n{expected.read_text('utf-8')}```\n" if expected.exists() else ""
    return f"# {path.stem}\n\n```python\n{code}```\n{printed}"


def reference_page(title: str, names: Mapping[str, tuple[str, ...]]) -> str:
    """A page that mkdocstrings fills in."""
    directives = [f"::: {module}.{name}" for module, group in names.items() for name in group]
    return f"# {title}\n\n" + "\n\n".join(directives) + "\n"


def http_page(document: Mapping[str, Any]) -> str:
    """The routes of an OpenAPI document, by subject, and the fields of everything they take and give."""
    lines = [
        "# HTTP",
        "",
        "Every route, as `/openapi.json` of a running broker has it. What they mean is in "
        "[The broker](../broker.md) and [Streams](../streams.md).",
    ]
    for tag in document["tags"]:
        lines += ["", f"## {tag['name']}", ""]
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if tag["name"] in operation["tags"]:
                    lines += _operation(method, path, operation)
    lines += ["", "## Types", ""]
    for name, schema in document["components"]["schemas"].items():
        lines += _type(name, schema)
    return "\n".join(lines) + "\n"


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"### `{method.upper()} {path}` {{ #{operation['operationId']} }}"
    yield ""
    yield f"{operation.get('summary', '')} Role: `{operation['x-role']}`."
    yield ""
    parameters = operation.get("parameters", [])
    if parameters:
        yield from ("| parameter | in | type | default |", "|---|---|---|---|")
        for each in parameters:
            default = each["schema"].get("default", "required" if each["required"] else "")
            yield f"| `{each['name']}` | {each['in']} | {_shown(each['schema'])} | {_default(default)} |"
        yield ""
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if body:
        yield f"Takes {_shown(body['schema'])}."
        yield ""
    answers = []
    for status, response in operation["responses"].items():
        schema = response.get("content", {}).get("application/json", {}).get("schema")
        if int(status) < 300:
            answers.append(f"{status} {_shown(schema)}" if schema else f"{status} {response['description']}")
    refused = [status for status in operation["responses"] if int(status) >= 300]
    yield f"Answers {'; '.join(answers)}. Refuses with {', '.join(refused)}."
    yield ""


def _type(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {name} {{ #type-{name} }}"
    yield ""
    if schema.get("description"):
        yield from (schema["description"].splitlines()[0], "")
    if "enum" in schema:
        yield from (_shown(schema), "")
    properties = schema.get("properties", {})
    if properties:
        yield from ("| field | type | default |", "|---|---|---|")
        for field, each in properties.items():
            default = each.get("default", "required" if field in schema.get("required", ()) else "")
            yield f"| `{field}` | {_shown(each)} | {_default(default)} |"
        yield ""


def _default(value: Any) -> str:
    return value if value in ("", "required") else f"`{json.dumps(value)}`"


def _shown(schema: Mapping[str, Any] | None) -> str:
    """A schema in a few words, with a link where it has a name."""
    if not schema:
        return "any JSON"
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#type-{name})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_shown(each) for each in schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type", "any JSON")
    if kind == "array":
        return f"list of {_shown(schema.get('items'))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_shown(schema['additionalProperties'])}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def generated() -> Iterator[tuple[str, str, str]]:
    """The pages that are not in docs/: where, what, and the file whose links they have."""
    from queenstream.broker.api import ROUTES
    from queenstream.broker.http.openapi import document

    for file, page in RENAMED.items():
        yield page, (ROOT / file).read_text("utf-8"), file
    for path in sorted((ROOT / "examples").rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        yield posixpath.splitext(file)[0] + ".md", example_page(path), file
    for name, (title, names) in REFERENCE.items():
        yield f"reference/{name}.md", reference_page(title, names), ""
    yield "reference/http.md", http_page(document(ROUTES, "")), ""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made, and the files of deploy/ for those who want to download them."""
    for page, text, _ in generated():
        files.append(File.generated(config, page, content=text))
    for path in sorted((ROOT / "deploy").rglob("*.*")):
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links and lists as they are right in the site."""
    del config, files
    pages = repository_pages()
    known = {where: file for file, where in pages.items()}
    place = page.file.src_uri
    return relinked(spaced(markdown), known.get(place, place), place, pages)
