"""What runs print: by byte, by line, searched, and merged over ranks."""
