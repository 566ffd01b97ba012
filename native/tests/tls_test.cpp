// Encrypted connections: the handshake, the manners of sockets, and links of the TCP driver over them.

#include "drivers/tcp/tls.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <string>
#include <thread>

#include "tests/tcp_sides.h"
#include "wire/bytes.h"

namespace {

using namespace shoal;
using namespace shoal::tests;
using tcp::Socket;
using tcp::Tls;
using Step = Tls::Step;

const std::string key(32, 'k');

Tls::FindKey keys(const std::string& known, const std::string& value = key) {
  return [known, value](const std::string& identity) { return identity == known ? value : std::string(); };
}

struct Ends {
  explicit Ends(std::pair<int, int> sockets) : near(sockets.first), far(sockets.second) {
    for (const Descriptor* end : {&near, &far}) {
      CHECK(::fcntl(end->number(), F_SETFL, O_NONBLOCK) == 0);
    }
  }

  std::pair<Step, Step> shake_hands() const {
    Step client = Step::wants_input;
    Step server = Step::wants_input;
    for (int turn = 0; turn < 10; ++turn) {
      client = client == Step::wants_input ? near_tls->handshake(near.number()) : client;
      server = server == Step::wants_input ? far_tls->handshake(far.number()) : server;
    }
    return {client, server};
  }

  Descriptor near;
  Descriptor far;
  std::shared_ptr<Tls> near_tls = Tls::client("me", key);
  std::shared_ptr<Tls> far_tls = Tls::server(keys("me"));
};

ssize_t send(Tls& tls, const Descriptor& socket, std::span<const std::byte> bytes) {
  const iovec vector{const_cast<std::byte*>(bytes.data()), bytes.size()};
  return tls.send(socket.number(), {&vector, 1});
}

ssize_t receive(Tls& tls, const Descriptor& socket, std::span<std::byte> bytes, bool from_kernel = true) {
  const iovec vector{bytes.data(), bytes.size()};
  return tls.receive(socket.number(), {&vector, 1}, from_kernel);
}

TEST(both_sides_know_that_they_hold_the_same_key) {
  const Ends ends(local_pair());
  CHECK(ends.shake_hands() == std::pair(Step::done, Step::done));
}

TEST(another_key_and_an_unknown_identity_are_told_to_both) {
  for (const bool known : {true, false}) {
    Ends ends(local_pair());
    ends.far_tls = Tls::server(known ? keys("me", std::string(32, 'o')) : keys("you"));
    const auto [client, server] = ends.shake_hands();
    CHECK(client == Step::wrong_key);
    CHECK(server == (known ? Step::failed : Step::wrong_key));
  }
}

TEST(who_does_not_encrypt_is_found_out_by_its_first_bytes) {
  for (const bool client_encrypts : {true, false}) {
    const Ends ends(local_pair());
    const Bytes hello = {std::byte{'S'}, std::byte{'H'}, std::byte{'O'}, std::byte{'A'}, std::byte{'L'}, std::byte{1}};
    write_raw((client_encrypts ? ends.far : ends.near).number(), hello);
    Tls& tls = client_encrypts ? *ends.near_tls : *ends.far_tls;
    const Descriptor& socket = client_encrypts ? ends.near : ends.far;
    Step step = tls.handshake(socket.number());
    if (step == Step::wants_input) {
      step = tls.handshake(socket.number());
    }
    CHECK(step == Step::unencrypted);
    CHECK_EQ(tls.greeting(), "SHOAL");
  }
}

TEST(a_connection_that_ends_in_the_handshake_has_ended) {
  Ends ends(local_pair());
  ends.far.reset();
  CHECK(ends.near_tls->handshake(ends.near.number()) == Step::ended);
}

TEST(a_full_kernel_takes_the_rest_later_and_nothing_is_lost) {
  const Ends ends(local_pair());
  CHECK(ends.shake_hands() == std::pair(Step::done, Step::done));
  ends.near_tls->set_records_per_key(5);
  const Bytes all = pattern(3'000'000, 1);
  Bytes arrived(all.size());
  std::size_t sent = 0;
  std::size_t received = 0;
  int blocked = 0;
  while (received < all.size()) {
    while (sent < all.size()) {
      const ssize_t count = send(*ends.near_tls, ends.near, std::span(all).subspan(sent));
      if (count < 0) {
        CHECK_EQ(errno, EAGAIN);
        ++blocked;
        break;
      }
      sent += static_cast<std::size_t>(count);
    }
    const ssize_t count = receive(*ends.far_tls, ends.far, std::span(arrived).subspan(received));
    CHECK(count > 0 || errno == EAGAIN);
    received += count > 0 ? static_cast<std::size_t>(count) : 0;
  }
  CHECK(blocked > 0);
  CHECK(arrived == all);
}

TEST(an_end_in_one_direction_leaves_the_other) {
  const Ends ends(local_pair());
  CHECK(ends.shake_hands() == std::pair(Step::done, Step::done));
  const Bytes some = pattern(1000, 1);
  Bytes place(2000);
  CHECK_EQ(send(*ends.near_tls, ends.near, some), 1000);
  CHECK(::shutdown(ends.near.number(), SHUT_WR) == 0);
  CHECK_EQ(receive(*ends.far_tls, ends.far, place), 1000);
  CHECK_EQ(receive(*ends.far_tls, ends.far, place), 0);
  CHECK_EQ(send(*ends.far_tls, ends.far, some), 1000);
  CHECK_EQ(receive(*ends.near_tls, ends.near, place), 1000);
}

// The alert that says so waits for room; the caller's bytes do not count as sent when it gets it.
TEST(a_connection_that_was_tampered_with_sends_nothing_more) {
  const Ends ends(local_pair());
  CHECK(ends.shake_hands() == std::pair(Step::done, Step::done));
  Bytes raw(65536);
  while (::send(ends.near.number(), raw.data(), raw.size(), MSG_NOSIGNAL) > 0) {
  }
  CHECK_EQ(errno, EAGAIN);
  write_raw(ends.far.number(),
            Bytes{std::byte{23}, std::byte{3}, std::byte{3}, std::byte{0}, std::byte{1}, std::byte{7}});
  CHECK_EQ(receive(*ends.near_tls, ends.near, raw), -1);
  CHECK_EQ(errno, EBADMSG);
  while (::recv(ends.far.number(), raw.data(), raw.size(), 0) > 0) {
  }
  CHECK_EQ(send(*ends.near_tls, ends.near, pattern(1000, 1)), -1);
  CHECK_EQ(errno, EBADMSG);
}

TEST(what_was_read_ahead_can_be_had_without_the_kernel) {
  const Ends ends(local_pair());
  CHECK(ends.shake_hands() == std::pair(Step::done, Step::done));
  ends.far_tls->read_ahead();
  const Bytes some = pattern(1000, 1);
  Bytes place(1000);
  CHECK_EQ(send(*ends.near_tls, ends.near, some), 1000);
  CHECK_EQ(send(*ends.near_tls, ends.near, some), 1000);
  CHECK_EQ(receive(*ends.far_tls, ends.far, place), 1000);
  CHECK(ends.far_tls->holds_bytes());
  CHECK_EQ(receive(*ends.far_tls, ends.far, place, false), 1000);
  CHECK(place == some);
  CHECK(!ends.far_tls->holds_bytes());
  CHECK_EQ(receive(*ends.far_tls, ends.far, place, false), -1);
  CHECK_EQ(errno, EAGAIN);
}

// Links over a connection whose bytes go through the test's hands: `near` and `far` are the loops' ends.
struct Relayed {
  explicit Relayed(const std::function<void(std::span<char>)>& on_way) {
    const auto [left_socket, left_relay] = tcp_pair();
    const auto [right_socket, right_relay] = tcp_pair();
    Ends ends({left_socket, right_socket});
    forward = std::thread([=] { carry(left_relay, right_relay, on_way); });
    back = std::thread([=] { carry(right_relay, left_relay, [](std::span<char>) {}); });
    std::pair<Step, Step> steps{Step::wants_input, Step::wants_input};
    while (steps != std::pair(Step::done, Step::done)) {
      steps = ends.shake_hands();
      CHECK(steps.first <= Step::wants_room && steps.second <= Step::wants_room);
    }
    left_link = left.loop.add_socket(left.machine, Socket(std::move(ends.near), ends.near_tls));
    right_link = right.loop.add_socket(right.machine, Socket(std::move(ends.far), ends.far_tls));
    left.loop.start();
    right.loop.start();
    relays = {left_relay, right_relay};
  }
  ~Relayed() {
    left.loop.stop();
    right.loop.stop();
    for (int relay : relays) {
      ::shutdown(relay, SHUT_RDWR);
    }
    forward.join();
    back.join();
    for (int relay : relays) {
      ::close(relay);
    }
  }

  static void carry(int from, int to, const std::function<void(std::span<char>)>& on_way) {
    std::array<char, 65536> buffer;
    ssize_t count = 0;
    while ((count = ::read(from, buffer.data(), buffer.size())) > 0) {
      on_way(std::span(buffer).first(static_cast<std::size_t>(count)));
      if (::send(to, buffer.data(), static_cast<std::size_t>(count), MSG_NOSIGNAL) != count) {
        break;
      }
    }
    ::shutdown(to, SHUT_WR);
  }

  Side left;
  Side right;
  LinkId left_link = 0;
  LinkId right_link = 0;
  std::thread forward;
  std::thread back;
  std::vector<int> relays;
};

TEST(frames_of_all_sizes_arrive_whole_over_encrypted_links) {
  Ends ends(tcp_pair());
  CHECK(ends.shake_hands() == std::pair(Step::done, Step::done));
  ends.near_tls->set_records_per_key(100);
  Side left;
  Side right;
  const LinkId left_link = left.loop.add_socket(left.machine, Socket(std::move(ends.near), ends.near_tls));
  const LinkId right_link = right.loop.add_socket(right.machine, Socket(std::move(ends.far), ends.far_tls));
  left.loop.start();
  right.loop.start();
  std::vector<Bytes> payloads;
  for (std::size_t i = 0; i < 2000; ++i) {
    payloads.push_back(pattern(i % 100 == 0 ? 1'000'000 + i : i * 37 % 40'000, i));
  }
  const auto send_all = [&](Side& side, LinkId link) {
    side.loop.call([&] {
      for (std::size_t i = 0; i < payloads.size(); ++i) {
        side.machine.send(link, {}, payloads[i], i + 1);
      }
    });
  };
  send_all(left, left_link);
  send_all(right, right_link);
  for (Side* side : {&left, &right}) {
    side->until([&] {
      CHECK(side->machine.lost.empty());
      return side->machine.whole_frames == payloads.size() && side->machine.sent.size() == payloads.size();
    });
    for (std::size_t i = 0; i < payloads.size(); ++i) {
      CHECK(side->machine.frames[i].payload == payloads[i]);
      CHECK_EQ(side->machine.sent[i], i + 1);
    }
  }
}

TEST(frames_that_came_before_the_link_was_handed_over_are_read) {
  Ends ends(local_pair());
  CHECK(ends.shake_hands() == std::pair(Step::done, Step::done));
  ends.far_tls->read_ahead();
  Bytes bytes = pattern(10, 1);
  const Bytes header = header_of(500);
  const Bytes payload = pattern(500, 2);
  bytes.insert(bytes.end(), header.begin(), header.end());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  CHECK_EQ(send(*ends.near_tls, ends.near, bytes), static_cast<ssize_t>(bytes.size()));
  Bytes before(10);
  CHECK_EQ(receive(*ends.far_tls, ends.far, before), 10);
  Side side;
  side.loop.add_socket(side.machine, Socket(std::move(ends.far), ends.far_tls));
  side.loop.start();
  side.until([&] { return side.machine.whole_frames == 1; });
  CHECK(side.machine.frames[0].payload == payload);
}

TEST(nothing_of_a_payload_is_seen_on_the_way) {
  const std::string secret(64, 'Z');
  std::string seen;
  Relayed relayed([&](std::span<char> bytes) { seen.append(bytes.data(), bytes.size()); });
  const Bytes payload(100'000, std::byte{'Z'});
  relayed.left.loop.call([&] { relayed.left.machine.send(relayed.left_link, {}, payload); });
  relayed.right.until([&] { return relayed.right.machine.whole_frames == 1; });
  CHECK(relayed.right.machine.frames[0].payload == payload);
  CHECK(seen.size() > payload.size());
  CHECK(seen.find(secret.substr(0, 8)) == std::string::npos);
}

TEST(a_byte_that_is_changed_on_the_way_ends_the_link_and_says_so) {
  std::size_t passed = 0;
  Relayed relayed([&](std::span<char> bytes) {
    if (passed < 150'000 && passed + bytes.size() >= 150'000) {
      bytes[150'000 - passed - 1] ^= 0x20;
    }
    passed += bytes.size();
  });
  const Bytes payload = pattern(50'000, 1);
  relayed.left.loop.call([&] {
    for (int i = 0; i < 8; ++i) {
      relayed.left.machine.send(relayed.left_link, {}, payload);
    }
  });
  relayed.right.until([&] { return !relayed.right.machine.lost.empty(); });
  const std::string why = relayed.right.machine.lost[0].second.message;
  CHECK(why.find("changed on its way") != std::string::npos);
  CHECK(relayed.right.machine.whole_frames >= 2 && relayed.right.machine.whole_frames < 8);
  for (const Frame& frame : relayed.right.machine.frames) {
    CHECK(frame.payload == payload);
  }
  relayed.left.until([&] { return !relayed.left.machine.lost.empty(); });
}

}  // namespace

RUN_TESTS()
