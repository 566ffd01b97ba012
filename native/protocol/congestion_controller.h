// Changes the job's credit while it runs: grows it while other traffic takes more than half of the network, shrinks it
// back afterwards, and shrinks it where queues are shorter than the windows that `init` found need.
// docs/decisions/changing-windows.md.
//
// While queues are empty, the windows of `init` fill the wire, and larger ones would only fill queues. While another
// flow keeps a queue full, a flow's share of the link is its share of that queue. So windows grow until the job has
// half of the rate that it has alone. If the queue is short and the other flow ignores losses, that does not help. Then
// links also compete (machine.h).
//
// Rank 0's worker decides for all servers at once. If each server decided, it would gain by growing at the cost of the
// others, and all would grow without end on a link that has become slower. A growth that does not raise the rate of the
// whole job is taken back, and not tried again for a while.
//
// Knows only bytes and times.
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

  // The first operation begins to flow; the last has ended. Pauses are not measured. Nor is the begin of a burst after
  // a pause: other traffic may have filled the queues meanwhile.
  void begin(Time now);
  void pause(Time now);

  // So many bytes of operations were answered, and about so many to other ranks of the node, which have operations of
  // their own. Returns whether that completes a sample, after which decide() is called.
  bool answered(std::uint64_t bytes, std::uint64_t others, Time now);
  // Returns the new setting, if it changes. `retransmissions`: TCP retransmissions of the job so far.
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
  const std::uint32_t usual_;  // credit without other traffic
  const std::uint32_t least_;
  const std::uint32_t most_;
  const double per_credit_;  // bytes in flight for each byte of credit at the server with the largest weight
  Setting setting_;
  double best_;  // the highest rate so far, in bytes per second

  // What is being measured.
  bool settling_ = true;
  std::uint64_t bytes_ = 0;
  bool guessed_ = false;  // some of the bytes are those of other ranks
  Time busy_ = 0;
  std::uint64_t repairs_ = 0;  // retransmissions until it began
  Time settles_for_;           // how long nothing is measured after a change
  std::optional<Time> since_;  // operations flow: since when, or since the last sample
  std::optional<Time> paused_at_;
  Time burst_ = 0;  // of the present burst, or the last one: how long operations flowed in it, until since_
  Time skip_ = 0;   // how much of the burst is not measured

  std::optional<Trial> before_;  // while another setting is being tried: the one before
  std::optional<Trial> tried_;   // a setting that did not seem to pay, while the one before is measured again
  Way way_ = Way::growing;       // what is being tried, or was tried last
  bool failed_ = false;          // the last trial did not pay
  std::uint32_t losses_ = 0;  // a bit for each of the last samples: whether packets were lost; the newest is the lowest
  int poor_ = 0;              // bad samples in a row
  int good_ = 0;              // good samples in a row
  int generous_ = 0;          // samples in a row of more than its half, while links compete with the usual credit
  Time wait_;
  Time not_before_ = 0;
};

}  // namespace shoal
