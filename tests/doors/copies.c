// Counts the bytes that this process copies with memcpy and memmove in pieces of at least 1 MiB: whole tensors, and not what
// travels. Loaded before everything else (LD_PRELOAD).

#include <stddef.h>

enum { whole = 1 << 20 };

static size_t total;

size_t shoal_copied_bytes(void) { return __atomic_load_n(&total, __ATOMIC_RELAXED); }

static void* copy(void* to, const void* from, size_t size) {
  unsigned char* target = to;
  const unsigned char* source = from;
  if (size >= whole) {
    __atomic_fetch_add(&total, size, __ATOMIC_RELAXED);
  }
  if ((size_t)(target - source) >= size) {
    __asm__ volatile("rep movsb" : "+D"(target), "+S"(source), "+c"(size) : : "memory");
  } else {
    while (size-- > 0) {
      ((volatile unsigned char*)target)[size] = source[size];
    }
  }
  return to;
}

void* memcpy(void* to, const void* from, size_t size) { return copy(to, from, size); }
void* memmove(void* to, const void* from, size_t size) { return copy(to, from, size); }
void* __memcpy_chk(void* to, const void* from, size_t size, size_t room) { return (void)room, copy(to, from, size); }
void* __memmove_chk(void* to, const void* from, size_t size, size_t room) { return (void)room, copy(to, from, size); }
