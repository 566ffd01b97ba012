#include "protocol/worker/goodbye.h"

#include <utility>

#include "base/invariant.h"
#include "wire/bytes.h"

namespace shoal::worker {

using wire::Type;

namespace {

// How long a rank that leaves stays for members that may lack a result that it has.
constexpr Time longest_help = 60 * second;

}  // namespace

Goodbye::Goodbye(const Environment& environment, Links& links, ServerFrames& frames)
    : environment_(environment), links_(links), frames_(frames) {}

bool Goodbye::wait_for_others() {
  if (give_up_at_ != never) {
    return false;
  }
  give_up_at_ = environment_.now() + longest_help;
  return true;
}

bool Goodbye::take_due() {
  if (give_up_at_ > environment_.now()) {
    return false;
  }
  give_up_at_ = never;
  return true;
}

void Goodbye::begin_saying() {
  leaving_ = said_ = true;
  links_.silence_coordinator();
  frames_.end();
}

void Goodbye::say() {
  give_up_at_ = never;
  for (std::uint32_t server = 0; server < environment_.config().servers(); ++server) {
    if (frames_.send(server, {.type = Type::leave}, {}, {}, token)) {
      ++unsent_;
    }
  }
  tell_coordinator({.type = Type::leave}, {});
}

void Goodbye::abort(const std::string& text) {
  if (!said_) {
    wire::Bytes bytes;
    wire::append_text(bytes, text);
    const wire::Header header{.type = Type::abort, .length = static_cast<std::uint32_t>(bytes.size())};
    tell_coordinator(header, bytes);
  }
  begin_saying();
}

void Goodbye::tell_coordinator(const wire::Header& header, const wire::Bytes& bytes) {
  unsent_ += links_.coordinator().size();
  links_.coordinator().send(environment_.world(), header, bytes, token);
}

bool Goodbye::end() { return !std::exchange(ended_, true); }

void Goodbye::check_invariants() const {
  SHOAL_INVARIANT(!said_ || leaving_);
  SHOAL_INVARIANT(give_up_at_ == never || leaving_);
  SHOAL_INVARIANT(unsent_ == 0 || said_);
}

}  // namespace shoal::worker
