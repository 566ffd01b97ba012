"""The lab: several hosts on one machine, on a network whose links have the speed that a test asks for.

from shoal.testing.lab import Lab, LinkShape

with Lab(4, LinkShape(rate=400e6), shapes={3: LinkShape(rate=200e6)}) as lab:  # bits per second, each way
    server = lab.hosts[0].start(["iperf3", "--server", "--one-off"])
    subprocess.run(lab.hosts[3].command(["iperf3", "--client", lab.hosts[0].address]), check=True)

Hosts are network namespaces; what a link does, and what a lab cannot show, is in docs/lab.md. A lab touches nothing of
the machine's own network, nothing leaves it, and it is gone with the process that made it. It needs root and iproute2.
"""

from shoal.testing.lab.hosts import Host
from shoal.testing.lab.lab import Lab
from shoal.testing.lab.links import Counters
from shoal.testing.lab.namespaces import clean
from shoal.testing.lab.shapes import LinkShape, parse_rate, parse_size

__all__ = ["Counters", "Host", "Lab", "LinkShape", "clean", "parse_rate", "parse_size"]
