// How this rank leaves the job: it is about to, waits for others that may need what it has, says so, and everybody has.
//
//   is_said → is_leaving;  only who leaves waits for others;  unsent > 0 → is_said
#pragma once

#include <cstddef>
#include <string>

#include "protocol/worker/environment.h"
#include "protocol/worker/links.h"
#include "protocol/worker/server_frames.h"

namespace shoal::worker {

class Goodbye {
 public:
  // Of LEAVE and ABORT; operations have their numbers as tokens, which never get there.
  static constexpr Token token = ~Token{0};

  Goodbye(const Environment& environment, Links& links, ServerFrames& frames);

  // Nothing is submitted any more.
  void begin() { leaving_ = true; }
  bool is_leaving() const { return leaving_; }

  // Others may need this rank yet; but they are not waited for without end. Whether the wait begins now.
  bool wait_for_others();
  // When they have been waited for long enough, which take_due() says once.
  Time deadline() const { return give_up_at_; }
  bool take_due();

  // From now on it counts as said: this rank reports nothing and acknowledges nothing. Then: says it to all.
  void begin_saying();
  void say();
  // An error is this rank's end: says so to the coordinator, which tells all.
  void abort(const std::string& text);
  bool is_said() const { return said_; }
  void count_sent() { --unsent_; }
  // And the network has it.
  bool has_left() const { return said_ && unsent_ == 0; }

  // Every rank has left or is lost, or it cannot be known any more. False: that was known.
  bool end();

  void check_invariants() const;

 private:
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
