#include "drivers/sim/decisions.h"

#include <utility>

#include "wire/epoch.h"

namespace shoal::sim {

using wire::Type;

std::string Decisions::sent(const End& from, const wire::Header& header, const Bytes& owned) {
  if (from.kind == LinkKind::control && !from.is_client) {
    if (header.type == Type::reconnect) {
      return "";  // asks rank 0's node first, and decides nothing
    }
    return coordinator_sent(from.client, {header.type, header.epoch, owned});
  }
  const bool announces = from.kind == LinkKind::server && from.is_client && header.type == Type::epoch &&
                         (header.flags & wire::flag_reopened) == 0;
  wire::Epoch epoch;
  if (!announces || !wire::decode(owned, epoch).ok()) {
    return "";
  }
  const auto decided = weights_.find(header.epoch);
  const bool right = decided != weights_.end() && decided->second == epoch.weights;
  return right ? "" : "the node announces an epoch that the coordinator has not decided";
}

std::string Decisions::coordinator_sent(std::uint32_t rank, Word word) {
  const std::size_t place = heard_[rank]++;
  if (place < words_.size()) {
    return words_[place] == word ? "" : "the coordinator tells one node something else than another";
  }
  wire::Epoch epoch;
  if (word.type == Type::epoch) {
    if (!wire::decode(word.bytes, epoch).ok() || word.epoch != weights_.size() + 1) {
      return "the coordinator decides on an epoch that is not the next";
    }
    weights_[word.epoch] = epoch.weights;
  }
  words_.push_back(std::move(word));
  return "";
}

}  // namespace shoal::sim
