// The plain C interface by which a program that XLA has compiled calls functions of others, as far as it is needed
// here. The declarations are our own, since no header of XLA's is where this is built: facts of an interface that only
// grows.
//
// Each framework has a copy of XLA, and hands over the Api of its own. What is in a frame may be used until the handler
// has returned; arrays, until the execution has ended.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::xla {

extern "C" {

struct Extension {
  std::size_t size;
  int type;
  Extension* next;
};

struct Version {
  std::size_t size;
  Extension* extensions;
  int major;
  int minor;
};

struct Text {
  const char* data;
  std::size_t bytes;
};

struct Array {
  std::size_t size;
  Extension* extensions;
  int dtype;
  void* data;
  std::int64_t rank;
  const std::int64_t* dims;
};

struct Scalar {
  int dtype;
  const void* value;
};

struct Error;
struct Future;

struct ErrorArguments {
  std::size_t size;
  Extension* extensions;
  const char* message;
  int code;
};

// To make one; to say that it is there.
struct FutureArguments {
  std::size_t size;
  Extension* extensions;
  Future* future;
};

struct FutureErrorArguments {
  std::size_t size;
  Extension* extensions;
  Future* future;
  Error* error;
};

struct Frame;
using Handler = Error*(Frame*);

struct RegisterArguments {
  std::size_t size;
  Extension* extensions;
  Text name;
  Text platform;
  Handler* instantiate;
  Handler* prepare;
  Handler* initialize;
  Handler* execute;
  std::uint32_t traits;
};

// XLA takes those versions of the interface that it knows; this one has all that is used here but for futures. Of
// another major version the functions may lie at other places.
inline constexpr int major_version = 0;
inline constexpr int minor_version = 1;

struct Api {
  std::size_t size;  // of what there is in this version
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*make_error)(ErrorArguments*);
  void (*message_of_error)(void*);
  void (*delete_error)(void*);
  Error* (*register_handler)(RegisterArguments*);
  const void* of_streams_types_states_memory_and_threads[9];
  Error* (*make_future)(FutureArguments*);
  Error* (*complete_future)(FutureArguments*);
  Error* (*fail_future)(FutureErrorArguments*);
};

struct Arrays {
  std::size_t size;
  Extension* extensions;
  std::int64_t count;
  const int* types;
  Array** items;
};

// Of `types`: 3 is a Scalar, 4 a Text.
struct Attributes {
  std::size_t size;
  Extension* extensions;
  std::int64_t count;
  const int* types;
  Text** names;
  void** items;
};

struct Frame {
  std::size_t size;
  Extension* extensions;
  const Api* api;
  void* execution;
  int stage;
  Arrays operands;
  Arrays results;
  Attributes attributes;
  Future* future;  // out: the handler has returned, and the execution ends with this
};

// XLA asks with a frame that has this extension, and nothing else, which version a handler was built for.
inline constexpr int metadata_extension = 1;

struct Metadata {
  std::size_t size;
  Version version;
  std::uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

}  // extern "C"

}  // namespace shoal::xla
