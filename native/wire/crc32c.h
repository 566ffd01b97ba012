// The check of a frame's header: docs/protocol/format.md, Frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace shoal::wire {

// CRC-32C (Castagnoli) of some bytes, by the processor's own instruction where it has one.
std::uint32_t crc32c(std::span<const std::byte> bytes);

}  // namespace shoal::wire
