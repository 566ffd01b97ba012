// What the tests of the TCP driver share: a stand-in machine that writes down what happens to it, and loops with links
// to other machines or to sockets in the test's hands.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "drivers/tcp/loop.h"
#include "tests/check.h"

namespace shoal::tests {

using os::Descriptor;
using tcp::Loop;
using tcp::OnLoop;

inline constexpr std::chrono::seconds patience{30};

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

inline std::pair<int, int> local_pair() {
  int ends[2];
  CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  return {ends[0], ends[1]};
}

inline std::pair<int, int> tcp_pair() {
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

inline Bytes pattern(std::size_t size, std::size_t seed) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>((i * 31 + seed * 17 + (i >> 8)) & 0xff);
  }
  return bytes;
}

inline Bytes header_of(std::uint32_t length) {
  wire::Header header;
  header.type = wire::Type::data;
  header.dtype = DType::uint8;
  header.operation = 1;
  header.length = length;
  Bytes bytes(wire::header_bytes);
  wire::encode(header, wire::HeaderBytes(bytes));
  return bytes;
}

inline void write_raw(int socket, const Bytes& bytes) {
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

// Two machines of one loop and a link in memory between them.
struct InMemory : Side {
  Recorder other{loop};
  LinkId here = 0;
  LinkId there = 0;

  InMemory() { std::tie(here, there) = loop.add_pair(machine, other); }
  ~InMemory() { loop.stop(); }
};

}  // namespace shoal::tests
