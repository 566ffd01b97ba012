"""Shoal as a backend of PyTorch's own: ``torch.distributed.init_process_group("shoal")``.

Collectives go to a Shoal group, ``send`` and ``recv`` to a gloo group beside it. PyTorch registers the backend when
it is imported (``shoal_c10d``). Written for PyTorch 2.6 and newer; what versions do otherwise is in base and shoal.torch.versions.

| module | subject |
|---|---|
| base | PyTorch's class of process groups, alike in all versions |
| membership | the job, and the group in it, that a process group stands for |
| process_group | PyTorch's operations in terms of Shoal's |
| arguments, tensors | what PyTorch's operations are given, as the flat arrays that Shoal communicates |
| reductions | reduce, gather, scatter and bitwise operators in terms of Shoal's operations |
| sparse | sums of sparse tensors |
| packets | tensors of several ranks in one flat array |
| gloo | the gloo group beside it |
| point_to_point | ``send`` and ``recv`` by the gloo group, and what ends them when the other rank is gone |
| threads | threads for calls that may take any time |
| by_device | devices that have another backend in the same process group |
| forgotten | process groups that older versions destroy without a word |
| inherited | process groups in a forked child |
| work, futures | what a caller holds of an operation: waiting, results, errors, callbacks |
| builtin_hooks | DistributedDataParallel's hooks in C++ |
| call_sites | which operation of the other ranks one belongs to that a callback calls |

Why it is done this way is in docs/decisions/c10d.md.
"""
