"""What Horovod's API has for every framework, in the modules in which Horovod has it: ``horovod.common``.

May import errors, the names of ``shoal``, and the folders from config to gradients.
"""
