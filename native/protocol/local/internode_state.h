// The state of one operation that goes on to the other nodes. The leader of the node sends the node's sum, hands
// the result out chunk by chunk, and says how the operation ends.
//
// Only the leader hears the network, and no rank ends the operation before it has the leader's verdict. So all
// ranks of the node agree, whatever happens. Without other nodes only the verdict and note_flowed() are used.
//
//   lent_parts > 0 → the output is lent;   done_told → the verdict is ok;   a disputed operation is never sent up
#pragma once

#include <cstddef>
#include <optional>
#include <utility>

#include "base/status.h"

namespace shoal::local {

class InternodeState {
 public:
  // --- Whether it can end well ---

  // This rank has a reason why it fails; the first reason counts.
  void dispute(const Status& why);
  const std::optional<Status>& disputed() const { return disputed_; }
  // The other nodes hear that it has failed here. Returns whether they had not been told before.
  bool tell_network() { return !std::exchange(network_told_, true); }
  bool is_network_told() const { return network_told_; }
  // The leader's verdict: how it ends.
  void decide(const Status& verdict) { verdict_ = verdict; }
  const std::optional<Status>& verdict() const { return verdict_; }

  // --- On the leader: the network and its arrays ---

  void begin_at_network() { at_network_ = true; }
  void end_at_network() { at_network_ = false; }
  bool is_at_network() const { return at_network_; }

  // --- The flow, and the parts of the result ---

  void note_flowed() { flowed_ = true; }
  bool flowed() const { return flowed_; }
  // If the arrays of all ranks lie in the shared memory: the leader's output, from which the others copy.
  void lend(const std::byte* output) { lent_ = output; }
  const std::byte* lent() const { return lent_; }
  // add_part(): a part of the result is to be handed out or taken. take_part(): it has been. drop_parts(): so many
  // never will be.
  void add_part() { ++parts_; }
  void take_part(bool hands_out) {
    --parts_;
    lent_parts_ += hands_out && lent_ != nullptr ? 1 : 0;
  }
  void drop_parts(std::size_t count) { parts_ -= count; }
  // All others have copied a lent part.
  void note_returned() { --lent_parts_; }
  bool hands_out() const { return parts_ + lent_parts_ > 0; }

  // --- Its end ---

  // Whether the verdict, the sums and the parts are all there. `flows`: it is a large operation.
  bool is_through(bool flows) const { return verdict_ && (!flows || (flowed_ && parts_ == 0)); }
  bool is_returned() const { return lent_parts_ == 0; }
  // The leader tells the others that it has ended well. Returns whether it had not before.
  bool tell_done() { return !std::exchange(done_told_, true); }

  void check_invariants() const;

 private:
  std::optional<Status> disputed_;
  std::optional<Status> verdict_;
  bool network_told_ = false;
  bool at_network_ = false;
  bool flowed_ = false;
  bool done_told_ = false;
  const std::byte* lent_ = nullptr;
  std::size_t parts_ = 0;       // of the result, neither handed out nor taken
  std::size_t lent_parts_ = 0;  // handed out by lending, and not copied by all
};

}  // namespace shoal::local
