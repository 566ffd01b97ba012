// The parts of a server, each alone: how a shard is cut and answered, the books of the window, what all have, and who
// is waited for.
#include <string>
#include <vector>

#include "base/limits.h"
#include "check.h"
#include "protocol/keys.h"
#include "protocol/server/absence.h"
#include "protocol/server/credit.h"
#include "protocol/server/epochs.h"
#include "protocol/server/groups.h"
#include "protocol/server/links.h"
#include "protocol/server/missing_ranges.h"
#include "protocol/server/notices.h"
#include "protocol/server/openings.h"
#include "protocol/server/operation.h"
#include "protocol/server/operation_table.h"
#include "protocol/server/receipts.h"
#include "protocol/server/segments.h"
#include "protocol/server/terms.h"

namespace {

using namespace shoal;
using namespace shoal::server;
using wire::Type;

constexpr Time ms = second / 1000;

// Three ranks and one server, with segments of 4096 bytes, a credit of two, and 1024 bytes of eager data.
JobConfig three_ranks() { return {{"a", "b", "c"}, {"s"}, {-1}, {1}, 4096, 8192, 1024, 1024, 1}; }

wire::Opening sum_of(std::uint64_t bytes, const char* name = "a") {
  wire::Opening opening;
  opening.collective = Collective::all_reduce;
  opening.op = Operator::sum;
  opening.dtype = DType::uint8;
  opening.name = name;
  opening.bytes = bytes;
  opening.shape = {static_cast<std::int64_t>(bytes)};
  opening.group = world_group_id(3);
  opening.key = operation_key(opening.group, opening.name, 0);
  return opening;
}

Contribution contribution_of(std::uint32_t credit) {
  static const std::byte somewhere{};
  return {Buffer(), &somewhere, credit};
}

struct World final : ServerWorld {
  void send(LinkId link, const wire::Header& header, Bytes /*owned*/, std::span<const std::byte> /*borrowed*/,
            Token /*token*/) override {
    sent.emplace_back(link, header.type);
  }
  void detach(Token /*token*/) override {}
  void close(LinkId /*link*/) override {}
  void sum(Sum /*sum*/) override {}

  std::vector<std::pair<LinkId, Type>> sent;
};

// Links to three ranks, each with the number of its rank.
struct Linked {
  Linked() {
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      links.attach(rank, rank);
    }
  }

  World world;
  BufferPool pool{0};
  Epochs epochs{3};
  Links links{3, epochs, world, pool};
};

}  // namespace

// --- Segments ---

TEST(a_segment_is_complete_when_every_contributor_has_sent_its_part) {
  Segments segments(sum_of(10'000), 3, {0, 10'000}, 4096);
  CHECK_EQ(segments.count(), 3U);
  CHECK(segments.range(2) == (Range{8192, 10'000}));
  for (std::size_t member : {2U, 0U}) {
    CHECK(segments.owed(member) == (Range{0, 4096}));
    CHECK(!segments.add(segments.advance(member), member, contribution_of(4096)));
    segments.check_invariants();
  }
  CHECK(segments.holds_up(1) && !segments.holds_up(0));
  CHECK(segments.add(segments.advance(1), 1, contribution_of(4096)));
  CHECK_EQ(segments.take(0).arrived, 3U);
  CHECK(segments.owed(1) == (Range{4096, 8192}));
  segments.check_invariants();
}

TEST(results_are_answered_in_order_whichever_sum_ends_first) {
  Segments segments(sum_of(10'000), 3, {0, 10'000}, 4096);
  segments.finish(2, Segment{segments.range(2), {}, 0});
  segments.finish(1, Segment{segments.range(1), {}, 0});
  CHECK(!segments.has_result());
  segments.pass_result();  // the first
  for (std::uint64_t number : {1U, 2U}) {
    CHECK(segments.has_result());
    CHECK(segments.take_result().range == segments.range(number));
  }
  CHECK(segments.all_answered());
  segments.check_invariants();
}

TEST(of_a_broadcast_the_root_alone_owes_anything) {
  wire::Opening opening = sum_of(4096);
  opening.collective = Collective::broadcast;
  opening.root = 1;
  const Segments segments(opening, 3, {0, 4096}, 4096);
  CHECK(segments.owes(1));
  CHECK(!segments.owes(0) && !segments.owes(2));
  CHECK_EQ(segments.contributors(0), 1U);
}

TEST(nothing_that_was_contributed_is_lost_when_an_operation_fails) {
  Segments segments(sum_of(8192), 3, {0, 8192}, 4096);
  segments.add(segments.advance(0), 0, contribution_of(4096));
  segments.add(segments.advance(0), 0, contribution_of(4096));
  std::vector<std::uint64_t> credit(3);
  segments.add_credit({0, 1, 2}, credit);
  CHECK_EQ(credit[0], 8192U);
  CHECK_EQ(segments.take_all().size(), 2U);
  credit.assign(3, 0);
  segments.add_credit({0, 1, 2}, credit);
  CHECK_EQ(credit[0], 0U);
}

// The members have different parts of the result: what one has it sends to those who lack it.
TEST(only_what_somebody_lacks_is_asked_for_and_who_has_it_sends_it) {
  const Group group{{0, 1, 2}};
  Operation operation(1, Hash128{}, group, true);
  std::vector<wire::Opening> openings(3, sum_of(3 * 4096));
  openings[0].have = {{0, 8192}};
  openings[1].have = {{0, 4096}};
  openings[2].have = {{0, 4096}};
  for (std::size_t i = 0; i < 3; ++i) {
    operation.open(i, 1, openings[i], {}, 0);
  }
  const std::vector<MissingRange> missing = missing_ranges(operation, {0, 3 * 4096});
  CHECK_EQ(missing.size(), 2U);
  CHECK(missing[0].range == (Range{4096, 8192}));
  CHECK(missing[0].source == std::optional<std::size_t>(0));
  CHECK(missing[0].receives == (std::vector<bool>{false, true, true}));
  CHECK(missing[1].range == (Range{8192, 12288}));
  CHECK(!missing[1].source && missing[1].needs_data);

  Segments segments(operation.attributes(), 3, missing, 4096);
  CHECK_EQ(segments.count(), 2U);
  CHECK_EQ(segments.contributors(0), 1U);
  CHECK_EQ(segments.contributors(1), 3U);
  CHECK(segments.owed(0) == (Range{4096, 8192}));
  CHECK(segments.owed(1) == (Range{8192, 12288}));
  // Of rank 0's results, all have one when all have the first segment, though it is not answered bytes of it.
  CHECK_EQ(segments.settled_for(0, 0), 0U);
  CHECK_EQ(segments.settled_for(2, 1), 1U);
}

// --- Credit ---

TEST(who_spends_its_credit_has_none_until_it_is_given_back) {
  const JobConfig config = three_ranks();
  const Terms terms(config, 0);
  Credit credit(terms);
  CHECK(credit.covers(0, 4096));
  credit.spend(0, 4096);
  credit.spend(0, 4096);
  CHECK(!credit.covers(0, 4096));
  CHECK(credit.covers(1, 4096));
  credit.check_invariants();
  credit.answer(0, 4096);
  CHECK_EQ(credit.give_back(0, 4096), 4096U);
  CHECK(credit.covers(0, 4096));
  credit.check_invariants();
}

TEST(a_smaller_window_is_reached_by_giving_back_less_and_a_larger_one_by_a_grant) {
  const JobConfig config = three_ranks();
  const Terms terms(config, 0);
  Credit credit(terms);
  credit.want(16384);
  CHECK_EQ(credit.raise(0), 8192U);
  CHECK_EQ(credit.raise(0), 0U);
  credit.spend(0, 12288);
  credit.want(8192);
  CHECK_EQ(credit.raise(0), 0U);
  credit.answer(0, 12288);
  CHECK_EQ(credit.give_back(0, 12288), 4096U);
  CHECK_EQ(credit.granted(0), 8192U);
  CHECK_EQ(credit.raise(1), 0U);  // it was never granted more
  credit.check_invariants();
}

TEST(a_limit_takes_no_more_than_what_the_window_has_above_the_first) {
  const JobConfig config = three_ranks();
  const Terms terms(config, 0);
  Credit credit(terms);
  CHECK(credit.limit(1));
  CHECK_EQ(credit.raise(0), 0U);
  credit.want(16384);
  CHECK_EQ(credit.raise(0), 0U);
  CHECK(!credit.limit(1));
  CHECK(credit.limit(12288));
  CHECK_EQ(credit.raise(0), 4096U);
}

TEST(inline_data_without_an_answer_is_within_the_eager_limit) {
  const JobConfig config = three_ranks();
  const Terms terms(config, 0);
  Credit credit(terms);
  credit.spend_eager(0, 1000);
  CHECK(!credit.covers_eager(0, 25));
  CHECK(credit.covers_eager(0, 24));
  credit.answer(0, 0, 1000);
  CHECK(credit.covers_eager(0, 1024));
}

// --- Epochs and absence ---

TEST(frames_of_an_epoch_before_are_stale_but_groups_and_goodbyes_count) {
  Epochs epochs(2);
  const wire::Header old{.type = Type::drop};
  CHECK(!epochs.is_stale(old));
  CHECK(epochs.check(0, {.type = Type::epoch, .epoch = 1}).ok());
  epochs.begin(1);
  epochs.hear(0, 1);
  CHECK(epochs.is_stale(old));
  CHECK(!epochs.is_stale({.type = Type::group}) && !epochs.is_stale({.type = Type::leave}));
  CHECK(epochs.is_current(0) && !epochs.is_current(1));
  CHECK(!epochs.has_reopened(0) && epochs.has_reopened(1));
  CHECK(!epochs.check(0, {.type = Type::epoch, .epoch = 1}).ok());
  CHECK(epochs.check(0, {.type = Type::epoch, .flags = wire::flag_reopened, .epoch = 1}).ok());
  CHECK(!epochs.check(1, {.type = Type::drop, .epoch = 1}).ok());
  epochs.check_invariants();
}

TEST(a_rank_whose_link_broke_is_absent_after_a_minute_and_one_that_left_at_once) {
  const JobConfig config = three_ranks();
  const Terms terms(config, 0);
  Absence absence(terms);
  absence.lose(0, 0);
  absence.leave(1);
  absence.lose(1, 0);
  CHECK(absence.is_absent(1) && !absence.is_absent(0));
  CHECK(!absence.next_lost(60 * second - 1));
  CHECK(absence.next_lost(60 * second) == std::optional<std::uint32_t>(0));
  CHECK(absence.is_absent(0));
  CHECK_EQ(absence.deadline(), never);
  CHECK(absence.status("x", 1).code == Code::peer_left);
  CHECK(absence.status("x", 0).code == Code::peer_lost);
  absence.check_invariants();
}

// --- Receipts and notices ---

TEST(what_all_have_waits_20_ms_for_a_frame_to_go_along_with) {
  Notices notices(1);
  CHECK(!notices.add(0, 1, false, 0));
  CHECK_EQ(notices.deadline(), 20 * ms);
  CHECK(!notices.goes_along(0, 5 * ms - 1));
  CHECK(notices.goes_along(0, 5 * ms));
  CHECK(!notices.add(0, 2, false, 5 * ms));
  CHECK(notices.take(0) == (std::vector<std::uint64_t>{1, 2}));
  CHECK(notices.on_time(20 * ms));
  CHECK_EQ(notices.deadline(), never);
  CHECK(notices.add(0, 3, true, 20 * ms));
}

TEST(members_are_told_that_all_have_an_operation_when_the_last_has_said_so) {
  const JobConfig config = three_ranks();
  const Terms terms(config, 0);
  Linked job;
  Receipts receipts(terms, job.links);
  const Group group{{0, 1, 2}};
  Operation operation(7, Hash128{}, group, true);
  for (std::size_t i = 0; i < 3; ++i) {
    operation.open(i, 1, sum_of(8192), {}, 0);
  }
  receipts.begin(operation);
  for (std::uint64_t segment : {0U, 1U}) {
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      receipts.expect(7, segment);
      receipts.sent(rank, 7, segment);
    }
  }
  receipts.end(7);
  receipts.check_invariants();
  CHECK(!receipts.check(0, 3).ok());
  receipts.acknowledge(0, 2);
  receipts.acknowledge(1, 2);
  CHECK_EQ(receipts.settled(7), 0U);
  receipts.acknowledge(2, 1);
  CHECK_EQ(receipts.settled(7), 1U);
  receipts.check_invariants();
  receipts.acknowledge(2, 2);
  CHECK(!receipts.has(7));
  job.links.set_time(second);
  job.links.tell_overdue();
  CHECK(job.world.sent == (std::vector<std::pair<LinkId, Type>>{{0, Type::have}, {1, Type::have}, {2, Type::have}}));
}

TEST(nobody_has_what_was_on_its_way_to_a_worker_that_is_lost) {
  const JobConfig config = three_ranks();
  const Terms terms(config, 0);
  Linked job;
  Receipts receipts(terms, job.links);
  const Group group{{0}};
  Operation operation(7, Hash128{}, group, true);
  operation.open(0, 1, sum_of(10), {}, 0);
  receipts.begin(operation);
  receipts.expect(7, 0);
  receipts.sent(0, 7, 0);
  receipts.end(7);
  job.links.lose(0);
  receipts.lose(0);
  receipts.check_invariants();
  CHECK(receipts.has(7));
}

TEST(a_lost_worker_is_sent_nothing) {
  Linked job;
  job.links.lose(1);
  CHECK(!job.links.send(1, {.type = Type::grant}));
  CHECK(job.links.send(2, {.type = Type::grant}));
  CHECK_EQ(job.world.sent.size(), 1U);
  job.links.check_invariants();
}

// --- Tables ---

TEST(a_table_takes_what_its_operations_take_and_nothing_when_they_are_gone) {
  const JobConfig config = three_ranks();
  const Terms terms(config, 0);
  const Groups groups(3);
  OperationTable table(terms, groups);
  Operation& operation = table.find_or_make(sum_of(10), *groups.find(world_group_id(3)));
  CHECK(&table.find_or_make(sum_of(10), *groups.find(world_group_id(3))) == &operation);
  table.open(operation, 1, 5, sum_of(10), {}, 0);
  table.check_invariants();
  CHECK(table.bytes() > 0);
  CHECK(table.find(1, 5)->operation == &operation);
  CHECK_EQ(table.find(1, 5)->member, 1U);
  CHECK(!table.find(0, 5));
  table.drop(operation, 1);
  CHECK(!table.find(1, 5));
  table.check_invariants();
  table.remove(operation);
  CHECK_EQ(table.bytes(), 0U);
  CHECK_EQ(table.size(), 0U);
}

TEST(what_was_open_when_the_limit_was_lowered_keeps_its_room) {
  const JobConfig config = three_ranks();
  const Terms terms(config, 0);
  const Groups groups(3);
  OperationTable table(terms, groups);
  for (const char* name : {"a", "b", "c"}) {
    table.open(table.find_or_make(sum_of(10, name), *groups.find(world_group_id(3))), 0, name[0], sum_of(10, name), {},
               0);
  }
  const std::size_t before = table.bytes();
  table.limit(before / 3);
  CHECK(table.is_full() && !table.is_overfull());
  CHECK(table.has_room(sum_of(10, "a"), *groups.find(world_group_id(3)), false));
  CHECK(table.has_room(sum_of(10, "d"), *groups.find(world_group_id(3)), false));
  CHECK(table.too_much().code == Code::limit);
}

TEST(groups_are_of_ranks_that_exist_each_once_and_never_change) {
  Groups groups(3);
  const Hash128 id = group_id({0, 2}, "", 0);
  CHECK(groups.check({id, {0, 2}}).ok());
  CHECK(!groups.check({id, {0, 3}}).ok());
  CHECK(!groups.check({id, {2, 0, 2}}).ok());
  CHECK(!groups.check({id, {}}).ok());
  CHECK_EQ(groups.bytes(), 0U);
  groups.add({id, {0, 2}});
  CHECK(groups.check({id, {0, 2}}).ok());
  CHECK(!groups.check({id, {0, 1}}).ok());
  CHECK(!groups.check({id, {0, 2}, true}).ok());
  CHECK(groups.find(id)->index_of(2) == std::optional<std::size_t>(1));
  CHECK(groups.bytes() > 0);
  groups.check_invariants();
}

TEST(an_opening_says_how_far_it_has_come_only_where_a_new_epoch_asks_for_it) {
  const JobConfig config = three_ranks();
  const Terms terms(config, 0);
  const Group everyone{{0, 1, 2}, Senders::ranks};
  wire::Opening opening = sum_of(8192);
  CHECK(check_opening(opening, everyone, false, terms).ok());
  opening.have = {{0, 4096}};
  CHECK(!check_opening(opening, everyone, false, terms).ok());
  CHECK(check_opening(opening, everyone, true, terms).ok());
  CHECK(opening_limit(true, terms) > opening_limit(false, terms));
}

TEST(the_first_segment_is_smaller_where_ranks_send_for_themselves) {
  JobConfig config = three_ranks();
  config.rank_segment = config.rank_credit = config.segment / 2;
  const Terms terms(config, 0);
  wire::Opening opening = sum_of(8 * config.segment);
  const std::uint32_t whole = terms.inline_of(opening, Senders::nodes);
  CHECK_EQ(terms.inline_of(opening, Senders::ranks), whole / 2);
  opening.inline_bytes = whole;
  CHECK(check_opening(opening, Group{{0, 1}, Senders::nodes}, false, terms).ok());
  CHECK(!check_opening(opening, Group{{0, 1}, Senders::ranks}, false, terms).ok());
}

RUN_TESTS()
