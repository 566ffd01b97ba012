// A word of memory that the ranks of a machine share: its own rank writes it, the others read it.
//
// All ranks see all words change in one order (sequentially consistent). Ranks decide by it: of two that each write a
// word and then read the other's, at least one sees both. So the last rank to come to a point knows that it is the last
// and rings for the others, and whoever begins with an operation sees that its failure is pending. And whoever sees a
// word sees all that was written before it.
// native/tests/local_orders_test.cpp runs through the orders in which words may be seen, and finds it if they are
// weaker than this. New memory is all zero, and so are these words in it.
#pragma once

#include <atomic>
#include <cstdint>

namespace shoal::local {

template <class Value>
class Word {
 public:
#ifdef SHOAL_ENUMERATED_ORDERS
  Value load() const { return static_cast<Value>(seen_orders::load(this)); }
  void store(Value value) { seen_orders::store(this, value); }
#else
  Value load() const { return value_.load(); }
  void store(Value value) { value_.store(value); }
#endif

 private:
  std::atomic<Value> value_;
  static_assert(std::atomic<Value>::is_always_lock_free);
};

// Of something that only grows, since the beginning.
using Counter = Word<std::uint64_t>;
using Flag = Word<std::uint32_t>;

}  // namespace shoal::local
