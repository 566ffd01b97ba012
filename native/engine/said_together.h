// What several channels say of the same thing within some seconds is told once. What that is stands before the first
// colon; after it, why, which each may have found out in its own way.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>

namespace shoal::engine {

class SaidTogether {
 public:
  // Whether this is to be told.
  bool add(std::uint32_t channel, const std::string& text) {
    constexpr std::chrono::seconds together{5};
    const auto now = std::chrono::steady_clock::now();
    std::erase_if(said_, [now, together](const auto& entry) { return now - entry.second.told_at > together; });
    Said& said = said_[text.substr(0, text.find(": "))];
    const bool again = said.channels.empty() || said.channels.contains(channel);
    if (again) {
      said = {now, {}};
    }
    said.channels.insert(channel);
    return again;
  }

 private:
  struct Said {
    std::chrono::steady_clock::time_point told_at;
    std::set<std::uint32_t> channels;
  };
  std::map<std::string, Said> said_;
};

}  // namespace shoal::engine
