//! Onefold's laboratory: the real engine over devices in virtual time, under workloads and recorded traces.

mod clock;
mod content;
pub mod device;
mod medium;
pub mod record;
pub mod replay;
pub mod report;
pub mod request;
mod rng;
pub mod subject;
pub mod sweep;
pub mod trace;
pub mod workload;

pub use clock::VirtualClock;
pub use content::Content;
pub use rng::Rng;
