"""The files through which server, supervisor and run talk (docs/protocol.md)."""
