"""Who may do what, who they are, and what they did."""
