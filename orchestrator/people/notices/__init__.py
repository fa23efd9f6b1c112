"""Telling people outside of the pages: by mail, chat or webhook, through Apprise.

``targets``: where to; ``events``: about what; ``delivery``: sent, tried again, given up; ``post``: the program that
opens the connection, apart from everything else, because an address may be an attack (B66, T18).
"""
