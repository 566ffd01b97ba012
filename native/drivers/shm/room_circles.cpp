// What a room knows of the operations that its rank waits for, and how one fails that can never be complete since ranks
// wait for each other in a circle (protocol/coordinator/circles.h).
#include <algorithm>
#include <utility>

#include "drivers/shm/room_impl.h"
#include "protocol/keys.h"

namespace shoal::shm {

std::map<std::uint64_t, wire::Wait> Room::Impl::described(const std::vector<std::uint64_t>& handles) {
  std::map<std::uint64_t, wire::Wait> waits;
  const std::lock_guard lock(mutex_);
  for (const auto& [key, operation] : operations_) {
    const bool is_open = operation->called && operation->state != Operation::State::over;
    if (is_open && std::binary_search(handles.begin(), handles.end(), operation->submission.handle)) {
      const wire::Opening& opening = operation->opening;
      waits.emplace(operation->submission.handle,
                    wire::Wait{{opening.group, opening.occurrence, opening.name}, opening.collective, {}});
    }
  }
  return waits;
}

bool Room::Impl::has_called(const wire::Call& call) {
  const std::lock_guard lock(mutex_);
  const auto calls = occurrences_.find(operation_key(call.group, call.name, 0));
  return calls != occurrences_.end() && calls->second > call.occurrence;
}

// By the network's thread, which cannot be asked anything meanwhile: what comes up is for the next thread of a round.
Room::Failed Room::Impl::fail_call(const wire::Call& call, const Status& why) {
  Failed failed;
  {
    const std::lock_guard lock(mutex_);
    Operation* const operation = find(operation_key(call.group, call.name, call.occurrence));
    if (closed_ || !broken_.ok() || operation == nullptr || !operation->called) {
      return failed;
    }
    failed.found = operation->state != Operation::State::over;
    if (operation->state == Operation::State::gathering && !operation->overdue && !operation->withheld) {
      fail_gathering(*operation, why);
    } else if (operation->at_network) {
      failed.at_network = operation->submission.handle;
    }
  }
  ring(desk_, true);
  return failed;
}

}  // namespace shoal::shm
