"""What is to be measured: sizes, rounds, contestants, and what the ranks of Shoal are given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shoal.bench.naming import CONTESTANTS, RIVAL_VARIANTS
from shoal.bench.sizes import parse_bytes
from shoal.config.settings import overrides_of
from shoal.errors import ConfigurationError

KIB, MIB, GIB = 1024, 1024**2, 1024**3

# A step of four where the latency counts, then the two sizes that issues and papers speak of.
DEFAULT_SIZES = (KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 25_000_000, 100_000_000)
# Only when a larger size than the default ones is allowed.
_LARGE_SIZES = (250_000_000, GIB)
LARGEST_SIZE = 4 * GIB


@dataclass(frozen=True)
class Variant:
    """Shoal once more, with settings of its own on top of the plan's.

    ``limits``, ``environment``: as the plan's. ``window``: the array is summed in windows of so many bytes, all submitted at
    once, as fusion buffers are; None: in one operation. ``proxies``: of the dedicated servers; None: as many as they choose.
    ``shared``: the array lies in memory that the ranks of one machine share, as gradients of shoal.torch do. ``c10d``: the array is
    summed by torch.distributed, whose backend "shoal" is, not by Shoal's own function. ``python``: the interpreter of its ranks
    and servers, for which another build of Shoal is installed; None: this process's.
    """

    limits: Mapping[str, int] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    window: int | None = None
    proxies: int | None = None
    shared: bool = False
    c10d: bool = False
    python: str | None = None


@dataclass(frozen=True)
class Plan:
    """``sizes``: bytes of float32 per rank, multiples of 4. ``rounds``: turns that count, of each contestant at each size.

    ``contestants``: empty for all that are there, without ``naming.RIVAL_VARIANTS``. ``variants``: by name, and not in a job
    that a launcher has started; they take part as ``shoal NAME``. ``variants_first``: they are started before the contestants, and not after them: the memory that a
    process gets differs. ``limits``: overrides of ``shoal.config.settings.Limits``. ``environment``: added to that of Shoal's ranks, and of
    the servers that are started for them as far as it concerns servers. ``background``: the congestion control of one bulk flow of
    somebody else on every link of a lab, in each direction. ``turn_seconds``: how long a turn is made to last at least by repeating the
    operation. ``patience``: seconds after which a turn that has not ended is given up.

    Raises ConfigurationError for what cannot be.
    """

    sizes: Sequence[int] = DEFAULT_SIZES
    rounds: int = 7
    contestants: Sequence[str] = ()
    variants: Mapping[str, Variant] = field(default_factory=dict)
    variants_first: bool = False
    limits: Mapping[str, int] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    background: str | None = None
    turn_seconds: float = 0.05
    patience: float = 600.0

    def __post_init__(self) -> None:
        for size in self.sizes:
            if not 4 <= size <= LARGEST_SIZE or size % 4:
                raise ConfigurationError(f"a size of {size} bytes: take a multiple of 4 from 4 bytes to 4 GiB")
        if not self.sizes:
            raise ConfigurationError("there is no size to measure")
        if self.rounds < 1:
            raise ConfigurationError(f"{self.rounds} rounds: there has to be one at least")
        for name in self.contestants:
            if name not in CONTESTANTS + RIVAL_VARIANTS:
                known = ", ".join(CONTESTANTS + RIVAL_VARIANTS)
                raise ConfigurationError(f"{name!r} is no contestant: choose from {known}")
        overrides_of(self.limits)
        for name, variant in self.variants.items():
            if not name or not name.isprintable():
                raise ConfigurationError(f"{name!r} is no name of a variant: take printable characters")
            if variant.c10d and (variant.window is not None or variant.shared):
                raise ConfigurationError(
                    f"variant {name}: torch.distributed has neither windows nor shared arrays of its own"
                )
            if variant.window is not None and (variant.window < 4 or variant.window % 4):
                raise ConfigurationError(f"a window of {variant.window} bytes: take a multiple of 4")
            overrides_of(variant.limits)


def choose_sizes(listed: str | None, smallest: str | None = None, largest: str | None = None) -> tuple[int, ...]:
    """``1KiB,25MB`` in the order given, or the default ones; those between two bounds. Raises ConfigurationError."""
    try:
        sizes = DEFAULT_SIZES if listed is None else tuple(parse_bytes(part) for part in listed.split(","))
        low = 0 if smallest is None else parse_bytes(smallest)
        high = LARGEST_SIZE if largest is None else parse_bytes(largest)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    if listed is None and high > DEFAULT_SIZES[-1]:
        sizes += tuple(size for size in _LARGE_SIZES if largest is not None)
    return tuple(size for size in sizes if low <= size <= high)


def parse_limits(text: str | None) -> dict[str, int]:
    """``segment=16384,credit=65536``, sizes as above. Raises ConfigurationError."""
    try:
        return {name: parse_bytes(value) for name, value in parse_pairs(text or "").items()}
    except ValueError as error:
        raise ConfigurationError(f"--limits {text!r}: {error}") from None


def parse_pairs(text: str) -> dict[str, str]:
    """``segment=16384,credit=65536``: name → value. Raises ConfigurationError."""
    pairs: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.strip().partition("=")
        if not name or not equals or not value or name in pairs:
            raise ConfigurationError(f"{text!r} is not of the form name=value,name=value (at {part!r})")
        pairs[name] = value
    return pairs
