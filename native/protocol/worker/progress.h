// What a worker does about operations that do not move. It asks the servers that have not answered whom they wait for,
// gives them a second, and reports the answers: in a warning, and in the error of an operation that times out. If a
// server does not answer within that second, it is the server that is waited for. docs/protocol/lifecycle.md, Stalls.
//
//   an operation is in the table of checks exactly at its watch's check_at, and only while it is open
//   unanswered = answers that are missing;  nothing is asked → there are no answers
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "protocol/worker/environment.h"
#include "protocol/worker/links.h"
#include "protocol/worker/operation_table.h"
#include "protocol/worker/server_frames.h"
#include "protocol/worker/stall_reasons.h"

namespace shoal::worker {

class Progress {
 public:
  Progress(const Environment& environment, const OperationTable& operations, const Links& links, ServerFrames& frames);

  // An operation that is open is watched; one that ends is not.
  void watch(Operation& operation);
  void forget(Operation& operation) { check_again(operation, never); }
  // A RESULT has come from this server: operations that wait for their turn there have moved.
  void note_result(std::uint32_t server) { last_results_[server] = environment_.now(); }
  void forget_server(std::uint32_t server) { last_results_[server] = 0; }

  // When operations are due or an inquiry ends. Then the caller takes each operation that is due, and check() says why
  // it ends now, if it does. end_checks() does the rest.
  Time deadline() const;
  bool asks() const { return inquiry_.until != never; }
  Operation* take_due();
  std::optional<Status> check(Operation& operation);
  void end_checks(bool asked_before);

  // LATE, the answer of a server that was asked.
  Status receive_late(std::uint32_t server, const Frame& frame);
  // Asks its home to fail it for all members. If the home does not answer, check() says so.
  void ask_home_to_fail(Operation& operation, Status why);

  // A new epoch: questions are void, and the new servers are asked about what was late.
  void begin_epoch() { inquiry_ = {}; }
  void restart(Operation& operation);

  void check_invariants() const;

 private:
  // Questions to servers, and the answers until now.
  struct Inquiry {
    Time until = never;                  // never: nothing is asked
    std::set<std::uint64_t> operations;  // numbers
    Answers answers;
    std::size_t unanswered = 0;
  };

  Time last_move(const Operation& operation) const;
  void check_again(Operation& operation, Time when);
  void ask_about(Operation& operation);
  void ask_about_the_rest();
  void end_inquiry();
  void time_out(Operation& operation);

  const Environment& environment_;
  const OperationTable& operations_;
  const Links& links_;
  ServerFrames& frames_;
  std::set<std::pair<Time, std::uint64_t>> checks_;  // numbers of operations, by when they are due
  std::vector<Time> last_results_;                   // by server
  Inquiry inquiry_;
};

}  // namespace shoal::worker
