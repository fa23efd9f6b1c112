"""What ended an attempt."""
