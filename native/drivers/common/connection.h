// A connection as it is handed to the engine: made and authenticated elsewhere, of a kind that one of the drivers knows
// and takes over (a TCP socket, say).
//
//   It holds one connection until that is taken, then nothing.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace shoal {

class Connection {
 public:
  template <class Kind>
    requires(std::is_class_v<std::decay_t<Kind>> && !std::is_same_v<std::decay_t<Kind>, Connection>)
  Connection(Kind&& kind) : held_(std::make_unique<Held<std::decay_t<Kind>>>(std::forward<Kind>(kind))) {}

  // The connection, if it is of this kind; null: it is of another, or has been taken.
  template <class Kind>
  std::unique_ptr<Kind> take() {
    auto* const held = dynamic_cast<Held<Kind>*>(held_.get());
    if (held == nullptr) {
      return nullptr;
    }
    auto taken = std::make_unique<Kind>(std::move(held->kind));
    held_.reset();
    return taken;
  }

 private:
  struct Anything {
    Anything() = default;
    Anything(const Anything&) = delete;
    Anything& operator=(const Anything&) = delete;
    virtual ~Anything() = default;
  };
  template <class Kind>
  struct Held final : Anything {
    explicit Held(Kind given) : kind(std::move(given)) {}
    Kind kind;
  };

  std::unique_ptr<Anything> held_;
};

}  // namespace shoal
