// How much a job keeps on its way: grows while somebody else's traffic takes more than half of the network and shrinks
// back, and shrinks where queues are too short for what `init` found. docs/decisions/windows.md.
//
// Between empty queues the windows that were found at `init` fill the wire, and more would only fill queues. Where
// somebody else's flow keeps a queue full, a flow gets of the link what it has in that queue: so the windows grow until
// the job has half of the rate that it has when it is alone.
//
// One place decides, rank 0's node, for all servers at once. (A server that decided for itself would gain by growing,
// at the cost of the other servers: all would grow without end where the link has become slower and nobody else is
// there.) A growth that does not pay in what the whole job moves is taken back, and not tried again for a while.
//
// Knows bytes and moments, nothing else.
#pragma once

#include <cstdint>
#include <optional>

#include "protocol/job.h"
#include "protocol/machine.h"

namespace shoal {

class Pace {
 public:
  // `config.rate` 0: the windows stay as they are.
  explicit Pace(const JobConfig& config);

  // Operations flow from now on, where none did; none does any more. What is between is not measured.
  void begin(Time now);
  void pause(Time now);

  // So many bytes of operations were answered. Returns whether that completes a sample: decide() is to follow.
  bool answered(std::uint64_t bytes, Time now);
  // Returns the job's credit from now on, if that changes. `repairs`: packets that the network had to be given again
  // until now.
  std::optional<std::uint32_t> decide(std::uint64_t repairs, Time now);

  std::uint32_t credit() const { return credit_; }

 private:
  // A window and the rate that it had.
  struct Window {
    std::uint32_t credit = 0;
    double rate = 0;
  };

  enum class Way { growing, shrinking };

  double turnover() const { return per_credit_ * credit_; }
  void judge(double rate, bool lossy, Time now);
  void attempt(double factor, std::uint32_t limit, double rate);
  std::uint32_t whole_segments(double credit, std::uint32_t more) const;
  bool pays(const Window& other, const Window& present) const;
  void paid();
  // Whether what was tried is settled.
  bool decided(double rate, Time now);

  const std::uint32_t segment_;
  const std::uint32_t usual_;  // without others
  const std::uint32_t least_;
  const std::uint32_t most_;
  const double per_credit_;  // bytes on their way, for a byte of credit of the server with the largest weight
  std::uint32_t credit_;
  double best_;  // the highest rate that there was: bytes per second

  // What is being measured.
  bool settling_ = true;
  std::uint64_t bytes_ = 0;
  Time busy_ = 0;
  std::uint64_t repairs_ = 0;  // until it began
  std::optional<Time> since_;

  std::optional<Window> before_;  // another window is being tried, this one was before
  std::optional<Window> tried_;   // it did not seem to pay: the one before is being measured again
  std::optional<Way> failed_;     // what did not pay when it was last tried
  int poor_ = 0;                  // samples below what is good, in a row
  Time wait_;
  Time not_before_ = 0;
};

}  // namespace shoal
