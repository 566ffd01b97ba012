#include "protocol/worker/stall_reasons.h"

#include <algorithm>
#include <cstddef>
#include <set>

#include "protocol/collectives.h"
#include "protocol/keys.h"
#include "protocol/progress.h"

namespace shoal::worker {

using wire::Late;

namespace {

// Operations that a warning names.
constexpr std::size_t most_named = 8;

std::string call_text(Collective collective, const std::string& name) {
  return std::string(name_of(collective)) + (name == unnamed ? " without a name" : " '" + name + "'");
}

// What the server says of a late rank that has heard of it last; whichever operation it was asked about.
const Late::Member& last_word_of(std::uint32_t rank, const Answers& answers) {
  const Late::Member* last = nullptr;
  for (const auto& [asked, answer] : answers) {
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

// Of what goes from worker to worker, the worker knows itself.
void add_transfer(const Operation& operation, const JobConfig& config, std::vector<std::string>& reasons) {
  const Group& group = operation.group();
  if (operation.ring()) {
    reasons.push_back("its ring waits for data from " + rank_text(group.member_after(group.size() - 1), config) +
                      ", or for " + rank_text(group.member_after(1), config) + " to take some");
    return;
  }
  const BlockTransfer& transfer = operation.transfer();
  for (std::size_t i = 0; transfer.has_begun() && i < group.size(); ++i) {
    const bool comes = transfer.incoming(i).is_done();
    const bool goes = transfer.outgoing(i).is_done();
    if (!comes || !goes) {
      reasons.push_back(rank_text(group.ranks[i], config) + (comes  ? " does not take its block"
                                                             : goes ? "'s block does not come"
                                                                    : "'s block does not come, and it takes none"));
    }
  }
}

}  // namespace

std::string stall_reason(const Operation& operation, const Answers& answers, const JobConfig& config) {
  std::map<std::uint32_t, Late::Why> late;  // by rank
  std::uint32_t unlisted = 0;
  std::set<std::string> silent;  // a worker and a server may have several connections
  for (const Part& part : operation.parts()) {
    const auto asked = answers.find({operation.number(), part.server()});
    if (asked == answers.end()) {
      continue;
    }
    if (!asked->second) {
      const std::int32_t holder = config.server_ranks[part.server()];
      silent.insert((holder >= 0 ? rank_text(static_cast<std::uint32_t>(holder), config) +
                                       ", whose process averages a part of it,"
                                 : "server " + config.server_names[part.server()]) +
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
    reasons.push_back(rank_text(rank, config) + what + " (" + last_text(last_word_of(rank, answers)) + ")");
  }
  if (unlisted > 0) {
    reasons.push_back(std::to_string(unlisted) + " more ranks are late too");
  }
  if (!all_opened) {
    reasons.emplace_back("every other rank has called it");
  }
  reasons.insert(reasons.end(), silent.begin(), silent.end());
  add_transfer(operation, config, reasons);
  return reasons.empty() ? "no rank is known to be late; its data may still be on its way" : join(reasons, "; ");
}

std::string stall_text(const std::vector<const Operation*>& operations) {
  const Operation& first = *operations.front();
  if (operations.size() == 1) {
    return call_text(first.submission().collective, first.name()) + " " + first.watch().stall();
  }
  std::vector<std::string> names;
  for (std::size_t i = 0; i < operations.size() && i < most_named; ++i) {
    names.push_back(call_text(operations[i]->submission().collective, operations[i]->name()));
  }
  if (operations.size() > most_named) {
    names.push_back(std::to_string(operations.size() - most_named) + " more");
  }
  return std::to_string(operations.size()) + " operations (" + join(names, ", ") + "), of which the first " +
         first.watch().stall();
}

}  // namespace shoal::worker
