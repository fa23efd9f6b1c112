"""What is true right now, and the wake-ups that announce it."""
