#include "protocol/server/receipts.h"

#include <algorithm>
#include <numeric>

#include "base/invariant.h"
#include "protocol/collectives.h"

namespace shoal::server {

Receipts::Receipts(const Terms& terms, Links& links) : terms_(terms), links_(links), workers_(terms.ranks()) {}

void Receipts::begin(const Operation& operation) {
  const wire::Opening& attributes = operation.attributes();
  const bool small = terms_.is_small(attributes);
  Receipt& receipt = receipts_[operation.serial()];
  for (std::size_t i = 0; i < operation.size(); ++i) {
    receipt.members.emplace_back(operation.rank(i), operation.member(i).number);
  }
  const CollectiveTraits& traits = traits_of(attributes.collective);
  receipt.by_segment = !small && traits.shares_results() && !terms_.takes_ring(attributes);
  receipt.urgent = !small && traits.needs_contributors();
}

void Receipts::expect(std::uint64_t serial, std::uint64_t segment) {
  Receipt& receipt = receipts_.at(serial);
  ++receipt.awaited;
  if (receipt.by_segment) {
    receipt.missing.resize(std::max<std::size_t>(receipt.missing.size(), segment - receipt.settled + 1));
    ++receipt.missing[segment - receipt.settled];
  }
}

void Receipts::sent(std::uint32_t rank, std::uint64_t serial, std::uint64_t segment) {
  ++workers_[rank].sent;
  workers_[rank].on_their_way.push_back({serial, segment});
}

void Receipts::end(std::uint64_t serial) {
  const auto found = receipts_.find(serial);
  if (found != receipts_.end()) {
    found->second.ended = true;
    settle_if_all_have(found);
  }
}

std::uint64_t Receipts::settled(std::uint64_t serial) const { return receipts_.at(serial).settled; }

Status Receipts::check(std::uint32_t rank, std::uint32_t acknowledged) const {
  const Worker& from = workers_[rank];
  return acknowledged - from.acknowledged <= from.sent - from.acknowledged
             ? Status{}
             : refused("acknowledges results that were not sent");
}

void Receipts::acknowledge(std::uint32_t rank, std::uint32_t acknowledged) {
  Worker& from = workers_[rank];
  const std::uint32_t more = acknowledged - std::exchange(from.acknowledged, acknowledged);
  for (std::uint32_t i = 0; i < more && !from.on_their_way.empty(); ++i) {
    const Sent one = from.on_their_way.front();
    from.on_their_way.pop_front();
    const auto found = receipts_.find(one.serial);
    if (found == receipts_.end()) {
      continue;
    }
    Receipt& receipt = found->second;
    --receipt.awaited;
    if (receipt.by_segment) {
      --receipt.missing[one.segment - receipt.settled];
      while (!receipt.missing.empty() && receipt.missing.front() == 0) {
        receipt.missing.pop_front();
        ++receipt.settled;
      }
    }
    settle_if_all_have(found);
  }
}

void Receipts::settle_if_all_have(std::unordered_map<std::uint64_t, Receipt>::iterator place) {
  if (!place->second.ended || place->second.awaited > 0) {
    return;
  }
  const Receipt receipt = std::move(place->second);
  receipts_.erase(place);
  for (const auto& [rank, number] : receipt.members) {
    links_.tell_settled(rank, number, receipt.urgent);
  }
}

void Receipts::begin_epoch() {
  receipts_.clear();
  for (Worker& one : workers_) {
    one = {};
  }
}

void Receipts::check_invariants() const {
  for (std::uint32_t rank = 0; rank < workers_.size(); ++rank) {
    const Worker& worker = workers_[rank];
    SHOAL_INVARIANT(links_.is_lost(rank) ? worker.on_their_way.empty()
                                         : worker.on_their_way.size() == worker.sent - worker.acknowledged);
  }
  for (const auto& [serial, receipt] : receipts_) {
    SHOAL_INVARIANT(!receipt.ended || receipt.awaited > 0);
    SHOAL_INVARIANT(receipt.missing.empty() || receipt.missing.front() > 0);
    SHOAL_INVARIANT(!receipt.by_segment || receipt.awaited == std::accumulate(receipt.missing.begin(),
                                                                              receipt.missing.end(), std::uint64_t{0}));
  }
}

}  // namespace shoal::server
