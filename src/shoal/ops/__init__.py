"""Collective operations on arrays: plans for the native core, handles for results, callbacks, and timelines of them.

May import errors and the folders from config to job.
"""
