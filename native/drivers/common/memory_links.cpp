#include "drivers/common/memory_links.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/invariant.h"
#include "drivers/common/checked.h"

namespace shoal {

void MemoryLinks::add(LinkId one, Machine& machine, LinkId other, Machine& other_machine) {
  ends_[one] = {&machine, other};
  ends_[other] = {&other_machine, one};
}

std::size_t MemoryLinks::count(const Machine& machine) const {
  return static_cast<std::size_t>(
      std::count_if(ends_.begin(), ends_.end(), [&](const auto& entry) { return entry.second.machine == &machine; }));
}

void MemoryLinks::send(Machine& machine, LinkId link, const wire::Header& header, Bytes owned,
                       std::span<const std::byte> borrowed, Token token) {
  if (!borrowed.empty()) {
    ++borrowed_frames_[token];
  }
  queue_.push_back({false, &machine, link, token, header, std::move(owned), borrowed});
  follow_ups_.add_memory(machine);
}

void MemoryLinks::detach(const Machine& machine, Token token) {
  // There may be very many.
  if (!borrowed_frames_.contains(token)) {
    return;
  }
  for (Queued& next : queue_) {
    if (!next.is_close && next.machine == &machine && next.token == token) {
      give_back(next);
      next.owned.insert(next.owned.end(), next.borrowed.begin(), next.borrowed.end());
      next.borrowed = {};
    }
  }
}

void MemoryLinks::close(LinkId link) {
  const auto end = ends_.find(link);
  if (end == ends_.end()) {
    return;
  }
  const LinkId other = end->second.other;
  ends_.erase(end);
  ++gone_;
  if (const auto rest = ends_.find(other); rest != ends_.end()) {
    queue_.push_back({true, rest->second.machine, other});
    follow_ups_.add_memory(*rest->second.machine);
  }
}

void MemoryLinks::forget(const Machine& machine) {
  std::vector<LinkId> links;
  for (const auto& [link, end] : ends_) {
    if (end.machine == &machine) {
      links.push_back(link);
    }
  }
  std::for_each(links.begin(), links.end(), [this](LinkId link) { close(link); });
  std::erase_if(queue_, [&](const Queued& next) {
    if (next.machine == &machine) {
      give_back(next);
    }
    return next.machine == &machine;
  });
}

void MemoryLinks::carry_out_next() {
  const Queued next = std::move(queue_.front());
  queue_.pop_front();
  if (next.is_close) {
    lose(next.link, Status::error(Code::peer_lost, "connection closed by peer"));
    return;
  }
  give_back(next);
  deliver(next);
  follow_ups_.add_sent(*next.machine, next.token);
}

void MemoryLinks::give_back(const Queued& frame) {
  const auto lent = frame.borrowed.empty() ? borrowed_frames_.end() : borrowed_frames_.find(frame.token);
  if (lent != borrowed_frames_.end() && --lent->second == 0) {
    borrowed_frames_.erase(lent);
  }
}

void MemoryLinks::deliver(const Queued& frame) {
  const auto sender = ends_.find(frame.link);
  if (sender == ends_.end()) {
    return;
  }
  const LinkId to = sender->second.other;
  const auto receiver = ends_.find(to);
  if (receiver == ends_.end()) {
    return;
  }
  Machine& machine = *receiver->second.machine;
  const Placement placement = machine.on_header(to, frame.header);
  if (!ends_.contains(to)) {
    return;
  }
  if (!placement.status.ok()) {
    lose(to, placement.status);
    return;
  }
  if (!frame.owned.empty()) {
    std::memcpy(placement.memory, frame.owned.data(), frame.owned.size());
  }
  if (!frame.borrowed.empty()) {
    std::memcpy(placement.memory + frame.owned.size(), frame.borrowed.data(), frame.borrowed.size());
  }
  const Status status = machine.on_payload(to);
  if (!status.ok() && ends_.contains(to)) {
    lose(to, status);
    return;
  }
  check_after_event(machine);
}

void MemoryLinks::lose(LinkId link, const Status& why) {
  const auto end = ends_.find(link);
  if (end == ends_.end()) {
    return;
  }
  Machine& machine = *end->second.machine;
  close(link);
  machine.on_lost(link, why);
  check_after_event(machine);
}

void MemoryLinks::check_invariants() const {
  SHOAL_INVARIANT(queue_.size() == follow_ups_.count(FollowUp::Kind::memory));
  for (const auto& [link, end] : ends_) {
    const auto other = ends_.find(end.other);
    SHOAL_INVARIANT(other == ends_.end() || other->second.other == link);
  }
  std::size_t lent = 0;
  for (const auto& [token, times] : borrowed_frames_) {
    SHOAL_INVARIANT(times > 0);
    lent += times;
  }
  const auto borrows = [](const Queued& next) { return !next.borrowed.empty(); };
  SHOAL_INVARIANT(lent == static_cast<std::size_t>(std::count_if(queue_.begin(), queue_.end(), borrows)));
}

}  // namespace shoal
