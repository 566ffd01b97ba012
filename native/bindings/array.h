// A CPU array of any library, held through DLPack without a copy.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/types.h"

namespace shoal::python {

class Array {
 public:
  // `keep_alive`: lives as long as the array. Throws nb::type_error for an object that is no array or has a dtype that
  // Shoal lacks, nb::buffer_error for an array that is not on the CPU.
  Array(nanobind::handle object, std::optional<int> dtype, nanobind::object keep_alive);
  // Contiguous writable memory of so many elements, which `owner` keeps alive. `may_move`: the address of a byte in the
  // owner that is 1 while it may free or move that memory although somebody holds it; 0: it has no such byte. Throws
  // nb::value_error for a dtype that Shoal lacks.
  static Array at(nanobind::handle owner, std::uintptr_t address, std::size_t elements, int dtype,
                  std::uintptr_t may_move);

  // From hold() to release() the owner may neither free nor move the memory. Nests; under the GIL only.
  void hold() const;
  void release() const;

  std::byte* address() const;
  std::size_t bytes() const { return array_.nbytes(); }
  std::size_t elements() const { return bytes() / size_of(dtype_); }
  DType dtype() const { return dtype_; }
  std::vector<std::int64_t> shape() const;
  bool contiguous() const;
  bool readonly() const { return readonly_; }

 private:
  Array() = default;

  nanobind::ndarray<nanobind::ro> array_;
  nanobind::object keep_alive_;
  std::uint8_t* may_move_ = nullptr;
  bool readonly_ = false;
  DType dtype_ = DType::none;
};

}  // namespace shoal::python
