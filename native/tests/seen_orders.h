// Words of shared memory (protocol/local/word.h) as a machine with weak ordering may show them: for tests in one thread
// that run through all orders. Compiled into protocol/local in the place of atomics.
//
// Every store of a word is kept. A rank that loads a Counter may get any of them that is not older than what it knows;
// it then knows all that the writer knew when it stored that. Of a Flag or a Position it gets the last. What is copied
// and summed is watched: whoever reads or writes bytes has to know of every write to them, and whoever writes of every
// read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace shoal::local::seen_orders {

// What is tried: a path through all decisions of a run, and the next one.
class Choices {
 public:
  std::uint32_t pick(std::uint32_t count) {
    if (at_ == path_.size()) {
      path_.push_back({0, count});
    }
    return path_[at_++].first;
  }
  // Whether there is another path.
  bool next() {
    at_ = 0;
    while (!path_.empty() && path_.back().first + 1 == path_.back().second) {
      path_.pop_back();
    }
    if (path_.empty()) {
      return false;
    }
    ++path_.back().first;
    return true;
  }

 private:
  std::vector<std::pair<std::uint32_t, std::uint32_t>> path_;
  std::size_t at_ = 0;
};

class Memory {
 public:
  // `stale`: how many loads of a run may get what is not the last store. `publishes`: whether Counters carry what their
  // writer knew; `decides`: whether Flags and Positions are the last store for all.
  Memory(std::uint32_t ranks, Choices& choices, std::uint32_t stale, bool publishes = true, bool decides = true)
      : choices_(choices),
        stale_(stale),
        publishes_(publishes),
        decides_(decides),
        known_(ranks, Clock(ranks)),
        seen_(ranks) {}

  void act_as(std::uint32_t rank) {
    took_stale_ = false;
    rank_ = rank;
    ++known_[rank][rank];
  }

  std::uint64_t load(const void* word, bool decides) {
    const std::vector<Store>& stores = words_[word];
    if (stores.empty()) {
      return 0;
    }
    // One more than the index of a store; 0: what was there before all of them.
    std::size_t& seen = seen_[rank_][word];
    std::size_t index = stores.size();
    const bool may_be_stale = seen < stores.size() && stores.back().rank != rank_ && stale_ > 0;
    if ((!decides || !decides_) && may_be_stale) {
      index = seen + choices_.pick(static_cast<std::uint32_t>(stores.size() - seen + 1));
      if (index < stores.size()) {
        --stale_;
        took_stale_ = true;
      }
    }
    seen = std::max(seen, index);
    if (index == 0) {
      return 0;
    }
    const Store& store = stores[index - 1];
    if (decides || publishes_) {
      join(known_[rank_], store.known);
      for (const auto& [other, count] : store.seen) {
        seen_[rank_][other] = std::max(seen_[rank_][other], count);
      }
    }
    return store.value;
  }

  void store(const void* word, std::uint64_t value) {
    std::vector<Store>& stores = words_[word];
    seen_[rank_][word] = stores.size() + 1;
    stores.push_back({value, rank_, known_[rank_], seen_[rank_]});
  }

  // Whether this rank, since it acts, has loaded what was not the last store: it would find more if it looked again.
  bool took_stale() const { return took_stale_; }

  void wrote(const std::byte* begin, std::size_t bytes) { touch(begin, bytes, true); }
  void read(const std::byte* begin, std::size_t bytes) { touch(begin, bytes, false); }

 private:
  using Clock = std::vector<std::uint64_t>;  // by rank: steps
  struct Store {
    std::uint64_t value;
    std::uint32_t rank;
    Clock known;
    std::map<const void*, std::size_t> seen;
  };
  struct Bytes {
    Clock written;  // by rank: in which of its steps it last wrote, or read
    Clock read;
  };

  static void join(Clock& clock, const Clock& other) {
    for (std::size_t i = 0; i < clock.size(); ++i) {
      clock[i] = std::max(clock[i], other[i]);
    }
  }

  // In units that nothing straddles.
  void touch(const std::byte* begin, std::size_t bytes, bool writes) {
    constexpr std::size_t unit = 64;
    const auto first = reinterpret_cast<std::uintptr_t>(begin) / unit;
    const auto last = (reinterpret_cast<std::uintptr_t>(begin) + bytes + unit - 1) / unit;
    for (std::uintptr_t at = first; at < last; ++at) {
      Bytes& touched = bytes_.try_emplace(at, Bytes{Clock(known_.size()), Clock(known_.size())}).first->second;
      for (std::uint32_t rank = 0; rank < known_.size(); ++rank) {
        const bool unknown =
            touched.written[rank] > known_[rank_][rank] || (writes && touched.read[rank] > known_[rank_][rank]);
        if (rank != rank_ && unknown) {
          throw std::runtime_error("rank " + std::to_string(rank_) + (writes ? " writes" : " reads") +
                                   " bytes of which it does not know that rank " + std::to_string(rank) +
                                   " is through with them");
        }
      }
      (writes ? touched.written : touched.read)[rank_] = known_[rank_][rank_];
    }
  }

  Choices& choices_;
  std::uint32_t stale_;
  const bool publishes_;
  const bool decides_;
  std::uint32_t rank_ = 0;
  bool took_stale_ = false;
  std::vector<Clock> known_;                              // by rank: what it knows of the others' steps
  std::vector<std::map<const void*, std::size_t>> seen_;  // by rank and word
  std::map<const void*, std::vector<Store>> words_;
  std::map<std::uintptr_t, Bytes> bytes_;
};

// The memory of the run; there is one thread.
inline Memory* current = nullptr;

inline std::uint64_t load(const void* word, bool decides) { return current->load(word, decides); }
inline void store(const void* word, std::uint64_t value, bool /*decides*/) { current->store(word, value); }

}  // namespace shoal::local::seen_orders
