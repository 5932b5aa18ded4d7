//! The files of an archive that lies on another machine, over one connection.
//!
//! [`answer`] works where the files are, and [`RemoteFiles`] is [`Files`](onefold_core::Files) where
//! they are not. Between them is a stream of bytes in each direction: those of `ssh`, or a pair of
//! sockets. All verbs of an archive work over it, and so does a sealed archive: the far side needs no
//! key.
//!
//! *Crash argument:* a call returns when the far side has answered, so what is durable is what the far
//! side's files say. When the connection ends, each call fails that had no answer, and all later ones;
//! what it asked for was done or was not, as after a power cut.
//!
//! *Other writers:* a lock of the far side's files is held by the process there, and ends with the
//! connection, after the calls that had arrived. Whoever gets the lock then meets no late write.
//!
//! *Trust:* each side takes the other one for hostile. Lengths are bounded before memory is taken, and
//! texts of the far side lose what a terminal would obey.

mod client;
mod rights;
mod server;
mod wire;

pub use client::{PATIENCE, RemoteFiles, connect, connect_for};
pub use rights::{Right, Stay};
pub use server::{Act, Offer, Pulse, answer};
pub use wire::{Greeting, decoders, refuse};
