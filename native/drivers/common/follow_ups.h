// Events that a machine's actions cause, held back until the machine has returned (protocol/machine.h).
//
//   Tokens of sent frames come before everything else; the rest in the order in which it was added. None is of a
//   machine that was forgotten.
#pragma once

#include <cstddef>
#include <deque>
#include <utility>
#include <vector>

#include "protocol/machine.h"

namespace shoal {

struct FollowUp {
  enum class Kind {
    sent,    // on_sent(token)
    summed,  // on_summed(token)
    memory,  // the next frame or close of the links in memory (memory_links.h)
    read,    // the link holds bytes that epoll does not know of
  };
  Kind kind{};
  Machine* machine = nullptr;
  LinkId link = 0;
  Token token = 0;
};

class FollowUps {
 public:
  // The frame has been handed to the network, or never will be. 0: the machine does not want to know.
  void add_sent(Machine& machine, Token token);
  void add_sent(Machine& machine, const std::vector<Token>& tokens);
  void add_summed(Machine& machine, Token token) { later_.push_back({FollowUp::Kind::summed, &machine, 0, token}); }
  void add_memory(Machine& machine) { later_.push_back({FollowUp::Kind::memory, &machine}); }
  void add_read(Machine& machine, LinkId link) { later_.push_back({FollowUp::Kind::read, &machine, link}); }

  bool empty() const { return sent_.empty() && later_.empty(); }
  // The next; there is one.
  FollowUp take();

  // The machine is gone.
  void forget(const Machine& machine);

  // How many of this kind there are; for links in memory that is how many frames and closes they have queued.
  std::size_t count(FollowUp::Kind kind) const;

 private:
  std::deque<std::pair<Machine*, Token>> sent_;
  std::deque<FollowUp> later_;
};

}  // namespace shoal
