#include "engine/returning.h"

#include <cstdint>
#include <cstring>
#include <limits>

namespace shoal::engine {

void Returning::pass(bool well) const {
  if (!well && output != nullptr) {
    fill();
  }
  gate.pass();
}

void Returning::fill() const {
  const auto with = [this](auto nan) {
    for (std::size_t at = 0; at + sizeof nan <= bytes; at += sizeof nan) {
      std::memcpy(output + at, &nan, sizeof nan);
    }
  };
  switch (dtype) {
    case DType::float16:
      return with(std::uint16_t{0x7e00});
    case DType::bfloat16:
      return with(std::uint16_t{0x7fc0});
    case DType::float32:
      return with(std::numeric_limits<float>::quiet_NaN());
    case DType::float64:
      return with(std::numeric_limits<double>::quiet_NaN());
    default:
      std::memset(output, 0, bytes);
      return;
  }
}

}  // namespace shoal::engine
