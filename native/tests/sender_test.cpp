#include "protocol/worker/sender.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "check.h"
#include "protocol/keys.h"
#include "protocol/worker/links.h"
#include "worlds.h"

namespace {

using namespace shoal;
using wire::Type;
using worker::Operation;

constexpr LinkId link = 1;

struct World final : IdleWorkerWorld {
  void send(LinkId, const wire::Header& header, Bytes, std::span<const std::byte>, Token) override {
    sent.push_back(header);
  }
  void sending(std::uint64_t handle) override { sending_handles.push_back(handle); }

  std::size_t count(Type type) const {
    std::size_t count = 0;
    for (const wire::Header& header : sent) {
      count += header.type == type ? 1 : 0;
    }
    return count;
  }

  std::vector<wire::Header> sent;
  std::vector<std::uint64_t> sending_handles;
};

// The sender of rank 0 of two, toward one server with a window of two segments of 4096 bytes.
struct Sending {
  explicit Sending(std::uint32_t eager = 0)
      : environment({{"a", "b"}, {"s"}, {-1}, {1}, 4096, 8192, eager, 1024}, 0, world, pool) {
    links.attach_server(link, 0);
  }

  Operation& open(std::vector<std::byte>& array, bool streamed = false) {
    Submission submission;
    submission.handle = 70 + opened;
    submission.collective = Collective::all_reduce;
    submission.dtype = DType::uint8;
    submission.input = submission.output = array.data();
    submission.input_bytes = submission.output_bytes = array.size();
    submission.streamed = streamed;
    auto made = std::make_unique<Operation>(operations.take_number(), groups.at(0), std::move(submission), 0);
    made->opening().key = operation_key(groups.at(0).id, "x", opened++);
    made->measure(environment.config());
    Operation& operation = operations.open(std::move(made));
    sender.plan(operation);
    sender.open(operation, false);
    check();
    return operation;
  }
  void admit(Operation& operation) {
    sender.admit(operation, operation.part_of(0), false);
    sender.send_on(0);
    check();
  }
  // The next segment is answered, with the credit that it took.
  void answer(Operation& operation) {
    const Range segment = sender.answered(operation, operation.part_of(0));
    CHECK(sender.add_credit(0, static_cast<std::uint32_t>(segment.size())));
    sender.send_on(0);
    check();
  }
  void check() const {
    sender.check_invariants();
    operations.check_invariants();
  }

  World world;
  BufferPool pool{0};
  worker::Environment environment;
  worker::Groups groups{environment};
  worker::OperationTable operations;
  worker::Links links{environment};
  worker::ServerFrames frames{environment, links};
  worker::Sender sender{environment, operations, frames};
  std::uint32_t opened = 0;
};

TEST(no_more_is_on_its_way_than_the_window_and_answers_make_room_for_more) {
  Sending job;
  std::vector<std::byte> array(std::size_t{5} * 4096);
  Operation& operation = job.open(array);
  CHECK_EQ(job.world.count(Type::data), 0U);
  job.admit(operation);
  CHECK_EQ(job.world.count(Type::data), 2U);
  job.answer(operation);
  CHECK_EQ(job.world.count(Type::data), 3U);
  for (int i = 0; i < 4; ++i) {
    job.answer(operation);
  }
  CHECK_EQ(job.world.count(Type::data), 5U);
  CHECK_EQ(operation.part_of(0).on_its_way(), 0U);
}

TEST(operations_are_sent_in_the_order_in_which_they_are_admitted) {
  Sending job;
  std::vector<std::byte> array(std::size_t{3} * 4096);
  Operation& first = job.open(array);
  Operation& second = job.open(array);
  job.admit(second);
  job.admit(first);
  for (int i = 0; i < 3; ++i) {
    job.answer(second);
  }
  std::vector<std::uint64_t> numbers;
  for (const wire::Header& header : job.world.sent) {
    if (header.type == Type::data) {
      numbers.push_back(header.operation);
    }
  }
  CHECK(numbers == (std::vector<std::uint64_t>{2, 2, 2, 1, 1}));
}

TEST(a_first_segment_travels_with_the_opening_while_nothing_else_is_unanswered) {
  Sending job(16384);
  std::vector<std::byte> array(std::size_t{2} * 4096);
  Operation& first = job.open(array);
  Operation& second = job.open(array);
  CHECK_EQ(first.part_of(0).eager(), 4096U);
  CHECK_EQ(second.part_of(0).eager(), 0U);
  CHECK_EQ(job.world.sent[0].length - job.world.sent[1].length, 4096U);
  job.sender.answered_all(first.part_of(0));
  CHECK_EQ(first.part_of(0).on_its_way(), 0U);
  job.check();
}

TEST(of_a_streamed_one_nothing_is_sent_that_is_not_there_yet) {
  Sending job;
  std::vector<std::byte> array(std::size_t{2} * 4096);
  Operation& operation = job.open(array, true);
  job.admit(operation);
  CHECK_EQ(job.world.count(Type::data), 0U);
  operation.add_contributed({0, 4096});
  job.sender.send_on(0);
  CHECK_EQ(job.world.count(Type::data), 1U);
}

TEST(credit_beyond_what_there_can_be_is_refused_and_does_not_count) {
  Sending job;
  CHECK(!job.sender.add_credit(0, job.environment.config().most_credit()));
  job.check();
}

TEST(the_application_hears_once_that_an_operation_is_being_sent) {
  Sending job;
  std::vector<std::byte> array(std::size_t{2} * 4096);
  job.admit(job.open(array));
  CHECK(job.world.sending_handles == (std::vector<std::uint64_t>{70}));
}

TEST(a_new_epoch_gives_the_whole_window_again) {
  Sending job;
  std::vector<std::byte> array(std::size_t{5} * 4096);
  Operation& operation = job.open(array);
  job.admit(operation);
  operation.suspend();
  operation.begin_again();
  job.sender.restart(0);
  job.sender.plan(operation);
  job.sender.open(operation, true);
  job.admit(operation);
  CHECK_EQ(job.world.count(Type::data), 4U);
}

}  // namespace

RUN_TESTS()
