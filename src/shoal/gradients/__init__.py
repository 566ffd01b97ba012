"""How gradients are laid out and averaged, for every framework.

May import errors and the folders from config to ops.
"""
