// Arrays that lie in the memory that the ranks share: how ranks hear where, and how they get rid of each other.
#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

#include "drivers/shm/room_impl.h"

namespace shoal::shm {

// Only the very same array, or two that are apart: what is written in one block must not be read in the next.
std::optional<Place> Room::Impl::place_of(const Submission& submission) const {
  const std::byte* const input = submission.input;
  const std::byte* const output = submission.output;
  const std::uint64_t bytes = submission.input_bytes;
  const bool apart = input + bytes <= output || output + bytes <= input;
  if ((input != output && !apart) || !arena_->holds(input, bytes) || !arena_->holds(output, bytes)) {
    return std::nullopt;
  }
  const std::byte* const region = memory_->region(rank_);
  return Place{static_cast<std::uint64_t>(input - region), static_cast<std::uint64_t>(output - region)};
}

// All ranks have read the same, so all come to the same. What goes on to the network, goes from the first rank's
// output.
Arrays Room::Impl::arrays_of(const Operation& operation) const {
  Arrays arrays;
  for (std::uint32_t rank : operation.group->here) {
    const std::optional<Place>& place = operation.calls[rank].place;
    if (!place.has_value()) {
      return {};
    }
    const std::uint64_t bytes = operation.opening.bytes;
    const std::uint64_t most = memory_->shape().region;
    if (bytes > most || place->input > most - bytes || place->output > most - bytes) {
      throw std::runtime_error("the node's shared memory is damaged");
    }
    memory_->open(rank, std::max(place->input, place->output) + bytes);
    std::byte* const region = memory_->region(rank);
    arrays.inputs.push_back(region + place->input);
    if (!has_uplink_ || rank == 0) {
      arrays.outputs.push_back(region + place->output);
    }
  }
  return arrays;
}

// Whoever has seen all openings may go on with an operation that has ended here. Inputs are only read, and with an
// uplink also the outputs of all but the first rank.
void Room::Impl::detach_arrays() {
  desk_.withdrawn.store(1);
  if (has_uplink_ && !is_first()) {
    return;
  }
  for (const auto& [key, operation] : operations_) {
    const Call& own = operation->calls[rank_];
    if (own.place.has_value() && operation->state != Operation::State::over) {
      try {
        arena_->detach(operation->submission.output, operation->opening.bytes);
      } catch (const std::exception& error) {
        world_.warn("'" + operation->opening.name + "': " + error.what() +
                    "; other ranks may still write into its output");
      }
    }
  }
}

}  // namespace shoal::shm
