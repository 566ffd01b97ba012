#include "drivers/tcp/link.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "drivers/tcp/read_ahead.h"

namespace shoal::tcp {

namespace {

// A link writes and reads at most so much in its turn, so that none starves the others.
constexpr std::size_t bytes_of_a_turn = 1024 * 1024;

// After a pause all links have much to send at once, and what one sends whole keeps the network from all others: their
// answers, which clock everything that follows, would come late and together. So a link's first turns are short, and
// what is answered in turn is sent in turn from then on, as long as processors keep up. Below this size, a frame of
// 16 KiB and a part of the next, turns cost more than they gain. docs/decisions/order-of-sends.md.
constexpr Time pause_before_short_turns = second / 500;
constexpr int short_turns = 4;
constexpr std::size_t bytes_of_a_short_turn = 17 * 1024;

// Frames are gathered from at most so many pieces of memory, three a frame; the kernel's limit is 1024.
constexpr std::size_t pieces_per_call = 192;

// What the kernel says of a connection; nothing of sockets that are not TCP.
std::optional<tcp_info> info_of(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  return ::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 ? std::optional(info) : std::nullopt;
}

std::size_t size_of(std::span<const iovec> vectors) {
  return std::accumulate(vectors.begin(), vectors.end(), std::size_t{0},
                         [](std::size_t sum, const iovec& vector) { return sum + vector.iov_len; });
}

// strerror() that threads may call.
std::string describe(int error) { return std::generic_category().message(error); }

void set_option(int socket, int level, int option, int value) {
  // Refused by sockets that are not TCP (socket pairs in tests), which have no need of it.
  static_cast<void>(::setsockopt(socket, level, option, &value, sizeof value));
}

void configure(int socket, const LinkOptions& options) {
  ::fcntl(socket, F_SETFL, ::fcntl(socket, F_GETFL) | O_NONBLOCK);
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  // A third of the time without a question, then one every sixth of it.
  const int timeout = std::max(options.peer_timeout_seconds, 3);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, timeout / 3);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, std::max(timeout / 6, 1));
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 4);
  // Zero is "no limit": the code that opened the connection may have set one for the handshake.
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, options.judges_unacknowledged_data ? timeout * 1000 : 0);
}

// The kernel's clock: what it says in milliseconds goes in steps of up to so much.
constexpr Time tick = second / 100;

constexpr Time milliseconds(std::uint32_t count) { return Time{count} * (second / 1000); }

// A single question may be lost on the way, and the next be further off than any timeout.
constexpr int questions_without_answer = 2;

}  // namespace

Link::Link(LinkId id, Socket socket, const LinkOptions& options)
    : id_(id),
      socket_(std::move(socket.descriptor)),
      tls_(std::move(socket.tls)),
      peer_timeout_seconds_(options.peer_timeout_seconds),
      retransmission_timer_(socket_.number()),
      congestion_(socket_.number()),
      reader_(id) {
  configure(socket_.number(), options);
  if (tls_ != nullptr) {
    tls_->read_ahead();
  }
}

void Link::queue(const wire::Header& header, Bytes owned, std::span<const std::byte> borrowed, Token token) {
  Frame& frame = queue_.emplace_back();
  wire::encode(header, frame.header);
  frame.owned = std::move(owned);
  frame.borrowed = borrowed;
  frame.token = token;
  queued_bytes_ += frame.size();
}

void Link::detach(Token token) {
  for (Frame& frame : queue_) {
    if (frame.token == token) {
      // The frame's bytes and their order stay the same, so that front_written_ stays right.
      frame.owned.insert(frame.owned.end(), frame.borrowed.begin(), frame.borrowed.end());
      frame.borrowed = {};
    }
  }
}

Link::Progress Link::flush(std::vector<Token>& sent, LinkCounters& counters, Time now) {
  if (now - flushed_at_ > pause_before_short_turns) {
    short_turns_ = short_turns;
  }
  flushed_at_ = now;
  const std::size_t turn = short_turns_ > 0 ? bytes_of_a_short_turn : bytes_of_a_turn;
  std::size_t budget = turn;
  while (!queue_.empty() && !broken()) {
    if (budget == 0) {
      return Progress::more;
    }
    std::array<iovec, pieces_per_call> vectors;
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = gather(vectors, turn);
    const ssize_t written = tls_ == nullptr
                                ? ::sendmsg(socket_.number(), &message, MSG_NOSIGNAL)
                                : tls_->send(socket_.number(), std::span(vectors).first(message.msg_iovlen));
    if (written < 0) {
      if (errno == EINTR) {
        continue;
      }
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return Progress::blocked;
      }
      send_error_ = describe_loss(errno);
      return Progress::lost;
    }
    const auto bytes = static_cast<std::size_t>(written);
    counters.bytes_sent.fetch_add(bytes, std::memory_order_relaxed);
    frames_written(bytes, sent);
    budget -= std::min(budget, bytes);
    if (budget == 0 && short_turns_ > 0) {
      --short_turns_;
    }
  }
  return Progress::idle;
}

// Fills `vectors` with what is to be written next, whole frames until they have so many bytes; returns how many of
// them.
std::size_t Link::gather(std::span<iovec> vectors, std::size_t enough) const {
  std::size_t count = 0;
  std::size_t skip = front_written_;
  const auto add = [&](std::span<const std::byte> piece) {
    const std::size_t written = std::min(skip, piece.size());
    skip -= written;
    piece = piece.subspan(written);
    if (!piece.empty()) {
      vectors[count++] = {const_cast<std::byte*>(piece.data()), piece.size()};
    }
  };
  std::size_t bytes = 0;
  for (const Frame& frame : queue_) {
    if (count + 3 > vectors.size() || bytes >= enough) {
      break;
    }
    add(frame.header);
    add(frame.owned);
    add(frame.borrowed);
    bytes += frame.size();
  }
  return count;
}

void Link::frames_written(std::size_t bytes, std::vector<Token>& sent) {
  queued_bytes_ -= bytes;
  front_written_ += bytes;
  while (!queue_.empty() && front_written_ >= queue_.front().size()) {
    front_written_ -= queue_.front().size();
    if (queue_.front().token != 0) {
      sent.push_back(queue_.front().token);
    }
    queue_.pop_front();
  }
}

Link::Progress Link::receive(Receiver& receiver, LinkCounters& counters) {
  ReadAhead ahead;
  std::size_t budget = bytes_of_a_turn;
  // What is held here must be taken: the kernel would not tell of it again.
  while (budget > 0 || holds_bytes()) {
    const std::span<std::byte> place = reader_.place();
    std::array<iovec, 1 + ReadAhead::most_vectors> vectors{iovec{place.data(), place.size()}};
    const std::size_t count = 1 + ahead.prepare(std::span(vectors).subspan(1), reader_.last_length(), receiver).size();
    const std::size_t first = place.empty() ? 1 : 0;
    const std::span<const iovec> wanted(&vectors[first], count - first);
    const ssize_t read = tls_ == nullptr ? ::readv(socket_.number(), wanted.data(), static_cast<int>(wanted.size()))
                                         : tls_->receive(socket_.number(), wanted, budget > 0);
    if (read < 0) {
      if (errno == EINTR) {
        continue;
      }
      if (errno != EAGAIN && errno != EWOULDBLOCK) {
        return lose(errno);
      }
      return broken() ? lose(0) : Progress::idle;
    }
    if (read == 0) {
      return lose(0);
    }
    const auto bytes = static_cast<std::size_t>(read);
    counters.bytes_received.fetch_add(bytes, std::memory_order_relaxed);
    heard_ = true;
    budget -= std::min(budget, bytes);

    const std::size_t placed = std::min(bytes, place.size());
    if (!reader_.placed(placed, receiver) || !ahead.consume(bytes - placed, reader_, receiver)) {
      return end_stream();
    }
    const bool hears_more = broken() || (tls_ != nullptr && tls_->has_ended());
    if (bytes < size_of(wanted) && !hears_more) {
      return Progress::idle;  // the kernel had no more; if it has by now, the next round hears of it
    }
  }
  return Progress::more;
}

Link::Progress Link::end_stream() {
  if (closed()) {
    return Progress::idle;
  }
  why_ = reader_.why();
  return Progress::lost;
}

std::string Link::describe_loss(int error) const {
  return tls_ != nullptr && error == EBADMSG ? tls_->why() : describe(error);
}

Link::Progress Link::lose(int error) {
  std::string message = error != 0 ? describe_loss(error) : broken() ? send_error_ : "connection closed by peer";
  if (reader_.in_frame()) {
    message += " in the middle of a frame";
  }
  why_ = Status::error(Code::peer_lost, std::move(message));
  return Progress::lost;
}

void Link::close(std::vector<Token>& unsent) {
  socket_.reset();
  reader_.stop();
  for (const Frame& frame : queue_) {
    if (frame.token != 0) {
      unsent.push_back(frame.token);
    }
  }
  queue_.clear();
  queued_bytes_ = 0;
}

void Link::look(Time now) {
  if (const std::optional<tcp_info> info = info_of(socket_.number())) {
    retransmission_timer_.heed(*info, now);
    judge_silence(*info, now);
  }
}

// A stopped process whose buffers are full is not silent: its kernel answers whatever is sent, and probes of its
// window. So this can be asked where data flows, and the kernel's own limits for data (TCP_USER_TIMEOUT) cannot.
//
// An answer is owed where something was sent after the last one came. Bytes that a full receiver has no memory for stay
// unacknowledged although it answers; this kernel sends them again, less and less often, and is answered again. Where
// this host has no way to the other one, only the number of tries tells that there was one.
void Link::judge_silence(const tcp_info& info, Time now) {
  const Time quiet = milliseconds(info.tcpi_last_ack_recv);
  const Questions before =
      std::exchange(questions_, {now, info.tcpi_data_segs_out, info.tcpi_retransmits, info.tcpi_probes});
  if (std::exchange(heard_, false) || quiet < now - before.looked_at + tick) {
    in_vain_ = 0;
  } else if (questions_.segments != before.segments || questions_.resent > before.resent ||
             questions_.probes > before.probes) {
    ++in_vain_;
  }
  const bool owes = info.tcpi_probes > 0 ||
                    (info.tcpi_unacked > 0 && (in_vain_ > 0 || info.tcpi_last_ack_recv > info.tcpi_last_data_sent));
  if (!owes) {
    owed_since_ = 0;
  } else if (owed_since_ == 0 || quiet < now - owed_since_) {
    owed_since_ = now;
  }
  is_silent_ = owes && in_vain_ >= questions_without_answer && now - owed_since_ >= peer_timeout_seconds_ * second;
}

int Link::unsent_bytes() const {
  int bytes = 0;
  return ::ioctl(socket_.number(), SIOCOUTQNSD, &bytes) == 0 ? bytes : 0;
}

std::uint64_t Link::retransmissions() const {
  const std::optional<tcp_info> info = info_of(socket_.number());
  return info ? info->tcpi_total_retrans : 0;
}

void Link::push() const { set_option(socket_.number(), IPPROTO_TCP, TCP_NODELAY, 1); }

int Link::unacknowledged_bytes() const {
  int bytes = 0;
  return ::ioctl(socket_.number(), SIOCOUTQ, &bytes) == 0 ? bytes : 0;
}

}  // namespace shoal::tcp
