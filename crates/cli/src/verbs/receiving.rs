//! What is being received, or was until the stream was cut off.

use onefold_core::Result;

use super::served_or_not;
use crate::report::receiving;
use onefold::parts::{
    control::{ReceiveLine, Request},
    store_file::StoreFile,
};
use onefold_console::output;

/// All of a store, as its server says where there is one. Nothing on the disk changes.
pub(super) fn all(file: &StoreFile) -> Result<Vec<ReceiveLine>> {
    served_or_not(
        file,
        |server| server.ask(&Request::ReceiveList),
        || Ok(ReceiveLine::of(&StoreFile::look(file.path())?.open_unchanged()?)),
    )
}

/// Says on lines of their own what is being received: it takes space, and its names are taken.
pub(super) fn show(file: &StoreFile) -> Result<()> {
    tell(&all(file)?);
    Ok(())
}

/// The same of those that are known.
pub(super) fn tell(receives: &[ReceiveLine]) {
    for receive in receives {
        output::line(format_args!("receiving {}", receiving::shown(receive)));
    }
}
