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
  // `keep_alive`: lives as long as the array. Throws nb::type_error for what is no array or has no dtype of ours,
  // nb::buffer_error for one not on the CPU.
  Array(nanobind::handle object, std::optional<int> dtype, nanobind::object keep_alive);
  // Contiguous writable memory of so many elements, which `owner` keeps alive. `may_move`: where the owner has a byte
  // that is 1 if it may free that memory, or put it elsewhere, although somebody holds it; 0: it has none. Throws
  // nb::value_error for what is no dtype of ours.
  static Array at(nanobind::handle owner, std::uintptr_t address, std::size_t elements, int dtype,
                  std::uintptr_t may_move);

  // From hold() to release() the owner may not: under the GIL, as often as one likes.
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
