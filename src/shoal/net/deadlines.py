"""How long each wait may take while a job comes together. Every wait has a limit, and the limit has a name."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Deadlines:
    """Times in seconds."""

    # A stranger's time to prove that it holds the secret, at whoever accepts connections.
    stranger: float = 5.0
    # For one that has proven it to say what it wants: it may be stopped in between.
    proven: float = 120.0
    # The answer time of a handshake or a message, as seen by whoever connects.
    answer: float = 30.0
    # For rank 0 to take a connection, and then to answer, before it is called again.
    call: float = 7.5
    # Until a rank that others wait for is named in a warning; then at doubling intervals.
    late: float = 10.0
    # For ranks to come together; never longer than SHOAL_TIMEOUT.
    rendezvous: float = 600.0
    # Connections that end without a word before we take it that another program has the port.
    silence: float = 15.0
    # For a server to come up that should be there already.
    server: float = 10.0
    # For late ranks to hear why the job was refused.
    farewell: float = 5.0
    # For a missing rank to come after all, when another process has used its number with a secret that is not the job's.
    unproven: float = 4.0
    # For the host of a peer to answer, and for a peer that ends connections without a word. Its process may be late.
    peer: float = 15.0
    # For a rank to connect to all lanes of a server that may be back; rank 0 gives all of them three times as long.
    returning: float = 15.0


DEFAULT = Deadlines()
