"""Table III of the Herring paper: what the busiest server sends and receives in an iteration, in MB of 2^20 bytes.

The gradients are those of Table II, which BERT-large produces in the last 10 ms of its backward pass. A server that holds
whole variables gets all of variable 0 from every node. Ours holds a shard of the fusion buffer. As in the paper there are
as many servers as nodes and all gradients are in one buffer. Nothing is measured here: these are counts of bytes.

    python benchmarks/papers/herring_table3_balance.py
"""

from dataclasses import dataclass

from shoal import _native
from shoal.gradients.layout import MIB, Item, lay_out

# Table II: (variable, elements), in the order in which they are produced. Gradients are float16.
GRADIENTS = (
    (17, 4194304),
    (16, 4096),
    (15, 4194304),
    (13, 1024),
    (14, 1024),
    (12, 1024),
    (11, 1048576),
    (10, 1024),
    (9, 1048576),
    (8, 1024),
    (7, 1048576),
    (6, 1024),
    (5, 1048576),
    (3, 1024),
    (4, 1024),
    (2, 2048),
    (1, 524288),
    (0, 31260672),
)
ITEMSIZE = 2

# Table III: nodes -> MB of a server with whole variables, MB of a Herring server.
PAPER = {8: (477, 84.6), 16: (954, 84.6), 32: (1908, 84.6), 64: (3816, 84.6)}


@dataclass(frozen=True)
class Row:
    """MB in each direction at the busiest server."""

    nodes: int
    whole_variables: float
    balanced: float


def table() -> list[Row]:
    """One row a cluster size of the paper."""
    return [Row(nodes, whole_variables(nodes, nodes) / MIB, balanced(nodes, nodes) / MIB) for nodes in PAPER]


def whole_variables(nodes: int, servers: int) -> int:
    """Bytes at the busiest of the servers if each variable lives on one: the best that any placement can do.

    The largest variable goes to an empty server and each further one to the server with the least.
    """
    loads = [0] * servers
    for size in sorted((elements * ITEMSIZE for _, elements in GRADIENTS), reverse=True):
        loads[loads.index(min(loads))] += size
    return max(loads) * nodes


def balanced(nodes: int, servers: int) -> int:
    """Bytes at the busiest of the servers if each has a shard of the balanced fusion buffer."""
    items = [Item(f"variable{number}", elements, ITEMSIZE) for number, elements in GRADIENTS]
    layout = lay_out(items, sum(item.size for item in items))
    loads = [0] * servers
    for buffer in layout.buffers:
        for server, (begin, end) in enumerate(_native.shards(buffer.size, [1] * servers)):
            loads[server] += end - begin
    return max(loads) * nodes


def main() -> None:
    print("MB sent and received by the busiest server in each iteration")
    print(f"{'nodes':>5}  {'whole variables':>22}  {'balanced fusion buffer':>22}")
    for row in table():
        paper_whole, paper_balanced = PAPER[row.nodes]
        whole = f"{row.whole_variables:.0f} (paper: {paper_whole})"
        ours = f"{row.balanced:.2f} (paper: {paper_balanced})"
        print(f"{row.nodes:>5}  {whole:>22}  {ours:>22}")


if __name__ == "__main__":
    main()
