"""What people used, hold and may still use."""
