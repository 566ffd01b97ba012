// TLS 1.3 on a non-blocking stream socket, with a key that both sides hold: docs/protocol/format.md, Encryption.
//
// send() and receive() behave as sendmsg() and readv(), so that a link can use either. A Tls belongs to one connection
// from its first byte to its last, and to one thread at a time.
//
// Promises:
//   * send() reports bytes as sent once the kernel has taken all the records that hold them. Until then it gives
//     EAGAIN, and the next call must begin with the same bytes.
//   * receive() gives only bytes that the other side has sent, in order, none missing. It fills the caller's room
//     unless it holds no more bytes.
//   * Keys are replaced long before one has encrypted too many bytes.
//   * A caller who has sent nothing yet costs a few KB, one who has begun a handshake some 45 KB.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "drivers/tcp/openssl.h"

namespace shoal::tcp {

class Tls {
 public:
  // The key for an identity, 32 bytes; empty if there is none.
  using FindKey = std::function<std::string(const std::string& identity)>;

  // The side that connected. `identity` goes in the clear: at most 127 characters, none of them 0.
  // All throw std::runtime_error if OpenSSL is missing or unusable.
  static std::shared_ptr<Tls> client(std::string identity, std::string key);
  // The side that accepted. `find_key` is called during handshake() only, and forgotten at its end.
  static std::shared_ptr<Tls> server(FindKey find_key);
  static std::string version();

  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;
  ~Tls();

  enum class Step {
    done,
    wants_input,
    wants_room,
    unencrypted,  // the other side does not speak TLS: see greeting()
    wrong_key,    // one side does not have the other's key
    ended,        // the connection is closed, or broken: see error()
    failed,       // why() says why
  };
  Step handshake(int socket);

  // Bytes, or -1 and errno: EAGAIN, or the connection's error; EBADMSG: see why().
  ssize_t send(int socket, std::span<const iovec> vectors);
  // Bytes, 0 at the end of the connection, or -1 and errno as above. `from_kernel` false: only bytes that are here
  // already, and nothing is read from the socket.
  ssize_t receive(int socket, std::span<const iovec> vectors, bool from_kernel = true);
  // Whether receive() might give something without asking the kernel.
  bool holds_bytes() const;
  // Whether the next receive() will report the end of the connection.
  bool has_ended() const { return ended_ || error_ != 0 || !why_.empty(); }
  // From now on many records are read from the kernel at once.
  void read_ahead();

  // The other side's first bytes, at most 5.
  const std::string& greeting() const { return greeting_; }
  int error() const { return error_; }
  const std::string& why() const { return why_; }

  // For tests: how many records are sent under one key.
  void set_records_per_key(std::uint64_t records) { records_per_key_ = records; }

 private:
  Tls(bool is_client, std::string identity, std::string key, FindKey find_key);

  static OpenSsl::Context* context(bool is_client);
  static unsigned give_key(OpenSsl::Session* session, const char* hint, char* identity, unsigned identity_room,
                           unsigned char* key, unsigned key_room);
  static unsigned look_up_key(OpenSsl::Session* session, const char* identity, unsigned char* key, unsigned key_room);
  static int write_out(OpenSsl::Bio* bio, const char* bytes, int count);
  static int read_in(OpenSsl::Bio* bio, char* bytes, int count);
  static long control(OpenSsl::Bio* bio, int command, long number, void* pointer);
  static Tls& of(OpenSsl::Session* session);

  Step how_handshake_failed(int result);
  std::size_t seal(std::span<const iovec> vectors);
  bool seal_record(std::span<const std::byte> bytes);
  // Whether all sealed bytes are with the kernel; else errno.
  bool push_out();
  void fail(const char* what);

  const OpenSsl& openssl_;
  const bool is_client_;
  const std::string identity_;
  const std::string key_;
  FindKey find_key_;
  OpenSsl::Session* session_ = nullptr;

  int socket_ = -1;          // of the present call
  bool from_kernel_ = true;  // in the present call
  bool ended_ = false;
  bool key_unknown_ = false;
  int error_ = 0;
  std::string why_;
  std::string greeting_;

  std::vector<std::byte> staged_;      // a record's worth of small pieces
  std::vector<std::byte> sealed_;      // records that are on their way to the kernel
  std::size_t sealed_sent_ = 0;        // of these bytes
  std::size_t covered_ = 0;            // bytes of the caller's that are in sealed_
  std::uint64_t records_per_key_ = 0;  // set by the constructor
  std::uint64_t records_sealed_ = 0;   // under the present key
};

}  // namespace shoal::tcp
