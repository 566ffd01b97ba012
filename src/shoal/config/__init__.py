"""What this process is told from outside: the environment, the launcher, addresses, and where the log goes.

May import errors.
"""
