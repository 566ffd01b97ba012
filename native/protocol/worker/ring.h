// One all-reduce on its way round the ring: 2(n-1)/n · M bytes on every link in each direction, in 2(n-1) steps.
//
// A worker sends one stream of bytes to the next member and receives one from the previous. Byte p of either stream
// belongs to a step, a chunk and an offset in it that both ends know:
//   outgoing  chunk(own), chunk(own-1), ..., chunk(own+3)   2(n-1) of them, indices modulo n
//   incoming  chunk(own-1), chunk(own-2), ..., chunk(own+2)
// What a worker sends after its own chunk is what it received, in the same order, one step later: in the first n-1
// steps after adding its own contribution (reduce-scatter), afterwards as it is (all-gather). So
//   sent ≤ min(may_send, size(chunk(own)) + processed)
//   processed ≤ received ≤ granted ≤ all that comes
//   processed + the pieces that wait = received
//
// Order of the sum of chunk c: members c, c+1, ..., c-1. Always the same, so results are the same bits on every run.
//
// Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009); for
// gradients: Baidu, "Bringing HPC Techniques to Deep Learning" (2017).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/buffer.h"
#include "base/range.h"
#include "protocol/machine.h"

namespace shoal::worker {

class Ring {
 public:
  // `segment`: the most bytes of one piece.
  Ring(std::uint64_t bytes, std::size_t members, std::size_t own, std::uint64_t segment);

  // Sending. The next member grants so many bytes more. False: that would be more than there are.
  bool grant(std::uint64_t bytes);
  // What can be sent now, in the operation's buffer; empty: nothing.
  Range next_to_send() const;
  // Whether that is this rank's own contribution; otherwise it was received.
  bool sends_own() const { return outgoing_.step == 0; }
  std::uint64_t sent() const { return outgoing_.moved; }
  void send(std::uint64_t bytes) { outgoing_.advance(bytes); }

  // Receiving. The first grant for the previous member, of at most so much; 0 if it had one.
  std::uint64_t first_grant(std::uint64_t most);
  // Whether so many bytes at this offset of the stream are the next piece, and were granted.
  bool expects(std::uint64_t offset, std::uint64_t bytes) const;
  // A piece has come. Says where it belongs in the buffer, and whether it is added to what is there. In the last step
  // that adds, a mean is divided.
  struct Received {
    Range piece;
    bool is_summed = false;
    bool is_last_sum = false;
  };
  Received receive();
  // place(): the piece is in its place. begin_sum(): it is being added, from this memory. end_sum(): that is done.
  void place(std::uint64_t bytes);
  void begin_sum(std::uint64_t bytes, Buffer buffer, Token token);
  void end_sum(Token token);
  // Counts the pieces that are done, in order; sums may end in another order. Returns how many bytes the previous
  // member may be granted for them.
  std::uint64_t process();
  std::size_t sums() const;

  bool is_done() const { return processed_ == incoming_.bytes && outgoing_.moved == outgoing_.bytes; }
  void check_invariants() const;

 private:
  struct Stream {
    std::vector<Range> chunks;  // one a step
    std::uint64_t bytes = 0;    // of all of them
    std::size_t step = 0;       // where the next byte belongs
    std::uint64_t offset = 0;   // in chunks[step]
    std::uint64_t moved = 0;    // bytes of the stream

    void add(Range chunk);
    Range next(std::uint64_t most) const;
    void advance(std::uint64_t count);
    void skip_empty();
  };
  // Received; being added, or done and waiting for one before it.
  struct Piece {
    std::uint64_t bytes = 0;
    bool done = false;
    Buffer buffer;
    Token token = 0;
  };

  std::uint64_t segment_;
  Stream outgoing_;
  Stream incoming_;
  std::size_t sum_steps_;  // the steps before the all-gather
  std::uint64_t may_send_ = 0;
  std::uint64_t granted_ = 0;
  std::uint64_t processed_ = 0;
  std::deque<Piece> pieces_;
};

}  // namespace shoal::worker
