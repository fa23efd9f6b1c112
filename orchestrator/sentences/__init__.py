"""Every sentence about jobs that is made of facts: why they wait, what happened to them, how their attempts ended.

Pages, REST, mail and commands ask here; nothing that is said here is ever stored to be read again, and nothing decides
by it.
"""
