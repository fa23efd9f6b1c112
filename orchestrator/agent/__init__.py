"""One process a server: reads the devices, follows the attempts, and sweeps up what a wake-up lost.

All it knows is on disk and in the database, so it may die at any time.
"""
