#include "protocol/server/links.h"

#include <utility>

#include "base/invariant.h"
#include "base/limits.h"
#include "wire/epoch.h"

namespace shoal::server {

using wire::Header;
using wire::Type;

Links::Links(std::uint32_t ranks, const Epochs& epochs, ServerWorld& world, BufferPool& pool)
    : epochs_(epochs), world_(world), pool_(pool), workers_(ranks), notices_(ranks) {}

void Links::attach(LinkId link, std::uint32_t rank) {
  workers_[rank].link = link;
  ranks_.emplace(link, rank);
}

void Links::lose(LinkId link) {
  Worker& gone = workers_[rank_of(link)];
  ranks_.erase(link);
  gone.link.reset();
  gone.lost = true;
  gone.payload = Buffer();
}

Placement Links::begin_frame(std::uint32_t rank, const Header& header) {
  Worker& from = workers_[rank];
  from.header = header;
  from.payload = header.length > 0 ? pool_.take(header.length) : Buffer();
  return {{}, from.payload.data(), &from.payload};
}

wire::ConstBytes Links::payload(std::uint32_t rank) const {
  const Buffer& payload = workers_[rank].payload;
  return {payload.data(), payload.size()};
}

// What all have goes ahead of a frame, so that it is never alone for long.
bool Links::send(std::uint32_t rank, Header header, wire::Bytes owned, std::span<const std::byte> borrowed,
                 Token token) {
  Worker& to = workers_[rank];
  if (!to.link) {
    return false;
  }
  if (header.type != Type::have && notices_.goes_along(rank, now_)) {
    send_notices(rank);
  }
  header.epoch = epochs_.number();
  header.length = static_cast<std::uint32_t>(owned.size() + borrowed.size());
  if (token != 0) {
    ++to.unwritten;
    token = token * limits::world_size + rank;  // written() shall know whose it was
  }
  world_.send(*to.link, header, std::move(owned), borrowed, token);
  return true;
}

void Links::grant(std::uint32_t rank, std::uint32_t credit) {
  if (credit > 0) {
    send(rank, {.type = Type::grant, .credit = credit});
  }
}

Links::Written Links::written(Token token) {
  const Written written{static_cast<std::uint32_t>(token % limits::world_size), token / limits::world_size};
  --workers_[written.rank].unwritten;
  return written;
}

void Links::tell_settled(std::uint32_t rank, std::uint64_t number, bool at_once) {
  const Worker& to = workers_[rank];
  if (to.link && !to.left && notices_.add(rank, number, at_once, now_)) {
    send_notices(rank);
  }
}

void Links::send_notices(std::uint32_t rank) {
  const std::vector<std::uint64_t> numbers = notices_.take(rank);
  if (!numbers.empty() && !workers_[rank].left) {
    send(rank, {.type = Type::have}, wire::encode_numbers(numbers));
  }
}

void Links::tell_overdue() {
  if (notices_.on_time(now_)) {
    for (std::uint32_t rank = 0; rank < workers_.size(); ++rank) {
      send_notices(rank);
    }
  }
}

void Links::compete(bool on) {
  if (std::exchange(competing_, on) == on) {
    return;
  }
  for (std::uint32_t rank = 0; rank < workers_.size(); ++rank) {
    if (workers_[rank].link) {
      world_.compete(*workers_[rank].link, on);
    }
    if (epochs_.is_current(rank)) {
      tell_to_compete(rank);
    }
  }
}

void Links::repeat_competing(std::uint32_t rank) {
  if (competing_ || workers_[rank].told_to_compete) {
    tell_to_compete(rank);
  }
}

void Links::tell_to_compete(std::uint32_t rank) {
  workers_[rank].told_to_compete |= competing_;
  send(rank, {.type = Type::window, .flags = competing_ ? wire::flag_competing : std::uint8_t{0}});
}

void Links::check_invariants() const {
  std::size_t linked = 0;
  for (std::uint32_t rank = 0; rank < workers_.size(); ++rank) {
    const Worker& worker = workers_[rank];
    SHOAL_INVARIANT(!worker.link || ranks_.at(*worker.link) == rank);
    SHOAL_INVARIANT(!worker.lost || (!worker.link && !worker.payload));
    SHOAL_INVARIANT(!worker.payload || worker.payload.size() == worker.header.length);
    linked += worker.link ? 1 : 0;
  }
  SHOAL_INVARIANT(ranks_.size() == linked);
  notices_.check_invariants();
}

}  // namespace shoal::server
