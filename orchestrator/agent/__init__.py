"""One process per server: reads the devices, follows the attempts, and finds work whose wake-up was lost.

All its state is on disk and in the database, so it may die at any time.
"""
