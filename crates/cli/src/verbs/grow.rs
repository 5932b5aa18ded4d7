//! `onefold grow`: a block store gets larger, served or not.

use std::path::PathBuf;

use clap::Args;
use onefold_block::{MEMORY_MIN, Settings};
use serde::{Deserialize, Serialize};

use super::{Found, refused, served_or_not};
use onefold::parts::control::Request;
use onefold_console::{
    failure::Failure,
    output::{self, Answer},
    size::Size,
};

/// Makes a block store larger, also while it is served
///
/// Clients go on meanwhile: their writes wait for a few flushes at most. Without --size the store
/// gets all of its device, which may have been made larger, or of its file, if that was made longer.
/// The room is taken from the host as `onefold create` took it. A store is never made smaller.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold grow disk.onefold --size 200G\n  \
                  onefold grow /dev/vg0/onefold")]
pub(crate) struct Options {
    /// The store
    store: PathBuf,
    /// Size that the store gets, rounded down to whole zones of 4 MiB
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
    #[command(flatten)]
    answer: Answer,
}

/// The size of a store that has grown.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Grown {
    pub(crate) bytes: u64,
}

/// Does it, and says so.
pub(crate) fn run(options: Options) -> Result<(), Failure> {
    let file = match Found::at(&options.store)? {
        Found::Block(file) => file,
        other => {
            let why = "it takes room from its host as it needs it, and has no size to grow";
            return Err(refused(&options.store, &other, why));
        }
    };
    let bytes = options.size.map(|size| size.0);
    let request = Request::Grow { bytes };
    let before = file.superblock().fixed.geometry.blocks() * 4096;
    let grown: Grown = served_or_not(
        &file,
        |server| server.ask_long(&request, &mut |_, _, _| {}),
        || {
            let working = file.work(Settings::for_memory(MEMORY_MIN))?;
            let grown = working.store().grow(bytes);
            // A refused growth leaves a good store, which is closed in order all the same.
            let closed = working.close();
            let bytes = grown?;
            closed.map(|()| Grown { bytes })
        },
    )?;
    if options.answer.json {
        output::json(&grown)?;
    } else if grown.bytes == before {
        output::line(format_args!("the store has {} already: nothing was changed", Size(before)));
    } else {
        output::line(said(&grown));
    }
    Ok(())
}

/// A sentence that says what became of the store.
pub(crate) fn said(grown: &Grown) -> String {
    format!("the store has {} now", Size(grown.bytes))
}
