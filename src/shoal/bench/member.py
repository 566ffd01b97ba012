"""A process that the benchmark starts: ``python -m shoal.bench.member ARGUMENTS``, one rank of one contestant.

ARGUMENTS is JSON: ``control`` (where the conductor listens), ``token``, ``contestant``, ``arguments`` (of that contestant;
for gloo's store ``store``: host, port, rank, size), ``host`` (this rank's own address, or a list of all ranks' by rank); a
benchmark of its own reads ``task`` too. Each rank is a node of its own.
"""

import json
import os
import sys
from typing import Any

from shoal.bench.channel import ChannelClosed, Message, connect
from shoal.bench.contestants import join
from shoal.bench.part import Part, end_with_conductor, introduction


def main(text: str) -> None:
    asked: Message = json.loads(text)
    channel = connect(asked["control"])
    end_with_conductor(channel)
    arguments = dict(asked["arguments"])
    if "store" in arguments:
        arguments |= _store(**arguments.pop("store"))
    contestant = join(asked["contestant"], arguments)
    contestants = {asked["contestant"]: contestant}
    host = asked["host"] if isinstance(asked["host"], str) else asked["host"][contestant.rank]
    try:
        Part(channel, contestants, host).serve(introduction(contestants, asked["token"], f"node {contestant.rank}"))
    except ChannelClosed:
        os._exit(1)
    contestant.close()


def _store(host: str, port: int, rank: int, size: int) -> dict[str, Any]:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return {"store": TCPStore(host, port, size, is_master=rank == 0), "rank": rank, "size": size}


if __name__ == "__main__":
    main(sys.argv[1])
