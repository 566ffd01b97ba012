#include "protocol/circles.h"

#include <algorithm>
#include <utility>

#include "protocol/keys.h"

namespace shoal {

using wire::Type;

namespace {

// For answers, and before it asks: ranks that wait in the same circle do not say so at the same moment, and are all to
// be named.
constexpr Time patience = second;

// Ranks that are named with what they wait for.
constexpr std::size_t most_named = 8;

}  // namespace

Circles::Messages Circles::hear(std::uint32_t rank, wire::Waits waits, Time now) {
  Blocked& blocked = blocked_.insert_or_assign(rank, Blocked{std::move(waits), false, false, {}}).first->second;
  if (until_ == never) {
    look(now);
    return {};
  }
  exclude(blocked);
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
    blocked_.erase(found);  // it says so if it is blocked again
  } else if (std::exchange(blocked.is_silent, false)) {
    again_ = true;
  } else if (calls.round == round_ && calls.called.size() == asked_.size()) {
    blocked.answered = true;
    blocked.called = calls.called;
  }
  if (until_ == never) {
    if (std::exchange(again_, false)) {
      look(now);
    }
    return {};
  }
  return all_have_answered() ? conclude(now) : Messages{};
}

bool Circles::all_have_answered() const {
  return std::all_of(blocked_.begin(), blocked_.end(),
                     [](const auto& entry) { return entry.second.answered || entry.second.is_silent; });
}

// It is not asked in this round, and nothing lacks it.
void Circles::exclude(Blocked& blocked) const {
  blocked.answered = true;
  blocked.called.assign(asked_.size(), true);
}

Circles::Messages Circles::on_time(Time now) {
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

template <class Lacks>
void Circles::keep_stuck(Ranks& ranks, Lacks lacks) {
  const auto may_go_on = [&](const wire::Wait& wait) {
    return std::none_of(wait.members.begin(), wait.members.end(),
                        [&](std::uint32_t member) { return ranks.count(member) > 0 && lacks(wait.call, member); });
  };
  const auto is_free = [&](const auto& entry) {
    const std::vector<wire::Wait>& waits = entry.second->waits.waits;
    return std::any_of(waits.begin(), waits.end(), may_go_on);
  };
  while (std::erase_if(ranks, is_free) > 0) {
  }
}

// Who may be in a circle as far as is known.
Circles::Ranks Circles::suspects() const {
  Ranks ranks;
  for (const auto& [rank, blocked] : blocked_) {
    if (!blocked.is_silent) {
      ranks.emplace(rank, &blocked);
    }
  }
  const auto may_lack = [&](const wire::Call& call, std::uint32_t member) {
    const std::vector<wire::Wait>& waits = ranks.at(member)->waits.waits;
    return std::none_of(waits.begin(), waits.end(), [&](const wire::Wait& wait) { return wait.call == call; });
  };
  keep_stuck(ranks, may_lack);
  return ranks;
}

void Circles::look(Time now) {
  if (ask_at_ == never && suspects().size() > 1) {
    ask_at_ = now + patience;
  }
}

// Everybody is asked about everything.
Circles::Messages Circles::ask(Time now) {
  for (auto& [rank, blocked] : blocked_) {
    blocked.answered = false;
  }
  const Ranks ranks = suspects();
  asked_.clear();
  for (const auto& [rank, blocked] : ranks) {
    for (const wire::Wait& wait : blocked->waits.waits) {
      asked_.emplace(wait.call, 0);
    }
  }
  wire::Probe probe{++round_, {}};
  for (auto& [call, place] : asked_) {
    place = probe.calls.size();
    probe.calls.push_back(call);
  }
  Messages messages;
  wire::Bytes bytes = wire::encode(probe);
  if (ranks.size() < 2 || bytes.size() > wire::circle_bytes) {
    return {};
  }
  until_ = now + patience;
  for (auto& [rank, blocked] : blocked_) {
    if (ranks.count(rank) > 0) {
      messages.push_back({rank, Type::probe, bytes});
    } else {
      exclude(blocked);
    }
  }
  return messages;
}

Circles::Messages Circles::conclude(Time now) {
  until_ = never;
  Ranks ranks;
  for (const auto& [rank, blocked] : blocked_) {
    if (blocked.answered && !blocked.is_silent) {
      ranks.emplace(rank, &blocked);
    }
  }
  keep_stuck(ranks, [&](const wire::Call& call, std::uint32_t member) {
    const auto place = asked_.find(call);
    return place != asked_.end() && !ranks.at(member)->called[place->second];
  });
  Messages messages;
  if (!ranks.empty()) {
    wire::Circle circle;
    circle.why = describe(ranks, asked_);
    for (const auto& [rank, blocked] : ranks) {
      for (const wire::Wait& wait : blocked->waits.waits) {
        circle.calls.push_back(wait.call);
      }
    }
    std::sort(circle.calls.begin(), circle.calls.end());
    circle.calls.erase(std::unique(circle.calls.begin(), circle.calls.end()), circle.calls.end());
    const wire::Bytes bytes = wire::encode(circle);
    // What has begun by another rank, and its thread has not waited for, fails there too.
    for (std::uint32_t rank = 0; rank < config_.size(); ++rank) {
      messages.push_back({rank, Type::circle, bytes});
    }
    std::vector<std::uint32_t> told;
    for (const auto& [rank, blocked] : ranks) {
      told.push_back(rank);
    }
    for (std::uint32_t rank : told) {
      blocked_.erase(rank);
    }
  }
  if (std::exchange(again_, false)) {
    look(now);
  }
  return messages;
}

std::string Circles::describe(const Ranks& ranks, const std::map<wire::Call, std::size_t>& numbers) const {
  std::string text;
  std::size_t named = 0;
  for (const auto& [rank, blocked] : ranks) {
    if (named++ == most_named) {
      text += "; and " + std::to_string(ranks.size() - most_named) + " more ranks wait likewise";
      break;
    }
    text += (text.empty() ? "" : "; ") + rank_text(rank, config_) + " waits in ";
    std::size_t count = 0;
    for (const wire::Wait& wait : blocked->waits.waits) {
      std::vector<std::uint32_t> missing;
      std::copy_if(wait.members.begin(), wait.members.end(), std::back_inserter(missing), [&](std::uint32_t member) {
        const auto other = ranks.find(member);
        return other != ranks.end() && !other->second->called[numbers.at(wait.call)];
      });
      text += std::string(count++ == 0 ? "" : " and in ") + describe(wait) + ", which " +
              (missing.size() == 1 ? rank_text(missing.front(), config_) + " has"
                                   : ranks_text(missing, config_) + " have") +
              " not called";
      if (count == most_named) {
        break;
      }
    }
  }
  return "ranks wait for each other in a circle, and none of them can go on: " + text +
         ". One of them has probably left out a step (an exception that was caught, a batch that was skipped), or they "
         "call operations in different orders: let every rank take the same steps, or end one that cannot";
}

std::string Circles::describe(const wire::Wait& wait) const {
  std::string text = name_of(wait.collective);
  text += wait.call.name == unnamed ? " without a name (number " + std::to_string(wait.call.occurrence + 1) + ")"
                                    : " '" + wait.call.name + "'";
  if (wait.members.size() < config_.size()) {
    text += " of " + ranks_text(wait.members, config_);
  }
  return text;
}

}  // namespace shoal
