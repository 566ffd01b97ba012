// The groups of a job that workers have told this server of. None is ever forgotten.
//
//   bytes() is the sum of what they take, without the group of all ranks. No group has a rank twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "base/status.h"
#include "protocol/job.h"
#include "wire/opening.h"

namespace shoal::server {

struct Group {
  std::vector<std::uint32_t> ranks;
  Senders senders = Senders::ranks;

  std::optional<std::size_t> index_of(std::uint32_t rank) const;
};

class Groups {
 public:
  explicit Groups(std::uint32_t ranks);

  // Null: it was not announced.
  const Group* find(const Hash128& id) const;
  // Refuses a group of ranks that do not exist, or with other members than were announced before.
  Status check(const wire::GroupMembers& members) const;
  void add(wire::GroupMembers members);

  // How many bytes of a server's tables they take.
  std::size_t bytes() const { return bytes_; }
  void check_invariants() const;

 private:
  std::uint32_t ranks_;
  std::unordered_map<Hash128, std::unique_ptr<Group>> groups_;
  std::size_t bytes_ = 0;
};

}  // namespace shoal::server
