// What the ranks of a group have said of one operation, and whether they agree.
//
//   a rank's call is `same` → it is opened, and its body is not kept;   has_data → opened
//   count = the ranks that have opened
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

  // This rank's own call, once it is written.
  void note_own(std::uint32_t own, bool has_data, const std::optional<Offsets>& offsets);
  // Another rank's call. `own_body`: this rank's opening, encoded; empty if it has not called. Throws
  // std::runtime_error for an impossible record.
  void hear(std::uint32_t place, const Record& record, const wire::Bytes& own_body);

  std::size_t count() const { return count_; }
  bool all() const { return count_ == calls_.size(); }
  bool opened(std::uint32_t place) const { return calls_[place].opened; }
  // The first rank that has opened it; there is one.
  std::uint32_t first() const;
  std::vector<std::uint32_t> missing() const;

  // Whether the rank's opening equals this rank's, byte for byte.
  bool is_same(std::uint32_t place, const wire::Bytes& own_body);
  // The rank's opening.
  wire::Opening opening_of(std::uint32_t place, const wire::Opening& own) const;
  // The openings of other ranks, except those that are known to equal this rank's.
  std::vector<wire::Opening> others() const;

  bool all_have_data() const;
  bool has_data(std::uint32_t place) const { return calls_[place].has_data; }
  const wire::Bytes& data_of(std::uint32_t place) const { return calls_[place].data; }
  const std::optional<Offsets>& offsets_of(std::uint32_t place) const { return calls_[place].offsets; }

  static std::size_t bytes_per_rank() { return sizeof(Call); }
  void check_invariants() const;

 private:
  struct Call {
    bool opened = false;
    bool same = false;      // byte for byte this rank's own opening
    bool has_data = false;  // its contribution came along
    wire::Bytes body;
    wire::Bytes data;
    std::optional<Offsets> offsets;  // of its arrays, if they lie in its region
  };

  std::vector<Call> calls_;  // by place
  std::size_t count_ = 0;
};

// Decode the body of a record. Throw std::runtime_error for an impossible one.
wire::Opening decoded_opening(ConstBytes body);
Status decoded_status(ConstBytes body);

}  // namespace shoal::local
