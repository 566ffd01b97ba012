// How much a job keeps on its way, and how firmly: grows while somebody else's traffic takes more than half of the
// network and shrinks back, and shrinks where queues are too short for what `init` found.
// docs/decisions/changing-windows.md.
//
// Between empty queues the windows that were found at `init` fill the wire, and more would only fill queues. Where
// somebody else's flow keeps a queue full, a flow gets of the link what it has in that queue: so the windows grow until
// the job has half of the rate that it has when it is alone. Where that alone does not help, since the queue is short
// and the other takes no notice of what is lost in it, links compete too (machine.h).
//
// One place decides, rank 0's worker, for all servers at once. (A server that decided for itself would gain by growing,
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

class CongestionController {
 public:
  struct Setting {
    std::uint32_t credit = 0;  // the job's
    bool competing = false;    // whether its links compete

    friend bool operator==(const Setting&, const Setting&) = default;
  };

  // `config.rate` 0: the windows stay as they are.
  explicit CongestionController(const JobConfig& config);

  // Operations flow from now on, where none did; none does any more. What is between is not measured, nor how a burst
  // begins, after a pause: somebody else may have filled the queues meanwhile.
  void begin(Time now);
  void pause(Time now);

  // So many bytes of operations were answered. Returns whether that completes a sample: decide() is to follow.
  bool answered(std::uint64_t bytes, Time now);
  // Returns what holds from now on, if that changes. `retransmissions`: packets that the network had to be given again
  // until now.
  std::optional<Setting> decide(std::uint64_t retransmissions, Time now);

 private:
  // A setting and the rate that it had.
  struct Trial {
    Setting setting;
    double rate = 0;
  };

  // What can be tried. Insisting: with a larger window, too.
  enum class Way { growing, insisting, yielding, shrinking };

  double turnover() const { return per_credit_ * setting_.credit; }
  Time flowing(Time now) const { return since_ ? now - *since_ : 0; }
  Time measured(Time now) const;
  void judge(double rate, bool lossy, Time now);
  bool relax(double share);
  void note_good(double share);
  bool loses() const;
  std::optional<Way> next_way(bool far_below, bool lossy) const;
  Setting setting_for(Way way, double wanted, bool far_below) const;
  std::uint32_t grown(double factor, std::uint32_t limit) const;
  std::uint32_t whole_segments(double credit, std::uint32_t more) const;
  bool pays(const Trial& other, const Trial& present) const;
  void paid();
  // Whether what was tried is settled.
  bool decided(double rate, Time now);

  const std::uint32_t segment_;
  const std::uint32_t usual_;  // without others
  const std::uint32_t least_;
  const std::uint32_t most_;
  const double per_credit_;  // bytes on their way, for a byte of credit of the server with the largest weight
  Setting setting_;
  double best_;  // the highest rate that there was: bytes per second

  // What is being measured.
  bool settling_ = true;
  std::uint64_t bytes_ = 0;
  Time busy_ = 0;
  std::uint64_t repairs_ = 0;  // until it began
  Time settles_for_;           // after the last change
  std::optional<Time> since_;  // operations flow, since then or the last sample
  std::optional<Time> paused_at_;
  Time burst_ = 0;  // of the present burst, or the last one: how long operations flowed in it, until since_
  Time skip_ = 0;   // how much of that is not measured

  std::optional<Trial> before_;  // another setting is being tried, this one was before
  std::optional<Trial> tried_;   // it did not seem to pay: the one before is being measured again
  Way way_ = Way::growing;       // what is being tried, or was last
  bool failed_ = false;          // it did not pay
  std::uint32_t losses_ = 0;  // a bit for each of the last samples: whether packets were lost; the newest is the lowest
  int poor_ = 0;              // samples below what is good, in a row
  int good_ = 0;              // others, in a row
  int generous_ = 0;          // samples of more than its half that were of insisting alone, in a row
  Time wait_;
  Time not_before_ = 0;
};

}  // namespace shoal
