"""The native core as Python sees it.

Bindings hold no logic: they convert, keep memory alive and release the GIL around everything that waits or copies.
Numbers (dtypes, operators, collectives, statuses) are those of docs/protocol/format.md.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

__version__: str

def reduce_backend() -> str:
    """The instruction set that the sums use on this machine: ``avx512``, ``avx2``, ``portable`` ..."""

def reduce(destination: Array, sources: list[Array], op: int, divisor: float) -> None:
    """One sum, as a server does it (for tests and benchmarks). Arrays have equal dtype and size."""

def shards(total_bytes: int, weights: list[int]) -> list[tuple[int, int]]:
    """The shard (begin, end) of each server, as servers and workers cut it."""

def encode_header(
    type: int,
    flags: int,
    dtype: int,
    codec: int,
    epoch: int,
    operation: int,
    offset: int,
    length: int,
    credit: int,
    acknowledged: int,
) -> bytes:
    """A frame header of 40 bytes with its check (docs/protocol/format.md, Frames)."""

def hash128(data: bytes) -> bytes:
    """FNV-1a with 128 bits, little-endian: keys and group ids."""

def caller_threads() -> list[int]:
    """The threads of this process that have called Shoal and not ended, as ``threading.get_ident`` has them."""

def note_call() -> None:
    """The calling thread calls something: from now on it is one of ``caller_threads``."""

def count_callbacks(more: int) -> None:
    """So many more callbacks, or less, are to be called whose threads are not known yet. While there are such, this process may call something."""

def add_door_group(group: int, members: int, index: int, timeout: float) -> int:
    """The door's number (native/doors/door.h) for a group of the job that it is open to. ``timeout``: in seconds."""

def door_place(group: int) -> tuple[int, int]:
    """How many members the group of this number has, and which one this rank is. Raises RuntimeError if it is not of this job."""

def door_table() -> int:
    """The address of the core's functions for frameworks' libraries (native/doors/table.h)."""

class GradientPlan:
    """Where the gradients of a step lie (native/doors/gradient_plan.h). Sizes and offsets in bytes."""

    def __init__(
        self,
        *,
        arenas: list[tuple[int, int]],
        places: list[tuple[int, int, int, int, int]],
        buffers: list[tuple[str, int, int, int]],
        votes: list[int],
        end_label: str,
    ) -> None:
        """``arenas``: dtype, size. ``places``, by gradient: arena, begin, size, the first buffer that holds bytes of it, and
        the one after the last. ``buffers``: label, arena, begin, end. ``votes``: a digest and its complement.
        ``end_label``: of an operation that ends when all ranks have come to the end of the step; empty: there is none."""

class DisagreeingPass:
    """A step of which the ranks have found that their plans differ."""

    def explain(self, how: str) -> None:
        """It fails with this message."""

class GradientAverager:
    """Averages gradients that a framework brings from C++ (native/doors/averager.h).

    ``completions`` get ``token`` for each event. Raises ValueError for an impossible plan.
    """

    def __init__(
        self, prefix: str, group: int, op: int, plan: GradientPlan, completions: Completions, token: int
    ) -> None: ...
    @property
    def number(self) -> int:
        """By which the framework's operations name it, as long as it lives."""

    def next_event(self) -> tuple[bool, list[int]] | DisagreeingPass | None:
        """Whether a step has ended well whose order of gradients was not known yet, and how they came; or a step whose ranks disagree."""

    def arrange(self, plan: GradientPlan | None) -> None:
        """The answer to the former: the plan from now on; None: that so far, and the next step shows the order."""

    def let_memory_go(self) -> None:
        """Gives back the memory that is kept for the next steps."""

class Array:
    """A CPU array of any library, held through DLPack without a copy.

    ``dtype`` overrides the array's own (bfloat16 seen as uint16). ``keep_alive`` lives as long as it. Raises TypeError for
    what is not an array or has no dtype of ours, BufferError for one that is not on the CPU.
    """

    def __init__(self, array: Any, dtype: int | None = None, keep_alive: Any = None) -> None: ...
    @staticmethod
    def at(owner: Any, address: int, elements: int, dtype: int, may_move: int = 0) -> Array:
        """Contiguous writable memory that ``owner`` keeps alive. ``may_move``: the address of a byte that is 1 while the
        owner may free that memory nevertheless, or put it elsewhere; it is 0 while an operation uses it. 0: there is no
        such byte. Raises ValueError for what is no dtype of ours."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def dtype(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def contiguous(self) -> bool: ...
    @property
    def readonly(self) -> bool: ...

class Status:
    """How an operation ended: ``code`` 0 is well."""

    @property
    def code(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def message(self) -> str: ...

class Handle:
    """One submitted operation. Keeps its arrays alive until it is done."""

    def done(self) -> bool: ...
    def wait(self, seconds: float) -> Status | None:
        """The status once done, or None when ``seconds`` have passed first.

        Runs Python's handlers of signals meanwhile. What a handler raises is raised here, and otherwise the wait goes on.
        """

    def tell(self, completions: Completions, token: int) -> None:
        """Once it is done, now or later, ``token`` is among ``completions``."""

    def output(self) -> memoryview:
        """Bytes of an output whose size was not known at submission (all-gather, all-to-all). Valid as long as the view."""

    def blocks(self) -> list[int]:
        """Bytes received from each member of the group, in its order (all-gather, all-to-all)."""

    def course(self) -> Course | None:
        """What becomes of it, for a timeline; None if nobody records (``Engine.record``)."""

    def finished_at(self) -> int:
        """When it was done, in nanoseconds of ``time.monotonic_ns``."""

class Course:
    """What became of an operation, and when. Holds none of its arrays."""

    def ended(self) -> bool:
        """Whether the operation is done."""

    def occurrence(self) -> int | None:
        """How often the group had used its name before, the same on all members. None: its call has no number (yet)."""

    def code(self) -> int:
        """Of its status, once it has ended."""

    def moments(self) -> tuple[int, int, int, int, int, int]:
        """Once it has ended: when its input was there (if a gate kept it), its first bytes were on their way, this rank heard
        that all members had called it, the first part of the result came, and it was done: as ``Handle.finished_at``, 0 where it
        did not come to that. And its flush: operations with the same one were written together; 0: alone."""

class Completions:
    """Operations that are done, for threads that see to what follows. May be used from any thread."""

    def next(self, seconds: float) -> int | None:
        """A token that nobody else gets, or None when ``seconds`` have passed first. Raises RuntimeError once closed."""

    def add(self, token: int) -> None:
        """``token`` is among them now. Nothing, once closed."""

    def close(self) -> None:
        """Whoever waits returns."""

class JobConfig:
    """What the coordinator decided; equal everywhere. Sizes in bytes."""

    def __init__(
        self,
        *,
        hosts: list[str],
        server_names: list[str],
        server_ranks: list[int],
        weights: list[int],
        segment: int,
        credit: int,
        eager: int,
        small: int,
        least_shard: int,
        least_segment: int,
        peer_timeout: int,
        ring: bool = False,
        rate: int = 0,
        standby: bool = False,
        leaders: list[int] = [],
        rank_segment: int = 0,
        rank_credit: int = 0,
        lanes: int = 1,
        networks: int = 1,
        channels: int = 1,
    ) -> None:
        """``hosts`` by rank; the other lists by server index (lanes included). ``server_ranks``: the rank whose process holds it, or -1.

        ``peer_timeout``: seconds of silence from a host's kernel after which it counts as lost.
        ``rate``: bytes per second of an operation of all ranks that the links allow; 0: windows stay as they are.
        ``standby``: co-located servers of weight 0 have links too, and average when no other can.
        ``leaders``: by rank, the first rank of its node, where nodes share memory; empty: they do not.
        ``rank_segment``, ``rank_credit``: segment and credit where each rank of a node sends for itself; 0: the same.
        ``lanes`` of each server, spread over ``networks``; ``channels``: threads of each process among which they are divided.
        """

class Tls:
    """TLS 1.3 on one connection, with a key of 32 bytes that both sides hold. One thread at a time; the GIL is released."""

    @staticmethod
    def client(identity: str, key: bytes) -> Tls:
        """``identity`` travels in the clear: at most 127 characters. Raises RuntimeError without a usable OpenSSL."""

    @staticmethod
    def server(find_key: Callable[[bytes], bytes]) -> Tls:
        """``find_key``: the key for an identity, b"" if there is none. Called, and held, until the handshake has ended."""

    @staticmethod
    def version() -> str:
        """Of OpenSSL. Raises RuntimeError if there is none."""

    def handshake(self, fd: int) -> str:
        """To be called again after ``wants_input`` and ``wants_room``. The end is one of ``done``, ``unencrypted``: the
        other side speaks, but no TLS (see ``greeting``), ``wrong_key``: one side does not have the other's, ``ended``: the
        connection was closed, ``failed``: see ``why``. Raises OSError."""

    def greeting(self) -> bytes:
        """The other side's first bytes, 5 at most. They have been read."""

    def send(self, fd: int, data: bytes) -> int:
        """As of a non-blocking socket, but after BlockingIOError the next call must begin with the same data. Raises
        OSError."""

    def receive(self, fd: int, most: int) -> bytes:
        """As of a non-blocking socket. Raises OSError; EBADMSG: see ``why``."""

    def why(self) -> str: ...

class Socket:
    """A connection to hand to the core, which owns the descriptor from here on, and its encryption if there is one."""

    def __init__(self, fd: int, tls: Tls | None = None) -> None: ...

class SharedMemory:
    """Memory that the ranks of a machine share. Raises RuntimeError where there is not enough."""

    def __init__(self, ranks: int, alone: bool) -> None:
        """For so many ranks. ``alone``: there is no other node."""

    @staticmethod
    def adopt(fd: int, ranks: int, alone: bool) -> SharedMemory:
        """Memory that another rank made for the same. Owns the descriptor from here on, also when it raises ValueError."""

    def fileno(self) -> int: ...
    @property
    def why_no_arrays(self) -> str:
        """Why no arrays can lie in it. Empty: they can (``Engine.allocate``)."""

class Gate:
    """What an accelerator and the engine tell each other of one operation: its input is there; it is done."""

    def is_open(self) -> bool:
        """Whether the input is there."""

    def is_passed(self) -> bool:
        """Whether the operation is done, or has failed."""

    def leave(self) -> None:
        """There is no operation, and nobody else passes it."""

class CudaDevice:
    """A CUDA device. The same one for the same arguments, until the process ends."""

    def __init__(self, library: str, ordinal: int) -> None:
        """``library``: the name of CUDA's driver library. ``ordinal``: among the devices that this process sees. Raises
        RuntimeError if there is no such library or device, or its driver is too old."""

    @property
    def streams_can_wait(self) -> bool:
        """Whether a stream can wait for a gate to be passed. If not, the host has to."""

    def pin(self, address: int, nbytes: int) -> None:
        """From now on the device reads and writes these bytes of the host by itself. Raises RuntimeError."""

    def unpin(self, address: int, waits: bool) -> None:
        """No more. ``waits``: until the copies that were asked for before have been done. Raises RuntimeError if the device has failed."""

class Ways:
    """Two streams of a device for the operations of one group. Streams are numbers, as ``torch.cuda.Stream.cuda_stream``."""

    def __init__(self, device: CudaDevice) -> None: ...
    @property
    def out(self) -> int:
        """The stream in which copies leave the device."""

    @property
    def back(self) -> int:
        """The stream in which they come back."""

class Passage:
    """One operation's way through a device: copies out, its gate, copies back. In this order, never by two threads at once.

    Copies are (address on the host, address on the device, bytes); who calls keeps that memory until ``is_over``. All
    raise RuntimeError if the device has failed.
    """

    def __init__(self, ways: Ways) -> None: ...
    def follow(self, streams: Sequence[int]) -> None:
        """What leaves from now on comes after what is in these streams now. RuntimeError if one is captured for a graph."""

    def depart(self, copies: Sequence[tuple[int, int, int]]) -> Gate:
        """The last copies out. The gate opens when everything is there."""

    def begin_return(self, waits: bool) -> None:
        """What is copied back from now on comes after what has left. ``waits``: and after the gate has been passed."""

    def take_back(self, copies: Sequence[tuple[int, int, int]]) -> None: ...
    def end_return(self) -> None:
        """Nothing more is copied back."""

    def has_returned(self) -> bool: ...
    def follow_back(self, stream: int) -> None:
        """What comes into this stream from now on is done after the copies back."""

    def is_over(self) -> bool:
        """Whether the device has done all that it was asked for up to now."""

    def wait_until_over(self) -> None:
        """This thread waits for that."""

class Engine:
    """The native threads of one rank: its worker, its co-located servers, and on rank 0 the coordinator.

    Attach every link of the start, then ``start``. Sockets (or their descriptors) are connected and authenticated; the
    engine owns them from then on. Links of a process to itself need no socket and are not attached.
    """

    def __init__(self, rank: int, config: JobConfig) -> None: ...
    def attach_coordinator(self, channel: int, socket: Socket | int) -> None:
        """The channel's control link to rank 0."""

    def attach_control(self, channel: int, rank: int, socket: Socket | int) -> None:
        """On rank 0: the channel's control link of ``rank``."""

    def attach_server(self, index: int, socket: Socket | int) -> None:
        """This worker's link to server ``index``."""

    def attach_worker(self, index: int, rank: int, socket: Socket | int) -> None:
        """At this process's co-located server ``index``: the link of the worker of ``rank``."""

    def attach_peer(self, rank: int, socket: Socket | int) -> None:
        """A peer link, at any time after start."""

    def peer_unreachable(self, rank: int, message: str) -> None: ...
    def attach_returned(self, index: int, attempt: int, process: bytes, socket: Socket | int) -> None:
        """After the event "connect_server", which names the first of the server's lanes in a channel: the link to one of
        them, ``index``. ``process``: the server's id, the same for all lanes. Rank 0 is told when all are there."""

    def server_unreachable(self, server: int, attempt: int) -> None:
        """After the event "connect_server": it cannot be reached, or not on all lanes."""

    def share_memory(self, memory: SharedMemory) -> None:
        """Before ``start``: the ranks of this node share this memory, for groups of theirs, and for all-reduces of all ranks."""

    def start(self) -> None: ...
    def note_threads(self, attempt: int, strangers: int) -> None:
        """What came of the event "threads": how many threads might call Shoal that never have."""

    def allocate(self, nbytes: int, stays: bool) -> NDArray[numpy.uint8] | None:
        """Memory for this rank's arrays, all zero, in which an all-reduce needs no slots. None where there is none of the kind.

        Lives as long as an array needs it. Raises RuntimeError if the machine has not so much memory."""

    def make_group(self, ranks: list[int], name: str) -> int:
        """A number for this group (0 is the group of all ranks). Not collective; making the same again gives a new one."""

    def submit(
        self,
        collective: int,
        group: int,
        name: str,
        op: int,
        dtype: int,
        shape: Sequence[int],
        splits: Sequence[int],
        root: int,
        input: Array | None,
        output: Array | None,
        timeout: float,
        gate: Gate | None = None,
    ) -> Handle:
        """``name`` empty: unnamed, matched by the group's sequence. ``splits``: bytes for each member (all-to-all).
        ``root``: index in the group. ``output`` None: the size is not known yet, see Handle.output. ``gate``: the input is
        there when it opens. May be called from any thread."""

    def submit_failed(self, group: int, name: str, reason: str) -> Handle:
        """Opens the operation as failed on this rank, so that the others hear of it."""

    def join(self, group: int, timeout: float) -> tuple[int, list[Handle]]:
        """From now on the engine calls with zeros what others call in the group and this rank has not. How many operations
        this rank had called there since the last join, and those of them that are open. ``timeout``: of calls for others.
        Raises RuntimeError if the rank has joined there already."""

    def calls_for_others(self, group: int) -> int:
        """How many calls for others have ever ended."""

    def await_calls_for_others(self, group: int, count: int, seconds: float) -> bool:
        """Waits until so many have, at most so long. Whether that is so."""

    def end_join(self, group: int) -> None:
        """This rank has joined no more."""

    def next_event(self, seconds: float) -> tuple[str, int, str, int] | None:
        """What Python has to do next: ("connect", rank, "", 0), ("connect_server", index of the first lane, "", attempt),
        ("warning", -1, text, 0), ("threads", -1, "", attempt), ("ended", -1, "", 0)."""

    def leave(self) -> None:
        """Says goodbye once every submitted operation is done. Does not wait: the event "ended" tells when no one needs this process."""

    def left(self) -> bool:
        """Whether goodbye has been said and, on a rank that holds neither a server nor the coordinator, handed to the network."""

    def serves(self) -> bool:
        """Whether others need this process after it has left: the server in it averages at present, or it is rank 0's."""

    def has_losses(self) -> bool:
        """Whether a rank or server is known to be lost, or this rank has aborted."""

    def loss_of_rank(self, rank: int) -> Status | None:
        """Why nothing more can come from that rank: it is lost, or the job has ended. None: nothing says so; it may have left."""

    def abort(self, reason: str) -> None:
        """Tells the coordinator that this rank ends with an error, waits up to one second for it to be sent, and closes."""

    def close(self) -> None:
        """Stops the threads and closes every link. Open handles end with an error. May be called again."""

    def open_door(self, here: str, timeout: float, members: int, index: int) -> None:
        """From now on what frameworks call from C++ comes here. ``here``: this rank, for messages. ``timeout``: in seconds."""

    def finish_at_exit(self, reason: str) -> None:
        """Keeps the engine beyond the end of the interpreter. When the process then exits with status 0 it leaves and, if it
        ``serves`` others, goes on until nobody needs it; with any other status it aborts with ``reason`` or, if that is empty,
        the status. Nobody may use the engine after this."""

    def record(self, on: bool) -> None:
        """Whether operations note what they come to from now on (``Handle.course``)."""

    def statistics(self) -> dict[str, int]:
        """Counters: bytes_sent, bytes_received, open_operations, finished_operations, links, buffer_bytes."""

class Server:
    """A dedicated server: any number of jobs, each with machines of its own, on ``proxies`` threads."""

    def __init__(self, proxies: int, memory: int = 0) -> None:
        """``memory``: bytes for all jobs together; 0: as much as they take."""

    def reserve(self, incarnation: bytes, index: int, config: JobConfig) -> str:
        """Makes sure that there is memory for the job, before its first link to server ``index``: "", or what to tell it."""

    def release(self, incarnation: bytes) -> None: ...
    def attach(
        self, incarnation: bytes, index: int, attempt: int, rank: int, socket: Socket | int, config: JobConfig
    ) -> None:
        """The link of the worker of ``rank`` in that job to server ``index`` (lane included). The first makes the job."""

    def end_job(self, incarnation: bytes, reason: str) -> None: ...
    def jobs(self) -> list[bytes]: ...
    def close(self) -> None: ...
    def statistics(self) -> dict[str, int]: ...
