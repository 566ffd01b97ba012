"""Collective operations on arrays: plans for the native core, and handles and callbacks for what comes of them.

May import errors and the folders from config to job.
"""
