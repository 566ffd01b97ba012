// How much the members of a gather may have on their way to one rank: worker/transfers.h. Each test plays the home and
// the other members.
#include <map>
#include <optional>
#include <vector>

#include "check.h"
#include "protocol/worker/worker.h"
#include "worlds.h"

namespace {

using namespace shoal;
using wire::Type;

constexpr LinkId server_link = 1;
constexpr LinkId first_peer = 100;                             // of rank 0
constexpr std::uint64_t number = std::uint64_t{1} << 40U | 1;  // of the transfer
constexpr std::uint32_t segment = 256;

struct World final : IdleWorkerWorld {
  void send(LinkId link, const wire::Header& header, Bytes, std::span<const std::byte>, Token) override {
    if (header.type == Type::grant && link >= first_peer) {
      granted[static_cast<std::uint32_t>(link - first_peer)] += header.credit;
    }
  }
  std::map<std::uint32_t, std::uint64_t> granted;  // by rank
};

// Rank 0 of so many, whose all-gather with some of them has begun.
struct Gather {
  Gather(std::uint32_t ranks, const std::vector<std::uint32_t>& members, const std::vector<std::uint64_t>& blocks,
         const std::vector<std::uint32_t>& leaders = {})
      : config{std::vector<std::string>(ranks, "host"), {"s"}, {-1}, {1}, segment, segment, 0, 64} {
    config.leaders = leaders;
    worker.emplace(config, 0, world, pool);
    worker->attach_server(server_link, 0);
    for (std::uint32_t rank = 1; rank < ranks; ++rank) {
      worker->attach_peer(first_peer + rank, rank);
    }
    std::uint64_t all = 0;
    for (const std::uint64_t block : blocks) {
      all += block;
    }
    input.resize(blocks.front());
    output.resize(all);
    Submission submission;
    submission.handle = 1;
    submission.collective = Collective::all_gather;
    submission.group = worker->make_group(members, "some");
    submission.name = std::string("x");
    submission.dtype = DType::uint8;
    submission.shape = {static_cast<std::int64_t>(input.size())};
    submission.input = input.data();
    submission.input_bytes = input.size();
    submission.output = output.data();
    submission.output_bytes = output.size();
    submission.timeout = second;
    worker->submit(submission);
    CHECK(frame(*worker, server_link, {.type = Type::sizes, .operation = 1}, wire::encode(wire::Sizes{number, blocks}))
              .ok());
  }

  void comes(std::uint32_t rank, std::uint64_t bytes) {
    CHECK(frame(*worker, first_peer + rank,
                {.type = Type::data, .dtype = DType::uint8, .operation = number, .offset = come[rank]}, Bytes(bytes))
              .ok());
    come[rank] += bytes;
  }
  std::uint64_t on_its_way(std::uint32_t rank) { return world.granted[rank] - come[rank]; }

  JobConfig config;
  World world;
  BufferPool pool{0};
  std::optional<Worker> worker;
  std::vector<std::byte> input;
  std::vector<std::byte> output;
  std::map<std::uint32_t, std::uint64_t> come;
};

TEST(two_ranks_of_a_large_job_have_all_that_may_be_on_its_way_to_a_port) {
  Gather job(64, {0, 1}, {100'000, 100'000});
  CHECK_EQ(job.on_its_way(1), 64U * segment);
  job.comes(1, segment);
  CHECK_EQ(job.on_its_way(1), 64U * segment);
}

TEST(all_ranks_of_a_job_have_no_more_than_that_together) {
  std::vector<std::uint32_t> all;
  for (std::uint32_t rank = 0; rank < 16; ++rank) {
    all.push_back(rank);
  }
  Gather job(16, all, std::vector<std::uint64_t>(16, 10'000));
  for (std::uint32_t rank = 1; rank < 16; ++rank) {
    CHECK_EQ(job.on_its_way(rank), segment);
  }
}

TEST(who_sends_alone_when_others_are_done_has_what_they_had) {
  Gather job(16, {0, 1, 2}, {10, 100'000, 300});
  CHECK_EQ(job.on_its_way(1), 8U * segment);
  CHECK_EQ(job.on_its_way(2), 300U);
  job.comes(1, segment);
  CHECK_EQ(job.on_its_way(1), 8U * segment);
  job.comes(2, 256);
  job.comes(2, 44);
  job.comes(1, segment);
  CHECK_EQ(job.on_its_way(1), 16U * segment);
}

TEST(ranks_of_the_own_node_take_nothing_from_a_port) {
  Gather job(8, {0, 1, 4}, {100'000, 100'000, 100'000}, {0, 0, 0, 0, 4, 4, 4, 4});
  CHECK_EQ(job.on_its_way(1), segment);
  CHECK_EQ(job.on_its_way(4), 2U * segment);  // of two nodes
}

// Of what was promised nothing is taken back: it comes, and less is promised until it has.
TEST(a_window_shrinks_when_another_gather_begins) {
  Gather job(16, {0, 1}, {10, 100'000});
  CHECK_EQ(job.on_its_way(1), 16U * segment);
  std::vector<std::byte> output(40'010);
  Submission submission;
  submission.handle = 2;
  submission.collective = Collective::all_gather;
  submission.group = job.worker->make_group({0, 2}, "others");
  submission.name = std::string("y");
  submission.dtype = DType::uint8;
  submission.shape = {10};
  submission.input = job.input.data();
  submission.input_bytes = 10;
  submission.output = output.data();
  submission.output_bytes = output.size();
  submission.timeout = second;
  job.worker->submit(submission);
  CHECK(frame(*job.worker, server_link, {.type = Type::sizes, .operation = 2},
              wire::encode(wire::Sizes{number + 1, {10, 40'000}}))
            .ok());
  CHECK_EQ(job.world.granted[2], 8U * segment);
  for (int i = 0; i < 8; ++i) {
    job.comes(1, segment);
  }
  CHECK_EQ(job.on_its_way(1), 8U * segment);
  job.comes(1, segment);
  CHECK_EQ(job.on_its_way(1), 8U * segment);
}

}  // namespace

RUN_TESTS()
