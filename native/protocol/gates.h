// Calls whose input is still on its way: an accelerator brings it to memory of the host. A call counts when it is made,
// so its place among the calls of its group is that of the call. Its operation is opened when the input is there, and
// not before: docs/protocol/lifecycle.md, "Why it cannot deadlock", rests on that.
//
// A call whose input does not come for the operation's timeout, or never will, is opened as failed, so that all members
// hear. The timeout may run out while the process is stopped, and the input come meanwhile. So each is looked at
// twice: a second before the timeout is over, and a second after that look, whenever it was.
//
//   each held submission awaits its input, and has the number of its call;   bytes = the records of all of them
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "protocol/machine.h"
#include "protocol/submission.h"

namespace shoal {

// Why a call is opened as failed whose input has not come in time.
inline constexpr const char* input_is_late =
    "its input has not come: the accelerator has not done what comes before it";

class Gates {
 public:
  struct Held {
    Submission submission;
    std::size_t record = 0;  // bytes that it counts for among the open operations
    Time patience = 0;       // between the two looks: a second, or half of a short timeout
    Time look_at = never;    // the next one
    bool is_last_look = false;
  };

  void hold(Submission submission, std::size_t record, Time now);
  // To be opened: the input of this operation is there, or will never be and why. None: it is not held.
  std::optional<Held> release(std::uint64_t handle, const std::string& problem);

  // When the first of them is looked at next.
  Time deadline() const;
  // Looks at them. Handles of those that are too late.
  std::vector<std::uint64_t> take_late(Time now);

  bool empty() const { return held_.empty(); }
  std::size_t count() const { return held_.size(); }
  std::size_t bytes() const { return bytes_; }

  void check_invariants() const;

 private:
  std::unordered_map<std::uint64_t, Held> held_;  // by handle
  std::size_t bytes_ = 0;
};

}  // namespace shoal
