// The few functions of OpenSSL that encryption uses, found at run time.
//
// Nothing is linked to OpenSSL and none of its headers is needed: one build serves every distribution, and users who do
// not encrypt need no OpenSSL. What is declared here is the same from 1.1.1 to 3.x; the names are OpenSSL's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::tcp {

struct OpenSsl {
  // OpenSSL's own types are never looked into.
  struct Method;
  struct Context;
  struct Session;
  struct Bio;
  struct BioMethod;

  using WriteBytes = int (*)(Bio*, const char*, int);
  using ReadBytes = int (*)(Bio*, char*, int);
  using Control = long (*)(Bio*, int, long, void*);
  using ClientKey = unsigned (*)(Session*, const char* hint, char* identity, unsigned identity_room, unsigned char* key,
                                 unsigned key_room);
  using ServerKey = unsigned (*)(Session*, const char* identity, unsigned char* key, unsigned key_room);

  const Method* (*TLS_method)();
  Context* (*SSL_CTX_new)(const Method*);
  long (*SSL_CTX_ctrl)(Context*, int command, long number, void* pointer);
  int (*SSL_CTX_set_ciphersuites)(Context*, const char*);
  int (*SSL_CTX_set_num_tickets)(Context*, std::size_t);
  void (*SSL_CTX_set_verify)(Context*, int mode, void* callback);
  void (*SSL_CTX_set_psk_client_callback)(Context*, ClientKey);
  void (*SSL_CTX_set_psk_server_callback)(Context*, ServerKey);

  Session* (*SSL_new)(Context*);
  void (*SSL_free)(Session*);
  int (*SSL_set_ex_data)(Session*, int index, void*);
  void* (*SSL_get_ex_data)(const Session*, int index);
  void (*SSL_set_bio)(Session*, Bio* read, Bio* write);
  void (*SSL_set_connect_state)(Session*);
  void (*SSL_set_accept_state)(Session*);
  void (*SSL_set_read_ahead)(Session*, int yes);
  void (*SSL_set_default_read_buffer_len)(Session*, std::size_t);
  long (*SSL_ctrl)(Session*, int command, long number, void* pointer);
  int (*SSL_do_handshake)(Session*);
  int (*SSL_session_reused)(const Session*);
  int (*SSL_read_ex)(Session*, void*, std::size_t, std::size_t*);
  int (*SSL_write_ex)(Session*, const void*, std::size_t, std::size_t*);
  int (*SSL_has_pending)(const Session*);
  int (*SSL_key_update)(Session*, int type);
  int (*SSL_get_error)(const Session*, int result);

  BioMethod* (*BIO_meth_new)(int type, const char* name);
  int (*BIO_meth_set_write)(BioMethod*, WriteBytes);
  int (*BIO_meth_set_read)(BioMethod*, ReadBytes);
  int (*BIO_meth_set_ctrl)(BioMethod*, Control);
  Bio* (*BIO_new)(const BioMethod*);
  void (*BIO_set_data)(Bio*, void*);
  void* (*BIO_get_data)(Bio*);
  void (*BIO_set_init)(Bio*, int);
  void (*BIO_set_flags)(Bio*, int);
  void (*BIO_clear_flags)(Bio*, int);

  unsigned long (*ERR_get_error)();
  void (*ERR_clear_error)();
  const char* (*ERR_reason_error_string)(unsigned long);
  const char* (*OpenSSL_version)(int what);

  // Throws std::runtime_error, which says what is missing. The library stays loaded.
  static const OpenSsl& get();
};

}  // namespace shoal::tcp
