// The TCP driver with stand-in machines: every promise of protocol/machine.h that a driver gives.

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <thread>

#include "drivers/tcp/loop.h"
#include "drivers/tcp/parent_only.h"
#include "tests/check.h"
#include "wire/bytes.h"

namespace {

using namespace shoal;
using tcp::Descriptor;
using tcp::Loop;
using tcp::OnLoop;

constexpr std::chrono::seconds patience{30};

struct Frame {
  LinkId link;
  wire::Header header;
  Bytes payload;
};

// Writes down every event, and checks that none comes from within an action.
class Recorder final : public Machine {
 public:
  explicit Recorder(Loop& loop) : world(loop) {
    world.bind(*this);
    loop.add(*this);
  }

  Placement on_header(LinkId link, const wire::Header& header) override {
    const Inside inside(*this);
    if (when_header) {
      if (Status status = when_header(link, header); !status.ok()) {
        return {std::move(status), nullptr};
      }
    }
    ++headers;
    Frame& frame = arriving[link] = {link, header, Bytes(header.length)};
    return {{}, frame.payload.data()};
  }
  Status on_payload(LinkId link) override {
    const Inside inside(*this);
    CHECK(arriving.contains(link));
    frames.push_back(std::move(arriving.extract(link).mapped()));
    ++whole_frames;
    return when_payload ? when_payload(frames.back()) : Status{};
  }
  void on_sent(Token token) override {
    const Inside inside(*this);
    sent.push_back(token);
    log.push_back("sent");
    if (when_sent) {
      when_sent(token);
    }
  }
  void on_summed(Token token) override {
    const Inside inside(*this);
    summed.push_back(token);
  }
  void on_lost(LinkId link, const Status& why) override {
    const Inside inside(*this);
    lost.emplace_back(link, why);
    log.push_back("lost");
  }
  void on_time(Time now) override {
    const Inside inside(*this);
    time = now;
    if (now >= wanted) {
      wanted = never;
      ++alarms;
    }
  }
  Time deadline() const override { return wanted; }

  void send(LinkId link, Bytes owned, std::span<const std::byte> borrowed = {}, Token token = 0) {
    wire::Header header;
    header.type = wire::Type::data;
    header.dtype = DType::uint8;
    header.operation = ++operations;
    header.length = static_cast<std::uint32_t>(owned.size() + borrowed.size());
    world.send(link, header, std::move(owned), borrowed, token);
  }

  OnLoop<ServerWorld>& wire() { return world; }

  class World final : public OnLoop<ServerWorld> {
   public:
    using OnLoop::OnLoop;
    void sum(Sum sum) override { loop_.sum(*machine_, sum); }
  };
  World world;
  std::function<Status(LinkId, const wire::Header&)> when_header;
  std::function<Status(const Frame&)> when_payload;
  std::function<void(Token)> when_sent;
  std::map<LinkId, Frame> arriving;
  std::vector<Frame> frames;  // whole ones
  std::vector<Token> sent;
  std::vector<Token> summed;
  std::vector<std::pair<LinkId, Status>> lost;
  std::vector<std::string> log;
  std::size_t headers = 0;
  std::size_t whole_frames = 0;
  std::uint64_t operations = 0;
  Time time = 0;
  Time wanted = never;
  int alarms = 0;

 private:
  struct Inside {
    explicit Inside(Recorder& recorder) : machine(recorder) { CHECK(!std::exchange(machine.busy_, true)); }
    ~Inside() { machine.busy_ = false; }
    Recorder& machine;
  };
  bool busy_ = false;
};

// A loop with one machine, stopped before the machine goes.
struct Side {
  Loop loop;
  Recorder machine{loop};

  ~Side() { loop.stop(); }

  void until(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    while (!loop.call(condition)) {
      CHECK(std::chrono::steady_clock::now() < deadline);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
};

std::pair<int, int> local_pair() {
  int ends[2];
  CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  return {ends[0], ends[1]};
}

std::pair<int, int> tcp_pair() {
  const Descriptor listener(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  CHECK(::bind(listener.number(), reinterpret_cast<sockaddr*>(&address), size) == 0);
  CHECK(::listen(listener.number(), 1) == 0);
  CHECK(::getsockname(listener.number(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  const int client = ::socket(AF_INET, SOCK_STREAM, 0);
  CHECK(::connect(client, reinterpret_cast<sockaddr*>(&address), size) == 0);
  const int server = ::accept(listener.number(), nullptr, nullptr);
  CHECK(server >= 0);
  return {client, server};
}

Bytes pattern(std::size_t size, std::size_t seed) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>((i * 31 + seed * 17 + (i >> 8)) & 0xff);
  }
  return bytes;
}

Bytes header_of(std::uint32_t length) {
  wire::Header header;
  header.type = wire::Type::data;
  header.dtype = DType::uint8;
  header.operation = 1;
  header.length = length;
  Bytes bytes(wire::header_bytes);
  wire::encode(header, wire::HeaderBytes(bytes));
  return bytes;
}

void write_raw(int socket, const Bytes& bytes) {
  CHECK_EQ(::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
}

// The other end is a plain socket in the test's hands.
struct RawPeer : Side {
  RawPeer() {
    const auto [ours, theirs] = local_pair();
    raw = theirs;
    link = loop.add_socket(machine, Descriptor(ours));
  }
  ~RawPeer() {
    if (raw >= 0) {
      ::close(raw);
    }
  }
  void hang_up() { ::close(std::exchange(raw, -1)); }

  int raw = -1;
  LinkId link = 0;
};

void transfer_both_ways(std::pair<int, int> sockets, std::size_t frames,
                        const std::function<std::size_t(std::size_t)>& size) {
  Side left;
  Side right;
  const LinkId left_link = left.loop.add_socket(left.machine, Descriptor(sockets.first));
  const LinkId right_link = right.loop.add_socket(right.machine, Descriptor(sockets.second));
  left.loop.start();
  right.loop.start();
  std::vector<Bytes> borrowed;
  for (std::size_t i = 0; i < frames; ++i) {
    borrowed.push_back(pattern(size(i), i));
  }
  const auto send_all = [&](Side& side, LinkId link) {
    side.loop.call([&] {
      for (std::size_t i = 0; i < frames; ++i) {
        // A third from owned bytes, so that frames of all three pieces occur.
        const std::span<const std::byte> all(borrowed[i]);
        const std::size_t cut = all.size() / 3;
        side.machine.send(link, Bytes(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(cut)), all.subspan(cut),
                          i + 1);
      }
    });
  };
  send_all(left, left_link);
  send_all(right, right_link);
  for (Side* side : {&left, &right}) {
    side->until([&] { return side->machine.whole_frames == frames && side->machine.sent.size() == frames; });
    for (std::size_t i = 0; i < frames; ++i) {
      CHECK_EQ(side->machine.frames[i].header.operation, i + 1);
      CHECK(side->machine.frames[i].payload == borrowed[i]);
      CHECK_EQ(side->machine.sent[i], i + 1);
    }
  }
  std::uint64_t total = 0;
  for (const Bytes& bytes : borrowed) {
    total += bytes.size() + wire::header_bytes;
  }
  left.until([&] { return left.loop.counters().bytes_sent == total && left.loop.counters().bytes_received == total; });
}

TEST(large_payloads_arrive_whole_in_both_directions_over_tcp) {
  transfer_both_ways(tcp_pair(), 24, [](std::size_t i) { return std::size_t{1} << 20 | i * 4099; });
}

TEST(segments_arrive_whole_in_both_directions_over_a_socket_pair) {
  transfer_both_ways(local_pair(), 1000, [](std::size_t i) { return 16384 - i % 7; });
}

TEST(many_small_frames_arrive_in_order_and_tokens_come_back_in_order) {
  transfer_both_ways(tcp_pair(), 30000, [](std::size_t i) { return i % 90; });
}

TEST(frames_of_every_size_around_the_read_ahead_arrive_whole) {
  transfer_both_ways(local_pair(), 400, [](std::size_t i) { return 4096 - 200 + i; });
}

TEST(a_frame_that_trickles_in_byte_by_byte_is_put_together) {
  RawPeer side;
  side.loop.start();
  Bytes bytes = header_of(50);
  const Bytes payload = pattern(50, 3);
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  for (std::byte byte : bytes) {
    write_raw(side.raw, {byte});
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  side.until([&] { return side.machine.whole_frames == 1; });
  CHECK(side.machine.frames[0].payload == payload);
}

TEST(the_end_between_frames_is_a_lost_peer) {
  RawPeer side;
  side.loop.start();
  write_raw(side.raw, header_of(0));
  side.hang_up();
  side.until([&] { return side.machine.lost.size() == 1; });
  CHECK_EQ(side.machine.whole_frames, 1u);
  CHECK_EQ(side.machine.lost[0].first, side.link);
  CHECK(side.machine.lost[0].second.code == Code::peer_lost);
  CHECK_EQ(side.machine.lost[0].second.message, "connection closed by peer");
}

TEST(the_end_within_a_header_or_a_payload_says_so) {
  for (const std::size_t payload_bytes : {0, 1, 99}) {
    RawPeer side;
    side.loop.start();
    Bytes bytes = header_of(100);
    bytes.resize(payload_bytes == 0 ? 17 : bytes.size() + payload_bytes);
    write_raw(side.raw, bytes);
    side.hang_up();
    side.until([&] { return side.machine.lost.size() == 1; });
    CHECK_EQ(side.machine.lost[0].second.message, "connection closed by peer in the middle of a frame");
    CHECK_EQ(side.machine.whole_frames, 0u);
  }
}

TEST(a_damaged_header_ends_the_link_before_the_machine_sees_it) {
  RawPeer side;
  side.loop.start();
  Bytes bytes = header_of(0);
  bytes[9] ^= std::byte{4};
  write_raw(side.raw, bytes);
  side.until([&] { return side.machine.lost.size() == 1; });
  CHECK(side.machine.lost[0].second.code == Code::protocol);
  CHECK(side.machine.headers == 0);
  char byte;
  CHECK_EQ(::recv(side.raw, &byte, 1, 0), 0);
}

TEST(a_header_that_the_machine_refuses_ends_the_link_with_its_status) {
  RawPeer side;
  side.machine.when_header = [](LinkId, const wire::Header&) { return Status::error(Code::protocol, "not yours", 3); };
  side.loop.start();
  write_raw(side.raw, header_of(10));
  side.until([&] { return side.machine.lost.size() == 1; });
  CHECK_EQ(side.machine.lost[0].second.message, "not yours");
  CHECK_EQ(side.machine.lost[0].second.rank, 3);
}

TEST(a_payload_that_the_machine_refuses_ends_the_link_with_its_status) {
  RawPeer side;
  side.machine.when_payload = [](const Frame&) { return Status::error(Code::limit, "too much"); };
  side.loop.start();
  Bytes two = header_of(0);
  const Bytes more = header_of(0);
  two.insert(two.end(), more.begin(), more.end());
  write_raw(side.raw, two);
  side.until([&] { return side.machine.lost.size() == 1; });
  CHECK_EQ(side.machine.lost[0].second.message, "too much");
  CHECK_EQ(side.machine.whole_frames, 1u);
}

TEST(a_link_that_the_machine_closes_within_its_own_event_is_silent_from_then_on) {
  for (const bool at_header : {true, false}) {
    RawPeer side;
    const auto close = [&] {
      side.machine.send(side.link, {}, {}, 5);
      side.machine.wire().close(side.link);
    };
    if (at_header) {
      side.machine.when_header = [&](LinkId, const wire::Header&) { return close(), Status{}; };
    } else {
      side.machine.when_payload = [&](const Frame&) { return close(), Status{}; };
    }
    side.loop.start();
    Bytes bytes = header_of(3);
    bytes.resize(bytes.size() + 3);
    bytes.insert(bytes.end(), bytes.begin(), bytes.end());
    write_raw(side.raw, bytes);
    // The token of the frame that was thrown away comes back all the same.
    side.until([&] { return side.machine.sent == std::vector<Token>{5}; });
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    side.until([&] { return side.machine.lost.empty() && side.machine.whole_frames == (at_header ? 0u : 1u); });
    CHECK_EQ(side.machine.headers, 1u);
  }
}

TEST(tokens_of_unsent_frames_come_back_after_the_loss) {
  RawPeer side;
  const Bytes large = pattern(8 << 20, 1);
  side.loop.start();
  side.loop.call([&] {
    side.machine.send(side.link, {}, large, 1);
    side.machine.send(side.link, {}, large, 2);
  });
  side.until([&] { return side.loop.counters().bytes_sent > 0; });
  side.hang_up();
  side.until([&] { return side.machine.sent.size() == 2; });
  CHECK(side.machine.log == (std::vector<std::string>{"lost", "sent", "sent"}));
  // And so does the token of a frame for a link that is gone.
  side.loop.call([&] { side.machine.send(side.link, {}, large, 3); });
  side.until([&] { return side.machine.sent == (std::vector<Token>{1, 2, 3}); });
}

TEST(the_last_words_of_a_peer_are_read_although_sending_to_it_fails) {
  RawPeer side;
  const Bytes large = pattern(1 << 20, 1);
  side.machine.when_payload = [&](const Frame&) {
    side.machine.send(side.link, {}, large, 0);
    return Status{};
  };
  for (int i = 0; i < 200; ++i) {
    write_raw(side.raw, header_of(0));
  }
  side.hang_up();
  side.loop.start();
  side.until([&] { return side.machine.lost.size() == 1; });
  CHECK_EQ(side.machine.whole_frames, 200u);
}

TEST(detached_memory_is_not_read_any_more) {
  RawPeer side;
  Bytes memory = pattern(4 << 20, 7);
  const Bytes expected = memory;
  side.loop.start();
  side.loop.call([&] {
    side.machine.send(side.link, pattern(11, 1), memory, 9);
    side.machine.send(side.link, {}, std::span(memory).first(100), 10);
  });
  side.until([&] { return side.loop.counters().bytes_sent > 0; });
  side.loop.call([&] {
    CHECK(side.machine.sent.empty());
    side.machine.wire().detach(9);
    side.machine.wire().detach(10);
  });
  std::fill(memory.begin(), memory.end(), std::byte{0});
  Bytes received(2 * wire::header_bytes + 11 + expected.size() + 100);
  for (std::size_t at = 0; at < received.size();) {
    const ssize_t count = ::recv(side.raw, received.data() + at, received.size() - at, 0);
    CHECK(count > 0);
    at += static_cast<std::size_t>(count);
  }
  const auto payload = received.begin() + wire::header_bytes + 11;
  CHECK(std::equal(expected.begin(), expected.end(), payload));
  CHECK(std::equal(expected.begin(), expected.begin() + 100, received.end() - 100));
  side.until([&] { return side.machine.sent == (std::vector<Token>{9, 10}); });
}

// Two machines of one loop and a link in memory between them.
struct InMemory : Side {
  Recorder other{loop};
  LinkId here = 0;
  LinkId there = 0;

  InMemory() { std::tie(here, there) = loop.add_pair(machine, other); }
  ~InMemory() { loop.stop(); }
};

TEST(frames_in_memory_keep_order_and_give_tokens_back) {
  InMemory side;
  const Bytes payload = pattern(1000, 2);
  side.other.when_payload = [&](const Frame& frame) {
    side.other.send(side.there, frame.payload);
    return Status{};
  };
  side.loop.start();
  side.loop.call([&] {
    for (Token i = 1; i <= 5000; ++i) {
      side.machine.send(side.here, pattern(7, i), payload, i);
    }
  });
  side.until([&] { return side.machine.whole_frames == 5000 && side.machine.sent.size() == 5000; });
  for (std::size_t i = 0; i < 5000; ++i) {
    Bytes expected = pattern(7, i + 1);
    expected.insert(expected.end(), payload.begin(), payload.end());
    CHECK(side.machine.frames[i].payload == expected);
    CHECK_EQ(side.machine.sent[i], i + 1);
  }
}

TEST(an_end_in_memory_that_closes_is_lost_to_the_other_after_what_it_had_said_is_thrown_away) {
  InMemory side;
  side.loop.start();
  side.loop.call([&] {
    side.other.send(side.there, {}, {}, 4);
    side.machine.send(side.here, {}, {}, 1);
    side.machine.wire().close(side.here);
    side.machine.send(side.here, {}, {}, 2);
  });
  side.until(
      [&] { return side.other.lost.size() == 1 && side.machine.sent.size() == 2 && side.other.sent.size() == 1; });
  CHECK_EQ(side.other.headers, 0u);
  CHECK(side.machine.lost.empty());
  CHECK_EQ(side.other.lost[0].second.message, "connection closed by peer");
}

TEST(a_refusal_in_memory_is_a_loss_for_both) {
  InMemory side;
  side.other.when_header = [](LinkId, const wire::Header&) { return Status::error(Code::protocol, "no"); };
  side.loop.start();
  side.loop.call([&] {
    side.machine.send(side.here, {}, {}, 1);
    side.machine.send(side.here, {}, {}, 2);
  });
  side.until([&] { return side.machine.lost.size() == 1 && side.machine.sent.size() == 2; });
  CHECK_EQ(side.other.lost.size(), 1u);
  CHECK_EQ(side.other.lost[0].second.message, "no");
  CHECK(side.machine.lost[0].second.code == Code::peer_lost);
}

TEST(sums_are_carried_out_and_reported_later) {
  Side side;
  const std::vector<float> a{1, 2, 3};
  const std::vector<float> b{10, 20, 30};
  std::vector<float> result(3);
  side.loop.start();
  side.loop.call([&] {
    Sum sum;
    sum.destination = reinterpret_cast<std::byte*>(result.data());
    sum.sources = {reinterpret_cast<const std::byte*>(a.data()), reinterpret_cast<const std::byte*>(b.data())};
    sum.count = 3;
    sum.dtype = DType::float32;
    sum.op = Operator::sum;
    sum.token = 8;
    side.machine.world.sum(sum);
    CHECK(side.machine.summed.empty());
  });
  side.until([&] { return side.machine.summed == std::vector<Token>{8}; });
  CHECK(result == (std::vector<float>{11, 22, 33}));
}

TEST(deadlines_are_kept_without_other_events) {
  Side side;
  side.loop.start();
  const Time wanted = Loop::now() + second / 50;
  side.loop.call([&] { side.machine.wanted = wanted; });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  side.until([&] { return side.machine.alarms == 1; });
  side.loop.stop();
  CHECK(side.machine.time >= wanted);
}

TEST(tasks_of_many_threads_all_run_each_thread_in_order) {
  Side side;
  side.loop.start();
  constexpr int threads = 4;
  constexpr int tasks = 5000;
  std::vector<std::vector<int>> ran(threads);
  std::vector<std::thread> posters;
  for (int t = 0; t < threads; ++t) {
    posters.emplace_back([&, t] {
      for (int i = 0; i < tasks; ++i) {
        CHECK(side.loop.post([&, t, i] { ran[static_cast<std::size_t>(t)].push_back(i); }));
        if (i % 1000 == 0) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));  // lets the loop fall asleep
        }
      }
    });
  }
  for (std::thread& poster : posters) {
    poster.join();
  }
  side.until(
      [&] { return std::all_of(ran.begin(), ran.end(), [](const auto& list) { return list.size() == tasks; }); });
  for (const auto& list : ran) {
    CHECK(std::is_sorted(list.begin(), list.end()));
  }
}

TEST(a_stopped_loop_takes_no_tasks_and_says_so) {
  Side side;
  side.loop.start();
  side.loop.stop();
  side.loop.stop();
  CHECK(!side.loop.post([] {}));
  bool refused = false;
  try {
    side.loop.call([] { return 1; });
  } catch (const std::runtime_error&) {
    refused = true;
  }
  CHECK(refused);
}

TEST(a_loop_that_fails_closes_its_links_and_tells) {
  RawPeer side;
  std::string why;
  side.loop.on_failure = [&](const std::string& text) { why = text; };
  side.loop.start();
  side.loop.post([] { throw std::runtime_error("no memory"); });
  char byte;
  CHECK_EQ(::recv(side.raw, &byte, 1, 0), 0);
  side.loop.stop();
  CHECK_EQ(why, "no memory");
}

TEST(a_machine_that_is_removed_hears_nothing_more) {
  RawPeer side;
  side.loop.start();
  side.loop.call([&] {
    side.machine.send(side.link, {}, {}, 1);
    side.loop.remove(side.machine);
  });
  char byte;
  CHECK_EQ(::recv(side.raw, &byte, 1, 0), 0);
  side.until([&] { return side.loop.counters().links == 0; });
  CHECK(side.machine.sent.empty());
  CHECK(side.machine.lost.empty());
}

TEST(one_busy_link_does_not_starve_another) {
  Side side;
  const auto [busy, busy_peer] = local_pair();
  const auto [quiet, quiet_peer] = local_pair();
  std::size_t busy_frames_before = 0;
  std::size_t quiet_frames = 0;
  const LinkId busy_link = side.loop.add_socket(side.machine, Descriptor(busy));
  side.loop.add_socket(side.machine, Descriptor(quiet));
  side.machine.when_payload = [&](const Frame& frame) {
    if (frame.link != busy_link) {
      ++quiet_frames;
    } else if (quiet_frames == 0) {
      ++busy_frames_before;
    }
    side.machine.frames.clear();
    return Status{};
  };
  side.loop.start();
  std::atomic<bool> enough{false};
  std::thread writer([&, socket = busy_peer] {
    Bytes bytes = header_of(16384);
    bytes.resize(bytes.size() + 16384);
    while (!enough && ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0) {
    }
  });
  side.until([&] { return busy_frames_before > 0; });
  write_raw(quiet_peer, header_of(0));
  side.until([&] { return quiet_frames == 1; });
  enough = true;
  writer.join();
  ::close(busy_peer);
  ::close(quiet_peer);
}

TEST(a_forked_child_holds_no_descriptor_and_leaves_the_parent_in_peace) {
  RawPeer side;
  const int ours = 200;  // a number that nothing else in this process takes
  const auto [first, second] = local_pair();
  CHECK_EQ(::dup2(first, ours), ours);
  ::close(first);
  side.loop.add_socket(side.machine, Descriptor(ours));
  side.loop.start();
  const tcp::ParentOnly<int> property(std::make_unique<int>(1));
  const pid_t child = ::fork();
  if (child == 0) {
    const bool closed = ::fcntl(ours, F_GETFD) == -1;
    bool refused = false;
    try {
      static_cast<void>(*property.operator->());
    } catch (const std::runtime_error&) {
      refused = true;
    }
    side.loop.stop();  // returns, although there is no thread
    ::_exit(closed && refused ? 0 : 1);
  }
  CHECK(child > 0);
  int status = -1;
  CHECK_EQ(::waitpid(child, &status, 0), child);
  CHECK(WIFEXITED(status));
  CHECK_EQ(WEXITSTATUS(status), 0);
  write_raw(side.raw, header_of(0));
  side.until([&] { return side.machine.whole_frames == 1 && side.machine.lost.empty(); });
  ::close(second);
}

}  // namespace

RUN_TESTS()
