// The smallest test harness that says what failed: TEST(name) { CHECK(condition); }, one main per file by RUN_TESTS().
#pragma once

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace shoal::tests {

inline std::vector<std::pair<const char*, std::function<void()>>>& registry() {
  static std::vector<std::pair<const char*, std::function<void()>>> tests;
  return tests;
}

struct Register {
  Register(const char* name, std::function<void()> body) { registry().emplace_back(name, std::move(body)); }
};

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  std::exit(1);
}

// Runs all tests, or those whose name contains the first argument.
inline int run(int argc, char** argv) {
  int ran = 0;
  for (auto& [name, body] : registry()) {
    if (argc > 1 && std::string(name).find(argv[1]) == std::string::npos) {
      continue;
    }
    std::printf("%s\n", name);
    std::fflush(stdout);
    body();
    ++ran;
  }
  std::printf("%d passed, 0 failed\n", ran);
  return ran > 0 ? 0 : 1;
}

template <class A, class B>
void check_equal(const A& a, const B& b, const char* text, const char* file, int line) {
  if (!(a == b)) {
    std::ostringstream out;
    out << text << ": " << a << " != " << b;
    fail(file, line, out.str());
  }
}

}  // namespace shoal::tests

#define TEST(name)                                                  \
  static void name();                                               \
  static const shoal::tests::Register register_##name(#name, name); \
  static void name()
#define CHECK(condition) ((condition) ? void() : shoal::tests::fail(__FILE__, __LINE__, "CHECK(" #condition ") failed"))
#define CHECK_EQ(a, b) shoal::tests::check_equal((a), (b), "CHECK_EQ(" #a ", " #b ")", __FILE__, __LINE__)
#define RUN_TESTS() \
  int main(int argc, char** argv) { return shoal::tests::run(argc, argv); }
