// What a byte costs that bare sockets move: as many processes and connections as a job of nodes and one server has,
// frames of the same size with headers of the same, and nothing else. A node sends an array frame by frame and receives
// as much into it; the server answers when it has a frame of every node. (It returns what it has received: nothing is
// added.)
//
//     g++ -O2 -std=c++20 -o bare_sockets benchmarks/native/bare_sockets.cpp
//     ./bare_sockets NODES FRAME_BYTES ARRAY_BYTES REPETITIONS
//
// Prints processor nanoseconds: of the server a byte received, of the nodes a byte sent, and all of both; and seconds.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr std::size_t header_bytes = 40;
// So many frames a node is ahead of the answers: enough that neither end waits, few enough that caches hold them.
constexpr std::size_t ahead = 2;

void check(bool well, const char* what) {
  if (!well) {
    std::perror(what);
    std::exit(1);
  }
}

double processor_seconds(int who) {
  rusage used{};
  ::getrusage(who, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// One direction of a connection: frames of a header and a piece of an array, one after the other, the array again and
// again.
class Stream {
 public:
  Stream(std::byte* array, std::size_t array_bytes, std::size_t frame)
      : array_(array), array_bytes_(array_bytes), frame_(frame) {}

  // What is left of the present frame.
  int rest(iovec* pieces) {
    int count = 0;
    if (at_ < header_bytes) {
      pieces[count++] = {header_ + at_, header_bytes - at_};
    }
    const std::size_t done = at_ < header_bytes ? 0 : at_ - header_bytes;
    pieces[count++] = {array_ + begin_ + done, frame_ - done};
    return count;
  }
  // Whether the frame is whole.
  bool advance(std::size_t bytes) {
    at_ += bytes;
    if (at_ < header_bytes + frame_) {
      return false;
    }
    at_ = 0;
    begin_ = (begin_ + frame_) % array_bytes_;
    ++frames_;
    return true;
  }
  std::size_t frames() const { return frames_; }

 private:
  std::byte* array_;
  std::size_t array_bytes_;
  std::size_t frame_;
  std::byte header_[header_bytes] = {};
  std::size_t begin_ = 0;
  std::size_t at_ = 0;
  std::size_t frames_ = 0;
};

// As much as goes at once, but no more than the present frame.
void send_some(int connection, Stream& stream) {
  iovec pieces[2];
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = static_cast<std::size_t>(stream.rest(pieces));
  const ssize_t sent = ::sendmsg(connection, &message, MSG_NOSIGNAL);
  check(sent >= 0 || errno == EAGAIN, "sendmsg");
  if (sent > 0) {
    stream.advance(static_cast<std::size_t>(sent));
  }
}

bool receive_some(int connection, Stream& stream) {
  iovec pieces[2];
  const ssize_t received = ::readv(connection, pieces, stream.rest(pieces));
  check(received > 0 || (received < 0 && errno == EAGAIN), "readv");
  return received > 0 && stream.advance(static_cast<std::size_t>(received));
}

void prepare(int connection) {
  const int on = 1;
  ::setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::fcntl(connection, F_SETFL, O_NONBLOCK);
}

void be_node(const sockaddr_in& address, std::size_t frame, std::size_t array_bytes, std::size_t frames) {
  const int connection = ::socket(AF_INET, SOCK_STREAM, 0);
  check(::connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0, "connect");
  prepare(connection);
  std::vector<std::byte> array(array_bytes, std::byte{1});
  Stream out(array.data(), array_bytes, frame);
  Stream in(array.data(), array_bytes, frame);
  const double before = processor_seconds(RUSAGE_SELF);
  while (in.frames() < frames) {
    const bool sends = out.frames() < frames && out.frames() - in.frames() < ahead;
    pollfd events{connection, static_cast<short>(POLLIN | (sends ? POLLOUT : 0)), 0};
    check(::poll(&events, 1, -1) > 0, "poll");
    if ((events.revents & POLLIN) != 0) {
      receive_some(connection, in);
    }
    if ((events.revents & POLLOUT) != 0) {
      send_some(connection, out);
    }
  }
  const double used = processor_seconds(RUSAGE_SELF) - before;
  // The parent reads it from the pipe that is standard output here.
  std::printf("%.9f\n", used);
}

double be_server(const std::vector<int>& connections, std::size_t frame, std::size_t frames) {
  struct Node {
    std::vector<std::byte> memory;
    Stream in;
    Stream out;
  };
  std::vector<Node> nodes;
  nodes.reserve(connections.size());
  for (std::size_t index = 0; index < connections.size(); ++index) {
    // Two frames: one is sent back while the next one comes.
    std::vector<std::byte> memory(ahead * frame);
    std::byte* const data = memory.data();
    nodes.push_back({std::move(memory), Stream(data, ahead * frame, frame), Stream(data, ahead * frame, frame)});
  }
  const double before = processor_seconds(RUSAGE_SELF);
  for (;;) {
    std::size_t complete = frames;
    bool all_sent = true;
    for (const Node& node : nodes) {
      complete = std::min(complete, node.in.frames());
      all_sent = all_sent && node.out.frames() == frames;
    }
    if (all_sent) {
      return processor_seconds(RUSAGE_SELF) - before;
    }
    std::vector<pollfd> events;
    for (std::size_t index = 0; index < nodes.size(); ++index) {
      const Node& node = nodes[index];
      const bool receives = node.in.frames() < frames && node.in.frames() - node.out.frames() < ahead;
      const bool sends = node.out.frames() < complete;
      events.push_back({connections[index], static_cast<short>((receives ? POLLIN : 0) | (sends ? POLLOUT : 0)), 0});
    }
    check(::poll(events.data(), events.size(), -1) > 0, "poll");
    for (std::size_t index = 0; index < nodes.size(); ++index) {
      if ((events[index].revents & POLLIN) != 0) {
        receive_some(connections[index], nodes[index].in);
      }
      if ((events[index].revents & POLLOUT) != 0) {
        send_some(connections[index], nodes[index].out);
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "bare_sockets NODES FRAME_BYTES ARRAY_BYTES REPETITIONS\n");
    return 2;
  }
  const auto number = [argv](int index) { return static_cast<std::size_t>(std::strtoull(argv[index], nullptr, 10)); };
  const std::size_t count = number(1);
  const std::size_t frame = number(2);
  const std::size_t array_bytes = number(3) / frame * frame;
  const std::size_t frames = array_bytes / frame * number(4);
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  check(::bind(listener, reinterpret_cast<const sockaddr*>(&address), length) == 0, "bind");
  check(::listen(listener, static_cast<int>(count)) == 0, "listen");
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  int told[2];
  check(::pipe(told) == 0, "pipe");
  for (std::size_t index = 0; index < count; ++index) {
    const pid_t child = ::fork();
    check(child >= 0, "fork");
    if (child == 0) {
      ::close(listener);
      ::dup2(told[1], STDOUT_FILENO);
      be_node(address, frame, array_bytes, frames);
      return 0;
    }
  }
  ::close(told[1]);
  std::vector<int> connections;
  for (std::size_t index = 0; index < count; ++index) {
    connections.push_back(::accept(listener, nullptr, nullptr));
    check(connections.back() >= 0, "accept");
    prepare(connections.back());
  }
  const auto began = std::chrono::steady_clock::now();
  const double server = be_server(connections, frame, frames);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
  double nodes = 0.0;
  FILE* const lines = ::fdopen(told[0], "r");
  for (std::size_t index = 0; index < count; ++index) {
    double one = 0.0;
    check(std::fscanf(lines, "%lf", &one) == 1, "a node's report");
    nodes += one;
  }
  while (::wait(nullptr) > 0) {
  }
  const double bytes = static_cast<double>(count) * static_cast<double>(frames) * static_cast<double>(frame);
  std::printf("%.6f %.6f %.6f %.6f\n", 1e9 * server / bytes, 1e9 * nodes / bytes, 1e9 * (server + nodes) / bytes,
              seconds.count());
}
