// What a server says to a worker that asks whom one of its operations waits for. docs/protocol/lifecycle.md, Stalls.
#include <algorithm>
#include <limits>

#include "protocol/server/impl.h"
#include "wire/late.h"

namespace shoal {

using wire::Late;

void Server::Impl::receive_ask(std::uint32_t rank) {
  const WorkerState& from = worker(rank);
  const std::uint64_t number = from.header.operation;
  Late late;
  if (const std::optional<Place> at = place(rank, number)) {
    add_late(*at->operation, late);
  }
  // A root waits until all others have been written to, which may be after the operation.
  if (from.broadcasting.contains(number)) {
    for (std::uint32_t other = 0; other < config_.size(); ++other) {
      if (worker(other).unwritten > 0) {
        add_late(other, Late::Why::does_not_read, late);
      }
    }
  }
  send(rank, {.type = wire::Type::late, .operation = number}, wire::encode(late));
}

void Server::Impl::add_late(const Operation& operation, wire::Late& late) const {
  const bool flowing = operation.state == Operation::State::flowing;
  if (!flowing && operation.state != Operation::State::gathering) {
    return;
  }
  for (std::size_t i = 0; i < operation.members.size(); ++i) {
    const std::uint32_t rank = operation.group->ranks[i];
    if (!flowing && !operation.members[i].opened) {
      add_late(rank, Late::Why::not_opened, late);
    } else if (flowing && operation.next_result < operation.segments &&
               operation.contributes(i, operation.next_result) && operation.members[i].next <= operation.next_result) {
      add_late(rank, Late::Why::owes_data, late);
    }
  }
}

void Server::Impl::add_late(std::uint32_t rank, wire::Late::Why why, wire::Late& late) const {
  ++late.count;
  if (late.members.size() == wire::late_members) {
    return;
  }
  const WorkerState& of = workers_[rank];
  const Time silent = (now_ - of.heard) / (second / 1000);
  late.members.push_back(
      {rank, why, of.last_opened, of.last_name,
       static_cast<std::uint32_t>(std::clamp<Time>(silent, 0, std::numeric_limits<std::uint32_t>::max()))});
}

}  // namespace shoal
