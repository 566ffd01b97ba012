// The node's shared memory and the machine that it is on: kernels that refuse a file in memory that could be executed,
// or do not know how to say that it cannot.

#include "drivers/shm/memory.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <functional>
#include <iterator>

#include "tests/check.h"
#include "tests/shm_ranks.h"

namespace {

using namespace shoal::shm;
using namespace shoal::shm_ranks;

constexpr std::uint32_t noexec_seal = 8;  // MFD_NOEXEC_SEAL
constexpr int sealed_exec = 0x20;         // F_SEAL_EXEC

// The exit code of a child that does this.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(body());
  }
  int status = 0;
  CHECK_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// From here on this process's memfd_create fails so where the flag is there, or where it is not.
void refuse_memfd(bool with_the_flag, int code) {
  const auto skipped = [](bool skip) { return static_cast<std::uint8_t>(skip ? 1 : 0); };
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[1])),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, noexec_seal, skipped(!with_the_flag), skipped(with_the_flag)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(code)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{static_cast<unsigned short>(std::size(program)), program};
  CHECK_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  CHECK_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
}

// Whether memory can be made, and used.
int makes_memory() {
  try {
    const Memory memory(small_shape(2));
    memory.desk(1).written.store(7);
    return memory.desk(1).written.load() == 7 ? 0 : 1;
  } catch (const std::exception&) {
    return 2;
  }
}

TEST(memory_is_made_where_only_what_cannot_be_executed_is_allowed) {
  // As Linux 6.3 to 6.6 with vm.memfd_noexec=2.
  CHECK_EQ(in_child([] {
             refuse_memfd(false, EACCES);
             return makes_memory();
           }),
           0);
}

TEST(memory_is_made_by_kernels_that_do_not_know_the_word) {
  // As Linux before 6.3.
  CHECK_EQ(in_child([] {
             refuse_memfd(true, EINVAL);
             return makes_memory();
           }),
           0);
}

TEST(memory_cannot_be_executed_where_the_kernel_sees_to_that) {
  const int probe = static_cast<int>(::syscall(SYS_memfd_create, "probe", noexec_seal));
  if (probe < 0) {
    CHECK_EQ(errno, EINVAL);
    return;
  }
  ::close(probe);
  const Memory memory(small_shape(2));
  CHECK((::fcntl(memory.descriptor(), F_GET_SEALS) & sealed_exec) != 0);
}

}  // namespace

RUN_TESTS()
