// Words of shared memory (protocol/local/word.h) as a machine with weak ordering may show them: for tests in one thread
// that run through all orders. Compiled into protocol/local in the place of atomics.
//
// Every store of a word is kept. As words are, a rank that loads one gets the last, and then knows all that its writer
// knew when it stored that. Were they weaker, it might get any that is not older than what it knows. What is copied and
// summed is watched: whoever reads or writes bytes has to know of every write to them, and whoever writes of every
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

// What a word is, from the strongest.
enum class Order {
  decides,    // all ranks see all words change in one order: what is true of them
  publishes,  // whoever sees a store knows what its writer knew, but may see an older one (release and acquire)
  nothing,    // nor does it know what the writer knew (relaxed)
};

class Memory {
 public:
  // `stale`: how many loads of a run may get what is not the last store, where words are weaker than they are.
  Memory(std::uint32_t ranks, Choices& choices, Order order = Order::decides, std::uint32_t stale = 0)
      : choices_(choices),
        stale_(stale),
        order_(order),
        known_(ranks, Clock(ranks)),
        rung_(ranks, Clock(ranks)),
        seen_(ranks),
        rung_seen_(ranks) {}

  void act_as(std::uint32_t rank) {
    rank_ = rank;
    ++known_[rank][rank];
  }

  // A bell is an atomic counter that everybody raises: whoever has heard it knows what the ringers knew.
  void ring(std::uint32_t rank) {
    join(rung_[rank], known_[rank_]);
    join(rung_seen_[rank], seen_[rank_]);
  }
  void hear() {
    join(known_[rank_], rung_[rank_]);
    join(seen_[rank_], rung_seen_[rank_]);
  }

  std::uint64_t load(const void* word) {
    const std::vector<Store>& stores = words_[word];
    if (stores.empty()) {
      return 0;
    }
    // One more than the index of a store; 0: what was there before all of them.
    std::size_t& seen = seen_[rank_][word];
    std::size_t index = stores.size();
    const bool may_be_stale = seen < stores.size() && stores.back().rank != rank_ && stale_ > 0;
    if (order_ != Order::decides && may_be_stale) {
      index = seen + choices_.pick(static_cast<std::uint32_t>(stores.size() - seen + 1));
      stale_ -= index < stores.size() ? 1 : 0;
    }
    seen = std::max(seen, index);
    if (index == 0) {
      return 0;
    }
    const Store& store = stores[index - 1];
    if (order_ != Order::nothing) {
      join(known_[rank_], store.known);
      join(seen_[rank_], store.seen);
    }
    return store.value;
  }

  void store(const void* word, std::uint64_t value) {
    std::vector<Store>& stores = words_[word];
    seen_[rank_][word] = stores.size() + 1;
    stores.push_back({value, rank_, known_[rank_], seen_[rank_]});
    ++known_[rank_][rank_];  // what follows in the same step is not published with it
  }

  void wrote(const std::byte* begin, std::size_t bytes) { touch(begin, bytes, true); }
  void read(const std::byte* begin, std::size_t bytes) { touch(begin, bytes, false); }

 private:
  using Clock = std::vector<std::uint64_t>;         // by rank: steps, and stores in them
  using Seen = std::map<const void*, std::size_t>;  // by word: stores
  struct Store {
    std::uint64_t value;
    std::uint32_t rank;
    Clock known;
    Seen seen;
  };
  struct Bytes {
    Clock written;  // by rank: between which of its stores it last wrote, or read
    Clock read;
  };

  static void join(Clock& clock, const Clock& other) {
    for (std::size_t i = 0; i < clock.size(); ++i) {
      clock[i] = std::max(clock[i], other[i]);
    }
  }

  static void join(Seen& seen, const Seen& other) {
    for (const auto& [word, count] : other) {
      seen[word] = std::max(seen[word], count);
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
  const Order order_;
  std::uint32_t rank_ = 0;
  std::vector<Clock> known_;  // by rank: what it knows of the others' steps
  std::vector<Clock> rung_;   // by rank: what those knew who have rung for it
  std::vector<Seen> seen_;
  std::vector<Seen> rung_seen_;
  std::map<const void*, std::vector<Store>> words_;
  std::map<std::uintptr_t, Bytes> bytes_;
};

// The memory of the run; there is one thread.
inline Memory* current = nullptr;

inline std::uint64_t load(const void* word) { return current->load(word); }
inline void store(const void* word, std::uint64_t value) { current->store(word, value); }

}  // namespace shoal::local::seen_orders
