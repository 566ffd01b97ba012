#include "protocol/coordinator/circles.h"

#include <algorithm>
#include <utility>

#include "base/invariant.h"

namespace shoal {

using wire::Type;

namespace {

// Before it asks: ranks that wait in the same circle are all to be named, and each says so at its next look, which it
// takes once a second.
constexpr Time ask_patience = 3 * second / 2;

constexpr Time answer_patience = second;

// Ranks that say something within this time are looked at together.
constexpr Time look_patience = second / 10;

// What all ranks together are asked, or told, at once, in bytes: more is not said. (10,000 operations of 100 ranks.)
constexpr std::size_t most_bytes = 64 * 1024 * 1024;

// Bytes of a call in a message, without its name.
constexpr std::size_t call_bytes = 24;

}  // namespace

std::size_t Circles::bytes_of(const wire::Waits& waits) {
  std::size_t bytes = sizeof(Blocked);
  for (const wire::Wait& wait : waits.waits) {
    bytes += sizeof wait + wait.call.name.size() + wait.members.size() * sizeof(wire::Stride);
  }
  return bytes;
}

void Circles::forget(std::uint32_t rank) {
  if (const auto found = blocked_.find(rank); found != blocked_.end()) {
    kept_ -= found->second.bytes;
    blocked_.erase(found);
  }
}

Circles::Messages Circles::hear(std::uint32_t rank, wire::Waits waits, Time now) {
  forget(rank);
  const std::size_t bytes = bytes_of(waits);
  kept_ += bytes;
  Blocked& blocked = blocked_.emplace(rank, Blocked{std::move(waits), bytes, false, false, {}, {}}).first->second;
  if (until_ == never) {
    look_at_ = ask_at_ == never ? std::min(look_at_, now + look_patience) : never;
    return {};
  }
  // It is not asked in this round, and nothing lacks it.
  blocked.answered = true;
  again_ = true;
  return all_have_answered() ? conclude(now) : Messages{};
}

Circles::Messages Circles::hear(std::uint32_t rank, const wire::Calls& calls, Time now) {
  const auto found = blocked_.find(rank);
  if (found == blocked_.end()) {
    return {};
  }
  Blocked& blocked = found->second;
  if (calls.changes != blocked.waits.changes) {
    forget(rank);  // it says so if it is blocked again
  } else if (std::exchange(blocked.is_silent, false)) {
    again_ = true;
  } else if (calls.round == round_ && !blocked.asked.empty() && calls.called.size() == blocked.asked.size()) {
    blocked.answered = true;
    blocked.called = calls.called;
  }
  if (until_ == never) {
    if (std::exchange(again_, false) && ask_at_ == never) {
      look_at_ = std::min(look_at_, now + look_patience);
    }
    return {};
  }
  return all_have_answered() ? conclude(now) : Messages{};
}

bool Circles::all_have_answered() const {
  return std::all_of(blocked_.begin(), blocked_.end(),
                     [](const auto& entry) { return entry.second.answered || entry.second.is_silent; });
}

Circles::Messages Circles::on_time(Time now) {
  if (now >= look_at_) {
    look_at_ = never;
    look(now);
  }
  if (now >= ask_at_) {
    ask_at_ = never;
    return ask(now);
  }
  if (now < until_) {
    return {};
  }
  for (auto& [rank, blocked] : blocked_) {
    blocked.is_silent = blocked.is_silent || !blocked.answered;
  }
  return conclude(now);
}

Standstill Circles::suspects() const {
  Standstill standstill(config_);
  for (const auto& [rank, blocked] : blocked_) {
    if (!blocked.is_silent) {
      standstill.add(rank, blocked.waits.waits, true);
    }
  }
  return standstill;
}

void Circles::look(Time now) {
  Standstill standstill = suspects();
  if (standstill.stuck().size() > 1) {
    ask_at_ = now + ask_patience;
  }
  steps_ += standstill.steps();
}

// Everybody is asked about everything that is of its groups.
Circles::Messages Circles::ask(Time now) {
  Standstill standstill = suspects();
  const std::vector<std::uint32_t>& stuck = standstill.stuck();
  std::vector<const wire::Wait*> waits = standstill.waited_for();
  std::sort(waits.begin(), waits.end(), [](const auto* one, const auto* other) { return one->call < other->call; });
  steps_ += standstill.steps();
  const auto asked = by_member(waits);
  if (asked.empty()) {
    return {};  // nobody is suspected any more, or it would be too much
  }
  asked_.clear();
  for (const wire::Wait* wait : waits) {
    asked_.push_back(wait->call);
  }
  for (auto& [rank, blocked] : blocked_) {
    blocked.answered = !std::binary_search(stuck.begin(), stuck.end(), rank);
    blocked.asked.clear();
    blocked.called.clear();
  }
  ++round_;
  Messages messages;
  for (std::uint32_t rank : stuck) {
    const auto of_rank = asked.find(rank);
    if (of_rank == asked.end()) {
      return {};
    }
    wire::Probe probe{round_, {}};
    for (std::uint32_t number : of_rank->second) {
      probe.calls.push_back(asked_[number]);
    }
    blocked_.at(rank).asked = of_rank->second;
    messages.push_back({rank, Type::probe, wire::encode(probe)});
    if (messages.back().bytes.size() > wire::circle_bytes) {
      return {};
    }
  }
  until_ = stuck.size() < 2 ? never : now + answer_patience;
  return stuck.size() < 2 ? Messages{} : messages;
}

std::map<std::uint32_t, std::vector<std::uint32_t>> Circles::by_member(const std::vector<const wire::Wait*>& waits) {
  std::size_t bytes = 0;
  for (const wire::Wait* wait : waits) {
    for (const wire::Stride& stride : wait->members) {
      bytes += stride.count * (call_bytes + wait->call.name.size());
    }
  }
  std::map<std::uint32_t, std::vector<std::uint32_t>> numbers;
  if (bytes > most_bytes) {
    return numbers;
  }
  for (std::uint32_t number = 0; number < waits.size(); ++number) {
    for (std::uint32_t member : wire::ranks_of(waits[number]->members)) {
      numbers[member].push_back(number);
      ++steps_;
    }
  }
  return numbers;
}

bool Circles::is_asked_about(const wire::Wait& wait) const {
  return std::binary_search(asked_.begin(), asked_.end(), wait.call);
}

Circles::Messages Circles::conclude(Time now) {
  until_ = never;
  Standstill standstill(config_);
  for (const auto& [rank, blocked] : blocked_) {
    const std::vector<wire::Wait>& waits = blocked.waits.waits;
    const bool is_known = !blocked.asked.empty() || std::all_of(waits.begin(), waits.end(), [this](const auto& one) {
      return is_asked_about(one);
    });
    if (blocked.answered && !blocked.is_silent && is_known) {
      standstill.add(rank, waits, !blocked.asked.empty());
    }
  }
  for (const auto& [rank, blocked] : blocked_) {
    for (std::size_t i = 0; i < blocked.called.size(); ++i) {
      if (blocked.called[i]) {
        standstill.note_called(rank, asked_[blocked.asked[i]]);
      }
    }
  }
  const std::vector<std::uint32_t> stuck = standstill.stuck();
  steps_ += standstill.steps();
  Messages messages;
  if (!stuck.empty()) {
    const std::string why =
        "ranks wait for each other in a circle, and none of them can go on: " + standstill.describe() +
        ". One of them has probably left out a step (an exception that was caught, a batch that was skipped), or they "
        "call operations in different orders: let every rank take the same steps, or end one that cannot";
    const std::vector<const wire::Wait*> waits = standstill.waited_for();
    // What has begun by another rank, and its thread has not waited for, fails there too.
    for (const auto& [rank, numbers] : by_member(waits)) {
      std::vector<const wire::Call*> calls;
      for (std::uint32_t number : numbers) {
        calls.push_back(&waits[number]->call);
      }
      tell(rank, calls, why, messages);
    }
  }
  for (std::uint32_t rank : stuck) {
    forget(rank);
  }
  asked_ = {};  // they may be as many as what is kept
  if (std::exchange(again_, false)) {
    look_at_ = now + look_patience;
  }
  return messages;
}

// In as many messages as it takes.
void Circles::tell(std::uint32_t rank, const std::vector<const wire::Call*>& calls, const std::string& why,
                   Messages& messages) {
  wire::Circle circle{{}, why};
  std::size_t bytes = 0;
  for (const wire::Call* call : calls) {
    const std::size_t more = call_bytes + call->name.size();
    if (bytes + more > wire::circle_bytes - sizeof(std::uint32_t)) {
      messages.push_back({rank, Type::circle, wire::encode(circle)});
      circle.calls.clear();
      bytes = 0;
    }
    circle.calls.push_back(*call);
    bytes += more;
  }
  messages.push_back({rank, Type::circle, wire::encode(circle)});
}

void Circles::check_invariants() const {
  std::size_t kept = 0;
  for (const auto& [rank, blocked] : blocked_) {
    kept += blocked.bytes;
    SHOAL_INVARIANT(rank < config_.size());
    SHOAL_INVARIANT(blocked.called.empty() || blocked.called.size() == blocked.asked.size());
  }
  SHOAL_INVARIANT(kept == kept_ && has_room(0));
  SHOAL_INVARIANT((look_at_ != never ? 1 : 0) + (ask_at_ != never ? 1 : 0) + (until_ != never ? 1 : 0) <= 1);
}

}  // namespace shoal
