"""The pages and their websocket."""
