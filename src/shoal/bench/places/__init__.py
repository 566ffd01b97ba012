"""Where a benchmark runs that starts its own processes: this machine's loopback, or a lab of network namespaces."""

from shoal.bench.places.lab import LabPlace, LabShape
from shoal.bench.places.local import LocalPlace
from shoal.bench.places.place import Place, Running

__all__ = ["LabPlace", "LabShape", "LocalPlace", "Place", "Running"]
