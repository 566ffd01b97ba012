// The worker's machine against servers that say what no server of ours says: each test plays the server itself.
#include "protocol/worker/worker.h"

#include <algorithm>
#include <map>
#include <span>
#include <vector>

#include "check.h"
#include "wire/epoch.h"
#include "worlds.h"

namespace {

using namespace shoal;
using wire::Type;

// Keeps what was sent as a driver does that never gets to write.
struct World final : IdleWorkerWorld {
  struct Queued {
    LinkId link = 0;
    wire::Header header;
    Bytes owned;
    std::span<const std::byte> borrowed;
    Token token = 0;
  };

  void send(LinkId link, const wire::Header& header, Bytes owned, std::span<const std::byte> borrowed,
            Token token) override {
    queue.push_back({link, header, std::move(owned), borrowed, token});
  }
  void detach(Token token) override {
    for (Queued& frame : queue) {
      if (frame.token == token) {
        frame.owned.insert(frame.owned.end(), frame.borrowed.begin(), frame.borrowed.end());
        frame.borrowed = {};
      }
    }
  }
  void compete(LinkId link, bool on) override { competing[link] = on; }
  void finish(std::uint64_t handle, Status status) override { finished.emplace(handle, std::move(status)); }

  std::ptrdiff_t data_sent_to(LinkId link) const {
    return std::count_if(queue.begin(), queue.end(),
                         [link](const Queued& frame) { return frame.link == link && frame.header.type == Type::data; });
  }
  std::ptrdiff_t data_sent() const {
    return std::count_if(queue.begin(), queue.end(),
                         [](const Queued& frame) { return frame.header.type == Type::data; });
  }

  void warn(std::string text) override { warnings.push_back(std::move(text)); }

  std::vector<Queued> queue;
  std::vector<std::string> warnings;
  std::map<LinkId, bool> competing;
  std::map<std::uint64_t, Status> finished;
};

constexpr LinkId server_link = 1;

constexpr LinkId coordinator_link = 3;

struct Job {
  explicit Job(std::uint32_t eager = 0, std::uint32_t least_segment = 0)
      : config{{"a", "b"}, {"s"}, {-1}, {1}, 4096, 8192, eager, 1024, 1, least_segment} {
    worker.attach_server(server_link, 0);
  }

  Status frame(const wire::Header& header, const Bytes& payload) {
    return shoal::frame(worker, server_link, header, payload);
  }

  const JobConfig config;
  World world;
  BufferPool pool{0};
  Worker worker{config, 0, world, pool};
};

struct TwoServers {
  explicit TwoServers(std::uint32_t least_segment = 0)
      : config{{"a", "b"}, {"s", "t"}, {-1, -1}, {1, 1}, 4096, 8192, 0, 1024, 1, least_segment} {
    for (std::uint32_t server : {0, 1}) {
      worker.attach_server(server_link + server, server);
    }
    worker.attach_coordinator(coordinator_link);
  }

  Status arrives(LinkId link, const wire::Header& header, const Bytes& payload) {
    return frame(worker, link, header, payload);
  }

  // The coordinator says that the server at this link is lost.
  Status loses(LinkId link) {
    std::vector<std::uint32_t> weights{1, 1};
    weights[link - server_link] = 0;
    return arrives(coordinator_link, {.type = Type::epoch, .epoch = 1}, wire::encode(wire::Epoch{weights, "lost"}));
  }

  const JobConfig config;
  World world;
  BufferPool pool{0};
  Worker worker{config, 0, world, pool};
};

constexpr std::uint64_t handle = 7;  // of every submission

// Of bytes.
Submission submission_of(Collective collective, std::span<const std::byte> input, std::span<std::byte> output) {
  Submission submission;
  submission.handle = handle;
  submission.collective = collective;
  submission.name = std::string("x");  // assigning the literal makes gcc 12 warn of what cannot be
  submission.dtype = DType::uint8;
  submission.shape = {static_cast<std::int64_t>(input.size())};
  submission.input = input.data();
  submission.input_bytes = input.size();
  submission.output = output.data();
  submission.output_bytes = output.size();
  submission.timeout = second;
  return submission;
}

Submission all_reduce(std::vector<std::byte>& array) {
  Submission submission = submission_of(Collective::all_reduce, array, array);
  submission.op = Operator::sum;
  return submission;
}

Submission all_gather(const std::vector<std::byte>& input, std::vector<std::byte>& output) {
  Submission submission = submission_of(Collective::all_gather, input, output);
  submission.timeout = 1800 * second;
  return submission;
}

// Rank 0 of two, whose own servers have a quarter of the dedicated one's weight and segments of half the size. It has
// submitted an all-reduce of so many segments.
struct OwnServers {
  explicit OwnServers(std::size_t segments = 24, std::uint32_t least_segment = 0, bool streamed = false)
      : config{{"a", "b"}, {"a", "b", "s"}, {0, 1, -1}, {1, 1, 4}, 4096, 8192, 0, 1024, 1, least_segment},
        array(segments * 4096) {
    for (const LinkId link : {own, others, dedicated}) {
      worker.attach_server(link, static_cast<std::uint32_t>(link - own));
    }
    Submission submission = all_reduce(array);
    submission.streamed = streamed;
    worker.submit(std::move(submission));
  }

  void admits(LinkId link) { CHECK(frame(worker, link, {.type = Type::admit, .operation = 1}, {}).ok()); }

  // It lacks these.
  void admits_again(LinkId link, const std::vector<wire::MissingRange>& lacked) {
    const wire::Header header{.type = Type::admit, .flags = wire::flag_resumed, .epoch = 1, .operation = 1};
    CHECK(frame(worker, link, header, wire::encode(lacked)).ok());
  }

  // The next segment's result, which gives its credit back.
  void answers(LinkId link, std::uint64_t offset, std::uint32_t bytes) {
    const wire::Header header{
        .type = Type::result, .dtype = DType::uint8, .operation = 1, .offset = offset, .credit = bytes};
    CHECK(frame(worker, link, header, Bytes(bytes)).ok());
  }

  std::ptrdiff_t sent_to(LinkId link) const { return world.data_sent_to(link); }

  // The epoch changes when the dedicated server has answered its whole shard, and the others nothing.
  void change_epoch_after_the_dedicated_shard() {
    admits(dedicated);
    for (std::uint64_t offset = 32768; offset < 98304; offset += 4096) {
      const std::uint8_t flags = offset + 4096 == 98304 ? wire::flag_last : std::uint8_t{0};
      const wire::Header header{.type = Type::result,
                                .flags = flags,
                                .dtype = DType::uint8,
                                .operation = 1,
                                .offset = offset,
                                .credit = 4096};
      CHECK(frame(worker, dedicated, header, Bytes(4096)).ok());
    }
    worker.attach_coordinator(coordinator);
    const wire::Epoch epoch{config.weights, "used again"};
    CHECK(frame(worker, coordinator, {.type = Type::epoch, .epoch = 1}, wire::encode(epoch)).ok());
    world.queue.clear();
  }

  static constexpr LinkId own = server_link;
  static constexpr LinkId others = server_link + 1;
  static constexpr LinkId dedicated = server_link + 2;
  static constexpr LinkId coordinator = server_link + 3;
  const JobConfig config;
  std::vector<std::byte> array;
  World world;
  BufferPool pool{0};
  Worker worker{config, 0, world, pool};
};

}  // namespace

TEST(an_answer_to_what_was_not_written_yet_leaves_no_frame_that_borrows_the_array) {
  Job job;
  std::vector<std::byte> array(2048);
  job.worker.submit(all_reduce(array));
  CHECK(job.frame({.type = Type::admit, .operation = 1}, {}).ok());
  CHECK(job.world.queue.back().header.type == Type::data);
  const wire::Header early{.type = Type::result, .flags = wire::flag_last, .dtype = DType::uint8, .operation = 1};
  static_cast<void>(job.frame(early, Bytes(array.size())));
  CHECK(job.world.finished.contains(handle));
  for (const World::Queued& frame : job.world.queue) {
    CHECK(frame.borrowed.empty());
  }
}

TEST(a_copy_of_a_small_input_is_not_given_back_while_a_frame_borrows_it) {
  TwoServers job;
  std::vector<std::byte> array(64);
  job.worker.submit(all_reduce(array));
  const LinkId home = job.world.queue.back().link;
  const LinkId other = server_link + (home == server_link ? 1 : 0);
  const wire::Header result{.type = Type::result, .flags = wire::flag_last, .dtype = DType::uint8, .operation = 1};
  CHECK(job.arrives(home, {.type = Type::admit, .operation = 1}, {}).ok());
  job.worker.on_sent(1);
  CHECK(job.arrives(home, result, Bytes(array.size())).ok());
  CHECK(job.world.finished.contains(handle));
  job.world.queue.clear();
  // The home is lost, and another member may not have its result: the next one asks for this rank's input again.
  CHECK(job.loses(home).ok());
  CHECK(job.arrives(other, {.type = Type::admit, .epoch = 1, .operation = 1}, {}).ok());
  CHECK_EQ(job.world.data_sent_to(other), 1);
  CHECK_EQ(job.world.queue.back().borrowed.size(), array.size());
  job.worker.abort("the loss is NaN");
  for (const World::Queued& frame : job.world.queue) {
    CHECK(frame.borrowed.empty());
  }
}

TEST(a_short_operation_goes_in_full_segments_if_its_admit_says_so) {
  const wire::Header full{.type = Type::admit, .flags = wire::flag_full, .operation = 1};
  std::vector<std::byte> array(std::size_t{4} * 4096);
  const auto sent = [&](Job& job) {
    std::vector<std::size_t> lengths;
    for (const World::Queued& frame : job.world.queue) {
      if (frame.header.type == Type::data) {
        lengths.push_back(frame.borrowed.size());
      }
    }
    return lengths;
  };
  Job shorter(0, 256);
  shorter.worker.submit(all_reduce(array));
  CHECK(shorter.frame({.type = Type::admit, .operation = 1}, {}).ok());
  CHECK(sent(shorter) == (std::vector<std::size_t>{1024, 1024}));

  Job behind(0, 256);
  behind.worker.submit(all_reduce(array));
  CHECK(behind.frame(full, {}).ok());
  CHECK(sent(behind) == (std::vector<std::size_t>{4096, 4096}));
  const wire::Header result{.type = Type::result, .dtype = DType::uint8, .operation = 1};
  CHECK(behind.frame(result, Bytes(1024)).code == Code::protocol);

  // It has begun, is in full segments anyway, or goes on after a loss.
  Job begun(4096, 256);
  begun.worker.submit(all_reduce(array));
  CHECK(begun.frame(full, {}).code == Code::protocol);
  Job longer;
  longer.worker.submit(all_reduce(array));
  CHECK(longer.frame(full, {}).code == Code::protocol);
  Job resumed(0, 256);
  resumed.worker.submit(all_reduce(array));
  wire::Header both = full;
  both.flags |= wire::flag_resumed;
  CHECK(resumed.frame(both, {}).code == Code::protocol);
}

TEST(a_second_smaller_segment_waits_for_no_server_that_takes_full_ones) {
  TwoServers job(256);
  std::vector<std::byte> array(std::size_t{8} * 4096);
  job.worker.submit(all_reduce(array));
  CHECK(job.arrives(server_link + 1, {.type = Type::admit, .operation = 1}, {}).ok());
  CHECK_EQ(job.world.data_sent_to(server_link + 1), 1);
  CHECK(job.arrives(server_link, {.type = Type::admit, .flags = wire::flag_full, .operation = 1}, {}).ok());
  CHECK_EQ(job.world.data_sent_to(server_link), 2);
  CHECK_EQ(job.world.data_sent_to(server_link + 1), 2);
}

TEST(a_first_result_without_admit_says_the_same) {
  Job job(4096);
  std::vector<std::byte> array(std::size_t{4} * 4096);
  job.worker.submit(all_reduce(array));
  CHECK(job.world.queue.back().header.type == Type::open);
  wire::Header result{.type = Type::result, .dtype = DType::uint8, .operation = 1};
  CHECK(job.frame(result, Bytes(4096)).ok());
  CHECK_EQ(job.world.data_sent(), 2);  // all that the credit allows
  CHECK(job.frame({.type = Type::admit, .operation = 1}, {}).code == Code::protocol);
  result.offset = 4096;
  result.credit = 4096;
  CHECK(job.frame(result, Bytes(4096)).ok());
  CHECK_EQ(job.world.data_sent(), 3);
}

// A window holds two segments: four of 2048 bytes would fit, but the other servers' first ones would wait meanwhile.
TEST(a_rank_that_sends_for_itself_has_a_part_of_the_window_of_its_node) {
  JobConfig config{{"a", "b"}, {"s"}, {-1}, {1}, 4096, 8192, 0, 1024};
  config.rank_segment = 1024;
  config.rank_credit = 2048;
  for (const bool for_node : {false, true}) {
    World world;
    BufferPool pool{0};
    Worker worker{config, 0, world, pool};
    worker.attach_server(server_link, 0);
    std::vector<std::byte> array(std::size_t{8} * 4096);
    Submission submission = all_reduce(array);
    submission.group = for_node ? worker.make_group_of_nodes({0, 1}, 0, "") : 0;
    worker.submit(std::move(submission));
    CHECK(frame(worker, server_link, {.type = Type::admit, .operation = 1}, {}).ok());
    CHECK_EQ(world.data_sent(), 2);
    const std::uint32_t segment = for_node ? 4096 : 1024;
    CHECK_EQ(world.queue.back().borrowed.size(), segment);
    const wire::Header result{.type = Type::result, .dtype = DType::uint8, .operation = 1, .credit = segment};
    CHECK(frame(worker, server_link, result, Bytes(segment)).ok());
    CHECK_EQ(world.data_sent(), 3);
    // The job's credit has doubled, and so has the part.
    CHECK(frame(worker, server_link, {.type = Type::grant, .credit = 8192}, {}).ok());
    CHECK_EQ(world.data_sent(), 5);
  }
}

TEST(of_smaller_segments_no_more_are_on_their_way_than_of_others) {
  Job job(0, 2048);
  std::vector<std::byte> array(std::size_t{5} * 2048);
  job.worker.submit(all_reduce(array));
  CHECK(job.frame({.type = Type::admit, .operation = 1}, {}).ok());
  CHECK_EQ(job.world.data_sent(), 2);
  CHECK_EQ(job.world.queue.back().header.length, 2048U);
  wire::Header result{.type = Type::result, .dtype = DType::uint8, .operation = 1, .credit = 2048};
  CHECK(job.frame(result, Bytes(2048)).ok());
  CHECK_EQ(job.world.data_sent(), 3);
  // With a window that is twice as large, twice as many.
  CHECK(job.frame({.type = Type::grant, .credit = 8192}, {}).ok());
  CHECK_EQ(job.world.data_sent(), 5);
}

TEST(a_second_of_smaller_segments_leaves_when_every_server_has_its_first) {
  TwoServers job(2048);
  std::vector<std::byte> array(std::size_t{10} * 2048);
  job.worker.submit(all_reduce(array));
  const auto sent_to = [&job](LinkId link) { return job.world.data_sent_to(link); };
  CHECK(job.arrives(server_link, {.type = Type::admit, .operation = 1}, {}).ok());
  CHECK_EQ(sent_to(server_link), 1);
  CHECK(job.arrives(server_link + 1, {.type = Type::admit, .operation = 1}, {}).ok());
  CHECK_EQ(sent_to(server_link), 2);
  CHECK_EQ(sent_to(server_link + 1), 2);
  // One that is ahead goes on all the same, with one on its way: no server waits for another.
  wire::Header result{.type = Type::result, .dtype = DType::uint8, .operation = 1, .credit = 2048};
  CHECK(job.arrives(server_link, result, Bytes(2048)).ok());
  CHECK_EQ(sent_to(server_link), 3);
  result.offset = 2048;
  CHECK(job.arrives(server_link, result, Bytes(2048)).ok());
  CHECK_EQ(sent_to(server_link), 3);
  result.offset = 4096;
  CHECK(job.arrives(server_link, result, Bytes(2048)).ok());
  CHECK_EQ(sent_to(server_link), 4);
}

// Shards of 8 segments at the workers' own servers, of 16 at the dedicated one.
TEST(nodes_own_servers_keep_step_with_the_dedicated_one) {
  OwnServers job;
  job.admits(job.own);
  job.admits(job.others);
  CHECK_EQ(job.sent_to(job.own), 1);
  CHECK_EQ(job.sent_to(job.others), 1);
  job.answers(job.own, 0, 2048);
  job.answers(job.others, 16384, 2048);
  CHECK_EQ(job.sent_to(job.own), 1);  // the dedicated one has nothing yet
  CHECK_EQ(job.sent_to(job.others), 1);
  job.admits(job.dedicated);
  CHECK_EQ(job.sent_to(job.dedicated), 2);  // an eighth of its shard
  CHECK_EQ(job.sent_to(job.own), 2);
  CHECK_EQ(job.sent_to(job.others), 2);
  job.answers(job.own, 2048, 2048);
  job.answers(job.others, 16384 + 2048, 2048);
  CHECK_EQ(job.sent_to(job.own), 2);
  CHECK_EQ(job.sent_to(job.others), 2);
  // Rank 0 has the third for rank 1's server sooner than that for its own.
  job.answers(job.dedicated, 32768, 4096);
  CHECK_EQ(job.sent_to(job.dedicated), 3);
  CHECK_EQ(job.sent_to(job.own), 2);
  CHECK_EQ(job.sent_to(job.others), 3);
  job.answers(job.dedicated, 32768 + 4096, 4096);
  CHECK_EQ(job.sent_to(job.own), 3);
}

TEST(they_wait_for_nothing_that_is_not_there_yet) {
  OwnServers job(24, 0, true);
  for (const LinkId link : {job.own, job.others, job.dedicated}) {
    job.admits(link);
  }
  job.worker.contributed(7, {0, 4096});
  CHECK_EQ(job.sent_to(job.own), 1);
  job.answers(job.own, 0, 2048);
  CHECK_EQ(job.sent_to(job.own), 2);
  job.worker.contributed(7, {4096, 8192});
  job.worker.contributed(7, {32768, std::uint64_t{32768} + 4096});
  CHECK_EQ(job.sent_to(job.dedicated), 1);
  job.answers(job.own, 2048, 2048);
  CHECK_EQ(job.sent_to(job.own), 3);
}

// Found by the simulated network: in a new epoch the dedicated server lacked nothing and said so last.
TEST(in_a_new_epoch_they_wait_for_no_server_that_lacks_nothing) {
  OwnServers job;
  job.change_epoch_after_the_dedicated_shard();
  job.admits_again(job.own, {{{4096, 16384}, true, true}});
  job.admits_again(job.others, {{{16384 + 4096, 32768}, true, true}});
  CHECK_EQ(job.sent_to(job.own), 0);
  CHECK_EQ(job.sent_to(job.others), 0);
  job.admits_again(job.dedicated, {});
  CHECK_EQ(job.sent_to(job.own), 1);
  CHECK_EQ(job.sent_to(job.others), 1);
}

TEST(in_a_new_epoch_they_wait_for_no_server_whose_shard_all_have) {
  OwnServers job;
  job.change_epoch_after_the_dedicated_shard();
  job.admits_again(job.own, {{{4096, 16384}, true, true}});
  CHECK_EQ(job.sent_to(job.own), 0);
  CHECK(frame(job.worker, job.dedicated, {.type = Type::have, .epoch = 1}, wire::encode_numbers({1})).ok());
  CHECK_EQ(job.sent_to(job.own), 1);
}

TEST(in_short_operations_no_server_keeps_step) {
  OwnServers job(6, 1024);
  job.admits(job.own);
  CHECK_EQ(job.sent_to(job.own), 1);
  job.answers(job.own, 0, 512);
  CHECK_EQ(job.sent_to(job.own), 2);
}

TEST(results_that_a_later_frame_has_acknowledged_are_not_acknowledged_by_one_of_their_own) {
  constexpr Time ms = second / 1000;
  Job job(1024);
  std::vector<std::byte> array(1024);
  const auto open_and_answer = [&](std::uint64_t number) {
    job.worker.submit(all_reduce(array));
    CHECK(job.world.queue.back().header.type == Type::open);
    CHECK_EQ(job.world.queue.back().header.acknowledged, number - 1);
    const wire::Header result{
        .type = Type::result, .flags = wire::flag_last, .dtype = DType::uint8, .operation = number};
    CHECK(job.frame(result, Bytes(array.size())).ok());
  };
  open_and_answer(1);
  job.worker.on_time(4 * ms);
  open_and_answer(2);
  job.worker.on_time(5 * ms);
  CHECK(job.world.queue.back().header.type == Type::open);
  CHECK_EQ(job.worker.deadline(), 9 * ms);
  job.worker.on_time(9 * ms);
  CHECK(job.world.queue.back().header.type == Type::have);
  CHECK_EQ(job.world.queue.back().header.acknowledged, 2U);
}

TEST(that_an_operation_has_ended_goes_along_with_the_next_frame_or_alone_after_a_while) {
  constexpr Time ms = second / 1000;
  Job job(4096);
  std::vector<std::byte> array(4096);
  const auto answer = [&](std::uint64_t number) {
    job.world.queue.clear();
    const wire::Header result{
        .type = Type::result, .flags = wire::flag_last, .dtype = DType::uint8, .operation = number};
    CHECK(job.frame(result, Bytes(array.size())).ok());
    CHECK(job.world.queue.empty());
  };
  const auto drops = [&job](std::uint64_t number, std::uint32_t acknowledged) {
    const wire::Header& header = job.world.queue.front().header;
    return header.type == Type::drop && header.flags == wire::flag_well && header.operation == number &&
           header.acknowledged == acknowledged;
  };
  job.worker.submit(all_reduce(array));
  answer(1);
  job.worker.submit(all_reduce(array));
  CHECK_EQ(job.world.queue.size(), 2U);
  CHECK(drops(1, 1));
  CHECK(job.world.queue.back().header.type == Type::open);

  answer(2);
  job.worker.on_time(4 * ms);
  CHECK(job.world.queue.empty());
  CHECK_EQ(job.worker.deadline(), 5 * ms);
  job.worker.on_time(5 * ms);
  CHECK_EQ(job.world.queue.size(), 1U);  // it acknowledges, too
  CHECK(drops(2, 2));

  job.worker.submit(all_reduce(array));
  answer(3);
  job.worker.leave();
  CHECK(drops(3, 3));
}

TEST(links_insist_while_their_server_says_so) {
  TwoServers job;
  for (const bool on : {true, false}) {
    const std::uint8_t flags = on ? wire::flag_competing : std::uint8_t{0};
    CHECK(job.arrives(server_link + 1, {.type = Type::window, .flags = flags}, {}).ok());
    CHECK_EQ(job.world.competing.at(server_link + 1), on);
  }
  CHECK_EQ(job.world.competing.size(), 1U);
  CHECK(job.arrives(server_link, {.type = Type::window, .credit = 1}, {}).code == Code::protocol);
}

TEST(a_control_link_that_ends_while_another_is_left_is_a_warning_with_the_reason) {
  TwoServers job;
  const LinkId second = coordinator_link + 1;
  job.worker.attach_coordinator(second);
  job.worker.on_lost(coordinator_link, Status::error(Code::peer_lost, "closed by peer"));
  CHECK(job.world.warnings.size() == 1 &&
        job.world.warnings[0].find("rank 0 (a) has ended (closed by peer)") != std::string::npos);
  job.worker.on_lost(second, Status::error(Code::peer_lost, "closed by peer"));
  CHECK_EQ(job.world.warnings.size(), std::size_t{1});
}

TEST(an_epoch_that_does_not_say_why_is_refused) {
  TwoServers job;
  const wire::Epoch silent{{0, 1}, ""};
  const Status status = job.arrives(coordinator_link, {.type = Type::epoch, .epoch = 1}, wire::encode(silent));
  CHECK(status.code == Code::protocol);
  CHECK(job.loses(server_link).ok());
}

TEST(what_failed_before_it_was_sent_is_forgotten_when_all_have_heard) {
  TwoServers job;
  Submission submission = submission_of(Collective::all_reduce, {}, {});
  submission.failure = "no such array";
  job.worker.submit(std::move(submission));
  CHECK(job.world.finished.contains(handle));
  const LinkId home = job.world.queue.back().link;
  const wire::Failure failure{Status::error(Code::failed_on_rank, "no such array", 0)};
  CHECK(job.arrives(home, {.type = Type::fail, .operation = 1}, wire::encode(failure)).ok());
  CHECK(job.arrives(home, {.type = Type::have}, wire::encode_numbers({1})).ok());
  CHECK(job.loses(home).ok());
  CHECK(std::none_of(job.world.queue.begin(), job.world.queue.end(), [](const World::Queued& frame) {
    return frame.header.type == Type::open && frame.header.epoch == 1;
  }));
}

// A broadcast from here that both servers have admitted, and for more of which there is no credit.
struct HalfSent : TwoServers {
  HalfSent() {
    Submission submission = submission_of(Collective::broadcast, array, {});
    worker.submit(std::move(submission));
    from_both({.type = Type::admit, .operation = 1});
  }

  void from_both(const wire::Header& header, const wire::Bytes& payload = {}) {
    for (const LinkId link : {server_link, server_link + 1}) {
      CHECK(arrives(link, header, payload).ok());
    }
  }

  std::vector<std::byte> array = std::vector<std::byte>(100'000);
};

// Found by the simulated network: credit came back for a broadcast that had failed half sent, and the rest of it was
// sent from an array that had been given back.
TEST(what_has_failed_half_sent_sends_nothing_more_when_credit_comes_back) {
  HalfSent job;
  const std::ptrdiff_t sent = job.world.data_sent();
  CHECK(sent > 0);
  // The home's word counts; the other server's is passed on to the home.
  job.from_both({.type = Type::fail, .operation = 1},
                wire::encode(wire::Failure{Status::error(Code::timeout, "'x' did not move", 1)}));
  CHECK(job.world.finished.contains(handle));
  job.from_both({.type = Type::grant, .credit = 4096});
  CHECK_EQ(job.world.data_sent(), sent);
}

// Found by the simulated network with forged frames: what all have, a server says, was sent on from an array that had
// been given back.
TEST(what_all_have_is_sent_no_further) {
  HalfSent job;
  const std::ptrdiff_t sent = job.world.data_sent();
  CHECK(sent > 0);
  job.from_both({.type = Type::have}, wire::encode_numbers({1}));
  CHECK(job.world.finished.at(handle).ok());
  job.from_both({.type = Type::grant, .credit = 4096});
  CHECK_EQ(job.world.data_sent(), sent);
}

// An all-gather whose home has said which blocks go from worker to worker.
struct Exchange : TwoServers {
  static constexpr LinkId peer_link = 4;
  static constexpr std::uint64_t bytes = 2048;

  Exchange() {
    worker.attach_peer(peer_link, 1);
    worker.submit(all_gather(input, output));
    home = world.queue.back().link;
    number = (std::uint64_t{home - server_link} + 1) << 40 | 1;
    const wire::Sizes sizes{number, {bytes, bytes}};
    CHECK(arrives(home, {.type = Type::sizes, .operation = 1}, wire::encode(sizes)).ok());
  }

  LinkId home = 0;
  std::uint64_t number = 0;  // of the exchange
  std::vector<std::byte> input = std::vector<std::byte>(bytes);
  std::vector<std::byte> output = std::vector<std::byte>(2 * bytes);
};

// Found by the simulated network: an all-gather failed while blocks were on their way, then its home was lost.
TEST(blocks_of_an_exchange_that_has_ended_may_come_after_the_loss_of_its_home) {
  Exchange job;
  CHECK(job.world.queue.back().link == job.peer_link && job.world.queue.back().header.type == Type::grant);
  const wire::Failure failure{Status::error(Code::timeout, "'x' did not move", 1)};
  CHECK(job.arrives(job.home, {.type = Type::fail, .operation = 1}, wire::encode(failure)).ok());
  CHECK(job.world.finished.contains(handle));
  CHECK(job.loses(job.home).ok());
  CHECK(
      job.arrives(job.peer_link, {.type = Type::data, .dtype = DType::uint8, .operation = job.number}, Bytes(job.bytes))
          .ok());
}

// Found by the simulated network: a rank had left when its machine died, and took with it a block that was on its way.
TEST(what_a_rank_took_with_it_that_has_left_is_not_waited_for) {
  Exchange job;
  job.worker.on_lost(job.peer_link, Status::error(Code::peer_lost, "connection reset by peer"));
  CHECK(job.world.queue.back().header.type == Type::report);
  const auto fails = [&job] {
    return std::find_if(job.world.queue.begin(), job.world.queue.end(),
                        [](const World::Queued& frame) { return frame.header.type == Type::fail; });
  };
  job.worker.on_time(4 * second);
  CHECK(fails() == job.world.queue.end());
  job.worker.on_time(6 * second);
  CHECK(fails() != job.world.queue.end() && fails()->link == job.home);
  wire::Failure failure;
  CHECK(wire::decode(fails()->owned, failure).ok());
  CHECK_EQ(failure.status.rank, 1);
  CHECK(job.arrives(job.home, {.type = Type::fail, .operation = 1}, wire::encode(failure)).ok());
  CHECK(job.world.finished.at(handle).code == Code::peer_lost);
}

RUN_TESTS()
