// The server's machine against frames that no well-behaved simulation sends: each test plays the workers itself.
#include "protocol/server/server.h"

#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "served_job.h"

namespace {

using namespace shoal;
using tests::opening_of;
using wire::Type;
using Job = tests::ServedJob;

}  // namespace

TEST(splits_that_add_up_only_modulo_2_to_the_64_are_refused) {
  Job job;
  wire::Opening opening = opening_of(Collective::all_to_all, "a", 0);
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  opening.splits = {most, most, 2};
  const Status status = job.open(0, 1, opening, 0);
  CHECK(status.code == Code::protocol);
  opening.splits = {0, 0, 0};
  CHECK(job.open(1, 1, opening, 0).ok());
}

TEST(who_asks_hears_who_has_not_called_who_owes_data_and_who_does_not_read) {
  using Why = wire::Late::Why;
  using Found = std::vector<std::pair<std::uint32_t, Why>>;
  Job job;
  CHECK(job.late(0, 7).empty());  // it has ended here: its last frame is on its way
  wire::Opening sum = opening_of(Collective::all_reduce, "a", 2 * 4096);
  sum.op = Operator::sum;
  CHECK(job.open(0, 1, sum, 0).ok());
  CHECK(job.late(0, 1) == (Found{{1, Why::not_opened}, {2, Why::not_opened}}));
  CHECK(job.open(1, 1, sum, 0).ok());
  CHECK(job.open(2, 1, sum, 0).ok());
  const auto data = [&job](std::uint32_t rank, std::uint64_t number, std::uint64_t offset) {
    return job.frame(rank, {.type = Type::data, .dtype = DType::uint8, .operation = number, .offset = offset},
                     Bytes(4096));
  };
  CHECK(data(0, 1, 0).ok());
  CHECK(data(2, 1, 0).ok());
  CHECK(data(2, 1, 4096).ok());
  CHECK(job.late(0, 1) == (Found{{1, Why::owes_data}}));

  const wire::Opening spread = opening_of(Collective::broadcast, "b", 4096);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    CHECK(job.open(rank, 2, spread, 0).ok());
  }
  CHECK(data(0, 2, 0).ok());
  CHECK(job.late(0, 2) == (Found{{1, Why::does_not_read}, {2, Why::does_not_read}}));
  job.server.on_sent(job.world.tokens[1].back());
  CHECK(job.late(0, 2) == (Found{{2, Why::does_not_read}}));
}

TEST(a_part_of_the_inline_data_is_refused_and_leaves_nothing_behind) {
  Job job;
  CHECK(!job.open(0, 1, opening_of(Collective::broadcast, "a", 100), 50).ok());
  CHECK_EQ(job.server.operations(), 0U);
}

TEST(inline_data_of_a_root_is_answered_by_results_that_are_not_written_yet) {
  Job job;
  const wire::Opening first = opening_of(Collective::broadcast, "a", job.config.eager);
  CHECK(job.open(0, 1, first, job.config.eager).ok());
  CHECK(job.open(1, 1, first, 0).ok());
  CHECK(job.open(2, 1, first, 0).ok());
  CHECK(job.world.sent[0].empty());  // rank 0 hears when the others have it
  CHECK_EQ(job.world.sent[1].size(), 1U);
  // Rank 0 hears of a loss, ends the operation by itself, and may use its eager bytes anew.
  CHECK(job.frame(0, {.type = Type::drop, .operation = 1}, {}).ok());
  CHECK(job.open(0, 2, opening_of(Collective::broadcast, "b", job.config.eager), job.config.eager).ok());
}

TEST(a_root_is_answered_in_order_when_frames_to_a_lost_rank_end_in_another) {
  Job job;
  const wire::Opening opening = opening_of(Collective::broadcast, "a", 3 * 4096);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    CHECK(job.open(rank, 1, opening, 0).ok());
  }
  const auto data = [&job](std::uint64_t offset) {
    return job.frame(0, {.type = Type::data, .dtype = DType::uint8, .operation = 1, .offset = offset}, Bytes(4096));
  };
  CHECK(data(0).ok());
  CHECK(data(4096).ok());
  const std::vector<Token>& to_1 = job.world.tokens[1];
  const std::vector<Token>& to_2 = job.world.tokens[2];
  CHECK_EQ(to_1.size(), 2U);
  CHECK_EQ(to_2.size(), 2U);
  job.server.on_lost(2, Status::error(Code::peer_lost, "gone"));
  for (const Token token : {to_1[1], to_2[1], to_1[0], to_2[0]}) {
    job.server.on_sent(token);
  }
  const std::vector<wire::Header>& answers = job.world.sent[0];
  CHECK_EQ(answers.size(), 3U);  // ADMIT, then one for each segment
  CHECK_EQ(answers[1].offset, 0U);
  CHECK_EQ(answers[2].offset, 4096U);
}

// Found by the simulated network: a worker's link to one server was silent until its kernel gave up, after another
// server had been lost. The server told the others that everybody had a result that this worker still lacked.
// One opening would take all the memory of the server.
TEST(what_has_too_many_segments_to_go_on_in_a_new_epoch_fails) {
  Job job;
  wire::Opening sum = opening_of(Collective::all_reduce, "a", std::uint64_t{1} << 60U);
  sum.op = Operator::sum;
  sum.have = {{0, 64}};
  for (std::uint32_t rank : {0, 1, 2}) {
    job.begin_epoch(rank);
    CHECK(job.open(rank, 1, sum, 0).ok());
  }
  for (std::uint32_t rank : {0, 1, 2}) {
    CHECK(job.was_told(rank, Type::fail));
  }
}

// So that small arrays, one after the other, do not cost a message more each.
TEST(what_all_have_goes_along_with_a_frame_5_ms_later_or_alone_after_20) {
  constexpr Time ms = second / 1000;
  Job job;
  const auto types = [&job] {
    std::vector<Type> of_rank_0;
    for (const wire::Header& header : std::exchange(job.world.sent[0], {})) {
      of_rank_0.push_back(header.type);
    }
    return of_rank_0;
  };
  // All open the next one, and have what came before.
  const auto barrier = [&job](std::uint32_t number) {
    wire::Opening opening;
    opening.collective = Collective::barrier;
    opening.name = "a";
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      CHECK(job.open(rank, number, opening, 0, number - 1).ok());
    }
  };
  barrier(1);
  CHECK(types() == std::vector{Type::result});
  barrier(2);
  job.server.on_time(5 * ms - 1);
  barrier(3);
  CHECK(types() == (std::vector{Type::result, Type::result}));
  job.server.on_time(5 * ms);
  barrier(4);
  CHECK(types() == (std::vector{Type::have, Type::result}));
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    CHECK(job.frame(rank, {.type = Type::have, .acknowledged = 4}, {}).ok());
  }
  job.server.on_time(20 * ms - 1);
  CHECK(types().empty());
  job.server.on_time(20 * ms);
  CHECK(types() == std::vector{Type::have});
}

// --- Admission ---

// Bytes a second: three segments take 1.2 ms.
constexpr std::uint64_t slow = 10'000'000;

// What a rank was sent, in order: types and numbers of operations.
using Frames = std::vector<std::pair<Type, std::uint64_t>>;

Frames frames(Job& job, std::uint32_t rank) {
  Frames found;
  for (const wire::Header& header : job.world.sent[rank]) {
    found.emplace_back(header.type, header.operation);
  }
  return found;
}

wire::Opening sum_of(const char* name, std::uint64_t bytes) {
  wire::Opening opening = opening_of(Collective::all_reduce, name, bytes);
  opening.op = Operator::sum;
  return opening;
}

void open_everywhere(Job& job, std::uint64_t number, const wire::Opening& opening, std::uint32_t inlined) {
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    CHECK(job.open(rank, number, opening, inlined).ok());
  }
}

TEST(a_server_in_a_node_that_has_all_first_segments_lets_the_first_result_admit) {
  Job job(1, 4096, slow);
  open_everywhere(job, 1, sum_of("a", 3 * 4096), 4096);
  CHECK(frames(job, 0).empty());
  job.server.on_summed(job.world.sums.at(0));
  CHECK(frames(job, 0) == (Frames{{Type::result, 1}}));
  CHECK(job.frame(0, {.type = Type::data, .dtype = DType::uint8, .operation = 1, .offset = 4096}, Bytes(4096)).ok());
}

TEST(a_dedicated_server_or_a_fast_job_or_a_first_segment_that_lacks_has_an_admit_at_once) {
  for (const auto& [held_by, rate] : {std::pair{-1, slow}, std::pair{1, 2 * slow}, std::pair{1, std::uint64_t{0}}}) {
    Job job(held_by, 4096, rate);
    open_everywhere(job, 1, sum_of("a", 3 * 4096), 4096);
    CHECK(frames(job, 0) == (Frames{{Type::admit, 1}}));
  }

  Job lacking(1, 4096, slow);
  CHECK(lacking.open(0, 1, sum_of("a", 3 * 4096), 0).ok());
  CHECK(lacking.open(1, 1, sum_of("a", 3 * 4096), 4096).ok());
  CHECK(lacking.open(2, 1, sum_of("a", 3 * 4096), 4096).ok());
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    CHECK(frames(lacking, rank) == (Frames{{Type::admit, 1}}));
  }
}

// Or the first would have to wait for the second, which came later.
TEST(what_waits_for_its_first_result_is_admitted_before_what_comes_after_it) {
  Job job(1, 4096, slow);
  open_everywhere(job, 1, sum_of("a", 3 * 4096), 4096);
  open_everywhere(job, 2, sum_of("b", 3 * 4096), 0);
  open_everywhere(job, 3, sum_of("c", 3 * 4096), 0);
  CHECK(frames(job, 2) == (Frames{{Type::admit, 1}, {Type::admit, 2}, {Type::admit, 3}}));
  job.server.on_summed(job.world.sums.at(0));
  CHECK(frames(job, 2).back() == (std::pair{Type::result, std::uint64_t{1}}));
}

TEST(what_owes_nothing_more_is_behind_nobody) {
  Job job(1, 8192, slow);
  open_everywhere(job, 1, sum_of("a", 3 * 4096), 4096);
  open_everywhere(job, 2, sum_of("b", 4096), 4096);
  CHECK(frames(job, 0).empty());
  job.server.on_summed(job.world.sums.at(0));
  job.server.on_summed(job.world.sums.at(1));
  CHECK(frames(job, 0) == (Frames{{Type::result, 1}, {Type::result, 2}}));
}

TEST(what_fails_before_its_first_result_is_not_admitted_any_more) {
  Job job(1, 4096, slow);
  open_everywhere(job, 1, sum_of("a", 3 * 4096), 4096);
  const wire::Failure failure{Status::error(Code::timeout, "'a' did not move", 0)};
  CHECK(job.frame(0, {.type = Type::fail, .operation = 1}, wire::encode(failure)).ok());
  open_everywhere(job, 2, sum_of("b", 3 * 4096), 0);
  CHECK(frames(job, 2) == (Frames{{Type::fail, 1}, {Type::admit, 2}}));
}

// Smaller segments save time for who is alone. Behind 16 full ones, or with enough before it to make 16, there is none
// to save.
struct JobOfShortSegments : tests::ServedJob {
  JobOfShortSegments() : ServedJob(config_of_short_segments()) {}

  static JobConfig config_of_short_segments() {
    JobConfig config = make_config(-1, 4096, 0);
    config.least_segment = 256;
    return config;
  }

  // Of ADMIT, as that rank has it; none: it has none.
  std::optional<int> flags(std::uint32_t rank, std::uint64_t number) {
    for (const wire::Header& header : world.sent[rank]) {
      if (header.type == Type::admit && header.operation == number) {
        return header.flags;
      }
    }
    return std::nullopt;
  }
  Status data(std::uint32_t rank, std::uint64_t number, std::size_t bytes) {
    return frame(rank, {.type = Type::data, .dtype = DType::uint8, .operation = number}, Bytes(bytes));
  }
};

TEST(a_short_operation_with_enough_before_it_goes_in_full_segments) {
  JobOfShortSegments job;
  for (std::uint64_t number = 1; number <= 5; ++number) {
    open_everywhere(job, number, sum_of(std::to_string(number).c_str(), 16384), 0);
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      CHECK(job.flags(rank, number) == (number < 4 ? 0 : wire::flag_full));
    }
  }
  CHECK(job.data(0, 1, 1024).ok());
  CHECK(job.data(0, 4, 4096).ok());
  CHECK(job.data(1, 4, 1024).code == Code::protocol);
}

TEST(what_has_begun_and_what_not_all_send_goes_in_the_segments_that_its_members_know) {
  JobOfShortSegments job;
  open_everywhere(job, 1, sum_of("1", 65536), 0);
  CHECK(job.open(0, 2, sum_of("2", 16384), 1024).ok());
  CHECK(job.open(1, 2, sum_of("2", 16384), 0).ok());
  CHECK(job.open(2, 2, sum_of("2", 16384), 0).ok());
  CHECK(job.flags(0, 2) == 0);
  CHECK(job.data(1, 2, 1024).ok());
  open_everywhere(job, 3, opening_of(Collective::broadcast, "3", 16384), 0);
  CHECK(job.flags(0, 3) == 0);
  CHECK(!job.flags(1, 3).has_value());
}

TEST(what_has_failed_is_before_nobody) {
  JobOfShortSegments job;
  open_everywhere(job, 1, sum_of("1", 65536), 0);
  const wire::Failure failure{Status::error(Code::timeout, "'1' did not move", 0)};
  CHECK(job.frame(0, {.type = Type::fail, .operation = 1}, wire::encode(failure)).ok());
  open_everywhere(job, 2, sum_of("2", 16384), 0);
  CHECK(job.flags(0, 2) == 0);
}

// --- Windows ---

TEST(windows_are_rank_0_s_to_change) {
  Job job;
  const auto window = [&job](std::uint32_t rank, std::uint32_t credit) {
    return job.frame(rank, {.type = Type::window, .credit = credit}, {});
  };
  CHECK(window(1, 16384).code == Code::protocol);
  CHECK(window(0, job.config.segment - 1).code == Code::protocol);
  CHECK(window(0, job.config.most_credit() + 1).code == Code::protocol);
  CHECK(window(0, 16384).ok());
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    CHECK_EQ(job.world.sent[rank].size(), 1U);
    CHECK(job.world.sent[rank].back().type == Type::grant);
    CHECK_EQ(job.world.sent[rank].back().credit, 16384 - job.config.credit);
  }
}

TEST(links_insist_at_both_ends_while_rank_0_says_so) {
  Job job;
  const auto window = [&job](std::uint8_t flags) {
    job.world.sent.clear();
    CHECK(job.frame(0, {.type = Type::window, .flags = flags, .credit = job.config.credit}, {}).ok());
  };
  window(0);
  CHECK(job.world.sent.empty() && job.world.competing.empty());
  for (const std::uint8_t flags : {wire::flag_competing, std::uint8_t{0}, wire::flag_competing}) {
    window(flags);
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      CHECK_EQ(job.world.competing.at(rank), flags != 0);
      CHECK_EQ(job.world.sent[rank].size(), 1U);
      CHECK(job.world.sent[rank].back().type == Type::window);
      CHECK_EQ(job.world.sent[rank].back().flags, flags);
      CHECK_EQ(job.world.sent[rank].back().credit, 0U);
    }
  }
  window(wire::flag_competing);
  CHECK(job.world.sent.empty());
}

TEST(who_begins_an_epoch_hears_again_whether_links_insist) {
  // What rank 0 says before the epoch begins, and what rank 1 hears when it has.
  struct Case {
    std::vector<std::uint8_t> said;
    std::vector<std::uint8_t> heard;
  };
  const std::uint8_t on = wire::flag_competing;
  for (const Case& one : {Case{{}, {}}, Case{{on}, {on}}, Case{{on, 0}, {0}}}) {
    Job job;
    for (const std::uint8_t flags : one.said) {
      CHECK(job.frame(0, {.type = Type::window, .flags = flags, .credit = job.config.credit}, {}).ok());
    }
    job.world.sent.clear();
    CHECK(job.frame(1, {.type = Type::epoch, .epoch = 1}, wire::encode(wire::Epoch{job.config.weights, ""})).ok());
    std::vector<std::uint8_t> heard;
    for (const wire::Header& header : job.world.sent[1]) {
      CHECK(header.type == Type::window);
      heard.push_back(header.flags);
    }
    CHECK(heard == one.heard);
    CHECK(job.world.sent[0].empty() && job.world.sent[2].empty());
  }
  // Rank 0 is in the epoch already, and says so there.
  Job job;
  const auto begin = [&job](std::uint32_t rank) {
    return job.frame(rank, {.type = Type::epoch, .epoch = 1}, wire::encode(wire::Epoch{job.config.weights, ""}));
  };
  CHECK(begin(0).ok());
  const wire::Header competes{.type = Type::window, .flags = on, .epoch = 1, .credit = job.config.credit};
  CHECK(job.frame(0, competes, {}).ok());
  CHECK(job.world.sent[1].empty());
  CHECK(begin(1).ok());
  CHECK_EQ(job.world.sent[1].size(), 1U);
  CHECK_EQ(job.world.sent[1].back().flags, on);
}

TEST(a_window_that_shrinks_gives_back_less) {
  Job job;
  CHECK(job.frame(0, {.type = Type::window, .credit = 20480}, {}).ok());
  wire::Opening opening = opening_of(Collective::all_reduce, "x", 1 << 20);
  opening.op = Operator::sum;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    CHECK(job.open(rank, 1, opening, 0).ok());
  }
  const Bytes segment(4096);
  for (std::uint64_t i = 0; i < 5; ++i) {
    CHECK(job.frame(1, {.type = Type::data, .dtype = DType::uint8, .operation = 1, .offset = 4096 * i}, segment).ok());
  }
  const auto beyond =
      job.frame(1, {.type = Type::data, .dtype = DType::uint8, .operation = 1, .offset = 20480}, segment);
  CHECK(beyond.code == Code::protocol);
  CHECK(job.frame(0, {.type = Type::window, .credit = 8192}, {}).ok());
  job.world.sent.clear();
  CHECK(job.frame(0, {.type = Type::drop, .operation = 1}, {}).ok());
  std::uint32_t back = 0;
  for (const wire::Header& header : job.world.sent[1]) {
    back += header.credit;
  }
  CHECK_EQ(back, 8192U);
}

RUN_TESTS()
