// Where the gradients of a training step lie, as src/shoal/gradients lays them out: arenas, one a dtype, cut into
// fusion buffers. All sizes and offsets are bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/types.h"

namespace shoal::doors {

struct GradientPlan {
  struct Arena {
    DType dtype = DType::none;
    std::size_t bytes = 0;
  };
  // One gradient, and the buffers that hold bytes of it: [first_buffer, end_buffer).
  struct Place {
    std::uint32_t arena = 0;
    std::size_t begin = 0;
    std::size_t bytes = 0;
    std::uint32_t first_buffer = 0;
    std::uint32_t end_buffer = 0;
  };
  struct Buffer {
    std::string label;
    std::uint32_t arena = 0;
    std::size_t begin = 0;
    std::size_t end = 0;
  };

  std::vector<Arena> arenas;
  std::vector<Place> places;
  std::vector<Buffer> buffers;
  // A digest of all this and its complement: the elementwise maximum over the ranks is the same if all have the same
  // (src/shoal/gradients/agreement.py).
  std::vector<std::uint8_t> votes;
};

// What is wrong with it; empty if nothing.
std::string problem_with(const GradientPlan& plan);

}  // namespace shoal::doors
