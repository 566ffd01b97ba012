// A word of memory that the ranks of a machine share: its own rank writes it, the others read it.
//
// Two kinds, by what readers conclude from it:
//   * a Counter says that something else is there: whoever sees a count sees what was written before it (release and
//     acquire);
//   * a Flag decides between two ranks that each write their own word and read the other's: all ranks see all flags
//     change in one order (sequentially consistent).
// native/tests/local_orders_test.cpp runs through every order in which these may be seen, and finds it if one is weaker
// than it has to be. New memory is all zero, and so are these words in it.
#pragma once

#include <atomic>
#include <cstdint>

namespace shoal::local {

enum class Order { publishes, decides };

template <class Value, Order order>
class Word {
 public:
#ifdef SHOAL_ENUMERATED_ORDERS
  Value load() const { return static_cast<Value>(seen_orders::load(this, order == Order::decides)); }
  void store(Value value) { seen_orders::store(this, value, order == Order::decides); }
#else
  Value load() const {
    return value_.load(order == Order::decides ? std::memory_order_seq_cst : std::memory_order_acquire);
  }
  void store(Value value) {
    value_.store(value, order == Order::decides ? std::memory_order_seq_cst : std::memory_order_release);
  }
#endif

 private:
  std::atomic<Value> value_;
  static_assert(std::atomic<Value>::is_always_lock_free);
};

using Counter = Word<std::uint64_t, Order::publishes>;
using Position = Word<std::uint64_t, Order::decides>;
using Flag = Word<std::uint32_t, Order::decides>;

}  // namespace shoal::local
