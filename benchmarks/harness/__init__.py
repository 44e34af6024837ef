"""What the benchmarks share: servers, a load generator in its own process, CPU accounting, the report."""
