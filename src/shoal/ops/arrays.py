"""Arrays of any library, as the native core sees them: contiguous memory, one of our dtypes, a shape.

NumPy arrays, PyTorch tensors and whatever else speaks DLPack on the CPU (JAX, TensorFlow) come in without a copy if they
are contiguous. No library but NumPy is imported here: an array of another library proves that it is loaded already.

Promises:
  * ``source`` never writes to the array; ``target`` refuses an array that may not be written to.
  * The memory of an operand lives as long as the operand.
  * A refusal is a TypeError that says what to do instead.
"""

import sys
from abc import ABC, abstractmethod
from functools import lru_cache
from math import prod
from typing import Any
from weakref import ref

import numpy as np
import numpy.typing as npt

from shoal import _native
from shoal.ops.storages import is_whole, no_place, put, resizable_byte

# The numbers of docs/protocol/format.md, Numbers.
DTYPES: dict[str, int] = {
    "float32": 1,
    "float64": 2,
    "float16": 3,
    "bfloat16": 4,
    "int8": 5,
    "int16": 6,
    "int32": 7,
    "int64": 8,
    "uint8": 9,
    "uint16": 10,
    "uint32": 11,
    "uint64": 12,
    "bool": 13,
}
DTYPE_NAMES: dict[int, str] = {number: name for name, number in DTYPES.items()}
BOOL = DTYPES["bool"]

# NumPy has none of these of its own: their bits are carried as integers.
_BITS = {"bfloat16": "uint16"}

_STORAGE: dict[int, np.dtype[Any]] = {number: np.dtype(_BITS.get(name, name)) for name, number in DTYPES.items()}

NumPyArray = npt.NDArray[Any]


class Operand:
    """One array of an operation.

    ``array`` is the caller's own, None for a new one. ``origin`` is an array of the library that a new one belongs to.
    ``memory`` holds the elements in C order: the array itself, or a temporary where it is not contiguous. ``written`` is
    what then has the place of the array, where that may be given other memory meanwhile.
    """

    __slots__ = ("array", "dtype", "library", "memory", "native", "origin", "shape", "written")

    def __init__(
        self,
        array: Any,
        memory: Any,
        native: _native.Array,
        library: "Library",
        dtype: int,
        shape: tuple[int, ...],
        origin: Any = None,
    ) -> None:
        self.array = array
        self.memory = memory
        self.native = native
        self.library = library
        self.dtype = dtype
        self.shape = shape
        self.origin = array if origin is None else origin

    @property
    def itemsize(self) -> int:
        return _STORAGE[self.dtype].itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes of one index of the first dimension. Requires at least one dimension."""
        return prod(self.shape[1:]) * self.itemsize

    @property
    def elements(self) -> NumPyArray:
        """The memory as one dimension of storage elements (bfloat16 as uint16), without a copy."""
        storage = _STORAGE[self.dtype]
        empty = prod(self.shape) == 0
        return np.empty(0, storage) if empty else np.asarray(_Exposed(self.native, storage))

    def part(self, begin: int, end: int) -> _native.Array:
        """Bytes [begin, end) of the memory, both at element boundaries."""
        return self.library.native(self.memory.reshape(-1)[begin // self.itemsize : end // self.itemsize], self.dtype)

    def keep_place(self) -> None:
        """Before the operation begins: ``read`` writes to the memory as it is now, whatever the array is given later."""
        if self.memory is self.array:
            self.written = self.library.place(self.array)

    def read(self, data: memoryview, begin: int = 0) -> None:
        """Copies ``data`` into the memory at byte ``begin``, after ``keep_place``. Raises ShoalError if it is there no longer."""
        if not self.library.stays(self):
            raise no_place()
        incoming = np.frombuffer(data, _STORAGE[self.dtype])
        first = begin // self.itemsize
        self.elements[first : first + incoming.size] = incoming

    def finish(self) -> Any:
        """The array for the caller, with everything that was written to the memory."""
        return self.memory if self.memory is self.array else self.library.finish(self)

    def finished(self, _: _native.Handle) -> Any:
        """``finish``, as what an operation gives."""
        return self.finish()

    def rows(self, begin: int, end: int) -> Any:
        """Rows [begin, end) of the finished array, as a view where the library has views."""
        return self.finish()[begin:end]

    def empty(self, shape: tuple[int, ...]) -> "Operand":
        """A new array of the same library and dtype. Its elements have no value yet."""
        memory = self.library.empty(self, shape)
        native = self.library.native(memory, self.dtype)
        return Operand(None, memory, native, self.library, self.dtype, shape, self.origin)

    def copy(self) -> "Operand":
        """A new array with the same elements."""
        new = self.empty(self.shape)
        np.copyto(new.elements, self.elements)
        return new

    def adopt(self, data: memoryview, shape: tuple[int, ...]) -> Any:
        """An array of the same library and dtype over bytes that nobody else uses."""
        elements: NumPyArray = np.frombuffer(data, _STORAGE[self.dtype])
        return self.library.adopt(self, elements.reshape(shape))


class Library(ABC):
    """What differs between the libraries that arrays come from."""

    @abstractmethod
    def owns(self, kind: type) -> bool:
        """Whether arrays of this type are this library's."""

    @abstractmethod
    def source(self, array: Any) -> Operand:
        """``array`` to read from."""

    @abstractmethod
    def target(self, array: Any) -> Operand:
        """``array`` to be written to in place."""

    def place(self, array: Any) -> Any:
        """What has the array's memory as it is now, whatever the array is given later."""
        return array

    def stays(self, operand: Operand) -> bool:
        """Whether the operand's memory is still where it was."""
        return True

    @abstractmethod
    def native(self, memory: Any, dtype: int) -> _native.Array:
        """The memory without a copy."""

    @abstractmethod
    def empty(self, like: Operand, shape: tuple[int, ...]) -> Any:
        """Contiguous memory for a new array."""

    @abstractmethod
    def finish(self, operand: Operand) -> Any:
        """The caller's array once the memory, which is not that array, holds the result."""

    @abstractmethod
    def adopt(self, like: Operand, data: NumPyArray) -> Any:
        """An array like ``like`` over the elements of ``data``, which are in storage dtype and shape."""


class _NumPy(Library):
    """NumPy, and what NumPy can read: Python numbers and lists, for operations that return a new array."""

    def owns(self, kind: type) -> bool:
        return issubclass(kind, (np.ndarray, np.generic, bool, int, float, list, tuple))

    def source(self, array: Any) -> Operand:
        data: NumPyArray = array
        if type(array) is not np.ndarray:
            if isinstance(array, np.ma.MaskedArray):
                raise TypeError("a masked array would lose its mask: pass x.filled(value) or x.data")
            data = np.asarray(array)
        dtype, memory = _number_of(data.dtype), _aligned(data)
        return Operand(array, memory, _numpy_native(memory, dtype), self, dtype, data.shape)

    def target(self, array: Any) -> Operand:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"a {type(array).__name__} cannot be written to: use the form that returns a new array")
        operand = self.source(array)
        if not array.flags.writeable:
            raise TypeError("this NumPy array is read-only: pass a copy, or use the form that returns a new array")
        return operand

    def native(self, memory: Any, dtype: int) -> _native.Array:
        return _numpy_native(memory, dtype)

    def empty(self, like: Operand, shape: tuple[int, ...]) -> Any:
        return np.empty(shape, like.memory.dtype)

    def finish(self, operand: Operand) -> Any:
        if operand.array is None:
            return operand.memory
        if not np.may_share_memory(operand.memory, operand.array):
            np.copyto(operand.array, operand.memory)
        return operand.array

    def adopt(self, like: Operand, data: NumPyArray) -> Any:
        return data.view(like.memory.dtype)


class _Torch(Library):
    """PyTorch. Autograd is left out: inputs are detached, results need no gradient."""

    def owns(self, kind: type) -> bool:
        tensor = getattr(sys.modules.get("torch"), "Tensor", None)
        return tensor is not None and issubclass(kind, tensor)

    def source(self, array: Any) -> Operand:
        torch: Any = sys.modules["torch"]
        if array.layout != torch.strided:
            raise TypeError(
                f"a tensor with layout {array.layout} is sparse: only dense ones are supported: pass x.to_dense()"
            )
        if not array.is_cpu:
            raise TypeError(f"the tensor is on {array.device}; only CPU tensors are supported yet: pass x.cpu()")
        dtype = _number_of_torch(array.dtype)
        plain = array.is_contiguous() and not array.requires_grad and not array.is_neg()
        memory = array if plain else array.detach().resolve_neg().contiguous()
        operand = Operand(array, memory, self.native(memory, dtype), self, dtype, array.shape)
        if not plain:
            operand.written = self.place(array)
        return operand

    def target(self, array: Any) -> Operand:
        operand = self.source(array)
        if operand.memory is not array and _is_expanded(array):
            raise TypeError("an expanded tensor has elements that share memory: pass x.contiguous()")
        return operand

    def native(self, memory: Any, dtype: int) -> _native.Array:
        # Its __dlpack__ takes longer than all else that a small operation does here. A tensor can be given another storage,
        # and a storage other memory, but not while an operation uses it.
        storage = memory.untyped_storage()
        return _native.Array.at(storage, memory.data_ptr(), memory.numel(), dtype, resizable_byte(storage))

    def place(self, array: Any) -> Any:
        return array.detach()

    def stays(self, operand: Operand) -> bool:
        place = operand.written if operand.memory is operand.array else operand.memory
        return is_whole(place) and place.data_ptr() == operand.native.address

    def empty(self, like: Operand, shape: tuple[int, ...]) -> Any:
        torch: Any = sys.modules["torch"]
        return torch.empty(shape, dtype=like.memory.dtype, device="cpu")

    def finish(self, operand: Operand) -> Any:
        if operand.array is None:
            return operand.memory
        written = operand.written
        if operand.memory.data_ptr() != written.data_ptr():
            put(written, operand.memory)
        return operand.array

    def adopt(self, like: Operand, data: NumPyArray) -> Any:
        torch: Any = sys.modules["torch"]
        if data.size == 0:
            return torch.empty(data.shape, dtype=like.memory.dtype, device="cpu")
        flat = torch.frombuffer(data.reshape(-1).data, dtype=like.memory.dtype)
        return flat.reshape(data.shape)


class _Foreign(Library):
    """Every other library, through DLPack or, where that is missing, through NumPy.

    Its arrays count as immutable. Results are made by the library itself from NumPy arrays; if it cannot, they are NumPy
    arrays.
    """

    def owns(self, kind: type) -> bool:
        return True

    def source(self, array: Any) -> Operand:
        try:
            native = _native.Array(array)
        except BufferError as error:
            raise TypeError(f"a {_type_name(array)} must be on the CPU: copy it there first ({error})") from error
        except TypeError as error:
            if hasattr(array, "__array__"):
                data: NumPyArray = np.asarray(array)
                dtype, aligned = _number_of(data.dtype), _aligned(data)
                return Operand(array, aligned, _numpy_native(aligned, dtype), self, dtype, data.shape)
            if hasattr(array, "toarray"):
                raise _is_sparse(array) from error
            raise TypeError(
                f"a {_type_name(array)} is not an array that Shoal can read: pass a NumPy array, a PyTorch "
                "tensor or any CPU array with __dlpack__"
            ) from error
        memory = native if native.contiguous else _aligned(np.from_dlpack(array))
        return Operand(array, memory, self.native(memory, native.dtype), self, native.dtype, native.shape)

    def target(self, array: Any) -> Operand:
        if hasattr(array, "toarray"):
            raise _is_sparse(array)
        raise TypeError(
            f"a {_type_name(array)} counts as immutable: use the form that returns a new array (its name has no "
            "underscore at the end)"
        )

    def native(self, memory: Any, dtype: int) -> _native.Array:
        return memory if isinstance(memory, _native.Array) else _numpy_native(memory, dtype)

    def empty(self, like: Operand, shape: tuple[int, ...]) -> Any:
        return np.empty(shape, _STORAGE[like.dtype])

    def finish(self, operand: Operand) -> Any:
        return self.adopt(operand, operand.memory)

    def adopt(self, like: Operand, data: NumPyArray) -> Any:
        if DTYPE_NAMES[like.dtype] in _BITS:
            data = data.view(_ml_dtype(DTYPE_NAMES[like.dtype]))
        library = type(like.origin).__module__.partition(".")[0]
        if library in ("jax", "jaxlib"):
            return sys.modules["jax"].numpy.asarray(data)
        if library == "tensorflow":
            return sys.modules["tensorflow"].convert_to_tensor(data)
        from_dlpack = getattr(sys.modules.get(library), "from_dlpack", None)
        return data if from_dlpack is None else from_dlpack(data)


class _Exposed:
    """Native memory as NumPy finds it: NumPy keeps this object, and with it the memory, alive."""

    def __init__(self, native: _native.Array, storage: np.dtype[Any]) -> None:
        self._native = native
        self.__array_interface__ = {
            "version": 3,
            "data": (native.address, native.readonly),
            "shape": (native.nbytes // storage.itemsize,),
            "typestr": storage.str,
        }


_LIBRARIES: tuple[Library, ...] = (_NumPy(), _Torch(), _Foreign())


class _LibraryOfType(dict[type, Library]):
    """As far as types have been asked for: a lookup, and no call, for each operation."""

    def __missing__(self, kind: type) -> Library:
        library = self[kind] = next(library for library in _LIBRARIES if library.owns(kind))
        return library


_library_of_type = _LibraryOfType()


def source(array: Any) -> Operand:
    """``array`` to read from: of any library, or Python numbers. Copied only if it is not contiguous."""
    return _library_of_type[type(array)].source(array)


def target(array: Any) -> Operand:
    """``array`` to be written to: writable memory of NumPy or PyTorch.

    If it is not contiguous the operation works on a temporary, which ``finish`` copies back.
    """
    return _library_of_type[type(array)].target(array)


# Both remember: making the name takes longer than all else that a small operation does here.


@lru_cache(maxsize=256)
def _number_of(dtype: np.dtype[Any]) -> int:
    if dtype.name not in DTYPES:
        raise TypeError(_unsupported_dtype(dtype.name))
    if not dtype.isnative:
        raise TypeError('this array has foreign byte order: pass x.astype(x.dtype.newbyteorder("="))')
    return DTYPES[dtype.name]


@lru_cache(maxsize=256)
def _number_of_torch(dtype: Any) -> int:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise TypeError(_unsupported_dtype(name))
    return DTYPES[name]


def _unsupported_dtype(name: str) -> str:
    hint = "convert it to one of " + ", ".join(DTYPES)
    if name.startswith("complex"):
        hint = "pass its real and imaginary parts (x.view(float), torch.view_as_real(x))"
    elif name.startswith(("qint", "quint")):
        hint = "pass x.dequantize() or x.int_repr()"
    elif name == "object" or name.startswith(("str", "bytes")):
        hint = "only numbers can be communicated"
    return f"dtype {name} is not supported: {hint}"


def _is_expanded(tensor: Any) -> bool:
    """Whether elements of it are the same memory."""
    return bool(tensor.numel()) and any(
        n > 1 and step == 0 for n, step in zip(tensor.shape, tensor.stride(), strict=True)
    )


def _aligned(data: NumPyArray) -> NumPyArray:
    """``data`` itself if it is contiguous and aligned, else a copy that is. Keeps a shape of no dimensions."""
    flags = data.flags
    return data if flags.c_contiguous and flags.aligned else np.require(data, requirements=["C", "A"])


def _numpy_native(data: NumPyArray, dtype: int) -> _native.Array:
    storage = _STORAGE[dtype]
    # An array that somebody refers to weakly does not let its memory go, not even by resize(refcheck=False).
    owner = data if data.base is None else _owner(data)
    return _native.Array(
        data if data.dtype is storage else data.reshape(-1).view(storage), dtype, None if owner is None else ref(owner)
    )


def _owner(data: Any) -> NumPyArray | None:
    """The array whose memory this view shows; None if the memory is not NumPy's."""
    while isinstance(data, np.ndarray) and data.base is not None:
        data = data.base
    return data if isinstance(data, np.ndarray) else None


def _ml_dtype(name: str) -> Any:
    """NumPy's dtype of that name: whoever made such an array that is not PyTorch's has loaded it."""
    module = sys.modules.get("ml_dtypes")
    if module is None:
        raise TypeError(f"a {name} result needs the package ml_dtypes: import it first")
    return getattr(module, name)


def _is_sparse(array: Any) -> TypeError:
    return TypeError(f"a {_type_name(array)} is sparse: only dense arrays are supported: pass x.toarray()")


def _type_name(array: Any) -> str:
    return f"{type(array).__module__}.{type(array).__qualname__}"
