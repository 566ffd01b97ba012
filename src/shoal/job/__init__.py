"""A job while it runs: its session, its groups, its threads, and the end of the process.

May import errors, config, net, tuning and join.
"""
