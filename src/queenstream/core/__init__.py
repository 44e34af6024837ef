"""Values that every part of Queenstream shares: windows, durations, paths, schemas, aggregates. No I/O."""
