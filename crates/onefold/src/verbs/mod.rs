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

use clap::CommandFactory;
use onefold_console::manual;
use onefold_core::{Kind, Result};

use crate::{
    arguments::{Arguments, Verb},
    control::{self, Client},
    store_file::StoreFile,
};
use onefold_console::failure::Failure;

/// What a verb says that makes a store, until stores can be encrypted.
pub(crate) const NOT_ENCRYPTED: &str =
    "it is not encrypted: whoever can read its file, device or objects reads what is stored";

/// Does what was asked for.
pub(crate) fn run(arguments: Arguments) -> Result<(), Failure> {
    // The service manager's variables are taken while there is one thread, which the log does not
    // change.
    onefold_console::logging::start(arguments.log.as_deref())?;
    arguments.control.into_iter().for_each(control::places::choose);
    crate::operator::give(arguments.operator);
    match arguments.verb {
        Verb::Create(options) => create::run(&options),
        Verb::Volume(options) => volume::run(options),
        Verb::Serve(options) => serve::run(&options),
        Verb::Status(options) => status::run(&options),
        Verb::Check(options) => check::run(&options),
        Verb::Scrub(options) => scrub::run(&options),
        Verb::Inspect(options) => inspect::run(&options),
        Verb::Estimate(options) => estimate::run(&options),
        Verb::Cluster(options) => cluster::run(options),
        Verb::Archive(options) => archive::run(options),
        Verb::Put(options) => put::run(&options),
        Verb::Get(options) => get::run(&options),
        Verb::Ls(options) => ls::run(&options),
        Verb::Rm(options) => rm::run(&options),
        Verb::Gc(options) => gc::run(&options),
        Verb::Stats(options) => stats::run(&options),
        Verb::Man(options) => manual::run(&options, Arguments::command()),
    }
}

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
