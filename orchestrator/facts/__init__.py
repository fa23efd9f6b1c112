"""What happened, as facts: a code and named values that are stored, sent and decided by.

``orchestrator.sentences`` turns them into English where a person reads them.  The supervisor writes facts too, so this
room needs the standard library only.
"""
