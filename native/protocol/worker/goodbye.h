// How this rank leaves the job: it is leaving, waits for others that may need its results, says goodbye, and at last
// every rank has left.
//
//   is_said → is_leaving;  only a rank that leaves waits for others;  unsent > 0 → is_said
#pragma once

#include <cstddef>
#include <string>

#include "protocol/worker/environment.h"
#include "protocol/worker/links.h"
#include "protocol/worker/server_frames.h"

namespace shoal::worker {

class Goodbye {
 public:
  // Token of LEAVE and ABORT. Other tokens are operation numbers, which never reach it.
  static constexpr Token token = ~Token{0};

  Goodbye(const Environment& environment, Links& links, ServerFrames& frames);

  // Nothing more is submitted.
  void begin() { leaving_ = true; }
  bool is_leaving() const { return leaving_; }

  // Others may still need this rank. It waits for them, but not for ever. Returns whether the wait begins now.
  bool wait_for_others();
  // When the wait is over, which take_due() says once.
  Time deadline() const { return give_up_at_; }
  bool take_due();

  // From now on the goodbye counts as said: this rank reports nothing and acknowledges nothing. say(): says it to all.
  void begin_saying();
  void say();
  // This rank ends with an error: tells the coordinator, which tells all.
  void abort(const std::string& text);
  bool is_said() const { return said_; }
  void count_sent() { --unsent_; }
  // Said, and written to the network.
  bool has_left() const { return said_ && unsent_ == 0; }

  // Every rank has left or is lost, or nobody can say so any more. False: that was known before.
  bool end();

  void check_invariants() const;

 private:
  void tell_coordinator(const wire::Header& header, const wire::Bytes& bytes);

  const Environment& environment_;
  Links& links_;
  ServerFrames& frames_;
  bool leaving_ = false;
  bool said_ = false;
  bool ended_ = false;
  std::size_t unsent_ = 0;
  Time give_up_at_ = never;
};

}  // namespace shoal::worker
