// Allocates the pages of shared memory before they are used.
#pragma once

#include <cstddef>

namespace shoal::shm {

// Reserves these bytes of the file: 0, or an errno. A call that fails may free pages that another process has reserved
// meanwhile and that nobody has touched.
int reserve(int descriptor, std::size_t offset, std::size_t bytes);

// Faults in every page now and keeps its contents: 0, or an errno. Other threads and processes may write there
// meanwhile.
int populate(std::byte* begin, std::size_t bytes);

// The same page by page: if the machine lacks memory, the process dies.
void touch(std::byte* begin, std::size_t bytes);

}  // namespace shoal::shm
