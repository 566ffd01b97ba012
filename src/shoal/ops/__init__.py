"""Collective operations on arrays: plans for the native core, handles for results, and callbacks.

May import errors and the folders from config to job.
"""
