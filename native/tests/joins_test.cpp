// What an engine keeps of the groups in which its rank has joined: the arrays of calls for others, and how many it
// made.
#include "engine/joins.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

#include "check.h"

using namespace shoal;
using engine::Joins;

TEST(all_calls_for_others_give_the_same_zeros_and_have_results_of_their_own) {
  Joins joins;
  CHECK(joins.begin(3, second));
  const Joins::Arrays first = joins.arrays(100);
  const Joins::Arrays other = joins.arrays(64);
  CHECK(first.zeros == other.zeros);
  CHECK(first.result != other.result);
  std::fill_n(first.result.get(), 100, std::byte{1});
  std::fill_n(other.result.get(), 64, std::byte{1});
  const Joins::Arrays larger = joins.arrays(100'000);
  for (const auto& [arrays, bytes] : {std::pair(&first, 100), std::pair(&larger, 100'000)}) {
    const std::byte* const zeros = arrays->zeros.get();
    CHECK(std::all_of(zeros, zeros + bytes, [](std::byte one) { return one == std::byte{0}; }));
  }
  joins.end(3);
}

TEST(calls_for_others_count_also_when_they_end_after_the_join) {
  Joins joins;
  CHECK(!joins.timeout_in(0));
  CHECK(joins.begin(0, second) && !joins.begin(0, second));
  CHECK_EQ(joins.timeout_in(0).value(), second);
  joins.note_made(0);
  joins.end(0);
  CHECK(!joins.timeout_in(0));
  joins.note_made(0);
  CHECK_EQ(joins.made(0), 2U);
  CHECK(joins.begin(0, second));
  CHECK(joins.await(0, 2, std::chrono::nanoseconds(0)));
  CHECK(!joins.await(0, 3, std::chrono::milliseconds(1)));
  CHECK_EQ(joins.made(1), 0U);
}

RUN_TESTS()
