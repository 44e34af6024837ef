"""Finding what steps remember of a key in a checkpoint of this engine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from queenstream.errors import NotFound
from queenstream.runtime.state_view import described, is_entry

if TYPE_CHECKING:
    from queenstream.engines.local.checkpoints.inspection import CheckpointReader


async def find_entries(
    store: CheckpointReader,
    beginnings: Iterable[str],
    limit: int,
    step: str | None = None,
    id: str | None = None,
) -> list[dict[str, Any]]:
    """The entries of keys whose names begin so, of all steps or of one, as of a checkpoint."""
    inside = await store.inspect(id)
    if step is not None and step not in inside.facts:
        known = ", ".join(inside.facts)
        raise NotFound(f"there is no step {step} in that checkpoint; there are {known}")
    found = []
    for name in inside.keys if step is None else [step]:
        for beginning in beginnings:
            # What a step keeps beside its keys comes first, and is no key.
            some = await store.find_state(name, beginning, limit=limit + 1, checkpoint_id=inside.info.id)
            entries = [entry for key, entry in some if is_entry(key)][:limit]
            found += [{"step": name, **described(inside.facts[name], entry)} for entry in entries]
    return found
