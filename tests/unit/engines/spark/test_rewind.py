"""What a rewind takes back of a checkpoint folder, and what it leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from queenstream.engines.spark.checkpoints import rewind
from queenstream.errors import CheckpointError


def filled(home: Path) -> set[str]:
    """A home as it is after batch 4, with a snapshot of version 4; gives the names of its files."""
    names = {f"spark/{kind}/{mark}{n}{end}" for kind in ("offsets", "commits") for n in range(5)
             for mark, end in (("", ""), (".", ".crc"))}  # fmt: skip
    stores = ("spark/state/0/0", "spark/state/0/1", "spark/state/1/0/left-keyToNumValues")
    names |= {f"{store}/{version}.changelog" for store in stores for version in range(1, 6)}
    names |= {f"{store}/4.zip" for store in stores}
    names |= {f"{store}/.4.zip.crc" for store in stores}
    names |= {f"spark/state/0/_metadata/v2/{n}" for n in range(5)}
    names |= {"spark/metadata", "spark/state/0/0/SSTs/000008-a.sst", "spark/sources/0/4", "feed/in/4.parquet"}
    names |= {"prepared/0000000004/batch.json", "run.json"}
    for name in names:
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return names


def files(home: Path) -> set[str]:
    return {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}


def test_what_came_after_the_batch_is_moved_aside_and_nothing_else(tmp_path: Path) -> None:
    names = filled(tmp_path)
    rewind.check(tmp_path, 2)
    rewind.take_back(tmp_path, 2, "g2")
    gone = {name for name in names if f"rewound/g2/{name}" in files(tmp_path)}
    stores = ("spark/state/0/0", "spark/state/0/1", "spark/state/1/0/left-keyToNumValues")
    assert gone == {
        *(f"spark/{kind}/{n}" for kind in ("offsets", "commits") for n in (3, 4)),
        *(f"spark/{kind}/.{n}.crc" for kind in ("offsets", "commits") for n in (3, 4)),
        *(f"{store}/{n}.changelog" for store in stores for n in (4, 5)),
        *(f"{store}/{name}" for store in stores for name in ("4.zip", ".4.zip.crc")),
        *(f"spark/state/0/_metadata/v2/{n}" for n in (3, 4)),
        "prepared/0000000004/batch.json",
    }  # fmt: skip
    assert {name for name in files(tmp_path) if not name.startswith("rewound/")} == names - gone
    # Again it changes nothing, and the next one keeps only its own.
    rewind.take_back(tmp_path, 2, "g2")
    assert {name for name in files(tmp_path) if not name.startswith("rewound/")} == names - gone
    rewind.take_back(tmp_path, 1, "g3")
    assert [path.name for path in (tmp_path / "rewound").iterdir()] == ["g3"]


@pytest.mark.parametrize(
    "lost",
    ["spark/commits/2", "spark/offsets/2", "spark/state/0/1/3.changelog", "spark/state/0/1/1.changelog"],
)
def test_what_is_not_there_is_named(tmp_path: Path, lost: str) -> None:
    filled(tmp_path)
    (tmp_path / lost).unlink()
    with pytest.raises(CheckpointError, match="batch 2 is damaged"):
        rewind.check(tmp_path, 2)
    if "state" in lost:  # there is a snapshot since
        rewind.check(tmp_path, 3)
