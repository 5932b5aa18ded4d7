//! The verbs, one file each.

pub(crate) mod archive;
mod archive_placement;
mod archive_volume;
pub(crate) mod check;
pub(crate) mod cluster;
pub(crate) mod create;
pub(crate) mod estimate;
pub(crate) mod gc;
pub(crate) mod get;
pub(crate) mod inspect;
pub(crate) mod ls;
pub(crate) mod put;
pub(crate) mod rm;
pub(crate) mod scrub;
pub(crate) mod serve;
pub(crate) mod stats;
pub(crate) mod status;
pub(crate) mod volume;

use std::time::{Duration, Instant};

use onefold_core::{Kind, Result};

use onefold::parts::{control::Client, store_file::StoreFile};

/// What a verb says that makes a store, until stores can be encrypted.
pub(crate) const NOT_ENCRYPTED: &str =
    "it is not encrypted: whoever can read its file, device or objects reads what is stored";

/// How long a verb waits for a server that is just coming up or going down.
const CHANGE_WAIT: Duration = Duration::from_secs(3);

/// Asks the server of the store when there is one, else does it here. A server that is just coming
/// or going is waited for.
fn served_or_not<T>(
    file: &StoreFile,
    mut ask: impl FnMut(&mut Client) -> Result<T>,
    mut here: impl FnMut() -> Result<T>,
) -> Result<T> {
    let begun = Instant::now();
    loop {
        match Client::connect(file) {
            Ok(mut server) => return ask(&mut server),
            Err(error) if error.kind() != Kind::NotFound => return Err(error),
            Err(_) => {}
        }
        match here() {
            Err(error) if error.kind() == Kind::Busy && begun.elapsed() < CHANGE_WAIT => {
                std::thread::sleep(Duration::from_millis(50))
            }
            done => return done,
        }
    }
}
