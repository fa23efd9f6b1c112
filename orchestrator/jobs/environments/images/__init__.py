"""Container images that jobs run in: fetched once, laid out as a folder, and shown to the sandbox as its root."""
