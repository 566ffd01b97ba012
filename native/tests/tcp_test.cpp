// The TCP driver's links with stand-in machines: every promise of protocol/machine.h that a driver gives.

#include <linux/filter.h>
#include <linux/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "tests/tcp_sides.h"
#include "wire/bytes.h"

namespace {

using namespace shoal;
using namespace shoal::tests;

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
  for (Side* side : {&left, &right}) {
    CHECK_EQ(side->loop.counters().bytes_sent, total);
    CHECK_EQ(side->loop.counters().bytes_received, total);
  }
}

// So that whoever has a result can say what it took.
TEST(bytes_are_counted_before_anybody_is_told_of_them) {
  const std::pair<int, int> sockets = tcp_pair();
  Side left;
  Side right;
  const LinkId to_right = left.loop.add_socket(left.machine, Descriptor(sockets.first));
  right.loop.add_socket(right.machine, Descriptor(sockets.second));
  constexpr std::size_t frames = 20;
  const Bytes payload = pattern(3000, 1);
  std::size_t told = 0;
  right.machine.when_payload = [&](const Frame&) {
    ++told;
    CHECK(right.loop.counters().bytes_received >= told * (payload.size() + wire::header_bytes));
    return Status{};
  };
  left.loop.start();
  right.loop.start();
  left.loop.call([&] {
    for (std::size_t i = 0; i < frames; ++i) {
      left.machine.send(to_right, {}, payload, i + 1);
    }
  });
  right.until([&] { return right.machine.whole_frames == frames; });
  left.until([&] { return left.machine.sent.size() == frames; });  // the payload is its own again
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

TEST(payloads_that_come_in_parts_are_put_together_and_what_follows_them_is_not_held_up) {
  RawPeer side;
  side.loop.start();
  std::size_t frames = 0;
  for (const std::size_t size : {100, 4096, 16383, 16384, 16385, 65536}) {
    const Bytes payload = pattern(size, size);
    write_raw(side.raw, header_of(static_cast<std::uint32_t>(size)));
    for (std::size_t at = 0; at < size;) {
      const std::size_t part = std::min(at == 0 ? std::size_t{50} : size / 3, size - at);
      const auto begin = payload.begin() + static_cast<std::ptrdiff_t>(at);
      write_raw(side.raw, Bytes(begin, begin + static_cast<std::ptrdiff_t>(part)));
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      at += part;
    }
    side.until([&] { return side.machine.whole_frames == frames + 1; });
    CHECK(side.machine.frames.back().payload == payload);
    write_raw(side.raw, header_of(0));
    frames += 2;
    side.until([&] { return side.machine.whole_frames == frames; });
  }
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

// From now on the kernel throws away what comes to this socket, as if the cable to its host were cut.
void cut(int socket) {
  sock_filter drop_all{BPF_RET | BPF_K, 0, 0, 0};
  const sock_fprog program{1, &drop_all};
  CHECK_EQ(::setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
}

void mend(int socket) {
  const int ignored = 0;
  CHECK_EQ(::setsockopt(socket, SOL_SOCKET, SO_DETACH_FILTER, &ignored, sizeof ignored), 0);
}

TEST(each_link_of_a_loop_has_its_own_patience_with_a_silent_host) {
  Side side;
  const auto [hasty, hasty_peer] = tcp_pair();
  const auto [patient, patient_peer] = tcp_pair();
  const LinkId hasty_link = side.loop.add_socket(side.machine, Descriptor(hasty), {1, false});
  const LinkId patient_link = side.loop.add_socket(side.machine, Descriptor(patient), {3600, false});
  side.loop.start();
  cut(hasty_peer);
  cut(patient_peer);
  const Bytes payload = pattern(1000, 3);
  const auto began = std::chrono::steady_clock::now();
  side.loop.call([&] {
    side.machine.send(hasty_link, {}, payload, 1);
    side.machine.send(patient_link, {}, payload, 2);
  });
  side.until([&] { return !side.machine.lost.empty(); });
  const auto waited = std::chrono::steady_clock::now() - began;
  CHECK(waited > std::chrono::milliseconds(900));
  CHECK(waited < std::chrono::seconds(5));
  CHECK_EQ(side.machine.lost.size(), 1u);
  CHECK_EQ(side.machine.lost[0].first, hasty_link);
  CHECK_EQ(side.machine.lost[0].second.message, "its host has not answered for 1 s (SHOAL_PEER_TIMEOUT)");

  // What was sent into the silence arrives after it.
  mend(patient_peer);
  Bytes received(wire::header_bytes + payload.size());
  CHECK_EQ(::recv(patient_peer, received.data(), received.size(), MSG_WAITALL), static_cast<ssize_t>(received.size()));
  CHECK(std::equal(payload.begin(), payload.end(), received.begin() + wire::header_bytes));
  CHECK_EQ(side.loop.call([&] { return side.machine.lost.size(); }), 1u);
  ::close(hasty_peer);
  ::close(patient_peer);
}

tcp_info info_of(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  CHECK_EQ(::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size), 0);
  return info;
}

// Its receive buffer shrinks while the other side knows of a larger window: a kernel that runs out of memory for what
// it has asked for throws bytes away, and answers each time that there is no room.
TEST(a_process_that_does_not_read_is_not_silent_where_its_kernel_throws_bytes_away) {
  Side side;
  const auto [ours, peer] = tcp_pair();
  const LinkId link = side.loop.add_socket(side.machine, Descriptor(ours), {1, false});
  side.loop.start();
  const int smallest = 0;
  CHECK_EQ(::setsockopt(peer, SOL_SOCKET, SO_RCVBUF, &smallest, sizeof smallest), 0);
  const Bytes payload = pattern(50'000, 3);
  side.loop.call([&] { side.machine.send(link, {}, payload, 1); });
  // Longer than its patience between two tries.
  const auto began = std::chrono::steady_clock::now();
  Time longest = 0;
  while (longest < 2 * second) {
    CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(30));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const tcp_info info = info_of(ours);
    if (info.tcpi_unacked > 0) {
      longest = std::max(longest, Time{info.tcpi_last_ack_recv} * (second / 1000));
    }
    CHECK(side.loop.call([&] { return side.machine.lost.empty(); }));
  }
  const int roomy = 1 << 20;
  CHECK_EQ(::setsockopt(peer, SOL_SOCKET, SO_RCVBUF, &roomy, sizeof roomy), 0);
  Bytes received(wire::header_bytes + payload.size());
  CHECK_EQ(::recv(peer, received.data(), received.size(), MSG_WAITALL), static_cast<ssize_t>(received.size()));
  CHECK(std::equal(payload.begin(), payload.end(), received.begin() + wire::header_bytes));
  CHECK(side.loop.call([&] { return side.machine.lost.empty(); }));
  ::close(peer);
}

// The questions of a full buffer are further and further apart: after one that was lost the next is further off than
// its patience.
TEST(a_process_that_does_not_read_is_not_silent_where_one_question_is_lost) {
  Side side;
  const auto [ours, peer] = tcp_pair();
  const LinkId link = side.loop.add_socket(side.machine, Descriptor(ours), {1, false});
  side.loop.start();
  const Bytes payload = pattern(8'000'000, 3);
  side.loop.call([&] { side.machine.send(link, {}, payload, 1); });
  const auto began = std::chrono::steady_clock::now();
  const auto wait_for = [&](auto condition) {
    tcp_info info = info_of(ours);
    while (!condition(info)) {
      CHECK(side.loop.call([&] { return side.machine.lost.empty(); }));
      CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(30));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      info = info_of(ours);
    }
  };
  wait_for([](const tcp_info& info) { return info.tcpi_unacked == 0 && info.tcpi_last_ack_recv > 600; });
  wait_for([](const tcp_info& info) { return info.tcpi_probes == 0 && info.tcpi_last_ack_recv < 100; });
  cut(peer);
  wait_for([](const tcp_info& info) { return info.tcpi_probes == 1; });
  mend(peer);
  const auto lost = std::chrono::steady_clock::now();
  wait_for([](const tcp_info& info) { return info.tcpi_probes == 0; });
  CHECK(std::chrono::steady_clock::now() - lost > std::chrono::milliseconds(1300));
  ::close(peer);
}

TEST(a_host_that_is_cut_off_when_its_buffers_are_full_is_silent) {
  Side side;
  const auto [ours, peer] = tcp_pair();
  const LinkId link = side.loop.add_socket(side.machine, Descriptor(ours), {1, false});
  side.loop.start();
  const Bytes payload = pattern(8'000'000, 3);
  side.loop.call([&] { side.machine.send(link, {}, payload, 1); });
  side.until([&] {
    const tcp_info info = info_of(ours);
    return info.tcpi_unacked == 0 && info.tcpi_last_ack_recv > 100;
  });
  cut(peer);
  side.until([&] { return !side.machine.lost.empty(); });
  CHECK_EQ(side.machine.lost[0].second.message, "its host has not answered for 1 s (SHOAL_PEER_TIMEOUT)");
  ::close(peer);
}

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

}  // namespace

RUN_TESTS()
