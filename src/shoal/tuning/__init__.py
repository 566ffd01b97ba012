"""What is measured of a job's links, and what follows from it: shares, limits and which ranks are one machine.

May import errors, config and net.
"""
