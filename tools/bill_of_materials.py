"""Writes the software bill of materials of ``NAME.whl`` beside it: ``NAME.cdx.json``, in CycloneDX format.

``uv`` lists the Python packages that the wheel and its extras need, as locked; ``npm`` those that go into the
console when it is built.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_SECONDS = 120


def _output(command: list[str], folder: Path) -> dict[str, Any]:
    done = subprocess.run(  # noqa: S603
        command, cwd=folder, stdout=subprocess.PIPE, text=True, timeout=_SECONDS, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _is_tool(component: dict[str, Any]) -> bool:
    """Whether npm has a package only to build and to test with."""
    return {"name": "cdx:npm:package:development", "value": "true"} in component.get("properties", ())


def list_components(version: str) -> dict[str, Any]:
    """The bill of materials of this version.

    >>> list_components("1.2.3")["metadata"]["component"]["version"]
    '1.2.3'
    """
    uv = shutil.which("uv") or str(ROOT / ".tools" / "bin" / "uv")
    bill = _output(
        [uv, "export", "--quiet", "--frozen", "--no-default-groups", "--all-extras", "--format=cyclonedx1.5",
         "--preview-features=sbom-export"],
        ROOT,
    )  # fmt: skip
    console = _output(["npm", "sbom", "--package-lock-only", "--sbom-format=cyclonedx"], ROOT / "console")
    parts = [
        console["metadata"]["component"],
        *(each for each in console["components"] if not _is_tool(each)),
    ]
    kept = {each["bom-ref"] for each in parts}
    bill["metadata"]["component"]["version"] = version
    bill["components"] += parts
    bill["dependencies"] += [
        {"ref": each["ref"], "dependsOn": [ref for ref in each["dependsOn"] if ref in kept]}
        for each in console["dependencies"]
        if each["ref"] in kept
    ]
    return bill


def main() -> int:
    """Write the file for the wheel that is named."""
    wheel = Path(sys.argv[1])
    version = wheel.name.split("-")[1]
    bill = json.dumps(list_components(version), indent=1)
    wheel.with_suffix(".cdx.json").write_text(bill + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
