"""What people show each other: projects, notes, and links that need no account."""
