#include "drivers/tcp/openssl.h"

#include <dlfcn.h>

#include <array>
#include <stdexcept>
#include <string>

namespace shoal::tcp {

namespace {

// The newest first. One that the program has loaded already under such a name is the one that is used.
constexpr std::array<const char*, 2> names{"libssl.so.3", "libssl.so.1.1"};

void* open_library() {
  std::string problems;
  for (const char* name : names) {
    if (void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL); library != nullptr) {
      return library;
    }
    problems += std::string(problems.empty() ? "" : "; ") + ::dlerror();
  }
  throw std::runtime_error("OpenSSL 1.1.1 or 3 is not on this machine (" + problems + ")");
}

OpenSsl load() {
  void* const library = open_library();
  OpenSsl api{};
  // dlsym also looks into what the library needs, which is where BIO_ and ERR_ are.
  const auto find = [library](auto*& function, const char* name) {
    void* const found = ::dlsym(library, name);
    if (found == nullptr) {
      throw std::runtime_error(std::string("this machine's OpenSSL has no ") + name + ": 1.1.1 or 3 is needed");
    }
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
  };
#define SHOAL_FIND(name) find(api.name, #name)
  SHOAL_FIND(TLS_method);
  SHOAL_FIND(SSL_CTX_new);
  SHOAL_FIND(SSL_CTX_ctrl);
  SHOAL_FIND(SSL_CTX_set_ciphersuites);
  SHOAL_FIND(SSL_CTX_set_num_tickets);
  SHOAL_FIND(SSL_CTX_set_verify);
  SHOAL_FIND(SSL_CTX_set_psk_client_callback);
  SHOAL_FIND(SSL_CTX_set_psk_server_callback);
  SHOAL_FIND(SSL_new);
  SHOAL_FIND(SSL_free);
  SHOAL_FIND(SSL_set_ex_data);
  SHOAL_FIND(SSL_get_ex_data);
  SHOAL_FIND(SSL_set_bio);
  SHOAL_FIND(SSL_set_connect_state);
  SHOAL_FIND(SSL_set_accept_state);
  SHOAL_FIND(SSL_set_read_ahead);
  SHOAL_FIND(SSL_set_default_read_buffer_len);
  SHOAL_FIND(SSL_ctrl);
  SHOAL_FIND(SSL_do_handshake);
  SHOAL_FIND(SSL_session_reused);
  SHOAL_FIND(SSL_read_ex);
  SHOAL_FIND(SSL_write_ex);
  SHOAL_FIND(SSL_has_pending);
  SHOAL_FIND(SSL_key_update);
  SHOAL_FIND(SSL_get_error);
  SHOAL_FIND(BIO_meth_new);
  SHOAL_FIND(BIO_meth_set_write);
  SHOAL_FIND(BIO_meth_set_read);
  SHOAL_FIND(BIO_meth_set_ctrl);
  SHOAL_FIND(BIO_new);
  SHOAL_FIND(BIO_set_data);
  SHOAL_FIND(BIO_get_data);
  SHOAL_FIND(BIO_set_init);
  SHOAL_FIND(BIO_set_flags);
  SHOAL_FIND(BIO_clear_flags);
  SHOAL_FIND(ERR_get_error);
  SHOAL_FIND(ERR_clear_error);
  SHOAL_FIND(ERR_reason_error_string);
  SHOAL_FIND(OpenSSL_version);
#undef SHOAL_FIND
  return api;
}

}  // namespace

const OpenSsl& OpenSsl::get() {
  static const OpenSsl api = load();
  return api;
}

}  // namespace shoal::tcp
