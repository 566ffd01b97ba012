#include "protocol/worker/retained_results.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "check.h"

namespace {

using namespace shoal;
using worker::RetainedResults;

Buffer filled(BufferPool& pool, std::size_t bytes, int value) {
  Buffer buffer = pool.take(bytes);
  std::fill_n(buffer.data(), bytes, static_cast<std::byte>(value));
  return buffer;
}

TEST(results_are_kept_until_all_members_have_them) {
  BufferPool pool{0};
  RetainedResults results;
  results.add({0, 4}, filled(pool, 4, 1), 0);
  results.add({4, 8}, filled(pool, 4, 2), 0);
  CHECK_EQ(results.count(), 2U);
  results.add({8, 12}, filled(pool, 4, 3), 2);
  CHECK_EQ(results.count(), 1U);
  results.check_invariants();
  std::vector<std::byte> copy(12, std::byte{9});
  results.copy({0, 12}, copy.data());
  CHECK(copy[0] == std::byte{9} && copy[7] == std::byte{9} && copy[8] == std::byte{3} && copy[11] == std::byte{3});
}

TEST(no_more_are_let_go_than_there_are) {
  BufferPool pool{0};
  RetainedResults results;
  results.add({0, 4}, filled(pool, 4, 1), 100);
  CHECK(results.empty());
  results.add({4, 8}, filled(pool, 4, 2), 1);
  CHECK_EQ(results.count(), 1U);
}

TEST(what_this_rank_sent_as_the_result_counts_and_takes_no_memory) {
  BufferPool pool{0};
  RetainedResults results;
  results.add({0, 4}, Buffer(), 0);
  results.add({4, 8}, filled(pool, 4, 2), 1);
  CHECK_EQ(results.count(), 1U);
  CHECK_EQ(pool.taken_bytes(), BufferPool::alignment);
  results.check_invariants();
}

TEST(a_copy_may_take_parts_of_several_results) {
  BufferPool pool{0};
  RetainedResults ended;
  RetainedResults results;
  ended.add({0, 8}, filled(pool, 8, 1), 0);
  ended.add({8, 16}, filled(pool, 8, 2), 0);
  results.take_over(ended);
  CHECK(ended.empty());
  std::vector<std::byte> copy(8);
  results.copy({4, 12}, copy.data());
  CHECK(copy[3] == std::byte{1} && copy[4] == std::byte{2});
  results.forget(RangeSet({{0, 10}}));
  CHECK_EQ(results.count(), 1U);
}

}  // namespace

RUN_TESTS()
