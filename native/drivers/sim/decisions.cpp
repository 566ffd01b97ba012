#include "drivers/sim/decisions.h"

#include <utility>

#include "wire/epoch.h"

namespace shoal::sim {

using wire::Type;

std::string Decisions::sent(const End& from, const wire::Header& header, const Bytes& owned) {
  if (from.kind == LinkKind::control && !from.is_client) {
    if (header.type == Type::reconnect || header.type == Type::gone) {
      return "";  // asks rank 0's worker first, or is for the ranks of one machine; decides nothing
    }
    if (from.service != 0) {
      return "";  // the same again
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
  return right ? "" : "the worker announces an epoch that the coordinator has not decided";
}

std::string Decisions::coordinator_sent(std::uint32_t rank, Word word) {
  const std::size_t place = heard_[rank]++;
  if (place < words_.size()) {
    return words_[place] == word ? "" : "the coordinator tells one worker something else than another";
  }
  std::string wrong = decided(word);
  words_.push_back(std::move(word));
  return wrong;
}

std::string Decisions::decided(const Word& word) {
  wire::Epoch epoch;
  wire::Loss loss;
  if (word.type == Type::epoch) {
    if (!wire::decode(word.bytes, epoch).ok() || word.epoch != weights_.size()) {
      return "the coordinator decides on an epoch that is not the next";
    }
    weights_[word.epoch] = epoch.weights;
  } else if (word.type == Type::ended) {
    ended_ = true;
  } else if (wire::decode(word.bytes, loss).ok()) {
    if (loss.kind == wire::Loss::Kind::server) {
      broken_ = true;
      return "";
    }
    if (left_.count(loss.index) > 0) {
      return "the coordinator declares a rank lost that has left";
    }
    lost_.insert(loss.index);
  }
  return "";
}

void Decisions::received(const End& to, const wire::Header& header) {
  if (to.kind == LinkKind::control && !to.is_client && header.type == Type::leave) {
    left_.insert(to.client);
  }
}

std::string Decisions::lost(const End& at) {
  if (at.kind != LinkKind::control || at.is_client) {
    return "";
  }
  if (two_networks_ && at.client != 0 && halved_.insert(at.client).second) {
    return "";
  }
  gone_.insert(at.client);
  if (gone_.size() == config_.size() || lost_.count(at.client) > 0) {
    return "";
  }
  if (left_.count(at.client) == 0) {
    return "the coordinator does not mind the loss of a rank that is needed";
  }
  return averages(at.client) && !broken_ && !ended_ ? "the coordinator leaves a share to a rank that is gone" : "";
}

bool Decisions::averages(std::uint32_t rank) const {
  const std::vector<std::uint32_t>& weights = weights_.rbegin()->second;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] > 0 && config_.server_ranks[i] == static_cast<std::int32_t>(rank)) {
      return true;
    }
  }
  return false;
}

}  // namespace shoal::sim
