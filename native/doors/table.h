// The core's functions for a framework's operations that are written in C++ and built apart from it: a plain C table.
//
// A library of such operations (native/tensorflow) is loaded by its framework and linked to neither: the module _native
// hands it the address of this table. Both are built together and travel in one wheel, so the table has no versions;
// its size is compared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace shoal::doors {

// One call of an operation. Memory that pointers lead to stays until `ended` has been called, everything else until
// call() has returned.
struct Call {
  int collective = 0;  // the numbers of base/types.h
  int op = 0;
  int dtype = 0;
  std::uint32_t root = 0;      // index in the group
  std::int64_t group = 0;      // Table::group; 0: all ranks
  const char* name = nullptr;  // of `name_bytes`; none: matched by the group's sequence
  std::size_t name_bytes = 0;
  const std::int64_t* shape = nullptr;
  std::size_t dimensions = 0;
  const std::int64_t* splits = nullptr;  // all-to-all: bytes for each member
  std::size_t members = 0;               // how many splits
  const void* input = nullptr;
  std::size_t input_bytes = 0;
  void* output = nullptr;  // may equal input; null: the core takes memory when the size is known
  std::size_t output_bytes = 0;
  const char* failure = nullptr;  // why this rank cannot take part, which the others hear; else null
};

// How it has ended. Everything in it lives until `ended` has returned.
struct End {
  int code = 0;                   // base/status.h; 0: well
  const char* message = nullptr;  // whole: says operation, name, rank and host
  void* output = nullptr;         // what the core took memory for
  std::size_t output_bytes = 0;
  const std::uint64_t* blocks = nullptr;  // bytes from each member: all-gather, all-to-all
  std::size_t members = 0;
  const void* outcome = nullptr;  // Table::keep, Table::describe_end
};

// Called once: before call() returns, or later on a thread that is for this alone and may run what follows in the
// framework, for long if need be.
using Ended = void (*)(void* context, const End* end);

struct Place {
  std::uint32_t members = 0;
  std::uint32_t index = 0;  // of this rank
};

// What a program was traced or compiled for.
struct ExpectedPlace {
  std::int64_t members = 0;  // 0: any number
  std::int64_t index = -1;   // -1: any
};

// Where a function leaves a message, whole.
struct Sink {
  void* text = nullptr;
  void (*write)(void* text, const char* message, std::size_t bytes) = nullptr;
};

inline Sink sink_of(std::string& text) {
  return {&text, [](void* given, const char* message, std::size_t bytes) {
            static_cast<std::string*>(given)->assign(message, bytes);
          }};
}

// How a pass has begun: `pass` is null where it has not, and `problem` says why.
using Begun = void (*)(void* context, void* pass, const char* problem);

struct Table {
  std::size_t size = sizeof(Table);
  void (*call)(const Call*, Ended ended, void* context) = nullptr;
  // From within `ended`: the memory of `output` lives until release().
  void* (*keep)(const End*) = nullptr;
  void (*release)(void* kept) = nullptr;
  // Who this rank is in the group. False: the group is not of the present job, or this rank is not who was expected,
  // and `why` has that.
  bool (*place)(std::int64_t group, ExpectedPlace, Place*, Sink why) = nullptr;
  // For messages of what fails before the core is called: "gradients of 'name' on rank 2 (host b)".
  void (*describe)(const char* kind, const char* name, std::size_t name_bytes, Sink text) = nullptr;
  // The same from within `ended`, for what the caller finds wrong itself: "allreduce of 'name' on rank 2 (host b)".
  void (*describe_end)(const End*, Sink text) = nullptr;

  // Gradients of a step (pass.h). `begun` is called once, as `ended` is. Whoever has a pass lets go of it once; if that
  // is before it was finished, the step has failed.
  void (*begin_pass)(std::int64_t averager, Begun begun, void* context) = nullptr;
  void* (*share_pass)(void* pass) = nullptr;
  void (*let_go_of_pass)(void* pass, bool abandons) = nullptr;
  // False: `why` has the whole message.
  bool (*gradient_ready)(void* pass, std::uint32_t gradient, const void* data, std::size_t bytes, Sink why) = nullptr;
  void (*finish_pass)(void* pass, Ended ended, void* context) = nullptr;
  void* (*averaged)(void* pass, std::uint32_t gradient) = nullptr;
};

}  // namespace shoal::doors
