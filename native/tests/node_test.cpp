// The node's machine against servers that say what no server of ours says: each test plays the server itself.
#include "protocol/node.h"

#include <algorithm>
#include <map>
#include <vector>

#include "check.h"

namespace {

using namespace shoal;
using wire::Type;

// Keeps what was sent as a driver does that never gets to write.
struct World final : NodeWorld {
  struct Queued {
    wire::Header header;
    Bytes owned;
    std::span<const std::byte> borrowed;
    Token token = 0;
  };

  void send(LinkId /*link*/, const wire::Header& header, Bytes owned, std::span<const std::byte> borrowed,
            Token token) override {
    queue.push_back({header, std::move(owned), borrowed, token});
  }
  void detach(Token token) override {
    for (Queued& frame : queue) {
      if (frame.token == token) {
        frame.owned.insert(frame.owned.end(), frame.borrowed.begin(), frame.borrowed.end());
        frame.borrowed = {};
      }
    }
  }
  void close(LinkId /*link*/) override {}
  void sum(Sum /*sum*/) override {}
  void sending(std::uint64_t /*handle*/) override {}
  void finish(std::uint64_t handle, Status status) override { finished.emplace(handle, std::move(status)); }
  std::byte* allocate_output(std::uint64_t /*handle*/, const std::vector<std::uint64_t>& /*block_bytes*/) override {
    return nullptr;
  }
  void connect(std::uint32_t /*rank*/) override {}
  void warn(std::string /*text*/) override {}
  void ended() override {}
  std::uint64_t repairs(LinkId /*link*/) const override { return 0; }

  std::vector<Queued> queue;
  std::map<std::uint64_t, Status> finished;
};

constexpr LinkId server_link = 1;

struct Job {
  Job() { node.attach_server(server_link, 0); }

  Status frame(wire::Header header, const Bytes& payload) {
    header.length = static_cast<std::uint32_t>(payload.size());
    const Placement placement = node.on_header(server_link, header);
    if (!placement.status.ok()) {
      return placement.status;
    }
    std::copy(payload.begin(), payload.end(), placement.memory);
    return node.on_payload(server_link);
  }

  const JobConfig config{{"a", "b"}, {"s"}, {-1}, {1}, 4096, 8192, 0, 1024, 10};
  World world;
  BufferPool pool{0};
  Node node{config, 0, world, pool};
};

}  // namespace

TEST(an_answer_to_what_was_not_written_yet_leaves_no_frame_that_borrows_the_array) {
  Job job;
  std::vector<std::byte> array(2048);
  Submission submission;
  submission.handle = 7;
  submission.collective = Collective::all_reduce;
  submission.name = "x";
  submission.op = Operator::sum;
  submission.dtype = DType::uint8;
  submission.shape = {2048};
  submission.input = array.data();
  submission.input_bytes = array.size();
  submission.output = array.data();
  submission.output_bytes = array.size();
  submission.timeout = second;
  job.node.submit(std::move(submission));
  CHECK(job.frame({.type = Type::admit, .operation = 1}, {}).ok());
  CHECK(job.world.queue.back().header.type == Type::data);
  const wire::Header early{.type = Type::result, .flags = wire::flag_last, .dtype = DType::uint8, .operation = 1};
  static_cast<void>(job.frame(early, Bytes(array.size())));
  CHECK(job.world.finished.contains(7));
  for (const World::Queued& frame : job.world.queue) {
    CHECK(frame.borrowed.empty());
  }
}

RUN_TESTS()
