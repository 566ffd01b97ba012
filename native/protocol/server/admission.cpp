#include "protocol/server/admission.h"

#include <algorithm>
#include <utility>

#include "base/invariant.h"
#include "wire/epoch.h"

namespace shoal::server {

using wire::Type;

namespace {

// What a segment of every member takes at the rate of the job, if it is long beside a message there and one back.
constexpr Time long_round = second / 1000;

}  // namespace

Admission::Admission(const Terms& terms, const OperationTable& operations, Links& links)
    : terms_(terms), operations_(operations), links_(links) {}

void Admission::admit(const Operation& operation, bool all_inlined, bool full) {
  bool owed = false;
  for (std::size_t i = 0; i < operation.size(); ++i) {
    owed |= operation.segments().owes(i);
  }
  if (owed && all_inlined && first_result_tells(operation)) {
    untold_.push_back(operation.serial());
  } else if (owed) {
    tell_untold();
    tell(operation, full ? wire::flag_full : 0);
  }
}

// Where every server is in a worker, its port is a worker's, and what all send at once on an ADMIT meets there: each
// hears it from the same server first. Results come one after the other. They come later too, and that costs more than
// it brings where a round of segments is short. docs/decisions/windows.md
bool Admission::first_result_tells(const Operation& operation) const {
  const JobConfig& config = terms_.config();
  for (std::uint32_t server = 0; server < config.servers(); ++server) {
    if (config.weights[server] > 0 && config.server_ranks[server] < 0) {
      return false;
    }
  }
  const std::uint64_t round = operation.size() * operation.segments().segment_bytes();
  const bool takes_long = static_cast<double>(round) * second >= static_cast<double>(config.rate) * long_round;
  return operation.size() > 2 && config.rate > 0 && takes_long;
}

// Tells operations that wait for their first result before another one is admitted, so that the order is kept.
void Admission::tell_untold() {
  for (std::uint64_t serial : std::exchange(untold_, {})) {
    tell(operations_.at(serial), 0);
  }
}

void Admission::tell(const Operation& operation, std::uint8_t flags) {
  // Rotated like the results: what the members then send does not all meet at one server.
  for (std::size_t turn = 0; turn < operation.size(); ++turn) {
    const std::size_t i = (terms_.index() + turn) % operation.size();
    if (operation.segments().owes(i)) {
      links_.send(operation.rank(i), {.type = Type::admit, .flags = flags, .operation = operation.member(i).number});
    }
  }
}

void Admission::resume(const Operation& operation, const std::vector<MissingRange>& missing) {
  tell_untold();
  for (std::size_t i = 0; i < operation.size(); ++i) {
    std::vector<wire::MissingRange> own;
    for (const MissingRange& one : missing) {
      const bool sends = one.source ? *one.source == i : one.needs_data && operation.is_contributor(i);
      if (sends || one.receives[i]) {
        own.push_back({one.range, sends, one.receives[i]});
      }
    }
    links_.send(operation.rank(i),
                {.type = Type::admit, .flags = wire::flag_resumed, .operation = operation.member(i).number},
                wire::encode(own));
  }
}

void Admission::check_invariants() const {
  for (std::size_t i = 0; i < untold_.size(); ++i) {
    const Operation& operation = operations_.at(untold_[i]);
    SHOAL_INVARIANT(operation.is(Operation::State::flowing));
    SHOAL_INVARIANT(operation.segments().next_result() == 0);
    SHOAL_INVARIANT(i == 0 || untold_[i - 1] != untold_[i]);
  }
}

}  // namespace shoal::server
