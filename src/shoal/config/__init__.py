"""What this process was told: the environment, the launcher, addresses, and where the log goes.

May import errors.
"""
