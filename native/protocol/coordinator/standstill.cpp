#include "protocol/coordinator/standstill.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/invariant.h"
#include "protocol/collectives.h"
#include "protocol/keys.h"

namespace shoal {

namespace {

// At most so many ranks are named, and so many waits of each.
constexpr std::size_t most_named = 8;

void keep_each_once(std::vector<std::uint32_t>& numbers) {
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
}

}  // namespace

Standstill::Standstill(const JobConfig& config) : config_(config), places_(config.size(), 0) {}

void Standstill::add(std::uint32_t rank, const std::vector<wire::Wait>& waits, bool is_suspect) {
  Rank added{rank, is_suspect, true, {}, {}, {}};
  for (const wire::Wait& wait : waits) {
    ++steps_;
    const auto group = group_numbers_.emplace(wait.call.group, static_cast<std::uint32_t>(groups_.size()));
    if (group.second) {
      groups_.push_back({&wait.members, 0, {}});
    } else if (*groups_[group.first->second].members != wait.members) {
      return;
    }
    const auto number = numbers_.emplace(wait.call, static_cast<std::uint32_t>(calls_.size()));
    if (number.second) {
      calls_.push_back({&wait, group.first->second, 0, {}});
    }
    added.waits.push_back(number.first->second);
  }
  keep_each_once(added.waits);
  added.called = added.waits;
  ranks_.push_back(std::move(added));
  places_[rank] = static_cast<std::uint32_t>(ranks_.size());
}

void Standstill::note_called(std::uint32_t rank, const wire::Call& call) {
  ++steps_;
  const auto number = numbers_.find(call);
  if (places_[rank] != 0 && number != numbers_.end()) {
    ranks_[places_[rank] - 1].called.push_back(number->second);
  }
}

const std::vector<std::uint32_t>& Standstill::stuck() {
  find_members();
  std::vector<std::uint32_t> freed;
  for (std::uint32_t group = 0; group < groups_.size(); ++group) {
    free_complete(group, freed);
  }
  while (!freed.empty()) {
    const std::uint32_t place = freed.back();
    freed.pop_back();
    take_away(ranks_[place], freed);
  }
  for (const Rank& rank : ranks_) {
    if (rank.stuck) {
      stuck_.push_back(rank.rank);
    }
  }
  std::sort(stuck_.begin(), stuck_.end());
  return stuck_;
}

void Standstill::find_members() {
  for (std::uint32_t number = 0; number < groups_.size(); ++number) {
    Group& group = groups_[number];
    for (std::uint32_t member : wire::ranks_of(*group.members)) {
      ++steps_;
      if (places_[member] == 0) {
        continue;
      }
      Rank& rank = ranks_[places_[member] - 1];
      rank.groups.push_back(number);
      group.left += rank.is_suspect ? 1 : 0;
    }
  }
  for (std::uint32_t place = 0; place < ranks_.size(); ++place) {
    Rank& rank = ranks_[place];
    for (std::uint32_t call : rank.waits) {
      calls_[call].waiting.push_back(place);
    }
    keep_each_once(rank.called);
    for (std::uint32_t call : rank.called) {
      calls_[call].called += rank.is_suspect ? 1 : 0;
    }
    steps_ += rank.waits.size() + rank.called.size();
  }
  for (std::uint32_t call = 0; call < calls_.size(); ++call) {
    groups_[calls_[call].group].calls.emplace(calls_[call].called, call);
  }
}

// Frees the ranks that wait for a call which every remaining suspect has made.
void Standstill::free_complete(std::uint32_t number, std::vector<std::uint32_t>& freed) {
  Group& group = groups_[number];
  while (!group.calls.empty()) {
    const auto [called, call] = group.calls.top();
    const bool is_old = called != calls_[call].called;
    if (!is_old && called < group.left) {
      return;
    }
    ++steps_;
    group.calls.pop();
    if (is_old) {
      continue;
    }
    for (std::uint32_t place : std::exchange(calls_[call].waiting, {})) {
      ++steps_;
      if (ranks_[place].stuck) {
        ranks_[place].stuck = false;
        freed.push_back(place);
      }
    }
  }
}

void Standstill::take_away(const Rank& rank, std::vector<std::uint32_t>& freed) {
  if (!rank.is_suspect) {
    return;
  }
  for (std::uint32_t call : rank.called) {
    ++steps_;
    --calls_[call].called;
    if (!calls_[call].waiting.empty()) {
      groups_[calls_[call].group].calls.emplace(calls_[call].called, call);
    }
  }
  for (std::uint32_t group : rank.groups) {
    ++steps_;
    --groups_[group].left;
    free_complete(group, freed);
  }
}

std::vector<const wire::Wait*> Standstill::waited_for() const {
  std::vector<const wire::Wait*> waits;
  for (const Call& call : calls_) {
    if (std::any_of(call.waiting.begin(), call.waiting.end(), [this](auto place) { return ranks_[place].stuck; })) {
      waits.push_back(call.wait);
    }
  }
  return waits;
}

void Standstill::check_invariants() const {
  std::vector<std::uint32_t> left(groups_.size());
  for (const Rank& rank : ranks_) {
    for (std::uint32_t group : rank.groups) {
      left[group] += rank.stuck && rank.is_suspect ? 1 : 0;
    }
  }
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    SHOAL_INVARIANT(groups_[group].left == left[group]);
  }
  for (const Rank& rank : ranks_) {
    for (std::uint32_t call : rank.waits) {
      SHOAL_INVARIANT(!rank.stuck || calls_[call].called < groups_[calls_[call].group].left);
    }
  }
  SHOAL_INVARIANT(std::is_sorted(stuck_.begin(), stuck_.end()));
}

// --- For people ---

bool Standstill::is_missing(std::uint32_t member, std::uint32_t call) const {
  if (places_[member] == 0) {
    return false;
  }
  const Rank& rank = ranks_[places_[member] - 1];
  return rank.stuck && rank.is_suspect && !std::binary_search(rank.called.begin(), rank.called.end(), call);
}

std::string Standstill::describe() const {
  std::string text;
  for (std::size_t named = 0; named < stuck_.size(); ++named) {
    if (named == most_named) {
      text += "; and " + std::to_string(stuck_.size() - most_named) + " more ranks wait likewise";
      break;
    }
    const Rank& rank = ranks_[places_[stuck_[named]] - 1];
    text += (named == 0 ? "" : "; ") + rank_text(rank.rank, config_) + " waits in ";
    for (std::size_t i = 0; i < std::min(rank.waits.size(), most_named); ++i) {
      text += (i == 0 ? "" : " and in ") + describe(rank.waits[i]);
    }
  }
  return text;
}

std::string Standstill::describe(std::uint32_t call) const {
  const wire::Wait& wait = *calls_[call].wait;
  const std::vector<std::uint32_t> members = wire::ranks_of(wait.members);
  std::string text = name_of(wait.collective);
  text += wait.call.name == unnamed ? " without a name (number " + std::to_string(wait.call.occurrence + 1) + ")"
                                    : " '" + wait.call.name + "'";
  if (members.size() < config_.size()) {
    text += " of " + ranks_text(members, config_);
  }
  std::vector<std::uint32_t> missing;
  std::copy_if(members.begin(), members.end(), std::back_inserter(missing),
               [this, call](std::uint32_t member) { return is_missing(member, call); });
  return text + ", which " +
         (missing.size() == 1 ? rank_text(missing.front(), config_) + " has" : ranks_text(missing, config_) + " have") +
         " not called";
}

}  // namespace shoal
