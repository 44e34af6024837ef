"""Files that tasks read, by Spark's own file source.

``manifest`` says which files there are, in which order Spark takes them and when a source has ended;
``source`` loads them as a plan wants them; ``records`` has what the tasks do where that needs Python.
"""

from queenstream.engines.spark.sources.files.manifest import Manifest
from queenstream.engines.spark.sources.files.source import FileSource, has_end

__all__ = ["FileSource", "Manifest", "has_end"]
