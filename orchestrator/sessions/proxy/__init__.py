"""The proxy between browsers and the sockets of sessions."""
