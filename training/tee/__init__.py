"""Hands what a script gives to its experiment tracker to Berth as well; the tracker does what it always does.

The rank's entry loads these modules by their folder when a script imports a tracker, because the script may have a module
of its own that is called ``training``: so they import each other relatively.  Standard library only, until there is
an image.
"""
