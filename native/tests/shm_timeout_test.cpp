// Operations whose time is out between the ranks of a node: they fail on all ranks or on none, and the job goes on.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "drivers/shm/memory.h"
#include "protocol/local/mailbox.h"
#include "tests/check.h"
#include "tests/shm_ranks.h"

namespace {

using namespace shoal;
using namespace shoal::shm;
using namespace shoal::shm_ranks;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// What a rank has said, for ranks that are only written by a test.
struct Said {
  RecordKind kind;
  Hash128 key;
  std::vector<std::byte> body;
  std::vector<std::byte> data;
};

// What the writer has said to the reader that has not been read yet; waits for so much of it at least. (What a rank
// submits is said by its thread if that is in the middle of a round.)
std::vector<Said> said(const Memory& memory, std::uint32_t reader, std::uint32_t writer, std::size_t least = 0) {
  RealBells bells(memory);
  MailboxReader mailbox(memory, reader, writer, bells);
  std::vector<Said> all;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  for (;;) {
    const std::optional<Record> record = mailbox.next();
    if (!record) {
      if (all.size() >= least || std::chrono::steady_clock::now() > deadline) {
        return all;
      }
      std::this_thread::sleep_for(milliseconds(1));
      continue;
    }
    all.push_back({record->kind,
                   record->key,
                   {record->body.begin(), record->body.end()},
                   {record->data.begin(), record->data.end()}});
    mailbox.done();
  }
}

Record as_record(const Said& call) { return {call.kind, call.key, call.body, call.data}; }

// Rounds of this rank for so long, and in between it looks at the clock.
template <class Done>
bool work_until(Rank& rank, Done done, std::chrono::nanoseconds longest = std::chrono::seconds(10)) {
  const auto deadline = std::chrono::steady_clock::now() + longest;
  while (!done() && std::chrono::steady_clock::now() < deadline) {
    rank.group().wait(done, microseconds(20));
  }
  return done();
}

TEST(an_operation_that_a_rank_calls_too_late_fails_on_all_and_the_others_go_on) {
  for (std::uint32_t late : {0U, 2U}) {
    on_ranks(3, small_shape(3), [&](Rank& rank) {
      std::vector<float> values(10, 1);
      std::vector<float> other(8000, 1);
      const std::uint64_t beside = rank.submit("beside", other);
      if (rank.rank() == late) {
        std::this_thread::sleep_for(milliseconds(1500));
      } else {
        rank.timeout = second / 2;
      }
      const Status status = rank.wait(rank.submit("late", values));
      CHECK(status.code == Code::timeout);
      CHECK(status.message.find("rank " + std::to_string(late)) != std::string::npos);
      CHECK_EQ(values[9], 1.0F);
      CHECK(rank.wait(beside).ok());
      CHECK_EQ(other[7999], 3.0F);
      rank.timeout = 60 * second;
      CHECK(rank.wait(rank.submit("late", values)).ok());
      CHECK_EQ(values[9], 3.0F);
    });
  }
}

// The call comes at about the moment at which the others give up: either all have the sum or none has.
TEST(a_call_at_the_moment_of_a_timeout_is_in_time_for_all_ranks_or_for_none) {
  constexpr int rounds = 300;
  constexpr std::uint32_t ranks = 4;
  std::vector<std::array<bool, ranks>> well(rounds);
  on_ranks(ranks, small_shape(ranks), [&](Rank& rank) {
    std::minstd_rand random(11);
    for (int round = 0; round < rounds; ++round) {
      const std::uint32_t late = static_cast<std::uint32_t>(random() % ranks);
      // Now and then clearly in time, or clearly too late, also where the machine has other work.
      const auto near = std::chrono::microseconds(1500 + random() % 1000);
      const auto delay = round % 20 == 0 ? 0 * near : round % 20 == 1 ? 20 * near : near;
      std::vector<float> values(10, 1);
      std::vector<float> none;
      CHECK(rank.wait(rank.submit("together", none, Operator::none, Collective::barrier)).ok());
      rank.timeout = second / 500;
      if (rank.rank() == late) {
        std::this_thread::sleep_for(delay);
        rank.timeout = second;
      }
      const std::uint64_t handle = rank.submit("late", values);
      while (!rank.done(handle)) {  // and looks at the clock
        rank.group().wait([&] { return rank.done(handle); }, std::chrono::microseconds(20));
      }
      const Status status = rank.status(handle);
      CHECK(status.ok() || status.code == Code::timeout);
      CHECK_EQ(values.back(), status.ok() ? static_cast<float>(ranks) : 1.0F);
      well[static_cast<std::size_t>(round)][rank.rank()] = status.ok();
      rank.timeout = 60 * second;
    }
  });
  int in_time = 0;
  for (const auto& round : well) {
    CHECK_EQ(std::count(round.begin(), round.end(), round[0]), static_cast<std::ptrdiff_t>(ranks));
    in_time += round[0] ? 1 : 0;
  }
  std::printf("  %d of %d in time\n", in_time, rounds);
  CHECK(in_time > 0 && in_time < rounds);
}

// Between its own call of "last" and the reading that follows, rank 3 gets the calls of "sum" by ranks 0 and 1, and the
// goodbye of rank 1, which ends "last" in the middle of that reading. In that moment the leader, whose words have
// been read, withholds "sum", and rank 2, whose words come next, calls it.
TEST(what_all_have_called_is_not_begun_if_the_first_rank_has_withheld_it_meanwhile) {
  for (const bool goes_on : {true, false}) {
    const auto memory = std::make_shared<Memory>(small_shape(4));
    Rank rank(memory, 3);
    std::vector<float> values(4, 1);
    std::vector<float> others(4, 1);
    const std::uint64_t sum = rank.submit("sum", values);
    const Said call = said(*memory, 0, 3, 1).at(0);
    RealBells bells(*memory);
    MailboxWriter first(*memory, 0, bells);
    MailboxWriter second(*memory, 1, bells);
    MailboxWriter third(*memory, 2, bells);
    rank.at_next_call([&] {
      CHECK(first.write(as_record(call)));
      CHECK(second.write(as_record(call)));
      CHECK(second.write({RecordKind::leave, {}, {}, {}}));
    });
    rank.at_next_finish([&] {
      CHECK(first.write({RecordKind::fail_pending, call.key, {}, {}}));
      CHECK(third.write(as_record(call)));
    });
    const std::uint64_t last = rank.submit("last", others);
    CHECK(work_until(rank, [&] { return rank.done(last); }));
    CHECK(rank.status(last).code == Code::peer_left);
    CHECK(!work_until(rank, [&] { return rank.done(sum); }, milliseconds(50)));
    const wire::Bytes why = wire::encode(wire::Failure{Status::error(Code::timeout, "late")});
    CHECK(first.write(goes_on ? Record{RecordKind::go_on, call.key, {}, {}}
                              : Record{RecordKind::failed, call.key, why, {}}));
    CHECK(work_until(rank, [&] { return rank.done(sum); }));
    CHECK(rank.status(sum).code == (goes_on ? Code::ok : Code::timeout));
    CHECK_EQ(values[0], goes_on ? 4.0F : 1.0F);
  }
}

// Two operations are withheld at once. When the one has failed, the other rank calls the other.
TEST(the_first_rank_looks_who_has_called_what_it_has_withheld) {
  const std::vector<RecordKind> at_once{RecordKind::fail_pending, RecordKind::fail_pending, RecordKind::failed,
                                        RecordKind::go_on};
  bool withheld_both = false;
  for (int attempt = 0; attempt < 50 && !withheld_both; ++attempt) {
    const auto memory = std::make_shared<Memory>(small_shape(2));
    Rank rank(memory, 0);
    rank.timeout = second / 50;
    std::vector<float> values(4, 1);
    const std::array<std::uint64_t, 2> handles{rank.submit("one", values), rank.submit("two", values)};
    const std::vector<Said> calls = said(*memory, 1, 0, 2);
    RealBells bells(*memory);
    MailboxWriter other(*memory, 1, bells);
    rank.at_next_finish([&] { CHECK(other.write(as_record(calls.at(rank.done(handles[0]) ? 1 : 0)))); });
    const bool too_slow = rank.done(handles[0]) || rank.done(handles[1]);  // before the test was ready
    std::this_thread::sleep_for(milliseconds(25));
    CHECK(work_until(rank, [&] { return rank.done(handles[0]) && rank.done(handles[1]); }));
    if (too_slow) {
      continue;
    }
    std::array<Code, 2> codes{rank.status(handles[0]).code, rank.status(handles[1]).code};
    std::sort(codes.begin(), codes.end());
    CHECK(codes[0] == Code::ok);
    CHECK(codes[1] == Code::timeout);
    CHECK_EQ(values[0], 2.0F);
    std::vector<RecordKind> kinds;
    for (const Said& word : said(*memory, 1, 0)) {
      kinds.push_back(word.kind);
    }
    withheld_both = std::search(kinds.begin(), kinds.end(), at_once.begin(), at_once.end()) != kinds.end();
  }
  CHECK(withheld_both);
}

}  // namespace

RUN_TESTS()
