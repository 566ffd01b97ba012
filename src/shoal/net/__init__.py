"""What two processes say to each other before frames: sockets, proof of the secret, encryption, messages and their limits.

May import errors and config.
"""
