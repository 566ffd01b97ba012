#include "drivers/shm/pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

namespace shoal::shm {

int reserve(int descriptor, std::size_t offset, std::size_t bytes) {
  int code = EINTR;
  while (code == EINTR) {
    code = ::posix_fallocate(descriptor, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  }
  return code;
}

int populate(std::byte* begin, std::size_t bytes) {
#ifdef MADV_POPULATE_WRITE
  while (::madvise(begin, bytes, MADV_POPULATE_WRITE) != 0) {
    if (errno == EINVAL) {  // a kernel before 5.14
      touch(begin, bytes);
      return 0;
    }
    if (errno != EINTR && errno != EAGAIN) {
      return errno;
    }
  }
#else
  touch(begin, bytes);
#endif
  return 0;
}

void touch(std::byte* begin, std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  for (std::size_t at = 0; at < bytes; at += page) {
    reinterpret_cast<std::atomic<std::uint8_t>*>(begin + at)->fetch_add(0);
  }
}

}  // namespace shoal::shm
