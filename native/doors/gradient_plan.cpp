#include "doors/gradient_plan.h"

#include <algorithm>

namespace shoal::doors {

std::string problem_with(const GradientPlan& plan) {
  const auto lies_in = [&plan](std::uint32_t arena, std::size_t begin, std::size_t end) {
    return arena < plan.arenas.size() && begin <= end && end <= plan.arenas[arena].bytes;
  };
  if (plan.votes.empty() || plan.votes.size() % 2 != 0) {
    return "votes are a digest and its complement";
  }
  for (const GradientPlan::Arena& arena : plan.arenas) {
    if (size_of(arena.dtype) == 0 || arena.bytes % size_of(arena.dtype) != 0) {
      return "an arena has whole elements of a dtype";
    }
  }
  for (const GradientPlan::Buffer& buffer : plan.buffers) {
    if (!lies_in(buffer.arena, buffer.begin, buffer.end)) {
      return "buffer " + buffer.label + " lies outside of its arena";
    }
  }
  const bool placed = std::all_of(plan.places.begin(), plan.places.end(), [&](const GradientPlan::Place& place) {
    return lies_in(place.arena, place.begin, place.begin + place.bytes) && place.first_buffer <= place.end_buffer &&
           place.end_buffer <= plan.buffers.size();
  });
  return placed ? "" : "a gradient lies outside of its arena or buffers";
}

}  // namespace shoal::doors
