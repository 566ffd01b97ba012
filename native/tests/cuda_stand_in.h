// What tests ask of the stand-in for CUDA's driver library (cuda_stand_in.cpp), beside the calls that the library has.
//
// Streams are the library's own. A null stream is the program's default one.
#pragma once

#include <cstdint>

extern "C" {

// While nothing is asked of it. The pause before a copy or a host function, in microseconds, is drawn from the seed.
// `one_queue`: all streams share one hardware queue, so what is put into any of them waits for everything that was put
// into any of them before, as with CUDA_DEVICE_MAX_CONNECTIONS=1 at its worst.
void shoal_stand_in_configure(std::uint64_t seed, unsigned shortest_pause, unsigned longest_pause, int one_queue);
// From now on the function with this name gives that result; 0: what it has to give.
void shoal_stand_in_fail(const char* function, int result);
// What the stream is asked for from now on counts as captured for a graph.
void shoal_stand_in_capture(void* stream, int captures);
// What the stream is asked for from now on is never done, and queries of it fail.
void shoal_stand_in_lose(void* stream);
// How often the function was called; of all functions: "*".
std::uint64_t shoal_stand_in_calls(const char* function);
// Calls by threads of Shoal's own, which complete operations and may ask the library for nothing.
std::uint64_t shoal_stand_in_forbidden_calls();
// Copies between the device and memory of the host that is not registered, for which a device makes the host wait.
std::uint64_t shoal_stand_in_pageable_copies();
// Bytes that are registered now.
std::uint64_t shoal_stand_in_registered_bytes();
// Waits until everything has been done that any stream was asked for.
void shoal_stand_in_synchronize();
}
