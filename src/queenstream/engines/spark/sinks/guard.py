"""What keeps a run from sinks that another checkpoint has written, and where folders of files store that."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import quote

import msgspec

from queenstream.connectors.files.files import decode_provenance, provenance_file
from queenstream.connectors.provenance import Provenance, SinkGuard, place_of
from queenstream.engines.spark.checkpoints.directory import Home
from queenstream.engines.spark.sinks.owner import Owner
from queenstream.engines.spark.sinks.storage import SmallFiles
from queenstream.pipeline.engine_api import RunOptions


def sink_guard(pipeline: str, options: RunOptions, home: Home, owner: Owner) -> SinkGuard:
    """The guard of a run."""
    if home.temporary or options.checkpoint is None:
        return SinkGuard(pipeline, None)
    own = Provenance(
        checkpoint_id=home.checkpoint_id,
        place=place_of(options.checkpoint.removeprefix("file://")),
        run=owner.name,
        began_at=datetime.now(UTC),
    )
    return SinkGuard(pipeline, own, fresh=home.fresh, start_over=options.start_over)


class RemoteProvenance:
    """The provenance of a folder that only Spark reaches, in a file that readers ignore."""

    def __init__(self, folder: SmallFiles, step: str) -> None:
        self._folder = folder
        self._file = provenance_file(quote(step, safe=""))

    async def provenance(self) -> Provenance | None:
        """What is stored; None: nothing is."""
        data = self._folder.read(self._file)
        return None if data is None else decode_provenance(f"{self._folder.root}/{self._file}", data)

    async def store_provenance(self, provenance: Provenance) -> None:
        """Replace what is stored."""
        self._folder.write(self._file, msgspec.json.encode(provenance))
