// What must have come of a run: see simulation.h.
#include <algorithm>
#include <set>

#include "drivers/sim/expected.h"
#include "drivers/sim/simulation.h"

namespace shoal::sim {

namespace {

// How many of these ranks' hosts a message names.
std::size_t hosts_named(const std::string& message, const std::vector<std::uint32_t>& ranks, const JobConfig& config) {
  return static_cast<std::size_t>(std::count_if(ranks.begin(), ranks.end(), [&](std::uint32_t rank) {
    return message.find("(" + config.hosts[rank] + ")") != std::string::npos;
  }));
}

std::string codes_text(const std::set<Code>& codes) {
  std::string text;
  for (Code code : codes) {
    text += (text.empty() ? "" : ", ") + std::to_string(static_cast<int>(code));
  }
  return text;
}

}  // namespace

// Called when the handle is done, while the arrays still hold what the machine left there.
void Simulation::check_result(std::size_t number, std::size_t index, Work& work) {
  const OperationPlan& operation = plan_.operations[number];
  const MemberPlan& member = operation.members[index];
  const std::string what =
      "operation " + std::to_string(number) + " ('" + operation.name + "') on member " + std::to_string(index) + ": ";
  for (Array* array : {work.input, work.output}) {
    if (array != nullptr && !array->guards_intact()) {
      violated(what + "bytes outside of an array were written");
    }
  }
  if (!forged_ && work.input != work.output) {
    const Bytes not_there(work.awaits_input ? member.bytes() : 0, std::byte{0xa5});
    const Bytes& input = work.awaits_input ? not_there : expected_[number].input(index);
    if (!std::equal(input.begin(), input.end(), work.input->data())) {
      violated(what + "its input was written");
    }
  }
  const bool no_result =
      member.collective == Collective::broadcast && index == member.root && work.input != work.output;
  if (!work.status->ok() || forged_ || elements_damaged_ || no_result ||
      (!operation.outcomes.empty() && operation.outcomes.count(Code::ok) == 0)) {
    return;
  }
  const Bytes right = expected_[number].result(index);
  if (work.result_bytes != right.size() || !std::equal(right.begin(), right.end(), work.result)) {
    const auto wrong = std::mismatch(right.begin(), right.end(), work.result, work.result + work.result_bytes).first;
    violated(what + "the result is wrong from byte " + std::to_string(wrong - right.begin()) + " on, of " +
             std::to_string(work.result_bytes));
  }
  const bool told =
      work.told.contains({0, right.size()}) && std::equal(right.begin(), right.end(), work.received.begin());
  if (member.streamed && !told) {
    violated(what + "it was not told of all of its result, or before it was there");
  }
}

void Simulation::check_outcomes() {
  for (std::size_t number = 0; number < plan_.operations.size(); ++number) {
    const OperationPlan& operation = plan_.operations[number];
    for (std::uint32_t rank : plan_.members(operation)) {
      const Work& work = work_of(number, rank);
      if (work.status && lives_[rank].killed) {
        continue;
      }
      if (work.status) {
        check_outcome(rank, operation, *work.status);
      }
    }
    if (operation.ends_alike && !forged_ && !concerned(operation)) {
      check_alike(number);
    }
  }
}

void Simulation::check_alike(std::size_t number) {
  std::set<Code> codes;
  for (const Work& work : work_[number]) {
    if (work.status) {
      codes.insert(work.status->code);
    }
  }
  if (codes.size() > 1) {
    violated("operation " + std::to_string(number) + " ('" + plan_.operations[number].name +
             "') has not ended the same on all members: " + codes_text(codes));
  }
}

// Whether one of the faults stands against an operation.
bool Simulation::concerned(const OperationPlan& operation) const {
  const auto& members = plan_.members(operation);
  return disturbed_ || std::any_of(members.begin(), members.end(),
                                   [this](std::uint32_t rank) { return gone_ranks_.count(rank) > 0; });
}

void Simulation::check_outcome(std::uint32_t rank, const OperationPlan& operation, const Status& status) {
  const bool has_failed_join = std::any_of(lives_.begin(), lives_.end(), [&operation](const Life& life) {
    return life.failed_joins.contains(operation.group);
  });
  if (forged_ || (operation.after_join && has_failed_join)) {
    return;
  }
  const auto& members = plan_.members(operation);
  const std::string what = "'" + operation.name + "' in group " + std::to_string(operation.group) + " on rank " +
                           std::to_string(rank) + ": ";
  std::set<Code> allowed = operation.outcomes;
  if (allowed.empty()) {
    allowed.insert(Code::ok);
  } else if (!lost_servers_.empty()) {
    // Those who could say better why it failed may have left when the server that knew was lost.
    allowed.insert(Code::peer_left);
  }
  const bool goodbye_lost =
      std::any_of(members.begin(), members.end(), [this](std::uint32_t member) { return cut_off_.count(member) > 0; });
  if (goodbye_lost && allowed.count(Code::peer_left) > 0) {
    allowed.insert(Code::peer_lost);
  }
  if (concerned(operation)) {
    allowed.insert(excuses_.begin(), excuses_.end());
    // Those who hear of the loss first may have left before others hear of it.
    allowed.insert(Code::peer_left);
    // An input that follows what has timed out comes too late.
    const bool follows = std::any_of(operation.members.begin(), operation.members.end(),
                                     [](const MemberPlan& member) { return member.follows.has_value(); });
    if (follows && excuses_.count(Code::timeout) > 0) {
      allowed.insert(Code::failed_on_rank);
    }
  }
  if (allowed.count(status.code) == 0) {
    violated(what + "ended with " + std::to_string(static_cast<int>(status.code)) + " (" + status.message +
             "), but only these are right: " + codes_text(allowed));
    return;
  }
  const std::size_t named = hosts_named(status.message, members, plan_.config);
  const bool names_others = status.code != Code::mismatch || named >= 2;
  const bool names_one = (status.code != Code::peer_left && status.code != Code::failed_on_rank) || named >= 1 ||
                         lives_[rank].aborted || status.rank == static_cast<std::int32_t>(rank);
  const bool names_tensor = operation.name.empty() || status.message.find(operation.name) != std::string::npos ||
                            (status.code != Code::mismatch && status.code != Code::timeout) ||
                            excuses_.count(status.code) > 0;  // all end for the sake of one
  // A loss that is nobody's but this rank's is blamed on nobody else. Who hears late of a loss may meet one before that
  // has ended because of it, and taken blocks with it.
  const bool met_its_end = status.code == Code::peer_lost && status.rank >= 0 &&
                           lives_.at(static_cast<std::size_t>(status.rank)).exiting && !excuses_.empty();
  const bool blames_right = disturbed_ || (status.code != Code::peer_lost && status.code != Code::aborted) ||
                            gone_ranks_.count(static_cast<std::uint32_t>(status.rank)) > 0 ||
                            cut_off_.count(static_cast<std::uint32_t>(status.rank)) > 0 || met_its_end;
  const bool gives_reason = status.code != Code::aborted || excuses_.count(Code::timeout) > 0 ||
                            status.message.find(abort_reason) != std::string::npos;
  if (!status.ok() &&
      (status.message.empty() || !names_others || !names_one || !names_tensor || !blames_right || !gives_reason)) {
    violated(what + "the message does not say who and what: " + status.message);
  }
}

std::string Simulation::who_waits() const {
  std::string text;
  for (std::uint32_t rank = 0; rank < lives_.size(); ++rank) {
    if (lives_[rank].killed) {
      continue;
    }
    for (std::size_t number = 0; number < plan_.operations.size(); ++number) {
      const auto& members = plan_.members(plan_.operations[number]);
      if (std::find(members.begin(), members.end(), rank) != members.end() &&
          submitted_[number * plan_.config.size() + rank] && !work_[number][member_of(number, rank)].status) {
        text += "\n  rank " + std::to_string(rank) + " waits for operation " + std::to_string(number) + " ('" +
                plan_.operations[number].name + "')";
      }
    }
    if (lives_[rank].next < plan_.ranks[rank].steps.size() && !lives_[rank].aborted) {
      text += "\n  rank " + std::to_string(rank) + " has yet to submit " +
              std::to_string(plan_.ranks[rank].steps.size() - lives_[rank].next) + " operations";
    }
  }
  return text;
}

// Everybody's handles are done, and every rank that lives was told of the end of the job.
void Simulation::check_ends() {
  if (const std::string waiting = who_waits(); !waiting.empty()) {
    violated("nothing happens any more, but" + waiting);
  }
  for (std::uint32_t rank = 0; rank < lives_.size() && !forged_; ++rank) {
    Cluster::WorkerHost& host = cluster_.worker(rank);
    if (host.worker == nullptr) {
      continue;
    }
    if (!host.worker->left()) {
      violated("rank " + std::to_string(rank) + " has not said goodbye");
    }
    if (!lives_[rank].ended) {
      violated("rank " + std::to_string(rank) + " was not told that the job has ended");
    }
    if (cluster_.local().open_operations(rank) > 0) {
      violated("rank " + std::to_string(rank) + " still has " + std::to_string(cluster_.local().open_operations(rank)) +
               " operations among the ranks of its machine");
    }
    if (host.worker->open_operations() > 0 || host.pool->taken_bytes() > 0) {
      violated("worker " + std::to_string(rank) + " still has " + std::to_string(host.worker->open_operations()) +
               " operations and " + std::to_string(host.pool->taken_bytes()) + " bytes");
    }
  }
}

void Simulation::check_leftovers() {
  if (!memory_.intact()) {
    violated("an array was written after its handle was done, or outside of its bounds");
  }
  const bool all_links_ended =
      std::all_of(lives_.begin(), lives_.end(), [](const Life& life) { return life.exiting || life.killed; });
  for (const Cluster::ServerHost& host : cluster_.servers()) {
    // Where something went wrong, a server is clean once all of its links are gone.
    const bool must_be_clean = (excuses_.empty() && !forged_) || all_links_ended;
    // What waits for a rank that never came goes with the machine, as those do that have no links any more.
    const auto connected = std::count_if(network_.ends().begin(), network_.ends().end(),
                                         [&host](const auto& end) { return end->seat == host.seat; });
    if (host.server == nullptr || !must_be_clean || connected < std::ssize(lives_)) {
      continue;
    }
    if (host.server->operations() > 0 || host.pool->taken_bytes() > 0) {
      violated("server " + std::to_string(host.index) + " still has " + std::to_string(host.server->operations()) +
               " operations and " + std::to_string(host.pool->taken_bytes()) + " bytes");
    }
  }
}

void Simulation::check_credit() {
  for (const auto& end : network_.ends()) {
    const bool stands = end->is_client && end->kind == LinkKind::server && end->open && end->other->open;
    if (!stands || forged_ || end->seat->machine == nullptr || end->other->seat->machine == nullptr) {
      continue;
    }
    if (const std::string wrong = ledger_.at_rest(*end); !wrong.empty()) {
      violated(sim::describe(*end) + ": " + wrong);
    }
  }
}

}  // namespace shoal::sim
