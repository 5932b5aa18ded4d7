//! vhost-user-blk: a volume as the disk of a virtual machine that shares its memory with the server.
//!
//! A hypervisor connects to the UNIX socket of a device, and sends the descriptors of the guest's
//! memory. From then on the guest's driver puts requests into rings in that memory, and the server
//! takes them from there. No data passes a socket.
//!
//! `session` is the connection: messages in `wire`, what is offered in `features`. For each ring it
//! starts a `queue`, which takes requests from the `ring`; `request` understands them, `durable`
//! waits for what must be on disk. `device_socket` lets one client in at a time. `memory` maps what the client shares where `room` has place for it, `marks` keeps requests in
//! flight where the client has them when the server dies.
//!
//! *Invariants.* Guest memory is copied once before anything looks at it. Nothing in it is trusted: a
//! ring that can't be understood stops its device, and nothing else. A FLUSH is answered only after
//! the volume said that the data is durable.

mod bell;
mod change;
mod device_socket;
mod durable;
mod features;
mod marks;
mod memory;
mod over;
#[cfg(test)]
mod planted;
mod queue;
mod request;
mod ring;
mod room;
mod session;
#[cfg(test)]
mod tests;
mod trouble;
mod wire;

pub(crate) use device_socket::{DeviceSocket, Taken};
pub(crate) use marks::Owed;
pub use over::{AVAILABLE, PLACES, USED, messages_over, ring_over};
pub(crate) use queue::Device;
pub(crate) use request::ID_BYTES;
pub(crate) use room::Room;
pub(crate) use session::serve;
pub(crate) use trouble::Trouble;
