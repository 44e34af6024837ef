"""Steps with state, one key at a time: what a stage calls when records of a key, or time, come."""
