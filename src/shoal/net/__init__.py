"""What two processes exchange before frames: sockets, proof of the secret, encryption, messages, and their limits.

May import errors and config.
"""
