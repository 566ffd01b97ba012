#include "bindings/array.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <unordered_map>
#include <utility>

#include "bindings/bindings.h"

namespace shoal::python {

namespace {

using namespace nb::literals;

DType dtype_of(nb::dlpack::dtype dtype) {
  using Code = nb::dlpack::dtype_code;
  if (dtype.lanes != 1) {
    return DType::none;
  }
  const auto by_size = [&](DType one, DType two, DType four, DType eight) {
    switch (dtype.bits) {
      case 8:
        return one;
      case 16:
        return two;
      case 32:
        return four;
      case 64:
        return eight;
      default:
        return DType::none;
    }
  };
  switch (static_cast<Code>(dtype.code)) {
    case Code::Float:
      return by_size(DType::none, DType::float16, DType::float32, DType::float64);
    case Code::Bfloat:
      return by_size(DType::none, DType::bfloat16, DType::none, DType::none);
    case Code::Int:
      return by_size(DType::int8, DType::int16, DType::int32, DType::int64);
    case Code::UInt:
      return by_size(DType::uint8, DType::uint16, DType::uint32, DType::uint64);
    case Code::Bool:
      return by_size(DType::boolean, DType::none, DType::none, DType::none);
    default:
      return DType::none;
  }
}

// Hold counts, by the address of the owner's may_move byte. Touched under the GIL only.
std::unordered_map<std::uint8_t*, std::size_t>& held() {
  static std::unordered_map<std::uint8_t*, std::size_t> owners;
  return owners;
}

[[noreturn]] void refuse(nb::handle object, const std::string& what) {
  const std::string type = nb::type_name(object.type()).c_str();
  throw nb::type_error((type + " " + what).c_str());
}

}  // namespace

Array::Array(nb::handle object, std::optional<int> dtype, nb::object keep_alive) : keep_alive_(std::move(keep_alive)) {
  // A request to write is refused for read-only arrays; the second one tells them from what is no array.
  nb::ndarray<> writable;
  if (nb::try_cast(object, writable, false)) {
    array_ = nb::ndarray<nb::ro>(writable);
  } else if (nb::try_cast(object, array_, false)) {
    readonly_ = true;
  } else {
    refuse(object,
           "is not an array that can be used without a copy: pass a NumPy array or a CPU tensor (detach() one that "
           "requires grad; view bfloat16 of ml_dtypes as uint16)");
  }
  if (array_.device_type() != nb::device::cpu::value) {
    throw nb::buffer_error("the array is not in the memory of the CPU; copy it there first, as with tensor.cpu()");
  }
  dtype_ = dtype_of(array_.dtype());
  if (dtype.has_value()) {
    const auto wanted = static_cast<DType>(*dtype);
    if (*dtype < 0 || *dtype > 255 || size_of(wanted) != array_.itemsize()) {
      refuse(object, "has elements of " + std::to_string(array_.itemsize()) + " bytes, which cannot be seen as dtype " +
                         std::to_string(*dtype));
    }
    dtype_ = wanted;
  }
  if (dtype_ == DType::none) {
    refuse(object,
           "has elements of a type that Shoal cannot average: float16, bfloat16, float32, float64, integers of 8 "
           "to 64 bits and bool are possible");
  }
}

Array Array::at(nb::handle owner, std::uintptr_t address, std::size_t elements, int dtype, std::uintptr_t may_move) {
  Array made;
  made.dtype_ = static_cast<DType>(dtype);
  if (dtype < 0 || dtype > 255 || size_of(made.dtype_) == 0) {
    throw nb::value_error("this is the number of no dtype");
  }
  const std::size_t bytes = elements * size_of(made.dtype_);
  made.array_ =
      nb::ndarray<nb::ro>(reinterpret_cast<const void*>(address), {bytes}, owner, {}, nb::dtype<std::uint8_t>());
  made.may_move_ = reinterpret_cast<std::uint8_t*>(may_move);
  return made;
}

void Array::hold() const {
  if (may_move_ == nullptr) {
    return;
  }
  const auto holders = held().find(may_move_);
  if (holders != held().end()) {
    ++holders->second;
  } else if (*may_move_ == 1) {
    *may_move_ = 0;
    held().emplace(may_move_, 1);
  }
}

void Array::release() const {
  const auto holders = may_move_ == nullptr ? held().end() : held().find(may_move_);
  if (holders != held().end() && --holders->second == 0) {
    held().erase(holders);
    *may_move_ = 1;
  }
}

std::byte* Array::address() const { return static_cast<std::byte*>(array_.data_handle()) + array_.byte_offset(); }

std::vector<std::int64_t> Array::shape() const {
  return std::vector<std::int64_t>(array_.shape_ptr(), array_.shape_ptr() + array_.ndim());
}

bool Array::contiguous() const {
  if (array_.size() == 0) {
    return true;
  }
  std::int64_t expected = 1;
  for (std::size_t axis = array_.ndim(); axis-- > 0;) {
    if (array_.shape(axis) != 1 && array_.stride(axis) != expected) {
      return false;
    }
    expected *= static_cast<std::int64_t>(array_.shape(axis));
  }
  return true;
}

void bind_array(nb::module_& module) {
  nb::class_<Array>(module, "Array")
      .def(nb::init<nb::handle, std::optional<int>, nb::object>(), "array"_a, "dtype"_a = nb::none(),
           "keep_alive"_a = nb::none())
      .def_static("at", &Array::at, "owner"_a, "address"_a, "elements"_a, "dtype"_a, "may_move"_a = 0)
      .def_prop_ro("address", [](const Array& array) { return reinterpret_cast<std::uintptr_t>(array.address()); })
      .def_prop_ro("nbytes", &Array::bytes)
      .def_prop_ro("dtype", [](const Array& array) { return static_cast<int>(array.dtype()); })
      .def_prop_ro("shape", [](const Array& array) { return nb::tuple(nb::cast(array.shape())); })
      .def_prop_ro("contiguous", &Array::contiguous)
      .def_prop_ro("readonly", &Array::readonly);
}

}  // namespace shoal::python
