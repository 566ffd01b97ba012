"""How the ranks of a job come together: where they meet, who they are, and the links between them.

May import errors, config, net and tuning.
"""
