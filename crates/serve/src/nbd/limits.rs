//! The limits on a client's requests, as named numbers with their reasons.

use std::time::Duration;

/// Connections at once: each is up to four threads (seven, of a cluster's volume) and their buffers, and 64 hypervisors with 4
/// connections each are many.
pub const CONNECTIONS: usize = 256;
/// Connections that work at once, where there is memory for them: all.
pub const PLACES: usize = CONNECTIONS;
/// Bytes of the buffers of all connections together: 16 MiB for large requests, beside the
/// guaranteed buffers of [`CONNECTIONS`].
pub const BUFFER_BYTES: usize = 64 << 20;
/// Bytes of buffers that a connection holds while it only waits for its client: its receive buffer
/// has half of them, and the rest is for replies of the handshake.
pub const IDLE_BYTES: usize = 16 << 10;
/// The same beside, over TLS: a state of both directions, a record that is not whole yet, and the content
/// of one.
pub const TLS_IDLE_BYTES: usize = 48 << 10;
/// Beside these, of a connection over TLS that works: what it received and what it sends, encrypted,
/// and the latter once more while it is collected.
const TLS_WORKING_BYTES: usize = 96 << 10;
/// Time without a request after which a connection gives its working place back, even if no other
/// one waits for it.
pub const REST: Duration = Duration::from_secs(10);
/// How often a working connection that waits for its client checks whether another connection waits
/// for its place.
pub const LOOK: Duration = Duration::from_millis(100);
/// Connections in their handshake beyond the limit of connections. Only at the end of its handshake
/// does the server know which volume a client wants, and so whether another connection has to give
/// way.
pub(crate) const HANDSHAKES_BESIDE: usize = 8;
/// How long a client that holds one of too many working places may stand still in the middle of a
/// request while another connection waits for a place. A client that is still alive resumes sooner.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Writes at once where several volumes are served; others wait in turn. No volume has more than
/// half of them, so that none fills the engine's windows alone.
pub(crate) const WRITERS: usize = 16;
/// Guaranteed receive buffer of a working connection. Larger writes go to the volume in halves of
/// it, so a half should be many blocks.
const RECEIVE_SURE: usize = 64 << 10;
/// Guaranteed bytes of blocks that a working connection reads together, on its own thread and in
/// helpers: the usual readahead needs four of them.
const READ_SURE: usize = 32 << 10;
/// Bytes of replies, data apart, with which a batch ends. One more may come, with all its
/// [`EXTENTS`].
pub(crate) const REPLY_BYTES: usize = 16 << 10;
/// Memory of collected replies: [`REPLY_BYTES`] and a whole status reply, rounded up to a power of
/// two as a growing vector does.
const REPLY_SURE: usize = 64 << 10;
/// Time for a whole handshake: a few round trips over the slowest link that is still usable.
pub const HANDSHAKE: Duration = Duration::from_secs(10);
/// Options in one handshake: clients send about ten; more is a client that never finishes.
pub const OPTIONS: u32 = 128;
/// Bytes of one option: room for a name and a query of [`NAME_BYTES`] each, but for the few bytes
/// around them, in half of [`IDLE_BYTES`].
pub const OPTION_BYTES: u32 = (IDLE_BYTES / 2 - 64) as u32;
/// Bytes of a name or query: the protocol's own limit for strings.
pub const NAME_BYTES: u32 = 4096;
/// Metadata contexts asked for at once: there is one; clients ask for a handful.
pub const META_QUERIES: u32 = 64;
/// Bytes of a request's payload, and of the data of a read: the size that clients assume when a
/// server sends no limit.
pub const PAYLOAD_BYTES: u32 = 32 << 20;
/// Receive buffer of a connection: takes in many requests by one system call, and stays in a core's
/// cache.
pub const RECEIVE_BYTES: usize = 512 << 10;
/// Bytes read for one batch of replies: as [`RECEIVE_BYTES`], and larger reads are answered in
/// chunks of this size.
pub const READ_BATCH_BYTES: usize = 512 << 10;
/// Bytes of a read that is held whole because the client wants it in one piece: more than the
/// kernel's NBD client asks for at once. Larger ones are read twice, first to know that all of it
/// can be read.
pub const WHOLE_READ_BYTES: usize = 2 << 20;
/// Bytes that are read ahead for a connection, where there is memory for them: at 500 MB/s four
/// milliseconds, which is longer than a client and the server's threads need to take turns.
pub const READ_AHEAD_BYTES: usize = 2 << 20;
/// Requests of one connection that wait for durability in its helper while later ones are handled:
/// more than any client keeps in flight.
pub const WAITS: usize = 1024;
/// Time for sending one batch of replies. A client that doesn't read for so long is gone.
pub const SEND: Duration = Duration::from_secs(30);
/// Time for which a connection waits for a brisk client without sleeping: a little more than a
/// client takes that was asleep itself. On two cores of a virtual machine it more than doubles the
/// requests of a client that waits for each reply (20,000 to 50,000 a second).
pub const AWAKE: Duration = Duration::from_micros(50);
/// Extents in one status reply: 8 to 16 bytes each, so that a reply stays at 32 KiB.
pub const EXTENTS: usize = 2048;

/// The limits on a client's requests; [`Limits::default`] gives the constants of this module.
///
/// A connection holds at most `receive_bytes + 2 * whole_read_bytes + read_ahead_bytes` and its
/// replies, whatever it sends, [`IDLE_BYTES`] while it waits for its client, and all of them together at most
/// `buffer_bytes`, as long as that is enough for [what they are sure of](Limits::needed_bytes).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once, unfinished handshakes apart. When all are taken and one peer has more
    /// than half of them, or more than the newcomer's, its longest silent one gives way to the
    /// newcomer, and within a peer one volume's to another's; else the newcomer is refused.
    pub connections: usize,
    /// Connections that work at once; others wait in turn, with [`IDLE_BYTES`] each.
    pub places: usize,
    /// Bytes of the buffers of all connections together.
    pub buffer_bytes: usize,
    /// True when connections may be over TLS, which takes memory of its own.
    pub tls: bool,
    /// Time for a whole handshake.
    pub handshake: Duration,
    /// Time after which the server ends a connection on which nothing arrives; `None` for never.
    pub idle: Option<Duration>,
    /// Time without a request after which a connection gives its working place back.
    pub rest: Duration,
    /// Time for which a client that holds one of too many working places may stand still in the
    /// middle of a request while another peer or volume waits for a place. One that holds none
    /// too many may for twice as long, or `rest` if that is longer. One that sends byte by byte
    /// may for twice that time.
    pub patience: Duration,
    /// Options in one handshake.
    pub options: u32,
    /// Bytes of one option.
    pub option_bytes: u32,
    /// Bytes of a name or query.
    pub name_bytes: u32,
    /// Metadata contexts asked for at once.
    pub meta_queries: u32,
    /// Bytes of a request's payload, and of the data of a read.
    pub payload_bytes: u32,
    /// Bytes of a connection's receive buffer. Larger writes are handed to the volume piece by
    /// piece as they arrive.
    pub receive_bytes: usize,
    /// Bytes read for one batch of replies.
    pub read_batch_bytes: usize,
    /// Bytes of a read that is held whole because the client wants it in one piece: the most that
    /// a connection's read buffer grows to.
    pub whole_read_bytes: usize,
    /// Bytes that are read ahead for a connection whose client reads sequentially, or asks for that.
    /// Zero for nothing.
    pub read_ahead_bytes: usize,
    /// Requests of one connection that wait for durability in its helper.
    pub waits: usize,
    /// Time for sending one batch of replies.
    pub send: Duration,
    /// Time for which a connection waits for a brisk client without sleeping; zero for never.
    pub awake: Duration,
    /// Extents in one status reply.
    pub extents: usize,
}

impl Limits {
    /// Bytes of buffers guaranteed to a working connection, however many there are.
    #[must_use]
    pub fn sure_bytes(&self) -> usize {
        let tls = if self.tls { TLS_IDLE_BYTES + TLS_WORKING_BYTES } else { 0 };
        self.receive_sure() + 2 * READ_SURE + REPLY_SURE + tls
    }

    /// Bytes that a connection holds while it waits for its client.
    fn idle_bytes(tls: bool) -> usize {
        if tls { IDLE_BYTES + TLS_IDLE_BYTES } else { IDLE_BYTES }
    }

    /// Bytes of buffers guaranteed to all connections and working places.
    #[must_use]
    pub fn needed_bytes(&self) -> usize {
        let idle = Limits::idle_bytes(self.tls);
        (self.connections + HANDSHAKES_BESIDE) * idle + self.places * (self.sure_bytes() - idle)
    }

    /// As many connections, up to [`CONNECTIONS`], as a fifth of `buffer_bytes` serves while they
    /// are idle; over TLS when `tls`.
    #[must_use]
    pub fn connections_for(buffer_bytes: usize, tls: bool) -> usize {
        (buffer_bytes / 5 / Limits::idle_bytes(tls)).clamp(2, CONNECTIONS)
    }

    /// As many working places for so many connections as `buffer_bytes` serve with a fifth of it
    /// left for large requests; at least two. Over TLS when `tls`.
    #[must_use]
    pub fn places_for(buffer_bytes: usize, connections: usize, tls: bool) -> usize {
        let (idle, all) = (Limits::idle_bytes(tls), Limits { tls, ..Limits::default() });
        let left = (buffer_bytes / 5 * 4).saturating_sub((connections + HANDSHAKES_BESIDE) * idle);
        (left / (all.sure_bytes() - idle)).clamp(2, connections.max(2))
    }

    /// The guaranteed receive buffer of a working connection.
    pub(crate) fn receive_sure(&self) -> usize {
        RECEIVE_SURE.max(self.receive_idle())
    }

    /// The receive buffer of a connection that waits for its client: a handshake needs room for one
    /// option and its header.
    pub(crate) fn receive_idle(&self) -> usize {
        self.option_bytes as usize + 64
    }

    /// The guaranteed bytes of blocks that a working connection reads together.
    pub(crate) fn read_sure(&self) -> usize {
        READ_SURE.min(self.read_batch_bytes)
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: CONNECTIONS,
            places: PLACES,
            buffer_bytes: BUFFER_BYTES,
            tls: false,
            handshake: HANDSHAKE,
            idle: None,
            rest: REST,
            patience: PATIENCE,
            options: OPTIONS,
            option_bytes: OPTION_BYTES,
            name_bytes: NAME_BYTES,
            meta_queries: META_QUERIES,
            payload_bytes: PAYLOAD_BYTES,
            receive_bytes: RECEIVE_BYTES,
            read_batch_bytes: READ_BATCH_BYTES,
            whole_read_bytes: WHOLE_READ_BYTES,
            read_ahead_bytes: READ_AHEAD_BYTES,
            waits: WAITS,
            send: SEND,
            awake: AWAKE,
            extents: EXTENTS,
        }
    }
}
