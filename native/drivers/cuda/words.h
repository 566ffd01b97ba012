// Words of the host's memory that a device reads and writes by itself.
//
// A word's values only rise. So whoever waits for a value that has been there goes on, whatever the word is used for
// later, and a word can have another user as soon as its last one has let go of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "drivers/common/gate.h"

namespace shoal::cuda {

class Words : public std::enable_shared_from_this<Words> {
 public:
  // One in each of so many cache lines.
  static constexpr std::size_t count = 16'384;
  static constexpr std::size_t bytes = count * 64;

  // Throws std::bad_alloc.
  Words();
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;
  ~Words();

  // Begins at a page. Shared with a forked child: otherwise the parent's next write might go to a page that the device
  // does not know.
  std::byte* memory() const { return reinterpret_cast<std::byte*>(lines_); }
  std::size_t offset_of(const GateWord& word) const {
    return static_cast<std::size_t>(reinterpret_cast<const std::byte*>(&word) - memory());
  }

  // A word that nobody has, until it is let go of. Throws std::runtime_error if all are taken.
  std::shared_ptr<GateWord> take();

 private:
  struct alignas(64) Line {
    GateWord word{0};
  };

  void put_back(std::size_t line);

  Line* const lines_;
  std::mutex mutex_;
  std::vector<std::size_t> free_;  // guarded by mutex_
};

}  // namespace shoal::cuda
