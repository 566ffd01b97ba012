#include "protocol/coordinator/members.h"

#include <algorithm>
#include <utility>

#include "base/invariant.h"

namespace shoal {

using wire::Type;

void Members::attach(LinkId link, std::uint32_t rank) {
  members_[rank].links.add(link);
  ranks_[link] = rank;
}

bool Members::detach(LinkId link) {
  TwinLinks& links = members_[rank_of(link)].links;
  links.remove(link);
  ranks_.erase(link);
  return !links.empty();
}

bool Members::lose(std::uint32_t rank) { return !std::exchange(members_[rank].lost, true); }

bool Members::all_are_there() const {
  return std::none_of(members_.begin(), members_.end(), [](const Member& one) { return one.left || one.lost; });
}

bool Members::all_are_gone() const {
  return std::all_of(members_.begin(), members_.end(), [](const Member& one) { return one.left || one.lost; });
}

void Members::tell(std::uint32_t rank, Type type, const wire::Bytes& bytes, std::uint32_t epoch) {
  const wire::Header header{.type = type, .epoch = epoch, .length = static_cast<std::uint32_t>(bytes.size())};
  members_[rank].links.send(world_, header, bytes);
}

void Members::tell_all(Type type, const wire::Bytes& bytes, std::uint32_t epoch) {
  for (std::uint32_t rank = 0; rank < members_.size(); ++rank) {
    tell(rank, type, bytes, epoch);
  }
}

void Members::end_if_all_gone() {
  if (all_are_gone() && !std::exchange(ended_, true)) {
    tell_all(Type::ended, {});
  }
}

void Members::check_invariants() const {
  std::size_t linked = 0;
  for (std::uint32_t rank = 0; rank < members_.size(); ++rank) {
    members_[rank].links.check_invariants();
    linked += members_[rank].links.size();
  }
  for (const auto& [link, rank] : ranks_) {
    SHOAL_INVARIANT(members_[rank].links.has(link));
  }
  SHOAL_INVARIANT(ranks_.size() == linked);
  SHOAL_INVARIANT(ended_ == all_are_gone());
}

}  // namespace shoal
