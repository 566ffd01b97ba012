// One place decides: the coordinator says the same words in the same order to every node, and nodes take to the servers
// what it said and nothing else. docs/protocol.md, section 8. (RECONNECT, which goes to rank 0's node first, asks.)
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "drivers/sim/network.h"

namespace shoal::sim {

class Decisions {
 public:
  // What is wrong with a frame that is sent; empty: nothing.
  std::string sent(const End& from, const wire::Header& header, const Bytes& owned);

 private:
  struct Word {
    wire::Type type{};
    std::uint32_t epoch = 0;
    Bytes bytes;

    friend bool operator==(const Word&, const Word&) = default;
  };

  std::string coordinator_sent(std::uint32_t rank, Word word);

  std::vector<Word> words_;                                      // in the order in which they were first said
  std::unordered_map<std::uint32_t, std::size_t> heard_;         // by rank: how many of them it was told
  std::map<std::uint32_t, std::vector<std::uint32_t>> weights_;  // by epoch
};

}  // namespace shoal::sim
