// The links of one conversation over several networks: each carries all frames, in the same order. What is said is sent
// on all of them, and a frame is taken from the one that brings it first. So while one link is left, nothing is lost.
//
// All links are there before the first frame.
//
//   no link has brought more frames than were taken
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/invariant.h"
#include "protocol/machine.h"

namespace shoal {

class TwinLinks {
 public:
  void add(LinkId link) { twins_.push_back({link, 0}); }

  void remove(LinkId link) {
    twins_.erase(std::remove_if(twins_.begin(), twins_.end(), [link](const Twin& twin) { return twin.link == link; }),
                 twins_.end());
  }

  // A frame has come whole on this link. False: another has brought it before.
  bool take(LinkId link) {
    for (Twin& twin : twins_) {
      if (twin.link == link && twin.brought++ == taken_) {
        ++taken_;
        return true;
      }
    }
    return false;
  }

  bool empty() const { return twins_.empty(); }
  bool has(LinkId link) const {
    return std::any_of(twins_.begin(), twins_.end(), [link](const Twin& twin) { return twin.link == link; });
  }
  std::size_t size() const { return twins_.size(); }

  // Sends a frame on each of them. `owned`: a copy for each.
  void send(Wire& to, const wire::Header& header, const wire::Bytes& owned, Token token = 0) const {
    for (const Twin& twin : twins_) {
      to.send(twin.link, header, owned, {}, token);
    }
  }

  void check_invariants() const {
    for (const Twin& twin : twins_) {
      SHOAL_INVARIANT(twin.brought <= taken_);
    }
  }

 private:
  struct Twin {
    LinkId link = 0;
    std::uint64_t brought = 0;
  };

  std::vector<Twin> twins_;
  std::uint64_t taken_ = 0;
};

}  // namespace shoal
