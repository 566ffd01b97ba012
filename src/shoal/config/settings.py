"""The settings of this process: every environment variable that Shoal knows, read and checked here and nowhere else.

``Settings`` is what a rank reads, ``ServerSettings`` what a dedicated server reads, which is less. Both refuse a malformed
value, in one line that names the variable, its value and what is expected. They refuse an unknown ``SHOAL_`` name, and say
which known one is nearest.
Kubernetes' own variables for a service called shoal are ignored.
"""

import difflib
import hashlib
import math
import os
import pwd
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TypeVar

from shoal.config.addresses import Address, is_numeric, is_unspecified, parse_address, parse_host
from shoal.config.launchers import Launch, read_launch
from shoal.errors import ConfigurationError

_T = TypeVar("_T")

ALGORITHMS = ("server", "ring")

# Shards begin at multiples of this, so segments are multiples of it (native/base/limits.h, as the three below).
SEGMENT_ALIGNMENT = 64
LARGEST_SEGMENT = 16 * 1024 * 1024
LARGEST_SMALL = 1024 * 1024
LONGEST_PEER_TIMEOUT = 24 * 60 * 60

_LARGEST_UNSIGNED = 2**32 - 1

_IN_THE_HOME = Path(".local", "state", "shoal")

# An offline guess at a shorter secret would not take long.
SHORTEST_SECRET = 16

NAMES = (
    "SHOAL_SERVERS",
    "SHOAL_COLOCATED",
    "SHOAL_SECRET",
    "SHOAL_SECRET_FILE",
    "SHOAL_TLS",
    "SHOAL_JOB",
    "SHOAL_RENDEZVOUS",
    "SHOAL_PORT_RANGE",
    "SHOAL_INTERFACE",
    "SHOAL_ALGORITHM",
    "SHOAL_FUSION_MB",
    "SHOAL_TIMEOUT",
    "SHOAL_PEER_TIMEOUT",
    "SHOAL_SOCKETS",
    "SHOAL_THREADS",
    "SHOAL_CUDA_WAIT",
    "SHOAL_TRACE",
    "SHOAL_LOG",
)

# Those that concern a dedicated server. Whoever starts one for a job gives it these.
SERVER_NAMES = (
    "SHOAL_SECRET",
    "SHOAL_SECRET_FILE",
    "SHOAL_TLS",
    "SHOAL_INTERFACE",
    "SHOAL_THREADS",
    "SHOAL_LOG",
)

# What Kubernetes sets in every container for a service whose name begins with "shoal".
_KUBERNETES_NAME = re.compile(
    r"SHOAL_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_KUBERNETES_PORT = re.compile(r"SHOAL_(\w+_)?PORT(_\w+)?")
_KUBERNETES_PORT_VALUE = re.compile(r"(tcp|udp|sctp)://.*")


@dataclass(frozen=True)
class Limits:
    """Sizes in bytes that bound memory and what is in flight; equal on every rank.

    ``segment``: the unit on the wire. ``credit``: what a worker may have sent to a server without a result. ``eager``:
    unanswered inline data of a worker at a server. ``small``: operations up to so many bytes live on one server.
    ``least_shard``: a larger operation has at most as many servers as leave each so many bytes. ``least_segment``: short
    operations have smaller segments, down to this; 0: all have the same. ``rank_segment``, ``rank_credit``: segment and
    credit where each rank of a node sends for itself, since all of them share its link; 0: the same.
    Raises ConfigurationError for values that cannot work.
    """

    segment: int = 524288
    credit: int = 524288
    eager: int = 524288
    small: int = 16384
    least_shard: int = 16384
    least_segment: int = 0
    rank_segment: int = 0
    rank_credit: int = 0

    def __post_init__(self) -> None:
        _require(0 < self.segment <= LARGEST_SEGMENT and self.segment % SEGMENT_ALIGNMENT == 0, self._say_segment())
        _require(
            self.segment <= self.credit <= _LARGEST_UNSIGNED,
            f"credit={self.credit} must be at least a segment ({self.segment}) and below 2^32",
        )
        _require(0 <= self.eager <= _LARGEST_UNSIGNED, f"eager={self.eager} must be from 0 to 2^32 - 1")
        _require(
            0 <= self.small <= min(self.segment, LARGEST_SMALL),
            f"small={self.small} must be from 0 to a segment ({self.segment}), at most {LARGEST_SMALL}",
        )
        _require(
            0 < self.least_shard <= _LARGEST_UNSIGNED, f"least_shard={self.least_shard} must be from 1 to 2^32 - 1"
        )
        _require(
            0 <= self.least_segment <= self.segment,
            f"least_segment={self.least_segment} must be from 0 to a segment ({self.segment})",
        )
        _require(
            0 <= self.rank_segment <= self.segment and self.rank_segment % SEGMENT_ALIGNMENT == 0,
            f"rank_segment={self.rank_segment} must be a multiple of {SEGMENT_ALIGNMENT} from 0 to a segment ({self.segment})",
        )
        _require(
            self.rank_segment <= self.rank_credit <= self.credit,
            f"rank_credit={self.rank_credit} must be from rank_segment ({self.rank_segment}) to credit ({self.credit})",
        )

    def _say_segment(self) -> str:
        return f"segment={self.segment} must be a multiple of {SEGMENT_ALIGNMENT} from 64 to {LARGEST_SEGMENT}"


def overrides_of(limits: Limits | Mapping[str, int]) -> dict[str, int]:
    """Limits that were given by hand, by name. A ``Limits`` gives all of them. Raises ConfigurationError."""
    if isinstance(limits, Limits):
        return {entry.name: getattr(limits, entry.name) for entry in fields(limits)}
    known = [entry.name for entry in fields(Limits)]
    for name in limits:
        _require(name in known, f"{name} is not one of {', '.join(known)}")
    return dict(limits)


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """What the environment says to a dedicated server, and to a rank as well: ``SERVER_NAMES``."""

    secret: bytes | None = field(default=None, repr=False)
    secret_file: Path | None = None
    tls: str = "off"
    interfaces: tuple[str, ...] = ()
    # At most so many serve the lanes of this rank or server. None: as many as links and processors want.
    threads: int | None = None
    log: str | None = None

    @property
    def encrypts(self) -> bool:
        return self.tls == "psk"

    @staticmethod
    def from_environment(environ: Mapping[str, str] = os.environ) -> "ServerSettings":
        """Reads what concerns a server, and refuses names that nobody reads. Raises ConfigurationError, as for a rank."""
        _refuse_unknown(environ)
        settings = ServerSettings(
            secret=_read(environ, "SHOAL_SECRET", _secret, f"at least {SHORTEST_SECRET} characters", None),
            secret_file=_read(environ, "SHOAL_SECRET_FILE", _path, "the path of a file", None),
            tls=_read(environ, "SHOAL_TLS", _one_of("off", "psk"), "off or psk", "off"),
            interfaces=_read(environ, "SHOAL_INTERFACE", _interfaces, "names or addresses of network interfaces", ()),
            threads=_read(environ, "SHOAL_THREADS", _count_to_64, "a whole number from 1 to 64", None),
            log=_read(environ, "SHOAL_LOG", _log_level, "debug, info, warning, error or critical", None),
        )
        if settings.secret is not None and settings.secret_file is not None:
            raise ConfigurationError("SHOAL_SECRET and SHOAL_SECRET_FILE are both set: unset one of them")
        return settings


@dataclass(frozen=True)
class Settings(ServerSettings):
    """What the environment says to a rank: docs/start.md lists the variables. Times in seconds."""

    launch: Launch
    servers: tuple[Address, ...] = ()
    colocated: str = "auto"
    # Where the secret that ranks on one machine share is kept.
    secret_folder: Path = Path("~/.local/state/shoal")
    job: str = ""
    rendezvous: Address | None = None
    port_range: tuple[int, int] | None = None
    algorithm: str = "server"
    fusion_mb: float | None = None
    timeout: float = 1800.0
    # Whole seconds, which the kernel counts.
    peer_timeout: int = 15
    sockets: int | None = None
    # Who waits for operations on CUDA tensors: "stream" or "host". None: whatever each way to use them has.
    cuda_wait: str | None = None
    trace: Path | None = None

    @property
    def rank(self) -> int:
        return self.launch.rank

    @property
    def size(self) -> int:
        return self.launch.size

    @property
    def local_rank(self) -> int:
        return self.launch.local_rank

    @property
    def local_size(self) -> int:
        return self.launch.local_size

    @property
    def opens_no_port(self) -> bool:
        """Whether the ranks reach each other by Unix sockets: all are on one machine, and nobody has asked for a network."""
        asked = self.rendezvous is not None or self.port_range is not None or bool(self.interfaces)
        return self.launch.one_machine and self.size > 1 and not asked

    def waits_in_stream(self, by_default: bool) -> bool:
        """Whether streams wait for operations on CUDA tensors, where they can, and not the host."""
        return by_default if self.cuda_wait is None else self.cuda_wait == "stream"

    def meeting_place(self) -> Address | None:
        """Where the ranks meet: SHOAL_RENDEZVOUS, or what follows from MASTER_ADDR and MASTER_PORT, a port above it if it is one.

        None if nobody said where rank 0 is.
        """
        if self.rendezvous is not None:
            return self.rendezvous
        if self.launch.master_host is None:
            return None
        if self.opens_no_port:
            place = f"{self.launch.master_host}:{self.launch.master_port} of user {os.getuid()}"
            return Address(f"@{hashlib.sha256(place.encode()).hexdigest()[:16]}", 1)
        if self.launch.master_port == 65535:
            raise ConfigurationError(
                "MASTER_PORT=65535 leaves no port above it for Shoal: choose another, or set SHOAL_RENDEZVOUS=host:port"
            )
        return Address(self.launch.master_host, self.launch.master_port + 1)

    def shared(self) -> dict[str, str]:
        """Variable → value of what must be equal on every rank."""
        return {
            "SHOAL_SERVERS": ",".join(str(server) for server in self.servers) or "unset",
            "SHOAL_COLOCATED": self.colocated,
            "SHOAL_TLS": self.tls,
            "SHOAL_ALGORITHM": self.algorithm,
            "SHOAL_FUSION_MB": "unset" if self.fusion_mb is None else f"{self.fusion_mb:g}",
            "SHOAL_PEER_TIMEOUT": str(self.peer_timeout),
            "SHOAL_SOCKETS": "unset" if self.sockets is None else str(self.sockets),
            # Each machine may have a folder of its own.
            "SHOAL_TRACE": "unset" if self.trace is None else "set",
        }

    @staticmethod
    def from_environment(environ: Mapping[str, str] = os.environ, launch: Launch | None = None) -> "Settings":
        """Reads every variable. Raises ConfigurationError: one line that names the variable and what is expected.

        ``launch``: who this rank is, where the program knows it; the launcher's variables are not read then.
        """
        as_a_server = ServerSettings.from_environment(environ)
        launch = launch or read_launch(environ)
        settings = Settings(
            secret=as_a_server.secret,
            secret_file=as_a_server.secret_file,
            tls=as_a_server.tls,
            interfaces=as_a_server.interfaces,
            threads=as_a_server.threads,
            log=as_a_server.log,
            launch=launch,
            servers=_read(environ, "SHOAL_SERVERS", _addresses, "host:port,host:port", ()),
            colocated=_read(
                environ, "SHOAL_COLOCATED", _one_of("auto", "always", "never"), "auto, always, never", "auto"
            ),
            secret_folder=secret_folder(environ),
            job=_read(environ, "SHOAL_JOB", _label, "up to 256 printable characters", launch.job),
            rendezvous=_read(environ, "SHOAL_RENDEZVOUS", parse_address, "host:port", None),
            port_range=port_range(environ),
            algorithm=_read(environ, "SHOAL_ALGORITHM", _one_of(*ALGORITHMS), "server or ring", "server"),
            fusion_mb=_read(environ, "SHOAL_FUSION_MB", _positive, "a number of megabytes above 0", None),
            timeout=_read(environ, "SHOAL_TIMEOUT", _positive, "a number of seconds above 0", 1800.0),
            peer_timeout=peer_timeout(environ),
            sockets=_read(environ, "SHOAL_SOCKETS", _count_to_64, "a whole number from 1 to 64", None),
            cuda_wait=_read(environ, "SHOAL_CUDA_WAIT", _one_of("stream", "host"), "stream or host", None),
            trace=_read(environ, "SHOAL_TRACE", _path, "the path of a folder", None),
        )
        _refuse_contradictions(settings)
        return settings


def port_range(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """SHOAL_PORT_RANGE, for a rank and for who starts servers and ranks; None: any. Raises ConfigurationError."""
    return _read(environ, "SHOAL_PORT_RANGE", _port_range, "first-last, ports from 1 to 65535", None)


def peer_timeout(environ: Mapping[str, str]) -> int:
    """SHOAL_PEER_TIMEOUT, for a rank and for who starts one on another host. Raises ConfigurationError."""
    expected = f"a number of seconds above 0, at most {LONGEST_PEER_TIMEOUT}"
    return _read(environ, "SHOAL_PEER_TIMEOUT", _peer_timeout, expected, 15)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigurationError(f"Limits: {message}")


def _refuse_unknown(environ: Mapping[str, str]) -> None:
    for name in sorted(environ):
        if name.startswith("SHOAL_") and name not in NAMES and not _is_kubernetes(name, environ[name]):
            nearest = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.0)[0]
            raise ConfigurationError(f"{name} is not a variable of Shoal: did you mean {nearest}? Unset or rename it")


def _is_kubernetes(name: str, value: str) -> bool:
    if _KUBERNETES_NAME.fullmatch(name):
        return True
    return bool(_KUBERNETES_PORT.fullmatch(name) and _KUBERNETES_PORT_VALUE.fullmatch(value))


def _refuse_contradictions(settings: Settings) -> None:
    if settings.rendezvous is not None and is_unspecified(settings.rendezvous.host):
        raise ConfigurationError(
            f"SHOAL_RENDEZVOUS={str(settings.rendezvous)!r} is no address to connect to: name rank 0's machine"
        )
    if settings.colocated == "never" and not settings.servers:
        raise ConfigurationError(
            "SHOAL_COLOCATED=never leaves nobody to average, since SHOAL_SERVERS is not set: set it, or unset the first"
        )


def _read(environ: Mapping[str, str], name: str, parse: Callable[[str], _T], expected: str, default: _T) -> _T:
    text = environ.get(name)
    if text is None:
        return default
    shown = "" if name == "SHOAL_SECRET" else f"={text!r}"
    if not text.strip():
        raise ConfigurationError(f"{name} is set but empty: expected {expected}; unset it to have the default")
    try:
        return parse(text.strip())
    except ValueError as error:
        reason = f" ({error})" if str(error) else ""
        raise ConfigurationError(f"{name}{shown} is wrong{reason}: expected {expected}") from None


def _addresses(text: str) -> tuple[Address, ...]:
    addresses = tuple(parse_address(part) for part in text.split(","))
    for address in addresses:
        if addresses.count(address) > 1:
            raise ValueError(f"{address} is there twice")
    return addresses


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError
        return text.lower()

    return parse


def _secret(text: str) -> bytes:
    secret = os.fsencode(text)
    if len(secret) < SHORTEST_SECRET:
        raise ValueError(f"it has {len(secret)}")
    return secret


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:
        raise ValueError("this user has no home folder: no HOME, and no entry in /etc/passwd") from None


def _label(text: str) -> str:
    if len(text) > 256 or not text.isprintable():
        raise ValueError
    return text


def _port_range(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]) <= 65535:
        raise ValueError
    return int(match[1]), int(match[2])


def _interfaces(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    for name in names:
        if not is_numeric(name) and not re.fullmatch(r"[^\s/:]{1,15}", name):
            raise ValueError(f"{name!r} is neither")
    return tuple(parse_host(name) if is_numeric(name) else name for name in names)


def _positive(text: str) -> float:
    number = float(text)
    if not (math.isfinite(number) and number > 0):
        raise ValueError
    return number


def _peer_timeout(text: str) -> int:
    number = math.ceil(_positive(text))
    if number > LONGEST_PEER_TIMEOUT:
        raise ValueError
    return number


def _count_to_64(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,2}", text) or not 1 <= int(text) <= 64:
        raise ValueError
    return int(text)


def _log_level(text: str) -> str:
    return _one_of("debug", "info", "warning", "error", "critical")(text).upper()


def secret_folder(environ: Mapping[str, str]) -> Path:
    """XDG base directories: a path that is not absolute counts as unset. Who has no home has a folder for temporary files."""
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        if environ.get(name, "").startswith("/"):
            return Path(environ[name]) / "shoal"
    home = environ.get("HOME", "")
    if home.startswith("/"):
        return Path(home) / _IN_THE_HOME
    try:
        # The entry in /etc/passwd; pathlib alone would look at HOME first, which is of no use here.
        return Path(pwd.getpwuid(os.getuid()).pw_dir) / _IN_THE_HOME
    except KeyError:
        return temporary_folder()


def temporary_folder() -> Path:
    """This user's own, for a secret that has no home."""
    return Path(tempfile.gettempdir()) / f"shoal-{os.geteuid()}"
