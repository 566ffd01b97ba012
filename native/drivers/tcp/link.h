// One connection: frames from and to a non-blocking stream socket, without copying payloads.
//
// Receiving: one system call reads the rest of the present payload, straight into the memory that the machine named,
// and what follows it (read_ahead.h). Sending: one system call takes many queued frames.
//
// A link knows bytes and frames and no machine: its events go to a Receiver (the loop). It is used from one
// thread. Invariant while receiving: either fewer than 40 bytes of a header are held, or a payload is being received of
// which fewer than header.length bytes are there.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "drivers/tcp/congestion.h"
#include "drivers/tcp/retransmission_timer.h"
#include "drivers/tcp/socket.h"
#include "protocol/frame_reader.h"
#include "protocol/job.h"
#include "protocol/machine.h"
#include "wire/frame.h"

struct iovec;
struct tcp_info;

namespace shoal::tcp {

// How the operating system watches a connection whose other end is silent.
struct LinkOptions {
  // Seconds of silence from the other kernel after which the connection counts as broken.
  int peer_timeout_seconds = 15;
  // Whether unacknowledged data counts as silence too. Not where payloads flow: there a stopped process has a full
  // receive buffer, which the kernel would count as silence.
  bool judges_unacknowledged_data = false;

  static LinkOptions of(const JobConfig& config) { return {static_cast<int>(config.peer_timeout), false}; }
};

// Received bytes are counted before anybody hears of them. May be read by any thread.
struct LinkCounters {
  std::atomic<std::uint64_t> bytes_sent{0};
  std::atomic<std::uint64_t> bytes_received{0};
};

class Link {
 public:
  enum class Progress {
    idle,     // nothing is left to do
    more,     // stopped, so that other links have their turn
    blocked,  // the kernel's buffer is full (sending only)
    lost,     // why() says why
  };

  Link(LinkId id, Socket socket, const LinkOptions& options);

  LinkId id() const { return id_; }
  int socket() const { return socket_.number(); }
  // Whether receive() has something to do that epoll does not report.
  bool holds_bytes() const { return tls_ != nullptr && tls_->holds_bytes(); }
  bool closed() const { return !socket_; }
  const Status& why() const { return why_; }

  // Frames leave in this order when flush() is called.
  void queue(const wire::Header& header, Bytes owned, std::span<const std::byte> borrowed, Token token);
  std::size_t queued_bytes() const { return queued_bytes_; }
  // Copies what queued frames with this token have borrowed.
  void detach(Token token);

  // Writes queued frames, at most a turn's worth; appends the tokens of frames that are written whole.
  // After an error nothing more is written, and receive() reports the loss once it has read what had arrived.
  Progress flush(std::vector<Token>& sent, LinkCounters& counters, Time now);
  bool broken() const { return !send_error_.empty(); }

  // Reads what has arrived, at most a round's worth.
  Progress receive(Receiver& receiver, LinkCounters& counters);

  // Closes the socket; the tokens of unsent frames are appended.
  void close(std::vector<Token>& unsent);

  // Bytes that the other side's kernel has not acknowledged yet.
  int unacknowledged_bytes() const;
  // The part of them that our kernel has not sent yet.
  int unsent_bytes() const;
  // Packets that our kernel has sent more than once.
  std::uint64_t retransmissions() const;
  // Makes the kernel try again to send what it has. If this machine's own queue was full and nothing of the connection
  // is on its way, no acknowledgement will come, and the kernel would wait for 200 ms.
  void push() const;

  // Whether it uses the host's own congestion control instead of the gentle default.
  void compete(bool on) { congestion_.compete(on); }

  // Reads TCP_INFO. Call it often: the kernel reports the last answer's time, not how long one has been due.
  void look(Time now);
  // Whether, at the last look(), the other side's kernel had left something unanswered for the peer timeout.
  bool is_silent() const { return is_silent_; }
  int peer_timeout_seconds() const { return peer_timeout_seconds_; }

  // Whether the loop waits for room in the kernel's buffer.
  bool waits_for_room = false;
  // Whether the loop watches the kernel's backlog of this link.
  bool is_backlogged = false;
  // Whether the loop has this link on its list of links to flush.
  bool is_listed = false;

 private:
  struct Frame {
    std::array<std::byte, wire::header_bytes> header;
    Bytes owned;
    std::span<const std::byte> borrowed;
    Token token = 0;

    std::size_t size() const { return header.size() + owned.size() + borrowed.size(); }
  };

  std::size_t gather(std::span<iovec> vectors, std::size_t enough) const;
  void frames_written(std::size_t bytes, std::vector<Token>& sent);

  // After a frame that was refused or closed the link.
  Progress end_stream();
  void judge_silence(const tcp_info& info, Time now);
  std::string describe_loss(int error) const;
  Progress lose(int error);

  LinkId id_;
  os::Descriptor socket_;
  std::shared_ptr<Tls> tls_;  // null: bytes travel as they are
  const int peer_timeout_seconds_;
  RetransmissionTimer retransmission_timer_;
  Congestion congestion_;
  Status why_;

  std::deque<Frame> queue_;
  std::size_t queued_bytes_ = 0;
  std::size_t front_written_ = 0;  // bytes of the first frame that are written already
  Time flushed_at_ = 0;
  int short_turns_ = 0;  // how many of the next turns are short
  std::string send_error_;

  FrameReader reader_;

  // What the kernel had sent at the last look().
  struct Questions {
    Time looked_at = 0;
    std::uint32_t segments = 0;
    std::uint8_t resent = 0;
    std::uint8_t probes = 0;
  };

  bool heard_ = false;  // bytes have come since the last look()
  Questions questions_;
  int in_vain_ = 0;      // how many looks have found something new sent since the last answer
  Time owed_since_ = 0;  // since when an answer is due, as far as look() has seen; 0: none is
  bool is_silent_ = false;
};

}  // namespace shoal::tcp
