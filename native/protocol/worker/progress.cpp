// What a worker does about operations that do not move: it asks the servers that have not answered whom they wait for,
// gives them a second, and says what it has learnt: in a warning, and in the error of an operation whose time is out.
// A server that says nothing in that second is itself what is waited for. docs/protocol/lifecycle.md, Stalls.
#include <algorithm>
#include <utility>

#include "protocol/collectives.h"
#include "protocol/keys.h"
#include "protocol/worker/impl.h"
#include "wire/late.h"

namespace shoal {

using wire::Late;
using wire::Type;

namespace {

constexpr Time patience = second;       // for the servers' answers
constexpr Time last_word = 2 * second;  // for the home's, once it has been asked to fail an operation

// Questions that are on their way at once; what is more is counted in the warning.
constexpr std::size_t most_questions = 256;
// Operations that a warning names.
constexpr std::size_t most_named = 8;

std::string call_text(Collective collective, const std::string& name) {
  return std::string(name_of(collective)) + (name == unnamed ? " without a name" : " '" + name + "'");
}

// What the server says of a late rank that has heard of it last; whichever operation it was asked about.
const Late::Member& last_word_of(std::uint32_t rank, const worker::Inquiry& inquiry) {
  const Late::Member* last = nullptr;
  for (const auto& [asked, answer] : inquiry.answers) {
    for (std::size_t i = 0; answer && i < answer->members.size(); ++i) {
      const Late::Member& member = answer->members[i];
      if (member.rank == rank && (last == nullptr || member.silent_ms < last->silent_ms)) {
        last = &member;
      }
    }
  }
  return *last;
}

std::string last_text(const Late::Member& member) {
  if (member.last == Collective::none) {
    return "the servers asked have not heard of it yet";
  }
  return "the servers asked last heard of it " + seconds_text(member.silent_ms * (second / 1000)) +
         " ago, after it called " + call_text(member.last, member.last_name);
}

std::string join(const std::vector<std::string>& texts, const char* between) {
  std::string all;
  for (const std::string& text : texts) {
    all += (all.empty() ? "" : between) + text;
  }
  return all;
}

}  // namespace

// Where it waits for its turn, the progress of those before it counts.
Time Worker::Impl::last_move(const Operation& operation) const {
  Time moved = operation.progress;
  for (const Part& part : operation.parts) {
    // Who only receives is not told that it is admitted.
    if ((part.admitted || !operation.contributes()) && !part.done) {
      moved = std::max(moved, servers_[part.server].last_result);
    }
  }
  return moved;
}

void Worker::Impl::check_progress(Operation& operation) {
  const Time timeout = operation.submission.timeout;
  if (operation.timed_out) {
    end(operation, Status::error(Code::timeout, describe(operation) + " " + operation.stall + "; its home " +
                                                    config_.server_names[operation.home] + " did not answer either"));
    return;
  }
  const Time moved = last_move(operation);
  if (moved != std::exchange(operation.still_since, moved)) {
    operation.late_after = first_late;
  }
  if (moved + timeout <= now_) {
    operation.timing_out = true;
    ask_about(operation);
    return;
  }
  if (moved + operation.late_after <= now_) {
    operation.late_after *= 2;
    ask_about(operation);
  }
  check_again(operation, moved + std::min(timeout, operation.late_after));
}

void Worker::Impl::ask_about(Operation& operation) {
  if (!inquiry_.operations.insert(operation.number).second) {
    return;
  }
  operation.still_since = last_move(operation);
  if (inquiry_.until == never) {
    inquiry_.until = now_ + patience;
  }
  const bool between_nodes = operation.ring || (operation.exchange.sizes_known && !operation.exchange.through_home);
  for (const Part& part : operation.parts) {
    const bool asks = !part.done && !between_nodes && servers_[part.server].link;
    if (asks && inquiry_.answers.size() < most_questions) {
      inquiry_.answers.emplace(std::pair(operation.number, part.server), std::nullopt);
      ++inquiry_.unanswered;
      send_to_server(part.server, {.type = Type::ask, .operation = operation.number});
    }
  }
}

// Operations that would be asked about in a moment are asked about now, so that there is one warning for all of them.
void Worker::Impl::ask_about_the_rest() {
  std::vector<std::uint64_t> numbers;
  for (const auto& [number, operation] : operations_) {
    const bool stands =
        !operation->finished && !operation->failed_here && !operation->timed_out && !operation->timing_out;
    if (stands && last_move(*operation) + operation->late_after <= now_ + patience) {
      numbers.push_back(number);
    }
  }
  std::sort(numbers.begin(), numbers.end());
  for (std::uint64_t number : numbers) {
    Operation& operation = *find(number);
    operation.late_after *= 2;
    ask_about(operation);
    check_again(operation, last_move(operation) + std::min(operation.submission.timeout, operation.late_after));
  }
}

Status Worker::Impl::receive_late(const LinkState& link) {
  Late late;
  if (Status status = wire::decode(wire::ConstBytes(link.payload.data(), link.payload.size()), late); !status.ok()) {
    return status;
  }
  for (const Late::Member& member : late.members) {
    if (member.rank >= config_.size()) {
      return Status::error(Code::protocol, "LATE with a rank that does not exist");
    }
  }
  const auto asked = inquiry_.answers.find({link.header.operation, link.index});
  if (asked != inquiry_.answers.end() && !asked->second) {
    asked->second = std::move(late);
    --inquiry_.unanswered;
  }
  if (inquiry_.unanswered == 0 && inquiry_.until != never) {
    end_inquiry();
  }
  return {};
}

void Worker::Impl::end_inquiry() {
  const worker::Inquiry inquiry = std::exchange(inquiry_, {});
  // Those that wait for the same are told together.
  std::vector<std::pair<std::string, std::vector<const Operation*>>> warnings;
  for (std::uint64_t number : inquiry.operations) {
    Operation* operation = find(number);
    if (operation == nullptr || operation->finished || operation->failed_here || operation->ending) {
      continue;
    }
    if (last_move(*operation) != operation->still_since) {
      operation->timing_out = false;  // it moves again
      check_again(*operation, now_);
      continue;
    }
    const std::string why = why_still(*operation, inquiry);
    operation->stall = "has not moved on " + rank_text(rank_, config_) + " for " +
                       seconds_text(now_ - last_move(*operation)) + ": " + why;
    if (operation->timing_out) {
      time_out(*operation);
      continue;
    }
    auto same =
        std::find_if(warnings.begin(), warnings.end(), [&why](const auto& entry) { return entry.first == why; });
    if (same == warnings.end()) {
      same = warnings.insert(warnings.end(), {why, {}});
    }
    same->second.push_back(operation);
  }
  for (const auto& [why, operations] : warnings) {
    world_.warn(stall_text(operations));
  }
}

void Worker::Impl::time_out(Operation& operation) {
  ask_home_to_fail(
      operation,
      Status::error(Code::timeout,
                    "'" + operation.name() + "' " + operation.stall +
                        "; see what is late there (py-spy dump), or raise the timeout of this group, or SHOAL_TIMEOUT",
                    static_cast<std::int32_t>(rank_)));
}

void Worker::Impl::ask_home_to_fail(Operation& operation, Status why) {
  operation.timed_out = true;
  check_again(operation, now_ + last_word);
  send_to_server(operation.home, {.type = Type::fail, .operation = operation.number},
                 wire::encode(wire::Failure{std::move(why)}));
}

std::string Worker::Impl::stall_text(const std::vector<const Operation*>& operations) const {
  const Operation& first = *operations.front();
  if (operations.size() == 1) {
    return call_text(first.submission.collective, first.name()) + " " + first.stall;
  }
  std::vector<std::string> names;
  for (std::size_t i = 0; i < operations.size() && i < most_named; ++i) {
    names.push_back(call_text(operations[i]->submission.collective, operations[i]->name()));
  }
  if (operations.size() > most_named) {
    names.push_back(std::to_string(operations.size() - most_named) + " more");
  }
  return std::to_string(operations.size()) + " operations (" + join(names, ", ") + "), of which the first " +
         first.stall;
}

// Whom an operation waits for, what is known of them, and what the others do.
std::string Worker::Impl::why_still(const Operation& operation, const worker::Inquiry& inquiry) const {
  std::map<std::uint32_t, Late::Why> late;  // by rank
  std::uint32_t unlisted = 0;
  std::set<std::string> silent;  // a worker and a server may have several connections
  for (const Part& part : operation.parts) {
    const auto asked = inquiry.answers.find({operation.number, part.server});
    if (asked == inquiry.answers.end()) {
      continue;
    }
    if (!asked->second) {
      const std::int32_t holder = config_.server_ranks[part.server];
      silent.insert((holder >= 0 ? rank_text(static_cast<std::uint32_t>(holder), config_) +
                                       ", whose process averages a part of it,"
                                 : "server " + config_.server_names[part.server]) +
                    " does not answer");
      continue;
    }
    unlisted = std::max(unlisted, asked->second->count - static_cast<std::uint32_t>(asked->second->members.size()));
    for (const Late::Member& member : asked->second->members) {
      late.emplace(member.rank, member.why);
    }
  }
  std::vector<std::string> reasons;
  bool all_opened = true;
  for (const auto& [rank, why] : late) {
    const bool opened = why != Late::Why::not_opened;
    all_opened = all_opened && opened;
    const char* what = !opened                       ? " has not called it"
                       : why == Late::Why::owes_data ? " has called it, but its data does not come"
                                                     : " does not read what it is sent";
    reasons.push_back(rank_text(rank, config_) + what + " (" + last_text(last_word_of(rank, inquiry)) + ")");
  }
  if (unlisted > 0) {
    reasons.push_back(std::to_string(unlisted) + " more ranks are late too");
  }
  if (!all_opened) {
    reasons.emplace_back("every other rank has called it");
  }
  reasons.insert(reasons.end(), silent.begin(), silent.end());
  add_blocks(operation, reasons);
  return reasons.empty() ? "no rank is known to be late; its data may still be on its way" : join(reasons, "; ");
}

// Of blocks that go from worker to worker, the worker knows itself.
void Worker::Impl::add_blocks(const Operation& operation, std::vector<std::string>& reasons) const {
  const std::vector<std::uint32_t>& ranks = operation.group->ranks;
  if (operation.ring) {
    const std::uint32_t next = ring_neighbour(operation, 1);
    const std::uint32_t previous = ring_neighbour(operation, ranks.size() - 1);
    reasons.push_back("its ring waits for data from " + rank_text(previous, config_) + ", or for " +
                      rank_text(next, config_) + " to take some");
    return;
  }
  if (!operation.exchange.sizes_known) {
    return;
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const bool comes = operation.exchange.incoming[i].done();
    const bool goes = operation.exchange.outgoing[i].done();
    if (!comes || !goes) {
      reasons.push_back(rank_text(ranks[i], config_) + (comes  ? " does not take its block"
                                                        : goes ? "'s block does not come"
                                                               : "'s block does not come, and it takes none"));
    }
  }
}

}  // namespace shoal
