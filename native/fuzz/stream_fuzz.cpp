// Streams of bytes into a machine, through the TCP driver's own links: what an authenticated peer can do to a server, a
// worker or the coordinator without knowing what they are about. Which frames make sense is left to server_fuzz.cpp and
// job_fuzz.cpp; here bytes come as they like, in pieces of any size, on several connections at once.
//
// What must hold: a link that is refused says why; nothing is sent over one that is gone; handles are finished once;
// buffers stay small.
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <deque>
#include <memory>
#include <set>
#include <utility>

#include "drivers/common/sums.h"
#include "drivers/tcp/link.h"
#include "fuzz/damage.h"
#include "fuzz/input.h"
#include "protocol/coordinator/coordinator.h"
#include "protocol/server/server.h"
#include "protocol/worker/worker.h"

using namespace shoal;
using fuzz::Frame;
using fuzz::Input;
using fuzz::require;
using wire::Header;
using wire::Type;

namespace {

constexpr LinkId links = 3;

JobConfig make_config() {
  JobConfig config{{"a", "b", "c"}, {"s", "t"}, {-1, -1}, {1, 1}, 256, 512, 256, 128, 1, 0};
  require(problem_with(config).empty(), "the configuration is one");
  return config;
}

// One machine and its connections, whose other ends are the fuzzer's.
class Site : public Receiver {
 public:
  ~Site() override {
    for (const int far : far_) {
      ::close(far);
    }
  }

  void write(LinkId link, wire::ConstBytes bytes) {
    if (links_.at(link) == nullptr || bytes.empty()) {
      return;
    }
    require(::send(far_[link], bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
                static_cast<ssize_t>(bytes.size()),
            "a socket that is read has room");
    tcp::Link& near = *links_[link];
    if (near.receive(*this, counters_) == tcp::Link::Progress::lost) {
      lose(link);
    }
    settle();
  }

  void hang_up(LinkId link) {
    if (links_.at(link) != nullptr) {
      ::shutdown(far_[link], SHUT_WR);
      if (links_[link]->receive(*this, counters_) == tcp::Link::Progress::lost) {
        lose(link);
      }
      settle();
    }
  }

  virtual Machine& machine() = 0;
  virtual void check() = 0;

  Placement frame_begins(LinkId link, const Header& header) override { return machine().on_header(link, header); }
  Buffer spare(std::size_t bytes) override { return machine().spare(bytes); }
  Status frame_ends(LinkId link) override { return machine().on_payload(link); }

  void queue(LinkId link, const Header& header, Bytes owned, std::span<const std::byte> borrowed, Token token) {
    require(links_.at(link) != nullptr, "nothing is sent over a link that is gone");
    links_[link]->queue(header, std::move(owned), borrowed, token);
  }
  void detach(Token token) {
    for (auto& link : links_) {
      if (link != nullptr) {
        link->detach(token);
      }
    }
  }
  void close(LinkId link) {
    std::vector<Token> unsent;
    links_.at(link)->close(unsent);
    tokens_.insert(tokens_.end(), unsent.begin(), unsent.end());
    gone_.push_back(std::move(links_[link]));
  }
  void sum(Sum sum) { sums_.push_back(std::move(sum)); }

 protected:
  void open_links() {
    for (LinkId link = 0; link < links; ++link) {
      int ends[2];
      require(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "there are sockets");
      far_[link] = ends[1];
      links_[link] = std::make_unique<tcp::Link>(link, os::Descriptor(ends[0]), tcp::LinkOptions{});
    }
  }

 private:
  void lose(LinkId link) {
    if (links_.at(link) == nullptr) {
      return;
    }
    const Status why = links_[link]->why();
    require(!why.ok() && !why.message.empty(), "a link that ends says why");
    close(link);
    machine().on_lost(link, why);
  }

  // What follows from actions; and reads what the machine said, so that it never has to wait.
  void settle() {
    for (bool more = true; more;) {
      more = false;
      for (LinkId link = 0; link < links; ++link) {
        if (links_[link] != nullptr) {
          const tcp::Link::Progress progress = links_[link]->flush(tokens_, counters_, ++time_);
          more |= progress == tcp::Link::Progress::blocked || progress == tcp::Link::Progress::more;
          std::array<std::byte, 65536> rest;
          more |= ::recv(far_[link], rest.data(), rest.size(), MSG_DONTWAIT) == static_cast<ssize_t>(rest.size());
        }
      }
      while (!tokens_.empty()) {
        machine().on_sent(std::exchange(tokens_.front(), tokens_.back()));
        tokens_.pop_back();
        more = true;
      }
      while (!sums_.empty()) {
        const Sum sum = std::move(sums_.front());
        sums_.pop_front();
        carry_out(sum);
        machine().on_summed(sum.token);
        more = true;
      }
    }
    gone_.clear();
    machine().check_invariants();
    check();
  }

  std::array<int, links> far_{};
  std::array<std::unique_ptr<tcp::Link>, links> links_;
  std::vector<std::unique_ptr<tcp::Link>> gone_;  // one of them may be on the stack
  std::vector<Token> tokens_;
  std::deque<Sum> sums_;
  tcp::LinkCounters counters_;
  Time time_ = 0;  // never a pause
};

template <class Base>
class On : public Base {
 public:
  explicit On(Site& site) : site_(site) {}
  void send(LinkId link, const Header& header, Bytes owned, std::span<const std::byte> borrowed, Token token) override {
    site_.queue(link, header, std::move(owned), borrowed, token);
  }
  void detach(Token token) override { site_.detach(token); }
  void close(LinkId link) override { site_.close(link); }

 protected:
  Site& site_;
};

class OnServer final : public On<ServerWorld> {
 public:
  using On::On;
  void sum(Sum sum) override { site_.sum(std::move(sum)); }
};

class ServerSite final : public Site {
 public:
  ServerSite() {
    open_links();
    for (LinkId link = 0; link < links; ++link) {
      server_.attach_worker(link, link);
    }
  }
  Machine& machine() override { return server_; }
  void check() override { require(pool_.taken_bytes() < std::size_t{1024} * 1024, "buffers stay small"); }

 private:
  const JobConfig config_ = make_config();
  BufferPool pool_{0};
  OnServer world_{*this};
  Server server_{config_, 0, world_, pool_};
};

class CoordinatorSite final : public Site {
 public:
  CoordinatorSite() {
    open_links();
    for (LinkId link = 0; link < links; ++link) {
      coordinator_.attach_worker(link, link);
    }
  }
  Machine& machine() override { return coordinator_; }
  void check() override {
    // Whatever was reported is decided.
    if (coordinator_.deadline() != never) {
      coordinator_.on_time(coordinator_.deadline());
    }
  }

 private:
  struct World final : On<CoordinatorWorld> {
    using On::On;
    void warn(std::string /*text*/) override {}
  };

  const JobConfig config_ = make_config();
  World world_{*this};
  Coordinator coordinator_{config_, world_};
};

// Links 0 and 1 go to its servers or, link 1, to another worker; link 2 to the coordinator.
class NodeSite final : public Site {
 public:
  explicit NodeSite(Input& input) {
    open_links();
    worker_.attach_server(0, 0);
    if (input.once_in(2)) {
      worker_.attach_server(1, 1);
    } else {
      worker_.attach_peer(1, 2);
    }
    worker_.attach_coordinator(2);
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      std::vector<std::byte>& array = arrays_[i] = std::vector<std::byte>(4 * input.byte());
      Submission submission;
      submission.handle = i;
      submission.collective = static_cast<Collective>(1 + input.below(6));
      submission.name = std::string(1, static_cast<char>('a' + i));
      submission.dtype = submission.collective == Collective::barrier ? DType::none : DType::int32;
      submission.op = submission.collective <= Collective::reduce_scatter ? Operator::sum : Operator::none;
      submission.shape = {static_cast<std::int64_t>(array.size() / 4)};
      submission.input = submission.output = array.data();
      submission.input_bytes = submission.output_bytes = array.size();
      submission.timeout = second;
      switch (submission.collective) {
        case Collective::reduce_scatter:
          submission.output_bytes = (array.size() / 4 + 2) / 3 * 4;
          break;
        case Collective::all_gather:
          submission.output = nullptr;
          break;
        case Collective::all_to_all:
          submission.output = nullptr;
          submission.splits = {static_cast<std::int64_t>(array.size()), 0, 0};
          break;
        case Collective::barrier:
          submission.input_bytes = submission.output_bytes = 0;
          submission.shape.clear();
          break;
        default:
          break;
      }
      worker_.submit(std::move(submission));
    }
  }
  Machine& machine() override { return worker_; }
  void check() override {
    // Each of two servers may be in the middle of saying what it lacks after the loss of another.
    require(pool_.taken_bytes() < std::size_t{1024} * 1024 + 2 * wire::missing_limit(), "buffers stay small");
  }

 private:
  struct World final : On<WorkerWorld> {
    explicit World(NodeSite& node_site) : On(node_site), worker(node_site) {}
    void sum(Sum sum) override { site_.sum(std::move(sum)); }
    void sending(std::uint64_t /*handle*/) override {}
    void finish(std::uint64_t handle, Status /*status*/) override {
      require(worker.finished_.insert(handle).second, "a handle is finished once");
      worker.arrays_[handle] = {};
    }
    std::byte* allocate_output(std::uint64_t handle, const std::vector<std::uint64_t>& block_bytes) override {
      std::uint64_t bytes = 0;
      for (const std::uint64_t block : block_bytes) {
        bytes += block;
      }
      if (bytes > 65536) {
        return nullptr;
      }
      worker.outputs_[handle] = std::vector<std::byte>(bytes);
      return worker.outputs_[handle].data();
    }
    void connect(std::uint32_t /*rank*/) override {}
    void connect_server(std::uint32_t /*server*/, std::uint32_t /*attempt*/) override {}
    void warn(std::string text) override { require(!text.empty(), "a warning says something"); }
    void ended() override {}
    std::uint64_t retransmissions(LinkId /*link*/) const override { return 0; }
    NodeSite& worker;
  };

  const JobConfig config_ = make_config();
  std::array<std::vector<std::byte>, 4> arrays_;
  std::array<std::vector<std::byte>, 4> outputs_;
  std::set<std::uint64_t> finished_;
  BufferPool pool_{0};
  World world_{*this};
  Worker worker_{config_, 0, world_, pool_};
};

std::unique_ptr<Site> make_site(Input& input) {
  switch (input.below(3)) {
    case 0:
      return std::make_unique<ServerSite>();
    case 1:
      return std::make_unique<NodeSite>(input);
    default:
      return std::make_unique<CoordinatorSite>();
  }
}

// A header whose check is right and whatever follows it, or other bytes.
wire::Bytes some_bytes(Input& input) {
  if (input.once_in(4)) {
    return input.bytes(input.byte());
  }
  Frame frame{{.type = static_cast<Type>(1 + input.below(20))}, {}};
  frame.header.operation = input.once_in(4) ? input.size() : 1 + input.below(6);
  for (std::size_t i = input.below(3); i > 0; --i) {
    fuzz::damage_header(frame.header, input);
  }
  frame.payload = input.bytes(input.once_in(4) ? input.number(2) : input.byte());
  frame.header.length = static_cast<std::uint32_t>(input.once_in(16) ? input.size() : frame.payload.size());
  wire::Bytes bytes(wire::header_bytes);
  wire::encode(frame.header, std::span(bytes).first<wire::header_bytes>());
  bytes.insert(bytes.end(), frame.payload.begin(), frame.payload.end());
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const std::unique_ptr<Site> site = make_site(input);
  // What was begun on a link, and not written yet.
  std::array<wire::Bytes, links> rest;
  while (!input.empty()) {
    const auto link = static_cast<LinkId>(input.below(links));
    if (input.once_in(32)) {
      site->hang_up(link);
      continue;
    }
    if (rest[link].empty()) {
      rest[link] = some_bytes(input);
    }
    const std::size_t piece =
        std::min<std::size_t>(input.once_in(4) ? 1 + input.byte() : rest[link].size(), rest[link].size());
    site->write(link, wire::ConstBytes(rest[link]).first(piece));
    rest[link].erase(rest[link].begin(), rest[link].begin() + static_cast<std::ptrdiff_t>(piece));
  }
  for (LinkId link = 0; link < links; ++link) {
    site->hang_up(link);
  }
  return 0;
}
