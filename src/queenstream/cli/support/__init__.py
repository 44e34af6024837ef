"""What commands share: options, output, exit codes, connections, confirmation."""
