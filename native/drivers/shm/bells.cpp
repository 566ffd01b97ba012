#include "drivers/shm/bells.h"

#include "drivers/shm/futex.h"

namespace shoal::shm {

// Sequentially consistent throughout: a thread that goes to sleep says so before it looks at the bell again.
void ring(RankWords& words, bool always) {
  words.bell.fetch_add(1);
  if (words.waiting.load() > 0) {
    if (words.asleep.load() > 0) {
      wake(words.bell, waiters);
    }
  } else if (words.attendant_asleep.load() > 0 && (always || words.open.load() > 0)) {
    wake(words.bell, attendants);
  }
}

}  // namespace shoal::shm
