"""Systems that own their queue and lend devices for a time: asked for when jobs wait, given back when idle.

What is lent is a *pilot*: an allocation in which a server joins as any other does, and in which Berth schedules.
"""
