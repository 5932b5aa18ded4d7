//! What a client may ask of the server, as named numbers with their reasons.

use std::time::Duration;

/// Connections at once: each is up to three threads and 4.5 MiB of buffers, and 64 hypervisors with 4 connections each are many.
pub const CONNECTIONS: usize = 256;
/// Time for a whole handshake: a few round trips over the slowest link that is still usable.
pub const HANDSHAKE: Duration = Duration::from_secs(10);
/// Options in one handshake: clients send about ten; more is a client that goes round in circles.
pub const OPTIONS: u32 = 128;
/// Bytes of one option: room for a name and all the queries that [`META_QUERIES`] allows.
pub const OPTION_BYTES: u32 = 64 << 10;
/// Bytes of a name or query: the protocol's own limit for strings.
pub const NAME_BYTES: u32 = 4096;
/// Metadata contexts asked for at once: there is one; clients ask for a handful.
pub const META_QUERIES: u32 = 64;
/// Bytes of a request's payload, and of the data of a read: what clients assume when a server says nothing.
pub const PAYLOAD_BYTES: u32 = 32 << 20;
/// Receive buffer of a connection: takes in many requests by one system call, and stays in a core's cache.
pub const RECEIVE_BYTES: usize = 512 << 10;
/// Bytes read for one batch of replies: as [`RECEIVE_BYTES`], and larger reads are answered in chunks of this size.
pub const READ_BATCH_BYTES: usize = 512 << 10;
/// Bytes of a read that is held whole because the client wants it in one piece: more than the kernel's NBD client asks for at once. Larger
/// ones are read twice, first to know that all of it can be read.
pub const WHOLE_READ_BYTES: usize = 2 << 20;
/// Requests of one connection that wait for durability aside, while later ones go on: more than any client keeps in flight.
pub const WAITS: usize = 1024;
/// Time for sending one batch of replies. A client that doesn't read for so long is gone.
pub const SEND: Duration = Duration::from_secs(30);
/// Time for which a connection waits for a brisk client without sleeping: a little more than a client takes that was asleep itself. On two
/// cores of a virtual machine it more than doubles the requests of a client that waits for each reply (20,000 to 50,000 a second).
pub const AWAKE: Duration = Duration::from_micros(50);
/// Extents in one status reply: 8 to 16 bytes each, so that a reply stays below 64 KiB.
pub const EXTENTS: usize = 4096;

/// What a client may ask of the server; [`Limits::default`] gives the constants of this module.
///
/// A connection holds at most `receive_bytes + 2 * whole_read_bytes`, whatever it sends, and all of them at most `connections` times that. There
/// is no common pool, because clients could keep each other waiting for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once. When all are taken, the oldest unfinished handshake gives way; without one, the newcomer is refused.
    pub connections: usize,
    /// Time for a whole handshake.
    pub handshake: Duration,
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
    /// Bytes of a connection's receive buffer. Larger writes are handed to the volume piece by piece as they arrive.
    pub receive_bytes: usize,
    /// Bytes read for one batch of replies.
    pub read_batch_bytes: usize,
    /// Bytes of a read that is held whole because the client wants it in one piece: the most that a connection's read buffer grows to.
    pub whole_read_bytes: usize,
    /// Requests of one connection that wait for durability aside.
    pub waits: usize,
    /// Time for sending one batch of replies.
    pub send: Duration,
    /// Time for which a connection waits for a brisk client without sleeping; zero for never.
    pub awake: Duration,
    /// Extents in one status reply.
    pub extents: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: CONNECTIONS,
            handshake: HANDSHAKE,
            options: OPTIONS,
            option_bytes: OPTION_BYTES,
            name_bytes: NAME_BYTES,
            meta_queries: META_QUERIES,
            payload_bytes: PAYLOAD_BYTES,
            receive_bytes: RECEIVE_BYTES,
            read_batch_bytes: READ_BATCH_BYTES,
            whole_read_bytes: WHOLE_READ_BYTES,
            waits: WAITS,
            send: SEND,
            awake: AWAKE,
            extents: EXTENTS,
        }
    }
}
