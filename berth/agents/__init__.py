"""What programs that act for people may do: tools over REST, served by MCP; the same through /mcp and `berth mcp`."""
