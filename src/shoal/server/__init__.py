"""A dedicated server: who is let in, and how much memory jobs may have.

May import errors and the folders from config to gradients, and no framework.
"""
