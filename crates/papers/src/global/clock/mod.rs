//! The paper's cluster in virtual time, and the real engine on it.
//!
//! | module | what |
//! |---|---|
//! | [`world`] | events, queues, and actors of which one runs at a time |
//! | [`cluster`] | links, processors and disks: what an operation passes, and how long that takes |
//! | [`store`] | the object store on them, as a client sees it |
//! | [`load`] | clients with and without deduplication, and workers |
//!
//! Volumes, sessions and workers are the product's. Everything that they send goes through the
//! queues of the model, operation by operation; a formula stands nowhere. An actor is a thread that
//! has a session and volumes of its own, so that none waits for another one but in the store.

pub(super) mod cluster;
pub(super) mod load;
pub(super) mod store;
pub(super) mod world;
