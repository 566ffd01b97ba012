// Pages of memory that processes share: how they come to be there before they are used.
#pragma once

#include <cstddef>

namespace shoal::shm {

// Whether these bytes of the file can be had: 0, or why not, as in errno. What fails may take pages with it that
// another process has reserved meanwhile and that nobody has touched.
int reserve(int descriptor, std::size_t offset, std::size_t bytes);

// Every page gets a frame now, with what is in it: 0, or why not. Another thread or process may write there meanwhile.
int populate(std::byte* begin, std::size_t bytes);

// The same page by page: what the machine cannot give ends the process.
void touch(std::byte* begin, std::size_t bytes);

}  // namespace shoal::shm
