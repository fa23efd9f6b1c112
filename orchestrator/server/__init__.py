"""The server: settings, addresses, our own processes, backup and doctor."""
