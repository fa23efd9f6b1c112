"""The newest readings, and wake-ups that announce changes."""
