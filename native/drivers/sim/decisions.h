// Checks that one place decides (docs/protocol/recovery.md). The coordinator says the same words in the same order to
// every worker, and workers pass on only its words. It declares ranks lost that have not left, and no others. A rank
// that has left and is gone averages nothing. RECONNECT is a question, and goes to rank 0's worker first.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "drivers/sim/network.h"
#include "drivers/sim/workload.h"
#include "protocol/job.h"

namespace shoal::sim {

class Decisions {
 public:
  explicit Decisions(const Plan& plan) : config_(plan.config), two_networks_(plan.has_two_networks()) {
    weights_[0] = config_.weights;
  }

  // What is wrong with a frame that is sent, or with what was not said when a link was lost; empty: nothing.
  std::string sent(const End& from, const wire::Header& header, const Bytes& owned);
  std::string lost(const End& at);
  void received(const End& to, const wire::Header& header);

 private:
  struct Word {
    wire::Type type{};
    std::uint32_t epoch = 0;
    Bytes bytes;

    friend bool operator==(const Word&, const Word&) = default;
  };

  std::string coordinator_sent(std::uint32_t rank, Word word);
  std::string decided(const Word& word);
  // Whether it holds a server that averages, in the epoch that was decided last.
  bool averages(std::uint32_t rank) const;

  const JobConfig& config_;
  const bool two_networks_;                                      // every worker but rank 0's has two control links
  std::vector<Word> words_;                                      // in the order in which they were first said
  std::unordered_map<std::uint32_t, std::size_t> heard_;         // by rank: how many of them it was told
  std::map<std::uint32_t, std::vector<std::uint32_t>> weights_;  // by epoch
  std::set<std::uint32_t> left_;                                 // ranks whose LEAVE the coordinator has
  std::set<std::uint32_t> lost_;                                 // ranks that it has declared lost
  std::set<std::uint32_t> halved_;                               // ranks one of whose two links it has lost
  std::set<std::uint32_t> gone_;                                 // ranks whose links it has lost: it tells them nothing
  bool broken_ = false;                                          // there is no server any more, and it has said so
  bool ended_ = false;
};

}  // namespace shoal::sim
