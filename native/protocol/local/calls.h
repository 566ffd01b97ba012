// What the ranks of a group have said of one operation, and whether they agree.
//
//   a rank's call is `same` → it is opened, and its body is not kept;   has_data → opened
//   count = how many are opened
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "protocol/local/mailbox.h"
#include "protocol/local/transfer.h"
#include "wire/opening.h"

namespace shoal::local {

class Calls {
 public:
  explicit Calls(std::uint32_t ranks) : calls_(ranks) {}

  // This rank's own, once it is written. `body`: the opening as the others read it.
  void note_own(std::uint32_t own, bool has_data, const std::optional<Place>& place);
  // Another rank's. `own_body`: what this rank has called; empty if it has not. Throws std::runtime_error for a record
  // that cannot be one.
  void hear(std::uint32_t rank, const Record& record, const wire::Bytes& own_body);

  std::size_t count() const { return count_; }
  bool all() const { return count_ == calls_.size(); }
  bool opened(std::uint32_t rank) const { return calls_[rank].opened; }
  std::vector<std::uint32_t> missing() const;

  // Whether this rank has called the same to the byte; what it has called, if that is not known to be so.
  bool is_same(std::uint32_t rank, const wire::Bytes& own_body);
  wire::Opening opening_of(std::uint32_t rank, const wire::Opening& own) const;
  // What other ranks have called, but for what is known to be the same as this rank's.
  std::vector<wire::Opening> others() const;

  bool all_have_data() const;
  const std::byte* data_of(std::uint32_t rank) const { return calls_[rank].data.data(); }
  const std::optional<Place>& place_of(std::uint32_t rank) const { return calls_[rank].place; }

  static std::size_t bytes_per_rank() { return sizeof(Call); }
  void check_invariants() const;

 private:
  struct Call {
    bool opened = false;
    bool same = false;      // as this rank's own opening, to the byte
    bool has_data = false;  // its contribution came along
    wire::Bytes body;
    wire::Bytes data;
    std::optional<Place> place;  // of its arrays, if they lie in its region
  };

  std::vector<Call> calls_;  // by rank
  std::size_t count_ = 0;
};

// What records say. They throw std::runtime_error for what cannot be.
wire::Opening decoded_opening(ConstBytes body);
Status decoded_status(ConstBytes body);

}  // namespace shoal::local
